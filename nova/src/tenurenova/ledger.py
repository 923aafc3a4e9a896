"""The calls to the reservation service during a boot, with the token of the user who boots."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import requests

from tenurenova.boot import field_of_hint

LOG = logging.getLogger(__name__)

#: The number of attempts to confirm if no answer comes; confirming twice is harmless.
CONFIRMATIONS = 3
_VERSION = {"OpenStack-API-Version": "reservation 1.2", "Accept": "application/json"}


class RefusedError(Exception):
    """The reservation service refused with status 400, 401, 403 or 409, and a reason for users."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class UnreachableError(Exception):
    """The reservation service does not answer, or its answer is invalid."""


@dataclass(frozen=True)
class Held:
    """A held lease and its single reservation."""

    lease_id: str
    reservation_id: str


class Ledger:
    """The reservation service at a URL, used with a token."""

    def __init__(self, endpoint: str, token: str, *, timeout: float, verify: bool | str = True) -> None:
        base = endpoint.rstrip("/")
        self._leases = f"{base}/leases" if base.endswith("/v1") else f"{base}/v1/leases"
        self._headers = {**_VERSION, "X-Auth-Token": token}
        self._timeout = timeout
        self._verify = verify

    def hold(self, lease: Mapping[str, Any]) -> Held:
        """Book a lease that is held for a limited time. Raises ``RefusedError`` or ``UnreachableError``."""
        made: Any = self._call("POST", "", lease).get("lease")
        try:
            return Held(str(made["id"]), str(made["reservations"][0]["id"]))
        except (KeyError, IndexError, TypeError):
            raise UnreachableError("its answer has no lease") from None

    def confirm(self, held: Held, server_id: str) -> None:
        """Confirm the lease for the server. Raises ``RefusedError`` or ``UnreachableError``."""
        body = {"reservations": [{"id": held.reservation_id, "server_id": server_id}]}
        for attempt in range(CONFIRMATIONS):
            try:
                self._call("POST", f"/{held.lease_id}/confirm", body)
                return
            except UnreachableError:
                if attempt + 1 == CONFIRMATIONS:
                    raise

    def release(self, held: Held) -> None:
        """Give the lease back. If that fails, it ends when its hold expires. Raises nothing."""
        try:
            self._call("DELETE", f"/{held.lease_id}", None)
        except (RefusedError, UnreachableError) as error:
            LOG.warning("lease %r cannot be given back; it ends when its hold expires: %r", held.lease_id, str(error))

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
    """Return the reason in an error of the service, with the name of the hint if the error names a field."""
    try:
        document = _document(answer)
    except UnreachableError:
        return answer.text[:200]
    text, field = str(document.get("error_message") or answer.reason), str(document.get("field") or "")
    named = field_of_hint(field)
    text = text.removeprefix(f"{field}: ")
    return f"{text} ({named})" if named not in text else text
