"""Admission of changes: they are carried out where there is room, or where the exact search makes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import TypeVar

from tenure.clock import Clock
from tenure.domain.actor import Actor
from tenure.domain.lease import Lease
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules
from tenure.services.leases.access import LeaseAccess
from tenure.services.leases.changes import NO_FACTS, Changed, Facts, LeaseChanger
from tenure.services.planning.arrangements import Arrangement, Arrangements, admit
from tenure.services.planning.budget import Budget
from tenure.services.planning.wishes import Wish
from tenure.store.database import Transaction

R = TypeVar("R")


class ChangeAdmission:
    """Changes leases, and rearranges plans for that if needed."""

    def __init__(
        self,
        clock: Clock,
        types: ResourceTypes,
        rules: Rules,
        access: LeaseAccess,
        arrangements: Arrangements | None = None,
    ) -> None:
        self._clock = clock
        self._types = types
        self._rules = rules
        self._access = access
        self._arrangements = arrangements

    def admit(
        self,
        actor: Actor,
        lease_id: str,
        change: Callable[[LeaseChanger, Lease], Changed],
        run: Callable[[Callable[[Transaction], Changed]], R],
        facts: Facts = NO_FACTS,
        *,
        allowed: timedelta | None = None,
        if_version: Collection[int] | None = None,
    ) -> R:
        """Return what ``run`` makes of the work of a transaction that changes a lease.

        If it finds no room, it runs once more with an arrangement of the exact search. The planner may search for as
        long as is ``allowed``, by default for its usual time. Raises the errors of ``run``, and ``PreconditionFailed``
        if the lease has none of the versions ``if_version``.
        """
        now = self._clock.now()
        budget = Budget(self._rules.planning_time if allowed is None else allowed)
        wishes: Sequence[Wish] = ()

        def work(tx: Transaction, arrangement: Arrangement | None) -> Changed:
            nonlocal wishes
            lease = self._access.get_for(tx, actor, lease_id, "blazar:leases:put", lock=True, if_version=if_version)
            sees = self._access.sees(actor, lease)
            changer = LeaseChanger(
                tx, self._types, self._rules, actor, now, facts, sees=sees, budget=budget, arrangement=arrangement
            )
            try:
                return change(changer, lease)
            finally:
                wishes = changer.wishes

        return admit(
            self._arrangements,
            lambda arrangement: run(lambda tx: work(tx, arrangement)),
            lambda: wishes,
            now=now,
        )
