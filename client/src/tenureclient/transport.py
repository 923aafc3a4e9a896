"""Calls to the service: its address, its version, and its errors."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

import requests
from keystoneauth1 import adapter, session
from keystoneauth1 import exceptions as ksa_exceptions

from tenureclient import errors
from tenureclient.repeats import send_patiently
from tenureclient.wire import Feature, Fields, JsonObject, JsonValue, MalformedDocument, Version, rfc3339

SERVICE_TYPE = "reservation"
DEFAULT_TIMEOUT = timedelta(seconds=120)
#: How many items of a list are asked for at once.
PAGE = "500"

#: The header that marks a request that may be repeated, and the pauses before it is, in seconds.
_KEY = "Idempotency-Key"
_PAUSES = (0.5, 2.0, 5.0)
_VERSIONED = re.compile(r"/v\d+(\.\d+)?$")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer and the version it is written in."""

    version: Version
    body: JsonObject
    #: The tag by which a later change can demand that the thing is as it is here; None if there is none.
    etag: str | None = None

    def read(self, read: Callable[[JsonValue], T], key: str | None = None) -> T:
        """Read the document, or what it has under a key. Raises ``UnexpectedAnswer`` if it has another form."""
        return parsed(read, self.body if key is None else self.body.get(key))

    def read_items(self, read: Callable[[JsonValue], T], key: str) -> tuple[T, ...]:
        """Read the items of the list under a key. Raises ``UnexpectedAnswer`` if they have another form."""
        return parsed(lambda body: Fields(body, "the answer").items(key, read), self.body)


Body = Callable[[Version], JsonObject]


@dataclass(frozen=True, slots=True)
class _Request:
    """A request, which may be sent in several versions."""

    method: str
    path: tuple[str, ...]
    query: Mapping[str, str]
    body: Body | None
    headers: Mapping[str, str]

    @property
    def has_key(self) -> bool:
        """Whether it has a key by which a server that knows keys recognizes it."""
        return _KEY in self.headers


