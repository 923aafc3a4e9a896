"""What everybody may read: where the API is, which versions it speaks, whether it is well."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

import falcon

from tenure.api.answers import answer
from tenure.api.links import Links
from tenure.api.versions import LATEST, OLDEST
from tenure.domain.errors import Unavailable
from tenure.domain.request import PartHealth
from tenure.services.manager import Manager

_LOG = logging.getLogger(__name__)
#: Parts that keep nobody from booking, and no lease from its start or end, when they are unwell: they are shown, and a
#: load balancer is to send requests here all the same.
_APART = frozenset({"notifications"})
_PASSWORD = re.compile(r"://[^/\s]*@")


class Versions:
    """The list of the API's versions."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        answer(resp, {"versions": [version_entry(self._links.base(req))]}, falcon.HTTP_MULTIPLE_CHOICES)


class OneVersion:
    """Version 1 of the API."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        answer(resp, {"version": version_entry(self._links.base(req))})


def version_entry(base: str) -> Mapping[str, object]:
    return {
        "id": "v1.0",
        "status": "CURRENT",
        "links": [{"href": f"{base}/v1", "rel": "self"}],
        "min_version": OLDEST.value,
        "max_version": LATEST.value,
    }


class Health:
    """Whether the service does its work, and whether each part is well."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        try:
            parts = self._manager.health()
        except Exception as error:  # noqa: BLE001  # whatever ails it is the answer, and in the log
            defect = None if isinstance(error, Unavailable) else error
            _LOG.error("The manager does not say whether it is well: %s", error, exc_info=defect)
            parts = (PartHealth("manager", well=False, reason="does not answer"),)
        well = all(part.well for part in parts if part.part not in _APART)
        resp.set_header("Cache-Control", "no-store")
        answer(
            resp,
            {"status": "well" if well else "unwell", "parts": [_shown(part) for part in parts]},
            falcon.HTTP_OK if well else falcon.HTTP_SERVICE_UNAVAILABLE,
        )


def _shown(part: PartHealth) -> Mapping[str, object]:
    """A part's health; whoever built the reason, no password in a URL of it gets out."""
    return {
        "part": part.part,
        "well": part.well,
        "reason": _PASSWORD.sub("://***@", part.reason) if part.reason else None,
    }
