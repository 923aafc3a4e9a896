"""The context of a request: its ids, its version and its actor, which are known before the body is read."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import falcon

from tenure.api.dialects import dialect_of
from tenure.api.errors import NoProject, Refusal, Unauthorized
from tenure.api.versions import OLDEST, Version, negotiate
from tenure.domain.actor import Actor

#: The key of the ``Call`` in the environment of a request.
_KEY = "tenure.call"
_REQUEST_ID = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)

Environ = dict[str, Any]


def _nothing() -> None:
    """Do nothing."""


@dataclass(slots=True)
class Call:
    """The ids, the version and the progress of a request."""

    request_id: str
    global_request_id: str | None
    #: None if the header is not valid; ``version_refusal`` then has the reason.
    version: Version | None
    version_refusal: Refusal | None
    of_resource: bool
    #: Whether the request has passed the authentication, so that the answer is from this application.
    reached: bool = False
    tells_version: bool = True
    #: The route that the URL matches, or an empty text.
    route: str = ""
    #: Called when the answer has ended.
    on_end: Callable[[], None] = _nothing

    def version_headers(self) -> list[tuple[str, str]]:
        if self.version is None or not self.of_resource:
            return []
        if not dialect_of(self.version).is_everywhere and not (self.tells_version and self.reached):
            return []
        return [("OpenStack-API-Version", f"reservation {self.version.value}"), ("Vary", "OpenStack-API-Version")]


def open_call(environ: Environ) -> Call:
    """Create the ``Call`` of a new request, and store it in the environment."""
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
    """Return the version at which the request is served."""
    return call_of(req).version or OLDEST


def actor_of(req: falcon.Request) -> Actor:
    """Return the actor of the request, from the headers of the authentication."""
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
        user_name=environ.get("HTTP_X_USER_NAME", ""),
        project_name=environ.get("HTTP_X_PROJECT_NAME", ""),
    )
