"""The public operations: the URL of the API, its versions and its health."""

from __future__ import annotations

import logging
import re

from tenure.api.answers import Whole
from tenure.api.operations import Operation, Request
from tenure.api.schemas.answers import (
    HealthDocument,
    Link,
    PartHealthDocument,
    VersionDocument,
    VersionEntry,
    VersionList,
)
from tenure.api.versions import LATEST, OLDEST, by_version
from tenure.domain.errors import Unavailable
from tenure.domain.request import ComponentHealth

_LOG = logging.getLogger(__name__)
#: Components that leases do not depend on: a load balancer should send requests to this service even if they are
#: unwell.
_APART = frozenset({"notifications"})
_PASSWORD = re.compile(r"://[^/\s]*@")


def _entry(request: Request) -> VersionEntry:
    return VersionEntry(
        id="v1.0",
        status="CURRENT",
        links=[Link(href=f"{request.links.base(request.http)}/v1", rel="self")],
        min_version=OLDEST.value,
        max_version=LATEST.value,
    )


def _versions(request: Request) -> VersionList:
    return VersionList(versions=[_entry(request)])


def _version(request: Request) -> VersionDocument:
    return VersionDocument(version=_entry(request))


def _health(request: Request) -> HealthDocument:
    """Return the health of the service and of each component."""
    try:
        components = request.manager.health()
    except Exception as error:  # noqa: BLE001  # any failure is the answer, and is logged
        defect = None if isinstance(error, Unavailable) else error
        _LOG.error("The manager does not say whether it is well: %s", error, exc_info=defect)
        components = (ComponentHealth("manager", well=False, reason="does not answer"),)
    well = all(component.well for component in components if component.component not in _APART)
    request.headers["Cache-Control"] = "no-store"
    request.status = 200 if well else 503
    return HealthDocument(status="well" if well else "unwell", parts=[_shown(component) for component in components])


def _shown(component: ComponentHealth) -> PartHealthDocument:
    """Return the health of a component, without passwords of URLs in the reason."""
    reason = _PASSWORD.sub("://***@", component.reason) if component.reason else None
    return PartHealthDocument(part=component.component, well=component.well, reason=reason)


_LIST = Whole(by_version(VersionList))
_ONE = Whole(by_version(VersionDocument))
_HEALTH = Whole(by_version(HealthDocument))
PUBLIC = (
    Operation("GET", "/", "List the versions", _versions, _LIST, status=300, public=True),
    Operation("GET", "/versions", "List the versions", _versions, _LIST, status=300, public=True),
    Operation("GET", "/v1", "Show the version", _version, _ONE, public=True),
    Operation("GET", "/v1/", "Show the version", _version, _ONE, public=True),
    Operation(
        "GET", "/healthcheck", "Say whether the service is well", _health, _HEALTH, refused_with=(503,), public=True
    ),
)
