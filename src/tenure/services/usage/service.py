"""The use case of accounts: what projects have had in a period."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tenure import deadlines
from tenure.domain.actor import Actor
from tenure.domain.errors import InvalidParameter
from tenure.domain.period import Period, length_text
from tenure.domain.usage import Usage, UsageQuery, add_up
from tenure.services.context import Context, ContextualService, require
from tenure.services.identities import Identities
from tenure.store.upkeep import LEASES_PURGED

#: The longest period of an answer.
LONGEST_SPAN = timedelta(days=3 * 366)


class UsageService(ContextualService):
    """The use cases of accounts. They only read the ledger."""

    def __init__(self, context: Context, identities: Identities) -> None:
        super().__init__(context)
        self._identities = identities

    def show(self, actor: Actor, query: UsageQuery) -> Usage:
        """Return what the actor's project has had in a period; for an administrator, what each project has had.

        The query may name a project by its id or its name. Raises ``Forbidden`` for another project,
        ``InvalidParameter``, also for an unknown project, and ``Unavailable``.
        """
        rule = "tenure:usage:get"
        if query.project_id is not None:
            may_see = self._authorize(rule, actor, {"project_id": query.project_id, "user_id": actor.user_id})
            project_id = self._identities.project(actor, query.project_id, may_see=may_see)
            query = replace(query, project_id=project_id or query.project_id)
        target = {"project_id": query.project_id or actor.project_id, "user_id": actor.user_id}
        require(self._authorize, rule, actor, target)
        if query.project_id is None and not self._authorize("admin", actor, target):
            query = replace(query, project_id=actor.project_id)
        if query.ends_at <= query.starts_at:
            raise InvalidParameter("The period must end after it starts.", field="end_date")
        if query.ends_at - query.starts_at > LONGEST_SPAN:
            length = length_text(query.ends_at - query.starts_at)
            raise InvalidParameter(
                f"The period lasts for {LONGEST_SPAN.days} days at most, and this one for {length}.", field="end_date"
            )
        resource_type = None if query.resource_type is None else self._types[query.resource_type].name
        period = Period(query.starts_at, query.ends_at)
        with self._db.read() as tx:
            shares = tx.usage.shares(
                period, now=self._clock.now(), project_id=query.project_id, resource_type=resource_type
            )
            sums = add_up(deadlines.checked(shares), period)
            purged = tx.upkeep.at(LEASES_PURGED)
        incomplete_before = purged if purged is not None and purged > period.start else None
        return Usage(period.start, period.end, sums, incomplete_before)
