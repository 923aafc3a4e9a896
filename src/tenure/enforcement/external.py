"""A filter that calls a service of the site over HTTP to check and report leases: credits, budgets, accounts."""

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
AWAY = "The enforcement service does not answer; try again later."
#: The most bytes of an answer that are read.
_MAX_ANSWER = 64 * 1024
#: The calls with a default path below the base URL. Other calls are made only if their own URL is set.
_PATHS = {"check_create": "check-create", "check_update": "check-update", "on_end": "on-end"}
_CALLS = (*_PATHS, "commit_create", "commit_update")
#: The 4xx statuses after which a repetition may succeed.
_PASSING = frozenset({401, 408, 421, 425, 429})


class NotAnswered(Exception):
    """The service was unreachable, took too long, or gave an answer that decides nothing."""


class ExternalServiceFilter(EnforcementFilter):
    """Asks a service whether to allow a lease, and reports the outcome.

    The calls and their bodies are Blazar's. In addition, ``commit_create`` and ``commit_update`` report leases that
    were created or changed.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        self._urls = self._all_urls()
        if not self._urls:
            raise ValueError("neither external_service_base_endpoint nor any other external_service_*_endpoint is set")
        self._tls = self._tls_context()
        self._secrets = self._check_secrets()

    def _check_secrets(self) -> tuple[str, ...]:
        """Return the secrets that must not be logged. Raises ``ValueError``, without the value, for invalid headers."""
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
        """Return a text of the service, which may repeat the headers that it got, without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _tls_context(self) -> ssl.SSLContext:
        """Return the accepted certificates. Raises ``ValueError``."""
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
                raise ValueError(f"external_service_{call}_endpoint: {_public_url(url)} is no http or https URL")
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
        self._report("commit_create", {"context": context, "lease": lease_values}, key)

    def commit_update(
        self, context: Values, current_lease_values: Values, new_lease_values: Values, *, key: str
    ) -> None:
        body = {"context": context, "current_lease": current_lease_values, "lease": new_lease_values}
        self._report("commit_update", body, key)

    def on_end(self, context: Values, lease_values: Values, *, key: str) -> None:
        # The service need not know a lease that was never created.
        forgiving = lease_values.get("status") == "CREATING"
        self._report("on_end", {"context": context, "lease": lease_values}, key, forgiving=forgiving)

    def _check(self, call: str, body: Values) -> None:
        """Raise ``Denied`` unless the service agrees, and ``Unavailable`` if it does not answer."""
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
            LOG.error("%s: %s answered %d; allowed all the same", call, _public_url(self._urls[call]), status)
            return
        if status != 403:
            LOG.warning("%s: %s answered %d, which counts as a denial", call, _public_url(self._urls[call]), status)
        raise Denied(self._without_secrets(_reason(answer)) if status == 403 else DENIED)

    def _report(self, call: str, body: Values, key: str, *, forgiving: bool = False) -> None:
        """Raise ``NotAnswered`` unless the service has accepted the report."""
        if call not in self._urls:
            return
        status, answer = self._post(self._urls[call], body, key)
        if 200 <= status < 300 or (forgiving and 400 <= status < 500 and status not in _PASSING):
            return
        said = self._without_secrets(answer.decode(errors="replace"))[:200]
        raise NotAnswered(f"{_public_url(self._urls[call])} answered {status}: {said}")

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
        """Return the status and the beginning of the answer. Raises ``NotAnswered``.

        It never takes longer than the time-out, however long the name look-up or the connection takes.
        """
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        content = json.dumps(body, default=_as_json).encode()
        call = _Call(self._connection(url), path, content, self._headers(key))
        call.start()
        call.join(self.external_service_timeout)
        if call.answer is None and call.error is None:
            call.cut()
            raise NotAnswered(f"{_public_url(url)} takes longer than {self.external_service_timeout} seconds to answer")
        if call.answer is None:
            why = self._without_secrets(str(call.error))
            raise NotAnswered(f"{_public_url(url)} does not answer: {type(call.error).__name__}: {why}")
        return call.answer

    def _connection(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        assert parts.hostname is not None
        timeout = self.external_service_timeout  # for each step
        if parts.scheme == "https":
            return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)


class _Call(threading.Thread):
    """A request in a thread of its own, since a name look-up cannot be cancelled."""

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
            if not self._is_cut.is_set():  # send nothing if the caller has given up
                self.answer = self._ask()
        except Exception as error:  # noqa: BLE001  # passed on to the waiting caller
            self.error = error
        finally:
            self._connection.close()

    def _ask(self) -> tuple[int, bytes]:
        path, content, headers = self._request
        self._connection.request("POST", path, content, dict(headers))
        answer = self._connection.getresponse()
        return answer.status, answer.read(_MAX_ANSWER)

    def cut(self) -> None:
        """End the call, whatever it is doing: nothing more is sent or received."""
        self._is_cut.set()
        if self._connection.sock is not None:
            try:
                self._connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                LOG.debug("the call has ended by itself")


def _public_url(url: str) -> str:
    """Return a URL without its possible secrets: user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _reason(answer: bytes) -> str:
    """Return the service's text for the user, or a general denial."""
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):  # a deeply nested document is invalid too
        return DENIED
    message = document.get("message") if isinstance(document, Mapping) else None
    return message if isinstance(message, str) and message else DENIED


def _as_json(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no place in JSON")