class Transport:
    """Calls the service at the newest version that both know.

    If the server knows only 1.0, all further calls use 1.0.

    Such a server answers with 406 or, if it predates microversions, without naming the version. The
    client then repeats refused writes in the form of 1.0. This is safe: neither answer had an effect.

    What is refused since the service is busy is sent again; see ``send_patiently``.
    """

    def __init__(
        self,
        connection: session.Session | adapter.Adapter,
        *,
        endpoint_override: str | None = None,
        interface: str | None = None,
        region_name: str | None = None,
        timeout: timedelta | None = DEFAULT_TIMEOUT,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sleep = sleep
        if isinstance(connection, adapter.Adapter):
            self._adapter = connection
        else:
            self._adapter = adapter.Adapter(
                connection,
                service_type=SERVICE_TYPE,
                interface=interface or "public",
                region_name=region_name or None,  # an empty name would match no endpoint
            )
        self._endpoint = _with_version(endpoint_override) if endpoint_override else None
        self._seconds = None if timeout is None else timeout.total_seconds()
        self._version: Version | None = None
        #: The oldest version above 1.1 that the server is known to lack, and the newest that it has named.
        self._lacks: Version | None = None
        self._speaks: Version | None = None

    @property
    def version(self) -> Version | None:
        """The version of calls that need nothing newer; None before the first answer."""
        return self._version

    def call(
        self,
        method: str,
        *path: str,
        query: Mapping[str, str] | None = None,
        body: Body | None = None,
        feature: Feature | None = None,
        headers: Mapping[str, str] | None = None,
        makes: bool = False,
    ) -> Answer:
        """Make one call, with these further ``headers``; return its answer, or raise the error of its status.

        The elements of the ``path`` are quoted. A server without the ``feature`` raises ``NeedsNewerServer``.
        A server that lacks the newest version answers in an older one.

        A call that ``makes`` something has an ``Idempotency-Key``. If the connection is lost before the
        answer, it is repeated with the same key, a few times, if the server's description says that it knows
        keys.

        Raises ``EmptyText`` if an element of the path, or a parameter of the query, is empty.
        """
        _refuse_empty(path, query or {})
        keys = {_KEY: uuid.uuid4().hex} if makes else {}
        request = _Request(method, path, query or {}, body, {**(headers or {}), **keys})
        if feature and self._is_known_to_lack(feature.since):
            raise self._too_old(feature)
        oldest = max(feature.since if feature else Version.V1_1, Version.V1_2)
        for version in reversed(Version):
            if version < oldest or self._is_known_to_lack(version):
                continue
            response = self._send_safely(request, version)
            if not _lacks_version(response, version):
                if _names_version(response, version):
                    self._version, self._speaks = Version.V1_1, max(version, self._speaks or version)
                return _answer(version, response)
            # Only a server with versions answers 406: another one lacks all of them.
            self._lacks = version if response.status_code == 406 else Version.V1_2
            if feature and self._is_known_to_lack(feature.since):
                raise self._too_old(feature)
            # A write that a server without versions has performed must not be sent twice.
            if body is not None and response.ok:
                self._version = Version.V1_0
                return _answer(Version.V1_0, response)
        requested = self._version or Version.V1_1
        response = self._send_safely(request, requested)
        if self._version is None:
            self._version = _server_version(response, writes=body is not None)
            if self._version is Version.V1_0:
                if feature:
                    raise self._too_old(feature)
                requested = Version.V1_0
                if response.status_code >= 400:
                    response = self._send_safely(request, requested)
        return _answer(requested, response)

    def require(self, feature: Feature) -> None:
        """Raise ``NeedsNewerServer`` unless the server has this feature.

        Call it before a write that an older server would carry out in another way: Blazar ignores the version
        and unknown parameters. It asks for a list of leases, unless an earlier answer has shown the version.
        """
        if self._speaks is None or self._speaks < feature.since:
            self.call("GET", "leases", query={"limit": "1"}, feature=feature)

    def pages(
        self,
        *path: str,
        items: str,
        query: Mapping[str, str],
        read: Callable[[JsonValue], T],
        feature: Feature | None = None,
    ) -> Iterator[T]:
        """Yield the items of a list, page by page, while the answer links to a next page.

        Only the query of the link is used; host and path stay the same. A server behind a proxy may not
        know its own address, and the token must not be sent elsewhere.
        """
        seen = {tuple(sorted(query.items()))}
        while True:
            body = self.call("GET", *path, query=query, feature=feature).body
            documents = body.get(items)
            if not isinstance(documents, list):
                raise errors.UnexpectedAnswer(f"The answer has no list of {items}.")
            for document in documents:
                yield parsed(read, document)
            following = _next_query(body.get(f"{items}_links"))
            if following is None:
                return
            mark = tuple(sorted(following.items()))
            if mark in seen:
                raise errors.UnexpectedAnswer(f"The pages of {items} lead back to one already seen.")
            seen.add(mark)
            query = following

    def listed(
        self,
        *path: str,
        items: str,
        filters: Mapping[str, JsonValue],
        sort_key: str,
        descending: bool,
        read: Callable[[JsonValue], T],
        fitting: Callable[[Sequence[T]], Iterable[T]],
        feature: Feature | None = None,
    ) -> Iterator[T]:
        """Yield the items of a list that match the filters, sorted by a field, as ``pages`` does.

        API 1.0 ignores filters and the order: of a server of 1.0, yield those of all its items that ``fitting``
        returns, in this order.
        """
        query = {"limit": PAGE, "sort_key": sort_key, "sort_dir": "desc" if descending else "asc"}
        for name, value in filters.items():
            query[name] = str(value).lower() if isinstance(value, bool) else str(value)
        pages = self.pages(*path, items=items, query=query, read=read, feature=feature)
        first = next(pages, None)
        if first is None:
            return
        if self._version is Version.V1_0:
            pages = iter(
                sorted(fitting([first, *pages]), key=lambda item: _sort_value(item, sort_key), reverse=descending)
            )
        else:
            pages = chain([first], pages)
        yield from pages

    def endpoint(self) -> str:
        """Return the address of the service, looked up in the catalogue if none was given."""
        if self._endpoint is None:
            try:
                endpoint = self._adapter.get_endpoint()
            except ksa_exceptions.CatalogException:
                endpoint = None
            except ksa_exceptions.ClientException as error:
                raise _connection_error(error) from error
            if not endpoint:
                raise errors.ConnectionFailed(
                    f"The cloud's catalogue has no endpoint of type '{SERVICE_TYPE}' for this region and"
                    " interface; one can be given as reservation_endpoint_override."
                )
            self._endpoint = _with_version(endpoint)
        return self._endpoint

    def _send_safely(self, request: _Request, version: Version) -> requests.Response:
        """Send a request; with a key, send it again if the connection is lost and the server knows keys.

        A server without keys, such as Blazar, would carry out the request twice.
        """
        for pause in _PAUSES if request.has_key else ():
            try:
                return self._send(request, version)
            except errors.ConnectionFailed:
                if not self._knows_keys(request.path, version):
                    raise
                self._sleep(pause)
        return self._send(request, version)

    def _knows_keys(self, path: tuple[str, ...], version: Version) -> bool:
        """Whether the server's description says that a POST to this path may have an ``Idempotency-Key``."""
        root, _, prefix = self.endpoint().rpartition("/")
        try:
            response = self._adapter.request(
                f"{root}/openapi.json",
                "GET",
                params={"version": version.value},
                raise_exc=False,
                timeout=self._seconds,
            )
            paths = response.json()["paths"] if response.ok else {}
            for template, methods in paths.items():
                pattern = "[^/]+".join(re.escape(fixed) for fixed in re.split(r"\{\w+\}", template))
                if re.fullmatch(pattern, "/".join(("", prefix, *path))) and "post" in methods:
                    return any(parameter["name"] == _KEY for parameter in methods["post"]["parameters"])
        except (ksa_exceptions.ClientException, ValueError, LookupError, TypeError, AttributeError):
            return False
        return False

    def _send(self, request: _Request, version: Version) -> requests.Response:
        try:
            send = partial(
                self._adapter.request,
                "/" + "/".join(quote(element, safe="") for element in request.path),
                request.method,
                endpoint_override=self.endpoint(),
                headers={"Accept": "application/json", **request.headers},
                json=None if request.body is None else request.body(version),
                # Ask for 1.0 like Blazar's own clients: without the header.
                microversion=None if version is Version.V1_0 else version.value,
                microversion_service_type=SERVICE_TYPE,
                params=dict(request.query),
                raise_exc=False,
                timeout=self._seconds,
            )
            knows_keys = partial(self._knows_keys, request.path, version)
            return send_patiently(send, lambda: request.has_key and knows_keys(), self._sleep)
        except ksa_exceptions.ClientException as error:
            raise _connection_error(error) from error

    def _is_known_to_lack(self, version: Version) -> bool:
        if self._version is Version.V1_0:
            return version > Version.V1_0
        return self._lacks is not None and version >= self._lacks

    def _too_old(self, feature: Feature) -> errors.NeedsNewerServer:
        spoken = "API 1.0 only (it may be a Blazar)" if feature.since is Version.V1_1 else "an older API"
        return errors.NeedsNewerServer(
            f"The server at {self.endpoint()} speaks {spoken};"
            f" {feature.words} came with API {feature.since.value} of Tenure."
        )


class Calls:
    """The calls for one type of resources, or for one purpose."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport


def _refuse_empty(path: tuple[str, ...], query: Mapping[str, str]) -> None:
    """Raise ``EmptyText`` for an element of the path or a parameter of the query that names nothing.

    An empty element would make the path that of all resources; dots are taken out of a path on its way.
    """
    for element in path:
        if element in ("", ".", ".."):
            shown = f"'{element}'" if element else "an empty text"
            raise errors.EmptyText(f"{shown} names nothing below /{path[0]}; give a name or an id.")
    for name, value in query.items():
        if value == "":
            raise errors.EmptyText(f"{name}: an empty text names nothing.", field=name)


def _sort_value(item: object, sort_key: str) -> str:
    """Return a text that orders items like this field."""
    value = getattr(item, sort_key)
    return rfc3339(value) if isinstance(value, datetime) else str(value or "")


def parsed(read: Callable[[JsonValue], T], document: JsonValue) -> T:
    """Read a document of the server; raise ``UnexpectedAnswer`` if it has another form."""
    try:
        return read(document)
    except MalformedDocument as error:
        raise errors.UnexpectedAnswer(f"The server's answer cannot be read: {error}.") from error


def _with_version(endpoint: str) -> str:
    trimmed = endpoint.rstrip("/")
    return trimmed if _VERSIONED.search(trimmed) else trimmed + "/v1"


def _server_version(response: requests.Response, *, writes: bool) -> Version | None:
    """Return the server's version, if this answer to a request at 1.1 reveals it."""
    if response.status_code == 406:
        return Version.V1_0
    if _names_version(response, Version.V1_1):
        return Version.V1_1
        # A failed sign-in or a failing proxy says nothing about the service behind it.
    if response.ok or (response.status_code == 400 and writes):
        return Version.V1_0
    return None


def _names_version(response: requests.Response, version: Version) -> bool:
    """Whether the answer says that it uses this version."""
    return response.headers.get("OpenStack-API-Version", "").split() == [SERVICE_TYPE, version.value]


def _lacks_version(response: requests.Response, version: Version) -> bool:
    """Whether the answer shows that the server does not know the version.

    A server without microversions never names a version. Its answer may be 400, 404 or 405 because it does
    not know the path or the write.
    """
    if _names_version(response, version):
        return False
    return response.status_code == 406 or response.ok or response.status_code in {400, 404, 405}


def _answer(version: Version, response: requests.Response) -> Answer:
    """Read an answer; raise the error of its status."""
    request_id = response.headers.get("x-openstack-request-id")
    document: JsonValue = None
    if response.content:
        try:
            document = response.json()
        except ValueError:
            document = None
    if response.status_code >= 400:
        raise errors.error_from_answer(response.status_code, document, request_id)
    if response.status_code == 204:
        document = {}
    if not isinstance(document, Mapping):
        raise errors.UnexpectedAnswer(
            f"The server answered {response.status_code} with something that is not a JSON object.",
            code=response.status_code,
            request_id=request_id,
        )
    return Answer(version, document, response.headers.get("ETag"))


def _next_query(links: JsonValue) -> Mapping[str, str] | None:
    for link in links if isinstance(links, list) else ():
        if isinstance(link, Mapping) and link.get("rel") == "next":
            return dict(parse_qsl(urlsplit(str(link.get("href", ""))).query, keep_blank_values=True))
    return None


def _connection_error(error: ksa_exceptions.ClientException) -> errors.TenureError:
    if isinstance(error, ksa_exceptions.Unauthorized):
        return errors.Unauthorized(
            f"Keystone did not accept the sign-in: {error}", code=401, name="Unauthorized", request_id=error.request_id
        )
    return errors.ConnectionFailed(str(error))
