"""The handler of limits."""

from __future__ import annotations

import falcon

from tenure.api.answers import answer
from tenure.api.context import actor_of
from tenure.api.schemas.moments import show_rfc3339
from tenure.api.schemas.queries import LimitsQuery, read_query
from tenure.api.versions import Version
from tenure.services.manager import Manager


class Limits:
    """What a project may have, and what it has."""

    since = Version.V1_2

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        actor = actor_of(req)
        found = self._manager.limits.show(actor, read_query(req, LimitsQuery).project_id)
        limits = [{"name": one.name, "limit": one.limit, "used": one.used} for one in found.allowances]
        until = show_rfc3339(found.hours_until)
        answer(resp, {"limits": limits, "project_id": found.project_id, "hours_until": until})
