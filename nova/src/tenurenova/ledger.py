"""The calls of the reservation service that a boot makes, in the name of whoever boots."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import requests

from tenurenova.boot import field_of_hint

LOG = logging.getLogger(__name__)

#: How often a confirmation is tried whose answer does not come; to confirm twice is as good as once.
CONFIRMATIONS = 3
_VERSION = {"OpenStack-API-Version": "reservation 1.2", "Accept": "application/json"}


class RefusedError(Exception):
    """The reservation service says no, with a status of 400, 401, 403 or 409, and a reason for users."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class UnreachableError(Exception):
    """The reservation service does not answer, or not as it should."""


@dataclass(frozen=True)
class Held:
    """A lease that is held, and its one reservation."""

    lease_id: str
    reservation_id: str


class Ledger:
    """The reservation service at a URL, as the owner of a token sees it."""

    def __init__(self, endpoint: str, token: str, *, timeout: float, verify: bool | str = True) -> None:
        base = endpoint.rstrip("/")
        self._leases = f"{base}/leases" if base.endswith("/v1") else f"{base}/v1/leases"
        self._headers = {**_VERSION, "X-Auth-Token": token}
        self._timeout = timeout
        self._verify = verify

    def hold(self, lease: Mapping[str, Any]) -> Held:
        """Book a lease for a while. Raises ``RefusedError`` or ``UnreachableError``."""
        made: Any = self._call("POST", "", lease).get("lease")
        try:
            return Held(str(made["id"]), str(made["reservations"][0]["id"]))
        except (KeyError, IndexError, TypeError):
            raise UnreachableError("its answer has no lease") from None

    def confirm(self, held: Held, server_id: str) -> None:
        """Make the lease the server's. Raises ``RefusedError`` or ``UnreachableError``."""
        body = {"reservations": [{"id": held.reservation_id, "server_id": server_id}]}
        for attempt in range(CONFIRMATIONS):
            try:
                self._call("POST", f"/{held.lease_id}/confirm", body)
                return
            except UnreachableError:
                if attempt + 1 == CONFIRMATIONS:
                    raise

    def release(self, held: Held) -> None:
        """Give a lease back at once; where that fails, it is given back when its time is over. Raises nothing."""
        try:
            self._call("DELETE", f"/{held.lease_id}", None)
        except (RefusedError, UnreachableError) as error:
            LOG.warning("lease %s is not given back before its hold is over: %s", held.lease_id, error)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            answer = requests.request(
                method,
                self._leases + path,
                json=body,
                headers=self._headers,
                timeout=self._timeout,
                verify=self._verify,
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise UnreachableError(str(error)) from None
        if answer.status_code in (400, 401, 403, 409) or (answer.status_code == 404 and path):
            raise RefusedError(409 if answer.status_code == 404 else answer.status_code, _reason(answer))
        if not 200 <= answer.status_code < 300:
            raise UnreachableError(f"it answers {answer.status_code}: {_reason(answer)}")
        return _document(answer)


def _document(answer: requests.Response) -> dict[str, Any]:
    if not answer.content:
        return {}
    try:
        document = json.loads(answer.content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise UnreachableError("its answer is not JSON")
    return document


def _reason(answer: requests.Response) -> str:
    """What the service says in an error, with the hint where it names a field."""
    try:
        document = _document(answer)
    except UnreachableError:
        return answer.text[:200]
    text, field = str(document.get("error_message") or answer.reason), str(document.get("field") or "")
    named = field_of_hint(field)
    text = text.removeprefix(f"{field}: ")
    return f"{text} ({named})" if named not in text else text
