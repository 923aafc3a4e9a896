"""A middleware for Nova's API that boots servers for a lease, requested by scheduler hints.

It is a paste filter, placed after authentication. A request to boot with the hint `reserved` books a lease, which keeps
the request: the reservation service makes the server at the start. Until then this middleware shows the server in
Nova's place, by the id of its reservation.

With the option `make_servers = at_once`, the server is made now, in three steps: the middleware books a lease that is
held for a few minutes, calls Nova, and confirms the lease with the id of the server. If any step fails, the hold
expires, and the service deletes the server of a lease that was never confirmed. If no host is free, the server is made
at the start.

All other requests pass unchanged. Only lists of servers, and requests about a server that Nova does not know, also call
the reservation service; if it does not answer, Nova's answer stands.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tenurenova.boot import (
    RESERVATION,
    HintError,
    WantedLease,
    kept_request,
    microversion_of,
    numbers_of,
    read_wanted_lease,
    takes_tags,
    with_reservation,
)
from tenurenova.breaker import Breaker
from tenurenova.ledger import Held, Ledger, RefusedError, UnreachableError
from tenurenova.permits import FolderError, Permits
from tenurenova.planned import ListQuery, Page, as_server, below, on_the_wire, page_after, page_of
from tenurenova.shown import RESERVED, fault_of, has_no_host, show_reservations

LOG = logging.getLogger(__name__)

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]

SERVICE_TYPE = "reservation"
#: The maximum size of a body in bytes; Nova's own limit is lower.
MAX_BYTES = 4 * 1024 * 1024

#: The paths to boot and to show servers; Nova also has them under an older name.
_BOOT = re.compile(r"^(/[^/]+)?/(servers|os-volumes_boot)(\.json)?/?$")
_LIST = re.compile(r"^(/[^/]+)?/servers(/detail)?(\.json)?/?$")
_ONE = re.compile(r"^(?P<root>(/[^/]+)?/(servers|os-volumes_boot))/(?P<id>[0-9a-f-]{36})(?P<rest>/.*)?$")
_ID = re.compile(r"^[0-9a-f-]{36}$")
#: The header of those who want Nova's answer as it is: the reservation service itself, and other services.
PLAIN = "HTTP_X_TENURE_PLAIN"
#: The first microversion in which a flavor shows its extra specs.
_FLAVORS = "2.61"
#: How long a list of servers waits for the service at most, in seconds.
_LIST_SECONDS = 2.0
AT_START, AT_ONCE = "at_start", "at_once"
#: The names that Nova gives its errors.
_NAMES = {
    400: "badRequest",
    401: "unauthorized",
    403: "forbidden",
    404: "itemNotFound",
    409: "conflictingRequest",
    503: "serviceUnavailable",
}
_TOO_MANY = (
    "As many servers as may be are being booted for leases right now, so the server was not booted. Try again soon."
)
_NOT_KNOWN = (
    "Whether the server was booked is not known: the reservation service does not answer. Look at the list of servers"
    " in a while, and try again if the server is not there."
)
_CHANGE_NOT_KNOWN = (
    "Whether the server was changed is not known: the reservation service does not answer. Look at it in a while, and"
    " try again if it is as before."
)
#: The value of the Retry-After header, in seconds.
_RETRY_AFTER = "2"
_TRUE = ("1", "on", "true", "yes")


@dataclass(frozen=True)
class Settings:
    """The options of the middleware in api-paste.ini."""

    #: The URL of the reservation service; the default is the one in the catalogue of the caller's token.
    endpoint: str = ""
    region: str = ""
    #: The service's name for the region of this Nova; the default is the service's home region.
    lease_region: str = ""
    interface: str = "public"
    timeout: float = 10.0
    #: How long a lease is held, in seconds: longer than Nova ever takes to answer a request to boot.
    hold_seconds: int = 300
    #: How many boots with hints may wait for the service at a time, in all processes of this machine. It must be
    #: lower than the number of Nova's API workers, because the service calls the same Nova.
    at_once: int = 1
    #: The folder in which these processes count the boots; the default is a folder of the user that they run as.
    lock_folder: str = ""
    #: Whether a server is made at the start of its lease, or at once if a host is free.
    make_servers: str = AT_START
    show_reserved: bool = True
    verify: bool | str = True

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Settings:
        """Read the options of a section; raises ``ValueError`` for an invalid option."""
        known = {field.name for field in fields(cls)} - {"verify"} | {"cafile", "insecure"}
        if unknown := sorted(set(given) - known):
            raise ValueError(
                f"the filter of tenure has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}"
            )
        settings = cls(
            endpoint=given.get("endpoint", ""),
            region=given.get("region", ""),
            lease_region=given.get("lease_region", ""),
            interface=given.get("interface", cls.interface),
            timeout=float(given.get("timeout", cls.timeout)),
            hold_seconds=int(given.get("hold_seconds", cls.hold_seconds)),
            at_once=int(given.get("at_once", cls.at_once)),
            lock_folder=given.get("lock_folder", ""),
            make_servers=given.get("make_servers", AT_START).strip().lower(),
            show_reserved=given.get("show_reserved", "true").strip().lower() in _TRUE,
            verify=given.get("insecure", "").strip().lower() not in _TRUE and (given.get("cafile") or True),
        )
        if settings.interface not in ("public", "internal", "admin"):
            raise ValueError("interface is public, internal or admin")
        if settings.make_servers not in (AT_START, AT_ONCE):
            raise ValueError(f"make_servers is {AT_START} or {AT_ONCE}")
        if settings.timeout <= 0 or not 1 <= settings.hold_seconds <= 3600:
            raise ValueError("timeout is more than 0 seconds, hold_seconds is 1 to 3600")
        if not 1 <= settings.at_once <= 1000:
            raise ValueError("at_once is 1 to 1000")
        return settings


def filter_factory(global_config: Mapping[str, str], **local_config: str) -> Callable[[Application], Middleware]:
    """Return the middleware for an application; paste calls this with the options of the section."""
    settings = Settings.read(local_config)
    return lambda application: Middleware(application, settings)


@dataclass
class _Answer:
    """A complete answer of Nova."""

    status: str = "500 Internal Server Error"
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    @property
    def code(self) -> int:
        return int(self.status.split(" ", 1)[0])

    def send(self, start_response: StartResponse) -> list[bytes]:
        start_response(self.status, self.headers)
        return [self.body]


class Middleware:
    """Nova's API, extended by servers that are booted for a lease."""

    def __init__(self, application: Application, settings: Settings) -> None:
        self._application = application
        self._settings = settings
        folder = settings.lock_folder or Path(tempfile.gettempdir()) / f"tenurenova-{os.geteuid()}"
        self._permits = Permits(Path(folder), settings.at_once)
        #: By the address of the service and the deadline: a list is given up early, and says nothing of a booking.
        self._breakers: dict[tuple[str, float], Breaker] = {}

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ.get("REQUEST_METHOD"), environ.get("PATH_INFO", "")
        if environ.get(PLAIN):
            return self._application(environ, start_response)
        if method == "POST" and _BOOT.match(path):
            return self._post(environ, start_response)
        if method == "GET" and self._settings.show_reserved and (listed := _LIST.match(path)):
            return self._list(environ, is_detailed=listed[2] is not None).send(start_response)
        if (one := _ONE.match(path)) is not None:
            return self._one(environ, one, start_response)
        return self._application(environ, start_response)

    # A boot

    def _post(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        body = _read(environ)
        try:
            document = json.loads(body) if body else None
        except (ValueError, RecursionError):
            document = None  # Nova reports the error
        try:
            wanted = read_wanted_lease(document)
        except HintError as error:
            return _refusal(400, str(error)).send(start_response)
        if wanted is None:
            return self._application(environ, start_response)
        try:
            if self._settings.make_servers == AT_ONCE and wanted.most == 1:
                with self._permits.take(environ.get("HTTP_X_PROJECT_ID", "")) as is_ours:
                    if not is_ours:
                        return _refusal(503, _TOO_MANY).send(start_response)
                    return self._boot(environ, document, wanted).send(start_response)
            return self._book(environ, document, wanted).send(start_response)
        except RefusedError as refused:
            return _refusal(refused.status, refused.reason).send(start_response)
        except FolderError as error:
            LOG.error("no server can be booted for a lease: the lock_folder is unusable: %r", str(error))
            return _refusal(503, "Servers cannot be booted for leases here; tell the operator of Nova.").send(
                start_response
            )
        except UnreachableError as error:
            LOG.warning("a server with a reservation was not booted: the reservation service failed: %r", str(error))
            text = "The reservation service cannot be asked now, so the server was not booted. Try again later."
            return _refusal(503, text).send(start_response)

    def _book(self, environ: Environ, document: Any, wanted: WantedLease) -> _Answer:
        """Book a lease whose servers are made at its start. Raises ``RefusedError`` and ``UnreachableError``."""
        microversion = self._microversion(environ)
        flavor = self._flavor(str(wanted.reservation["flavor_id"]), microversion, environ)
        if flavor.code != HTTPStatus.OK:
            return flavor
        shown = json.loads(flavor.body).get("flavor")
        if not isinstance(shown, dict):  # the id names something else below the flavors
            return _refusal(400, f"Flavor {str(wanted.reservation['flavor_id'])[:80]} could not be found.")
        boot = {"request": kept_request(document), "microversion": microversion}
        if "extra_specs" in shown:  # a policy of Nova may hide them: then the service reads the flavor itself
            boot["flavor"] = _described(shown, wanted.reservation["flavor_id"])
        booking = wanted.to_booking(boot, self._settings.lease_region)
        key = environ.get("HTTP_IDEMPOTENCY_KEY", "")
        try:
            first, *_ = self._guarded(environ, lambda ledger: ledger.book(booking, key), self._settings.timeout)
        except UnreachableError as error:
            if not error.may_have_acted:
                raise
            LOG.warning("it is unknown whether a server with a reservation was booked: %r", str(error))
            return _refusal(503, _NOT_KNOWN)
        server = {
            "id": first.reservation_id,
            "links": [{"rel": "self", "href": f"{_servers_url(environ)}/{first.reservation_id}"}],
            "OS-DCF:diskConfig": "MANUAL",
            "security_groups": [],
        }
        if "adminPass" in document["server"]:
            server["adminPass"] = document["server"]["adminPass"]
        return _json(202, {"server": server})

    def _microversion(self, environ: Environ) -> str:
        """Return the microversion of the request, in numbers: what ``latest`` means may change before the start."""
        asked = _asked_version(environ)
        if asked != "latest":
            return asked
        root = environ["PATH_INFO"].partition("/servers")[0].partition("/os-volumes_boot")[0]
        shown = _call(self._application, _get(environ, f"{root}/"))
        try:
            return str(json.loads(shown.body)["version"]["version"])
        except (ValueError, KeyError, TypeError):
            return "2.1"

    def _flavor(self, flavor_id: str, microversion: str, environ: Environ) -> _Answer:
        """Return Nova's answer about the flavor, as it is shown to the caller.

        It is that of an error if Nova does not have the microversion, at which the server would be made.
        """
        root = environ["PATH_INFO"].partition("/servers")[0].partition("/os-volumes_boot")[0]
        request = _get(environ, f"{root}/flavors/{quote(flavor_id, safe='')}")
        is_older = numbers_of("2.1") <= numbers_of(microversion) < numbers_of(_FLAVORS)
        version = _FLAVORS if is_older else microversion
        request["HTTP_OPENSTACK_API_VERSION"] = f"compute {version}"
        request["HTTP_X_OPENSTACK_NOVA_API_VERSION"] = version
        return _call(self._application, request)

    def _boot(self, environ: Environ, document: Any, wanted: WantedLease) -> _Answer:
        """Boot a server for a lease. ``RefusedError`` and ``UnreachableError`` mean that no server was created."""
        ledger = self._ledger(environ)
        tagged = takes_tags(_asked_version(environ))
        held = ledger.hold(wanted.to_lease(self._settings.hold_seconds, self._settings.lease_region))
        try:
            marked = with_reservation(document, held.lease_id, held.reservation_id, tagged=tagged)
            answer = _call(self._application, _with_body(environ, json.dumps(marked).encode()))
        except BaseException:
            ledger.release(held)
            raise
        if answer.code != HTTPStatus.ACCEPTED:
            ledger.release(held)
            return answer
        confirmed = self._confirm(ledger, held, answer, environ)
        return self._book(environ, document, wanted) if confirmed is None else confirmed

    def _confirm(self, ledger: Ledger, held: Held, answer: _Answer, environ: Environ) -> _Answer | None:
        """Confirm the lease with the new server; return Nova's answer, or an error with the server's fate.

        Returns None if Nova has found no host for the server now; nothing is left of it then.
        """
        server_id = str(json.loads(answer.body)["server"]["id"])
        try:
            ledger.confirm(held, server_id)
        except RefusedError as refused:
            ledger.release(held)
            shown = self._call_about_server("GET", server_id, environ).body
            fault = fault_of(shown)
            if has_no_host(shown) and self._delete(server_id, environ):
                return None
            fate = "is deleted again" if self._delete(server_id, environ) else "is to be deleted"
            text = f"Server {server_id} could not be reserved, and {fate}: {refused.reason} {fault}"
            return _refusal(refused.status, text.rstrip())
        except UnreachableError as error:
            LOG.warning("it is unknown whether lease %r has server %r: %r", held.lease_id, server_id, str(error))
            return _refusal(
                503,
                f"Whether server {server_id} was reserved is not known: the reservation service does not answer."
                f" Look at lease {held.lease_id} in a while: where it is gone, the server is deleted, too.",
            )
        return answer

    def _delete(self, server_id: str, environ: Environ) -> bool:
        """Delete the server, as the user who booted it; return whether Nova accepted that."""
        answer = self._call_about_server("DELETE", server_id, environ)
        if answer.code not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND):
            LOG.warning("server %r could not be reserved and could not be deleted: %r", server_id, answer.status)
        return answer.code in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND)

    def _call_about_server(self, method: str, server_id: str, environ: Environ) -> _Answer:
        """Call Nova about the server, as the user who booted it."""
        base = environ["PATH_INFO"].rstrip("/").rpartition("/")[0]
        request = {**_with_body(environ, b""), "REQUEST_METHOD": method, "PATH_INFO": f"{base}/servers/{server_id}"}
        return _call(self._application, request)

    # What is shown

    def _list(self, environ: Environ, *, is_detailed: bool) -> _Answer:
        """Answer a list of servers: those that are still to be made, and Nova's."""
        query = ListQuery.read(environ.get("QUERY_STRING", ""))
        planned = self._planned(environ, query)
        answer = self._page(environ, query, page_of(planned, query), is_detailed=is_detailed)
        if answer.code == HTTPStatus.BAD_REQUEST and (marker := self._marked(environ, query)) is not None:
            # It was made since the page before, so Nova knows it by another id.
            return self._page(environ, query, page_after(planned, query, marker), is_detailed=is_detailed)
        return answer

    def _page(self, environ: Environ, query: ListQuery, page: Page, *, is_detailed: bool) -> _Answer:
        """Return the planned servers of the page, and the rest of the page from Nova."""
        shown = [on_the_wire(server, is_detailed=is_detailed) for server in page.servers]
        if page.is_full:
            more = f"{_servers_url(environ)}{'/detail' if is_detailed else ''}?{query.after(shown[-1]['id'])}"
            return _json(200, {"servers": shown, "servers_links": [{"rel": "next", "href": more}]})
        asked = query.for_nova(limit=page.left if shown else None, keep_marker=page.keep_marker)
        unchanged = asked == query.for_nova(limit=None, keep_marker=True) and not query.asks_for_reserved
        answer = _call(self._application, environ if unchanged else {**environ, "QUERY_STRING": asked})
        if answer.code != HTTPStatus.OK:
            return answer
        answer = _with_content(answer, show_reservations(answer.body))
        if unchanged and not shown:
            return answer
        document = json.loads(answer.body)
        servers = document.get("servers", [])
        if servers and document.get("servers_links"):
            links = query.links_after(servers[-1]["id"], document["servers_links"])
            document = {**document, "servers_links": links}
        # A server that was made in this moment is planned still, as far as the service knows.
        made = {(server.get("metadata") or {}).get(RESERVATION) for server in servers}
        shown = [server for server in shown if server["id"] not in made]
        if query.is_reserved_only:
            servers = [server for server in servers if not is_detailed or server.get("status") == RESERVED]
        return _with_content(answer, json.dumps({**document, "servers": [*shown, *servers]}).encode())

    def _marked(self, environ: Environ, query: ListQuery) -> dict[str, Any] | None:
        """Return the server of the list's marker if it is, or was, a planned one; None if nobody knows it."""
        if not query.may_have_planned or not _ID.match(query.marker):
            return None
        try:
            marked: dict[str, Any] | None = self._guarded(
                environ, lambda ledger: ledger.planned_server(query.marker), min(_LIST_SECONDS, self._settings.timeout)
            )
        except RefusedError:
            return None
        except UnreachableError as error:
            LOG.warning("whether the marker of a list is a planned server is not known: %r", str(error))
            return None
        return marked

    def _planned(self, environ: Environ, query: ListQuery) -> list[dict[str, Any]]:
        """Return the planned servers that the caller may see, as Nova shows servers; none if nobody answers."""
        if not query.may_have_planned:
            return []
        project_id = query.project_id
        if not project_id and not query.is_of_all_projects:
            project_id = environ.get("HTTP_X_PROJECT_ID", "")
        try:
            planned = self._guarded(
                environ, lambda ledger: ledger.planned(project_id), min(_LIST_SECONDS, self._settings.timeout)
            )
        except RefusedError:
            return []
        except UnreachableError as error:
            LOG.warning("servers that are still to be made are not listed: %r", str(error))
            return []
        version, base = numbers_of(_asked_version(environ)), _servers_url(environ)
        shown = [as_server(server, version, base) for server in planned]
        return [server for server in shown if server is not None]

    def _one(self, environ: Environ, one: re.Match[str], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request about a server, which may be known by its reservation."""
        body = _read(environ)
        answer = _call(self._application, environ)
        if answer.code == HTTPStatus.NOT_FOUND:
            environ["wsgi.input"] = BytesIO(body)
            answer = self._about_planned(environ, one, body) or answer
        elif self._settings.show_reserved and answer.code == HTTPStatus.OK and environ.get("REQUEST_METHOD") == "GET":
            answer = answer if one["rest"] else _with_content(answer, show_reservations(answer.body))
        return answer.send(start_response)

    def _about_planned(self, environ: Environ, one: re.Match[str], body: bytes) -> _Answer | None:
        """Answer a request about a server that Nova does not know; return None if it is not planned either."""
        try:
            planned = self._guarded(
                environ, lambda ledger: ledger.planned_server(one["id"]), min(_LIST_SECONDS, self._settings.timeout)
            )
        except RefusedError as refused:
            return _refusal(refused.status, refused.reason)
        except UnreachableError as error:
            LOG.warning("whether server %s is planned is not known: %r", one["id"], str(error))
            return None
        if planned is None:
            return None
        if planned["server_id"]:
            path = f"{one['root']}/{planned['server_id']}{one['rest'] or ''}"
            return _call(self._application, {**environ, "PATH_INFO": path})
        server = as_server(planned, numbers_of(_asked_version(environ)), _servers_url(environ))
        if server is None:
            return None
        try:
            return self._act_on_planned(environ, server, one["rest"] or "", body)
        except RefusedError as refused:
            return _refusal(refused.status, refused.reason)
        except UnreachableError as error:
            LOG.warning("whether planned server %s was changed is not known: %r", one["id"], str(error))
            return _refusal(503, _CHANGE_NOT_KNOWN)

    def _act_on_planned(self, environ: Environ, server: dict[str, Any], rest: str, body: bytes) -> _Answer:
        """Show, rename or delete a planned server. Raises ``RefusedError`` and ``UnreachableError``."""
        method, planned, timeout = environ.get("REQUEST_METHOD"), server["planned"], self._settings.timeout
        if method == "GET" and (shown := below(server, rest.strip("/"))) is not None:
            return _json(200, shown)
        if rest.strip("/"):
            return _refusal(409, f"The server {server['id']} is made at the start of its lease.")
        if method == "GET":
            return _json(200, {"server": on_the_wire(server, is_detailed=True)})
        if method == "DELETE":
            self._guarded(environ, lambda ledger: ledger.give_up(planned), timeout)
            return _Answer("204 No Content", [("Content-Length", "0")])
        try:
            changes = json.loads(body)["server"]
            name = changes["name"] if set(changes) == {"name"} else None
        except (ValueError, KeyError, TypeError, RecursionError):
            name = None
        if method != "PUT" or not isinstance(name, str) or not name.strip():
            return _refusal(409, f"The server {server['id']} is not made yet; only its name can be changed.")
        self._guarded(environ, lambda ledger: ledger.rename(planned, name), timeout)
        return _json(200, {"server": {**on_the_wire(server, is_detailed=True), "name": name}})

    # Calls to the service

    def _guarded(self, environ: Environ, call: Callable[[Ledger], Any], timeout: float) -> Any:
        """Return what a call to the service returns.

        After a failure, nothing is called at this address with this deadline for a while. Raises ``RefusedError`` and
        ``UnreachableError``.
        """
        ledger = self._ledger(environ, timeout)
        breaker = self._breakers.setdefault((ledger.address, timeout), Breaker())
        if not breaker.may_call():
            raise UnreachableError("it did not answer a moment ago")
        try:
            result = call(ledger)
        except RefusedError:
            breaker.answered()
            raise
        except UnreachableError as error:
            if error.has_answered:  # to this caller: others may be served
                breaker.answered()
            else:
                breaker.failed()
            raise
        breaker.answered()
        return result

    def _ledger(self, environ: Environ, timeout: float | None = None) -> Ledger:
        endpoint = self._settings.endpoint or self._catalogue_endpoint(environ)
        token = environ.get("HTTP_X_AUTH_TOKEN", "")
        return Ledger(endpoint, token, timeout=timeout or self._settings.timeout, verify=self._settings.verify)

    def _catalogue_endpoint(self, environ: Environ) -> str:
        """Return the URL of the service in the token's catalogue; raises ``UnreachableError``."""
        try:
            catalogue = json.loads(environ.get("HTTP_X_SERVICE_CATALOG") or "[]")
        except ValueError:
            catalogue = []
        for service in catalogue:
            if service.get("type") != SERVICE_TYPE:
                continue
            for endpoint in service.get("endpoints", ()):
                if self._settings.region in ("", endpoint.get("region")):
                    return str(endpoint.get(f"{self._settings.interface}URL") or "")
        raise UnreachableError("the catalogue has no service of type reservation")


def _asked_version(environ: Environ) -> str:
    """Return the microversion that the request asks for."""
    return microversion_of(environ.get("HTTP_OPENSTACK_API_VERSION"), environ.get("HTTP_X_OPENSTACK_NOVA_API_VERSION"))


def _servers_url(environ: Environ) -> str:
    """Return the URL of the servers, as the request names it."""
    root = environ.get("PATH_INFO", "").partition("/servers")[0].partition("/os-volumes_boot")[0]
    host = environ.get("HTTP_HOST") or f"{environ.get('SERVER_NAME', 'localhost')}:{environ.get('SERVER_PORT', '80')}"
    return f"{environ.get('wsgi.url_scheme', 'http')}://{host}{environ.get('SCRIPT_NAME', '')}{root}/servers"


def _described(flavor: Mapping[str, Any], flavor_id: str) -> dict[str, Any]:
    """Return the description of a flavor with its sizes as numbers: Nova writes no swap as an empty text."""
    sizes = {name: int(flavor.get(name) or 0) for name in ("vcpus", "ram", "disk", "swap")}
    sizes["ephemeral"] = int(flavor.get("OS-FLV-EXT-DATA:ephemeral") or 0)
    return {"id": flavor_id, "name": str(flavor.get("name") or ""), "extra_specs": flavor["extra_specs"] or {}, **sizes}


def _read(environ: Environ) -> bytes:
    """Return the body, and put it back for the next reader."""
    length = environ.get("CONTENT_LENGTH") or ""
    chunked = not length and environ.get("wsgi.input_terminated")
    size = MAX_BYTES if chunked else int(length) if length.isascii() and length.isdigit() else 0
    if size > MAX_BYTES or size == 0:
        return b""  # Nova refuses it
    body: bytes = environ["wsgi.input"].read(size)
    environ["wsgi.input"] = BytesIO(body)
    if chunked:
        environ["CONTENT_LENGTH"] = str(len(body))
    return body


def _get(environ: Environ, path: str) -> Environ:
    """Return a request to read something, by the caller of another request."""
    return {**_with_body(environ, b""), "REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": ""}


def _with_body(environ: Environ, body: bytes) -> Environ:
    return {**environ, "wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}


def _call(application: Application, environ: Environ) -> _Answer:
    """Return the complete answer of the application."""
    answer = _Answer()
    written: list[bytes] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], None]:
        answer.status, answer.headers = status, list(headers)
        return written.append

    parts = application(environ, start_response)
    try:
        written.extend(parts)
    finally:
        close = getattr(parts, "close", None)
        if close is not None:
            close()
    answer.body = b"".join(written)
    return answer


def _with_content(answer: _Answer, body: bytes) -> _Answer:
    """Return the answer with another body."""
    if body is answer.body:
        return answer
    headers = [header for header in answer.headers if header[0].lower() != "content-length"]
    return _Answer(answer.status, [*headers, ("Content-Length", str(len(body)))], body)


def _json(code: int, document: Any) -> _Answer:
    body = json.dumps(document).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    return _Answer(f"{code} {HTTPStatus(code).phrase}", headers, body)


def _refusal(code: int, text: str) -> _Answer:
    """Return an error in Nova's format."""
    body = json.dumps({_NAMES[code]: {"code": code, "message": text}}).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    if code == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append(("Retry-After", _RETRY_AFTER))
    return _Answer(f"{code} {HTTPStatus(code).phrase}", headers, body)
