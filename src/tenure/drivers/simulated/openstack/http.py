"""The services of simulated clouds over HTTP, for OpenStack's clients: Keystone's tokens and catalogue, and the rest.

Each cloud is a region. Nothing here has passwords: a client comes with a token, as in the file of tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qsl
from wsgiref.util import request_uri, shift_path_info

from tenure.domain.errors import InvalidParameter
from tenure.domain.json_text import read_json
from tenure.drivers.simulated.openstack.cloud import OpenStack
from tenure.drivers.simulated.openstack.service import Asked, Caller, Refused, error_body
from tenure.drivers.simulated.openstack.users import FOR_USERS

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

#: The first parts of the paths that are served here.
PREFIXES: Final = frozenset({"identity", "cloud"})
#: The name of the only region of a service that has no regions.
ONLY_REGION: Final = "RegionOne"
#: The services by the part of the path that names them: type, name, and what stands before the paths of the version.
_SERVICES: Final = {
    "compute": ("compute", "nova", "v2.1"),
    "image": ("image", "glance", "v2"),
    "network": ("network", "neutron", "v2.0"),
    "volume": ("block-storage", "cinder", "v3"),
}
#: The newest and the oldest microversion of each service that has them.
_MICROVERSIONS: Final = {"compute": ("2.96", "2.1"), "volume": ("3.70", "3.0")}
#: What each service calls its version.
_VERSION_IDS: Final = {"compute": "v2.1", "image": "v2.9", "network": "v2.0", "volume": "v3.0"}
_TOKEN_LASTS: Final = timedelta(days=1)
_INSTANT: Final = "%Y-%m-%dT%H:%M:%S.000000Z"
_MAX_BYTES: Final = 1024 * 1024


class Account(Protocol):
    """A user in a project, as a token names him."""

    @property
    def user_id(self) -> str: ...
    @property
    def user_name(self) -> str: ...
    @property
    def project_id(self) -> str: ...
    @property
    def project_name(self) -> str: ...
    @property
    def roles(self) -> tuple[str, ...]: ...


class CloudEndpoints:
    """The WSGI application of simulated clouds, by region, beside ``reservations``, which answers all other paths.

    ``user_with`` returns the user with a token, or None. ``around_compute`` wraps Nova's application in a region.
    """

    def __init__(
        self,
        clouds: Mapping[str, OpenStack],
        reservations: WSGIApplication,
        user_with: Callable[[str], Account | None],
        around_compute: Callable[[WSGIApplication, str], WSGIApplication] = lambda compute, _region: compute,
    ) -> None:
        self._clouds = {name or ONLY_REGION: cloud for name, cloud in clouds.items()}
        self._reservations = reservations
        self._user_with = user_with
        self._compute = {name or ONLY_REGION: around_compute(self._serve, name) for name in clouds}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        first = environ.get("PATH_INFO", "").split("/")[1:2]
        if not PREFIXES.intersection(first):
            return self._reservations(environ, start_response)
        base = request_uri({**environ, "PATH_INFO": ""}, include_query=False).rstrip("/")
        shift_path_info(environ)
        if first == ["identity"]:
            return self._identity(environ, start_response, base)
        region, service = shift_path_info(environ), shift_path_info(environ)
        if region not in self._clouds or service not in _SERVICES:
            return _answer(start_response, 404, {"error": {"code": 404, "message": "There is no such service."}})
        environ["tenure.region"], environ["tenure.service"] = region, service
        path = environ["PATH_INFO"].rstrip("/")
        version = f"/{_SERVICES[service][2]}"
        if path in ("", version, "/versions"):
            described = _version(service, f"{base}/cloud/{region}/{service}{version}/")
            return _answer(
                start_response, 200, {"version": described} if path == version else {"versions": [described]}
            )
        if service != "compute":
            return self._serve(environ, start_response)
        # What keystonemiddleware would say of the token, for what stands before Nova.
        reservations = {"type": "reservation", "endpoints": [{"region": region, "publicURL": f"{base}/v1"}]}
        environ["HTTP_X_SERVICE_CATALOG"] = json.dumps([reservations])
        return self._compute[region](environ, start_response)

    # Keystone

    def _identity(self, environ: WSGIEnvironment, start_response: StartResponse, base: str) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"].rstrip("/"), environ["REQUEST_METHOD"]
        described = {
            "id": "v3.14",
            "status": "stable",
            "updated": "2020-04-07T00:00:00Z",
            "links": [{"rel": "self", "href": f"{base}/identity/v3/"}],
            "media-types": [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}],
        }
        if path == "":
            return _answer(start_response, 300, {"versions": {"values": [described]}})
        if path == "/v3":
            return _answer(start_response, 200, {"version": described})
        if path != "/v3/auth/tokens" or method not in {"GET", "HEAD", "POST"}:
            return _refuse(start_response, "identity", Refused(404, "The resource could not be found."))
        try:
            token = environ.get("HTTP_X_SUBJECT_TOKEN", "")
            if method == "POST":
                token = _token_in(_read(environ))
            elif self._user_with(environ.get("HTTP_X_AUTH_TOKEN", "")) is None:
                raise Refused(401, _UNAUTHORISED)
            user = self._user_with(token)
            if user is None:
                raise Refused(401 if method == "POST" else 404, _UNAUTHORISED)
        except Refused as refused:
            return _refuse(start_response, "identity", refused)
        shown = {"token": self._described(user, base)}
        return _answer(start_response, 201 if method == "POST" else 200, shown, ("X-Subject-Token", token))

    def _described(self, user: Account, base: str) -> dict[str, Any]:
        """Return a token as Keystone describes it, with the catalogue."""
        now, domain = datetime.now(UTC), {"id": "default", "name": "Default"}
        home = next(iter(self._clouds))
        catalogue = [
            _in_catalogue("identity", "keystone", {home: f"{base}/identity/v3"}),
            _in_catalogue("reservation", "tenure", dict.fromkeys(self._clouds, f"{base}/v1")),
        ]
        for part, (service_type, name, version) in _SERVICES.items():
            # Glance's and Neutron's endpoints have no version in the catalogue, and clients add it.
            suffix = f"/{version}" if part in _MICROVERSIONS else ""
            urls = {region: f"{base}/cloud/{region}/{part}{suffix}" for region in self._clouds}
            catalogue.append(_in_catalogue(service_type, name, urls))
        return {
            "methods": ["token"],
            "user": {"id": user.user_id, "name": user.user_name, "domain": domain, "password_expires_at": None},
            "project": {"id": user.project_id, "name": user.project_name, "domain": domain},
            "is_domain": False,
            "roles": [{"id": role, "name": role} for role in user.roles],
            "catalog": catalogue,
            "audit_ids": ["tenure"],
            "issued_at": now.strftime(_INSTANT),
            "expires_at": (now + _TOKEN_LASTS).strftime(_INSTANT),
        }

    # The other services

    def _serve(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        part, cloud = environ["tenure.service"], self._clouds[environ["tenure.region"]]
        service, _, version = _SERVICES[part]
        user = self._user_with(environ.get("HTTP_X_AUTH_TOKEN", ""))
        try:
            if user is None:
                raise Refused(401, _UNAUTHORISED)
            path = environ["PATH_INFO"].removeprefix(f"/{version}").rstrip("/")
            if part == "volume":  # clients of Cinder name the project in the path, or leave it out
                path = re.sub(f"^/{re.escape(user.project_id)}(?=/)", "", path)
            asked = Asked(
                f"{FOR_USERS}{service}",
                environ["REQUEST_METHOD"],
                path,
                tuple(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)),
                _read(environ),
                _microversion(environ, service),
            )
            cloud.verb = "user"
            status, body = cloud.answer(asked, Caller(user.user_id, user.project_id, frozenset(user.roles)))
        except Refused as refused:
            return _refuse(start_response, service, refused)
        return _answer(start_response, status, body)


_UNAUTHORISED: Final = "The request you have made requires authentication."


def _version(service: str, url: str) -> dict[str, Any]:
    """Describe the version of a service, as it does itself where no path is given."""
    newest, oldest = _MICROVERSIONS.get(service, ("", ""))
    return {
        "id": _VERSION_IDS[service],
        "status": "CURRENT",
        "version": newest,
        "min_version": oldest,
        "updated": "2013-07-23T11:33:21Z",
        "links": [{"rel": "self", "href": url}],
    }


def _in_catalogue(service_type: str, name: str, urls: Mapping[str, str]) -> dict[str, Any]:
    endpoints = [
        {
            "id": f"{name}-{region}-{interface}",
            "interface": interface,
            "region": region,
            "region_id": region,
            "url": url,
        }
        for region, url in urls.items()
        for interface in ("public", "internal", "admin")
    ]
    return {"id": name, "type": service_type, "name": name, "endpoints": endpoints}


def _token_in(body: Any) -> str:
    """Return the token with which a client asks for a token; raises ``Refused`` for a client that has none."""
    try:
        return str(body["auth"]["identity"]["token"]["id"])
    except (KeyError, TypeError):
        raise Refused(401, "There are no passwords here: use auth_type v3token, with a token of tokens.yaml.") from None


def _microversion(environ: WSGIEnvironment, service: str) -> str | None:
    """Return the microversion that the request names for the service."""
    for entry in environ.get("HTTP_OPENSTACK_API_VERSION", "").split(","):
        named, _, version = entry.strip().partition(" ")
        if named in {service, "volume"}:
            return version.strip() or None
    return environ.get("HTTP_X_OPENSTACK_NOVA_API_VERSION")


def _read(environ: WSGIEnvironment) -> Any:
    """Return the body, None if there is none; raises ``Refused`` for one that is no JSON or too long."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if length > _MAX_BYTES:
        raise Refused(413, f"The body has more than {_MAX_BYTES} bytes.")
    content = environ["wsgi.input"].read(length) if length else b""
    try:
        return read_json(content) if content else None
    except InvalidParameter as error:
        raise Refused(400, error.message) from None


def _refuse(start_response: StartResponse, service: str, refused: Refused) -> Iterable[bytes]:
    return _answer(start_response, refused.status, error_body(service, refused))


def _answer(start_response: StartResponse, status: int, body: Any, *headers: tuple[str, str]) -> Iterable[bytes]:
    content = b"" if status == 204 else json.dumps(body).encode()
    length = [] if status == 204 else [("Content-Type", "application/json"), ("Content-Length", str(len(content)))]
    start_response(f"{status} {HTTPStatus(status).phrase}", [*length, *headers])
    return [content]
