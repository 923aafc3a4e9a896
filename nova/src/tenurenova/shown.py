"""Additions to Nova's description of servers that have a lease. Pure: JSON in, JSON out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tenurenova.boot import LEASE, MARK

RESERVED = "RESERVED"
_ASLEEP = ("SHELVED", "SHELVED_OFFLOADED")
_NO_HOST = "No valid host"
#: The message for the owner of a server for which Nova found no host when it was created.
_ADVICE = (
    " In the time of its lease {lease} there was room for it, but no host is open to it now, so it could not be made,"
    " and the lease is given back. Book without a server: tenure lease create NAME --server-flavor FLAVOR --start DATE"
    " --end DATE; boot the server when there is a host for it, and name it to the lease: tenure lease set NAME"
    " --reservation id=RESERVATION,server_id=SERVER"
)


def show_reservations(body: bytes, *, reserved: bool) -> bytes:
    """Return the body of an answer with one or many servers, with the additions; the same body if there are none.

    With ``reserved``, servers that sleep until their lease starts have the status RESERVED.
    """
    if MARK.encode() not in body:
        return body
    try:
        document = json.loads(body)
    except ValueError:
        return body
    changed = [_show(server, reserved=reserved) for server in _servers(document)]
    return json.dumps(document).encode() if any(changed) else body


def fault_of(body: bytes) -> str:
    """Return why the server in an answer could not be created; empty if the answer does not say."""
    try:
        (server,) = _servers(json.loads(body))
    except ValueError:
        return ""
    _show(server, reserved=False)
    fault = server.get("fault")
    return str(fault.get("message", "")) if server.get("status") == "ERROR" and isinstance(fault, dict) else ""


def has_no_host(body: bytes) -> bool:
    """Whether Nova found no host for the server in an answer."""
    return fault_of(body).startswith(_NO_HOST)


def _servers(document: Any) -> Iterable[dict[str, Any]]:
    servers = document.get("servers") or [document.get("server")] if isinstance(document, dict) else []
    return [server for server in servers if isinstance(server, dict)]


def _show(server: dict[str, Any], *, reserved: bool) -> bool:
    """Add what Tenure knows about the server; return whether anything was added."""
    metadata = server.get("metadata")
    if not isinstance(metadata, dict) or MARK not in metadata:
        return False
    if reserved and server.get("status") in _ASLEEP:
        server["status"] = RESERVED
        return True
    fault = server.get("fault")
    if server.get("status") == "ERROR" and isinstance(fault, dict) and str(fault.get("message")).startswith(_NO_HOST):
        fault["message"] += _ADVICE.format(lease=metadata.get(LEASE, ""))
        return True
    return False
