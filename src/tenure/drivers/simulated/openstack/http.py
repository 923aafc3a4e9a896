"""The services of simulated clouds over HTTP, for OpenStack's clients, with Keystone's tokens and catalogue.

Each cloud is a region. There are no passwords: clients authenticate with a token from the file of tokens.
"""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl
from wsgiref.util import request_uri, shift_path_info

from tenure.drivers.contract import CloudBusy
from tenure.drivers.simulated.openstack.cloud import OpenStack
from tenure.drivers.simulated.openstack.service import ApiRequest, Caller, Refused
from tenure.drivers.simulated.openstack.state import Account
from tenure.drivers.simulated.openstack.users import FOR_USERS
from tenure.drivers.simulated.openstack.wire import (
    MICROVERSIONS,
    WITH_BODY,
    HttpAnswer,
    answer_of,
    document_of,
    json_answer,
    microversion,
    read_body,
    refusal_answer,
)
from tenure.tracing import new_request_id, traced

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)

#: The first parts of the paths that are served here.
PREFIXES: Final = frozenset({"identity", "cloud"})
#: The name of the only region of a service that has no regions.
ONLY_REGION: Final = "RegionOne"
#: The services by their component of the path: type, name, and the prefix of the paths of the version.
_SERVICES: Final = {
    "compute": ("compute", "nova", "v2.1"),
    "image": ("image", "glance", "v2"),
    "network": ("network", "neutron", "v2.0"),
    "volume": ("block-storage", "cinder", "v3"),
}
#: The version of each service, as the service writes it.
_VERSION_IDS: Final = {"compute": "v2.1", "image": "v2.9", "network": "v2.0", "volume": "v3.0"}
#: The headers with the caller for middleware before Nova; a client cannot send them.
_OF_CALLER: Final = ("HTTP_X_SERVICE_CATALOG", "HTTP_X_ROLES", "HTTP_X_USER_ID", "HTTP_X_PROJECT_ID")
_TOKEN_LASTS: Final = timedelta(days=1)
_UNAUTHORISED: Final = "The request you have made requires authentication."
_UNKNOWN: Final = "The resource could not be found."
_INSTANT: Final = "%Y-%m-%dT%H:%M:%S.000000Z"
#: The roles with which a request may read, and with which it may change something.
_READERS: Final = frozenset({"reader", "member", "admin"})
_MEMBERS: Final = frozenset({"member", "admin"})


#: The paths of Keystone, with their methods.
IDENTITY_ROUTES: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("GET",),
    "/v3": ("GET",),
    "/v3/auth/tokens": ("GET", "POST"),
}


class NotAllowed(Refused):
    """The path does not support the method; the error has the supported methods."""

    def __init__(self, methods: tuple[str, ...]) -> None:
        self.methods = methods
        super().__init__(405, "The method is not allowed for the requested URL.")


