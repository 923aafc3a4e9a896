"""Additions to Nova's description of servers that have a lease. Pure: JSON in, JSON out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tenurenova.boot import MARK

RESERVED = "RESERVED"
#: The statuses in which Nova keeps servers that sleep until their leases start.
ASLEEP = ("SHELVED", "SHELVED_OFFLOADED")
_NO_HOST = "No valid host"


def show_reservations(body: bytes) -> bytes:
    """Return the body of an answer with one or many servers; those that sleep until their lease starts are RESERVED.

    The same body is returned if there are none.
    """
    if MARK.encode() not in body:
        return body
    try:
        document = json.loads(body)
    except ValueError:
        return body
    sleeping = [server for server in _servers(document) if _is_asleep(server)]
    for server in sleeping:
        server["status"] = RESERVED
    return json.dumps(document).encode() if sleeping else body


def fault_of(body: bytes) -> str:
    """Return why the server in an answer could not be created; empty if the answer does not say."""
    try:
        (server,) = _servers(json.loads(body))
    except ValueError:
        return ""
    fault = server.get("fault")
    return str(fault.get("message", "")) if server.get("status") == "ERROR" and isinstance(fault, dict) else ""


def has_no_host(body: bytes) -> bool:
    """Whether Nova found no host for the server in an answer."""
    return fault_of(body).startswith(_NO_HOST)


def _servers(document: Any) -> Iterable[dict[str, Any]]:
    servers = document.get("servers") or [document.get("server")] if isinstance(document, dict) else []
    return [server for server in servers if isinstance(server, dict)]


def _is_asleep(server: dict[str, Any]) -> bool:
    metadata = server.get("metadata")
    return isinstance(metadata, dict) and MARK in metadata and server.get("status") in ASLEEP
