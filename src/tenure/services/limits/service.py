"""The limits of a project and its usage."""

from __future__ import annotations

from tenure.domain.actor import Actor
from tenure.domain.request import Allowance, Allowances
from tenure.services.context import Context, ContextualService, require
from tenure.services.identities import Identities
from tenure.services.limits.quotas import UNLIMITED, Quotas, account_of, names_of


class LimitService(ContextualService):
    """The use cases of limits."""

    def __init__(self, context: Context, quotas: Quotas, identities: Identities) -> None:
        super().__init__(context)
        self._quotas = quotas
        self._identities = identities

    def show(self, actor: Actor, project_id: str | None = None) -> Allowances:
        """Return all limits of a project, by id or name, with its usage; by default of the actor's own project.

        Raises ``Forbidden`` for another project, ``InvalidParameter`` for an unknown one, and ``Unavailable`` if the
        limits cannot be read now.
        """
        rule = "tenure:limits:get"
        project = actor.project_id
        if project_id is not None:
            may_see = self._authorize(rule, actor, {"project_id": project_id, "user_id": actor.user_id})
            project = self._identities.project(actor, project_id, may_see=may_see) or project_id
        require(self._authorize, rule, actor, {"project_id": project, "user_id": actor.user_id})
        limits = self._quotas.of_project(project, self._types)
        now = self._clock.now()
        with self._db.read() as tx:
            account = account_of(tx, project, now)
        used = self._quotas.usage(account, self._types, now)
        bookable = names_of(self._types.enabled)
        return Allowances(
            project_id=project,
            hours_until=now + self._quotas.horizon,
            allowances=tuple(
                Allowance(name, limits.get(name, UNLIMITED), used.get(name, 0))
                for name in names_of(self._types)
                if name in bookable or used.get(name)
            ),
        )