class CloudEndpoints:
    """The WSGI application of simulated clouds, by region, beside ``reservations``, which answers all other paths.

    ``user_with`` returns the user with a token, or None. Each request is a line in the log.
    """

    def __init__(
        self,
        clouds: Mapping[str, OpenStack],
        reservations: WSGIApplication,
        user_with: Callable[[str], Account | None],
    ) -> None:
        self._clouds = {name or ONLY_REGION: cloud for name, cloud in clouds.items()}
        self._reservations = reservations
        self._user_with = user_with
        self._compute: dict[str, WSGIApplication] = dict.fromkeys(self._clouds, self._serve)

    def put_before_compute(self, region: str, wrap: Callable[[WSGIApplication], WSGIApplication]) -> None:
        """Put an application before Nova in a region; it gets the requests of known users, with valid bodies."""
        self._compute[region or ONLY_REGION] = wrap(self._serve)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "")
        if path.split("/")[1:2] not in [[prefix] for prefix in PREFIXES]:
            return self._reservations(environ, start_response)
        request_id = new_request_id()
        if method == "HEAD":
            environ["REQUEST_METHOD"] = "GET"
        with traced(request_id):
            answer = self._answer(environ)
            LOG.info("%s %s %r -> %s", request_id, method, path, answer.status)
        answer = answer.with_header("x-openstack-request-id", request_id)
        return answer.send(start_response, head=method == "HEAD")

    def _answer(self, environ: WSGIEnvironment) -> HttpAnswer:
        """Answer a request; ``tenure.service`` in the environment is the service once it is known."""
        base = request_uri({**environ, "PATH_INFO": ""}, include_query=False).rstrip("/")
        environ["tenure.service"] = shift_path_info(environ)
        try:
            if environ["tenure.service"] == "identity":
                return self._identity(environ, base)
            return self._cloud(environ, base)
        except NotAllowed as refused:
            allow = ", ".join([*refused.methods, *(["HEAD"] if "GET" in refused.methods else [])])
            return refusal_answer(environ["tenure.service"], refused).with_header("Allow", allow)
        except Refused as refused:
            return refusal_answer(environ["tenure.service"], refused)
        except (CloudBusy, sqlite3.OperationalError) as error:
            LOG.warning("the simulated cloud cannot be used: %s", error)
            busy = Refused(503, "The simulated cloud cannot be used right now; try again later.")
            return refusal_answer(environ["tenure.service"], busy).with_header("Retry-After", "1")
        except Exception:
            LOG.exception("a request to the simulated cloud failed")
            return refusal_answer(environ["tenure.service"], Refused(500, "Unexpected API Error."))

    def _cloud(self, environ: WSGIEnvironment, base: str) -> HttpAnswer:
        """Answer a request to a service of a region."""
        region, part = shift_path_info(environ), shift_path_info(environ)
        if region not in self._clouds or part not in _SERVICES:
            return json_answer(404, {"error": {"code": 404, "message": "There is no such service."}})
        service, _, version = _SERVICES[part]
        environ["tenure.service"], environ["tenure.region"] = service, region
        path = environ["PATH_INFO"].rstrip("/")
        if path in ("", f"/{version}", "/versions"):
            _only(environ, "GET")
            described = _version(part, f"{base}/cloud/{region}/{part}/{version}/")
            return json_answer(200, {"version": described} if path == f"/{version}" else {"versions": [described]})
        user = self._user(environ)
        if part == "volume":  # clients of Cinder name the project in the path, or leave it out
            path = re.sub(f"^/{version}/{re.escape(user.project_id)}(?=/)", f"/{version}", path)
        environ["PATH_INFO"] = path
        self._check_path(environ)
        _check_roles(environ["REQUEST_METHOD"], user)
        microversion(environ, service)
        content = b""
        if environ["REQUEST_METHOD"] in WITH_BODY:
            content = read_body(environ)
            document_of(content)
        environ["wsgi.input"], environ["CONTENT_LENGTH"] = BytesIO(content), str(len(content))
        for name in _OF_CALLER:
            environ.pop(name, None)
        environ["HTTP_X_ROLES"] = ",".join(user.roles)
        environ["HTTP_X_PROJECT_ID"] = user.project_id
        return answer_of(self._compute[region] if part == "compute" else self._serve, environ)

    def _serve(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer as the service, or as the middleware before it."""
        service = environ["tenure.service"]
        try:
            status, document = self._clouds[environ["tenure.region"]].answer(*self._asked(environ))
            answer = json_answer(status, document)
        except Refused as refused:
            answer = refusal_answer(service, refused)
        return answer.send(start_response)

    def _asked(self, environ: WSGIEnvironment) -> tuple[ApiRequest, Caller]:
        user, service = self._user(environ), environ["tenure.service"]
        request = ApiRequest(
            f"{FOR_USERS}{service}",
            environ["REQUEST_METHOD"],
            _service_path(environ),
            tuple(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)),
            document_of(read_body(environ)),
            microversion(environ, service),
        )
        self._clouds[environ["tenure.region"]].verb = "user"
        return request, Caller(user.user_id, user.project_id, frozenset(user.roles))

    def _user(self, environ: WSGIEnvironment) -> Account:
        """Return the user of the token. Raises ``Refused`` for a request without a valid token."""
        user = self._user_with(environ.get("HTTP_X_AUTH_TOKEN", ""))
        if user is None:
            raise Refused(401, _UNAUTHORISED)
        return user

    def _check_path(self, environ: WSGIEnvironment) -> None:
        """Refuse a path that the service lacks, and a method that the path does not support."""
        cloud, service = self._clouds[environ["tenure.region"]], environ["tenure.service"]
        methods = cloud.methods_at(f"{FOR_USERS}{service}", _service_path(environ))
        if not methods:
            raise Refused(404, _UNKNOWN)
        _only(environ, *methods)

    # Keystone

    def _identity(self, environ: WSGIEnvironment, base: str) -> HttpAnswer:
        path, method = environ["PATH_INFO"].rstrip("/"), environ["REQUEST_METHOD"]
        described = {
            "id": "v3.14",
            "status": "stable",
            "updated": "2020-04-07T00:00:00Z",
            "links": [{"rel": "self", "href": f"{base}/identity/v3/"}],
            "media-types": [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}],
        }
        if path not in IDENTITY_ROUTES:
            raise Refused(404, _UNKNOWN)
        _only(environ, *IDENTITY_ROUTES[path])
        if path == "":
            return json_answer(300, {"versions": {"values": [described]}})
        if path == "/v3":
            return json_answer(200, {"version": described})
        if method == "POST":
            token = _token_in(document_of(read_body(environ)))
            user = self._user_with(token)
        else:
            self._user(environ)
            token = environ.get("HTTP_X_SUBJECT_TOKEN", "")
            user = self._user_with(token)
        if user is None:
            raise Refused(401 if method == "POST" else 404, _UNAUTHORISED)
        shown = json_answer(201 if method == "POST" else 200, {"token": self._described(user, base)})
        return shown.with_header("X-Subject-Token", token)

    def _described(self, user: Account, base: str) -> dict[str, Any]:
        """Return a token as Keystone describes it, with the catalogue."""
        now, domain = datetime.now(UTC), {"id": "default", "name": "Default"}
        home = next(iter(self._clouds))
        catalogue = [
            _in_catalogue("identity", "keystone", {home: f"{base}/identity/v3"}),
            _in_catalogue("reservation", "blazar", dict.fromkeys(self._clouds, f"{base}/v1")),
        ]
        for part, (service_type, name, version) in _SERVICES.items():
            # Glance's and Neutron's endpoints have no version in the catalogue, and clients add it.
            suffix = f"/{version}" if service_type in MICROVERSIONS else ""
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


def _service_path(environ: WSGIEnvironment) -> str:
    """Return the path behind the version of the service; the version may be left out."""
    version = next(
        version for service_type, _, version in _SERVICES.values() if service_type == environ["tenure.service"]
    )
    return str(environ["PATH_INFO"].removeprefix(f"/{version}").rstrip("/"))


def _only(environ: WSGIEnvironment, *methods: str) -> None:
    """Refuse all methods but these."""
    if environ["REQUEST_METHOD"] not in methods:
        raise NotAllowed(methods)


def _check_roles(method: str, user: Account) -> None:
    """Refuse a user who lacks the role to read, or to change, the project's objects."""
    if not (_READERS if method == "GET" else _MEMBERS).intersection(user.roles):
        raise Refused(403, f"Policy doesn't allow {method} with the roles {', '.join(user.roles)}.")


def _version(part: str, url: str) -> dict[str, Any]:
    """Describe the version of a service, as its answer to the empty path."""
    newest, oldest = MICROVERSIONS.get(_SERVICES[part][0], ("", ""))
    return {
        "id": _VERSION_IDS[part],
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
    """Return the token with which a client requests a token; raise ``Refused`` without a token."""
    try:
        return str(body["auth"]["identity"]["token"]["id"])
    except (KeyError, TypeError):
        raise Refused(401, "There are no passwords here: use auth_type v3token, with a token of tokens.yaml.") from None
