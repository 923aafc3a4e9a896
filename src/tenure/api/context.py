"""What is known of a request before it is read: its ids, its version, and who makes it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import falcon

from tenure.api.errors import NoProject, Refusal, Unauthorized
from tenure.api.versions import OLDEST, Version, negotiate
from tenure.domain.actor import Actor

#: Where the environment of a request keeps its ``Call``.
_KEY = "tenure.call"
_REQUEST_ID = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)

Environ = dict[str, Any]


@dataclass(slots=True)
class Call:
    """A request's ids and version, and how far it came."""

    request_id: str
    global_request_id: str | None
    #: None where it could not be understood; ``version_refusal`` then says why.
    version: Version | None
    version_refusal: Refusal | None
    of_resource: bool
    #: Whether the answer is ours, and not that of the authentication in front of us.
    reached: bool = False
    tells_version: bool = True
    #: The pattern of the URL that it matches, empty where none does.
    route: str = ""

    def version_headers(self) -> list[tuple[str, str]]:
        if self.version is None or not self.of_resource:
            return []
        if self.version is OLDEST and not (self.tells_version and self.reached):
            return []
        return [
            ("OpenStack-API-Version", f"reservation {self.version.value}"),
            ("Vary", "OpenStack-API-Version"),
        ]


def open_call(environ: Environ) -> Call:
    """Look at a new request, and keep what is found with it."""
    version, refusal = None, None
    try:
        version = negotiate(environ.get("HTTP_OPENSTACK_API_VERSION"))
    except Refusal as error:
        refusal = error
    given = environ.get("HTTP_X_OPENSTACK_REQUEST_ID", "")
    call = Call(
        request_id=f"req-{uuid.uuid4()}",
        global_request_id=given if _REQUEST_ID.fullmatch(given) else None,
        version=version,
        version_refusal=refusal,
        of_resource=environ.get("PATH_INFO", "").startswith("/v1/"),
    )
    environ[_KEY] = call
    environ["openstack.request_id"] = call.request_id
    if call.global_request_id:
        environ["openstack.global_request_id"] = call.global_request_id
    return call


def call_of(req: falcon.Request) -> Call:
    call = req.env[_KEY]
    assert isinstance(call, Call)
    return call


def version_of(req: falcon.Request) -> Version:
    """The version that the request is served at."""
    return call_of(req).version or OLDEST


def actor_of(req: falcon.Request) -> Actor:
    """Who makes the request, as the authentication in front of us says."""
    environ: Mapping[str, str] = req.env
    if environ.get("HTTP_X_IDENTITY_STATUS") != "Confirmed" or not environ.get("HTTP_X_USER_ID"):
        raise Unauthorized
    project_id = environ.get("HTTP_X_PROJECT_ID", "")
    if not project_id:
        raise NoProject
    call = call_of(req)
    return Actor(
        user_id=environ["HTTP_X_USER_ID"],
        project_id=project_id,
        roles=frozenset(role.strip() for role in environ.get("HTTP_X_ROLES", "").split(",") if role.strip()),
        request_id=call.request_id,
        global_request_id=call.global_request_id,
        token=environ.get("HTTP_X_AUTH_TOKEN") or None,
    )
