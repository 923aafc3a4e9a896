"""A service of the site that is asked about leases over HTTP, and told of them: credits, budgets, accounts."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import ssl
import threading
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

from oslo_config import cfg

from tenure.domain.errors import Denied, Unavailable
from tenure.enforcement.contract import EnforcementFilter, Values

LOG = logging.getLogger(__name__)

DENIED = "External service enforcement filter denied the request."
AWAY = "The service that must agree to leases does not answer; try again later."
#: More of an answer is of no interest.
_MAX_ANSWER = 64 * 1024
#: What each call is made for, and its path below the base; the others are made only where their URL is given.
_PATHS = {"check_create": "check-create", "check_update": "check-update", "on_end": "on-end"}
_CALLS = (*_PATHS, "commit_create", "commit_update")
#: Answers of the kind 4xx after which a repetition may fare better.
_PASSING = frozenset({401, 408, 421, 425, 429})


class NotAnswered(Exception):
    """The service was not there, took too long, or gave an answer that settles nothing."""


class ExternalServiceFilter(EnforcementFilter):
    """Asks a service whether a lease may be, and tells it what became of it.

    The calls and their bodies are Blazar's; beyond that it is told of leases that exist and that have changed, by
    ``commit_create`` and ``commit_update``.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        self._urls = self._all_urls()
        if not self._urls:
            raise ValueError("neither external_service_base_endpoint nor any other external_service_*_endpoint is set")
        self._tls = self._trust()
        self._secrets = self._check_secrets()

    def _check_secrets(self) -> tuple[str, ...]:
        """What must stand in no log. Raises ``ValueError`` for what no header can hold, and does not repeat it."""
        names = ("external_service_token", "external_service_bearer_token")
        secrets = {name: str(getattr(self, name)) for name in names if getattr(self, name)}
        for name, secret in secrets.items():
            if not (secret.isascii() and secret.isprintable()) or secret != secret.strip():
                raise ValueError(f"{name}: it holds a line end, a blank at its ends, or what is no ASCII")
        for call, url in self._urls.items():
            if urlsplit(url).username is not None or urlsplit(url).password is not None:
                raise ValueError(
                    f"external_service_{call}_endpoint: a user and a password in the URL are not sent; "
                    "set external_service_bearer_token"
                )
        return tuple(secrets.values())

    def _without_secrets(self, text: str) -> str:
        """A text of the service's, which may repeat the headers that it was sent."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _trust(self) -> ssl.SSLContext:
        """Which certificates are accepted. Raises ``ValueError``."""
        file = self.external_service_cafile or None
        try:
            return ssl.create_default_context(cafile=file)
        except ssl.SSLError:
            raise ValueError(f"external_service_cafile: {file}: there is no certificate") from None
        except OSError as error:
            raise ValueError(f"external_service_cafile: {file}: {error.strerror}") from None

    def _all_urls(self) -> dict[str, str]:
        base = self.external_service_base_endpoint
        urls = {}
        for call in _CALLS:
            given = getattr(self, f"external_service_{call}_endpoint") or (_PATHS.get(call) if base else None)
            if not given:
                continue
            url = urljoin(base, given) if base else given
            if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname:
                raise ValueError(f"external_service_{call}_endpoint: {_place(url)} is no http or https URL")
            urls[call] = url
        return urls

    @property
    def listens_to(self) -> Collection[str]:
        return frozenset(self._urls) & frozenset({"commit_create", "commit_update", "on_end"})

    def check_create(self, context: Values, lease_values: Values) -> None:
        self._check("check_create", {"context": context, "lease": lease_values})

    def check_update(self, context: Values, current_lease_values: Values, new_lease_values: Values) -> None:
        body = {"context": context, "current_lease": current_lease_values, "lease": new_lease_values}
        self._check("check_update", body)

    def commit_create(self, context: Values, lease_values: Values, *, key: str) -> None:
        self._tell("commit_create", {"context": context, "lease": lease_values}, key)

    def commit_update(
        self, context: Values, current_lease_values: Values, new_lease_values: Values, *, key: str
    ) -> None:
        body = {"context": context, "current_lease": current_lease_values, "lease": new_lease_values}
        self._tell("commit_update", body, key)

    def on_end(self, context: Values, lease_values: Values, *, key: str) -> None:
        # A service need not know of a lease that never came about.
        forgiving = lease_values.get("status") == "CREATING"
        self._tell("on_end", {"context": context, "lease": lease_values}, key, forgiving=forgiving)

    def _check(self, call: str, body: Values) -> None:
        """Raise ``Denied`` unless the service agrees, and ``Unavailable`` where it does not answer."""
        if call not in self._urls:
            return
        lenient = self.external_service_on_failure == "allow"
        try:
            status, answer = self._post(self._urls[call], body, None)
        except NotAnswered as error:
            LOG.error("%s: %s", call, error)
            if lenient:
                return
            raise Unavailable(AWAY) from None
        if status == 204:
            return
        if status >= 500 and lenient:
            LOG.error("%s: %s answered %d; allowed all the same", call, _place(self._urls[call]), status)
            return
        if status != 403:
            LOG.warning("%s: %s answered %d, which is taken for a denial", call, _place(self._urls[call]), status)
        raise Denied(self._without_secrets(_reason(answer)) if status == 403 else DENIED)

    def _tell(self, call: str, body: Values, key: str, *, forgiving: bool = False) -> None:
        """Raise ``NotAnswered`` unless the service has taken note."""
        if call not in self._urls:
            return
        status, answer = self._post(self._urls[call], body, key)
        if 200 <= status < 300 or (forgiving and 400 <= status < 500 and status not in _PASSING):
            return
        said = self._without_secrets(answer.decode(errors="replace"))[:200]
        raise NotAnswered(f"{_place(self._urls[call])} answered {status}: {said}")

    def _headers(self, key: str | None) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.external_service_token:
            headers["X-Auth-Token"] = self.external_service_token
        if self.external_service_bearer_token:
            headers["Authorization"] = f"Bearer {self.external_service_bearer_token}"
        if key is not None:
            headers["Idempotency-Key"] = key
        return headers

    def _post(self, url: str, body: Values, key: str | None) -> tuple[int, bytes]:
        """The status and the beginning of the answer. Raises ``NotAnswered``.

        Never lasts longer than the time-out, however long it takes to look up a name or to reach a host.
        """
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        content = json.dumps(body, default=_as_json).encode()
        call = _Call(self._connection(url), path, content, self._headers(key))
        call.start()
        call.join(self.external_service_timeout)
        if call.answer is None and call.error is None:
            call.cut()
            raise NotAnswered(f"{_place(url)} takes longer than {self.external_service_timeout} seconds to answer")
        if call.answer is None:
            why = self._without_secrets(str(call.error))
            raise NotAnswered(f"{_place(url)} does not answer: {type(call.error).__name__}: {why}")
        return call.answer

    def _connection(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        assert parts.hostname is not None
        timeout = self.external_service_timeout  # of each step
        if parts.scheme == "https":
            return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)


class _Call(threading.Thread):
    """A request in a thread of its own, since the look-up of a name cannot be ended by anybody."""

    def __init__(
        self, connection: http.client.HTTPConnection, path: str, content: bytes, headers: Mapping[str, str]
    ) -> None:
        super().__init__(name="tenure-filter", daemon=True)
        self.answer: tuple[int, bytes] | None = None
        self.error: Exception | None = None
        self._connection = connection
        self._request = path, content, headers
        self._is_cut = threading.Event()

    def run(self) -> None:
        try:
            self._connection.connect()
            if not self._is_cut.is_set():  # nobody is asked, or told, of whom nobody waits for an answer
                self.answer = self._ask()
        except Exception as error:  # noqa: BLE001  # for the one who waits
            self.error = error
        finally:
            self._connection.close()

    def _ask(self) -> tuple[int, bytes]:
        path, content, headers = self._request
        self._connection.request("POST", path, content, dict(headers))
        answer = self._connection.getresponse()
        return answer.status, answer.read(_MAX_ANSWER)

    def cut(self) -> None:
        """End it, wherever it is: nothing more goes out or comes in."""
        self._is_cut.set()
        if self._connection.sock is not None:
            try:
                self._connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                LOG.debug("the call has ended by itself")


def _place(url: str) -> str:
    """A URL without what may be secret in it: a user, a password, a query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _reason(answer: bytes) -> str:
    """What a service says for the user, else that it has denied."""
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):  # what is nested deeply is no answer either
        return DENIED
    message = document.get("message") if isinstance(document, Mapping) else None
    return message if isinstance(message, str) and message else DENIED


def _as_json(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no place in JSON")
