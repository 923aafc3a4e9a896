"""The calls to the reservation service, with the token of the user who calls Nova."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode

import requests
from urllib3.exceptions import ProtocolError

from tenurenova.boot import field_of_hint

LOG = logging.getLogger(__name__)

#: The number of attempts to confirm if no answer comes; confirming twice is harmless.
CONFIRMATIONS = 3
#: What is said with each call. Nobody reads the alternatives that a refusal could have, so none are to be searched for.
_HEADERS = {
    "OpenStack-API-Version": "reservation 1.4",
    "Accept": "application/json",
    "Prefer": "return=minimal",
}
#: How many planned servers are read at a time, and at most.
_PAGE, MOST_PLANNED = 1000, 10_000


class RefusedError(Exception):
    """The reservation service refused with status 400, 401, 403 or 409, and a reason for users."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class UnreachableError(Exception):
    """The reservation service does not answer, or its answer is invalid.

    ``may_have_acted`` says whether it may have done what it was asked for; ``has_answered``, whether it answers at all.
    """

    def __init__(self, reason: str, *, may_have_acted: bool = False, has_answered: bool = False) -> None:
        super().__init__(reason)
        self.may_have_acted = may_have_acted
        self.has_answered = has_answered


@dataclass(frozen=True)
class Held:
    """A held lease and its single reservation."""

    lease_id: str
    reservation_id: str


class Ledger:
    """The reservation service at a URL, used with a token."""

    def __init__(self, endpoint: str, token: str, *, timeout: float, verify: bool | str = True) -> None:
        base = endpoint.rstrip("/")
        self._base = base if base.endswith("/v1") else f"{base}/v1"
        self._headers = {**_HEADERS, "X-Auth-Token": token}
        self._timeout = timeout
        self._verify = verify

    @property
    def address(self) -> str:
        """The host and the port of the service. URLs in catalogues may differ by project beyond them."""
        return self._base.partition("://")[2].partition("/")[0]

    def hold(self, lease: Mapping[str, Any]) -> Held:
        """Book a lease that is held for a limited time. Raises ``RefusedError`` or ``UnreachableError``."""
        held = self.book(lease)
        if not held:
            raise UnreachableError("its answer has no lease", may_have_acted=True)
        return held[0]

    def book(self, lease: Mapping[str, Any], key: str = "") -> list[Held]:
        """Book a lease; return its reservations, in their order. Raises the errors of ``hold``.

        If it is booked again with the same ``key``, the service makes no second lease.
        """
        made: Any = self._call("POST", "/leases", lease, {"Idempotency-Key": key} if key else {}).get("lease")
        try:
            return [Held(str(made["id"]), str(reservation["id"])) for reservation in made["reservations"]]
        except (KeyError, IndexError, TypeError):
            raise UnreachableError("its answer has no lease", may_have_acted=True) from None

    def planned(self, project_id: str) -> list[dict[str, Any]]:
        """Return the servers of a project that are still to be made, the newest first; of all projects without one.

        Raises the errors of ``hold``.
        """
        found: list[dict[str, Any]] = []
        params = {"limit": str(_PAGE), **({"project_id": project_id} if project_id else {})}
        while len(found) < MOST_PLANNED:
            answer = self._call("GET", f"/planned-servers?{urlencode(params)}", None)
            page = answer.get("planned_servers") or []
            found += page
            if not answer.get("planned_servers_links"):
                break
            params["marker"] = str(page[-1]["id"])
        return found

    def planned_server(self, server_id: str) -> dict[str, Any] | None:
        """Return the server that is or was made at the start of a reservation; None if there is none.

        Raises the errors of ``hold``.
        """
        try:
            found = self._call("GET", f"/planned-servers/{quote(server_id, safe='')}", None)
        except RefusedError:
            return None
        server: dict[str, Any] | None = found.get("planned_server")
        return server

    def rename(self, planned: Mapping[str, Any], name: str) -> None:
        """Rename a planned server. Raises the errors of ``hold``."""
        body = {"reservations": [{"id": planned["id"], "server_name": name}]}
        self._call("PUT", f"/leases/{planned['lease_id']}", body)

    def give_up(self, planned: Mapping[str, Any]) -> None:
        """Give back the reservation of a planned server, and the lease if nothing else is in it.

        Raises the errors of ``hold``.
        """
        lease: Any = self._call("GET", f"/leases/{planned['lease_id']}", None).get("lease") or {}
        others = [
            reservation
            for reservation in lease.get("reservations", ())
            if reservation["id"] != planned["id"] and reservation["status"] not in ("deleted", "error")
        ]
        reservation = f"/reservations/{planned['id']}" if others else ""
        self._call("DELETE", f"/leases/{planned['lease_id']}{reservation}", None)

    def confirm(self, held: Held, server_id: str) -> None:
        """Confirm the lease for the server. Raises ``RefusedError`` or ``UnreachableError``."""
        body = {"reservations": [{"id": held.reservation_id, "server_id": server_id}]}
        for attempt in range(CONFIRMATIONS):
            try:
                self._call("POST", f"/leases/{held.lease_id}/confirm", body)
                return
            except UnreachableError:
                if attempt + 1 == CONFIRMATIONS:
                    raise

    def release(self, held: Held) -> None:
        """Give the lease back. If that fails, it ends when its hold expires. Raises nothing."""
        try:
            self._call("DELETE", f"/leases/{held.lease_id}", None)
        except (RefusedError, UnreachableError) as error:
            LOG.warning("lease %r cannot be given back; it ends when its hold expires: %r", held.lease_id, str(error))

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Any]:
        try:
            answer = requests.request(
                method,
                self._base + path,
                json=body,
                headers={**self._headers, **headers},
                timeout=self._timeout,
                verify=self._verify,
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise UnreachableError(str(error), may_have_acted=_was_sent(error)) from None
        if answer.status_code in (400, 401, 403, 409) or (answer.status_code == 404 and path != "/leases"):
            raise RefusedError(409 if answer.status_code == 404 else answer.status_code, _reason(answer))
        if not 200 <= answer.status_code < 300:
            may_have_acted = answer.status_code >= 500 and not _is_busy(answer)
            text = f"it answers {answer.status_code}: {_reason(answer)}"
            raise UnreachableError(text, may_have_acted=may_have_acted, has_answered=True)
        return _document(answer)


def _was_sent(error: requests.RequestException) -> bool:
    """Whether the service may have got the request: there was a connection, and it was lost or silent."""
    lost = bool(error.args) and isinstance(error.args[0], ProtocolError)
    return lost or isinstance(error, (requests.ReadTimeout, requests.exceptions.ChunkedEncodingError))


def _is_busy(answer: requests.Response) -> bool:
    """Whether the service had no time for the request, and has done nothing: only then it says when to try again."""
    return answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE and "Retry-After" in answer.headers


def _document(answer: requests.Response) -> dict[str, Any]:
    if not answer.content:
        return {}
    try:
        document = json.loads(answer.content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise UnreachableError("its answer is not JSON", may_have_acted=True)
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
