"""Finding room in the ledger, inside a transaction: shared by creating, changing and moving."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from tenure.domain.allocation import Allocation, Candidate, Demand, choose
from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import AllocationState
from tenure.domain.period import Period
from tenure.domain.requirement import Expression
from tenure.domain.shortfall import Shortfall
from tenure.resources.contract import ResourceTypes
from tenure.store.conflict import Overtaken
from tenure.store.database import Transaction

#: How many resources are looked at when plans must move to make room.
ROOM_SAMPLE = 32
#: How many searches for another place for a plan may find none before a request is refused; each looks at all hosts.
FRUITLESS = 8


class Planner:
    """The choices of one transaction, and the versions that they rest on.

    A version is raised as soon as something rests on it, before anything is written to the ledger: whoever wants the
    same resource at the same time waits at its row, finds another version, and begins anew. Were it raised in the end,
    each would wait for what the other has written.
    """

    def __init__(self, tx: Transaction, types: ResourceTypes, *, now: datetime, turn: int) -> None:
        self._tx = tx
        self._types = types
        self._now = now
        highest = tx.resources.highest_id()
        self._turn = turn % highest + 1 if highest else 0
        #: The versions of what was touched, as this transaction has raised them.
        self._raised: dict[int, int] = {}
        #: Where this transaction has put plans; what was read of these resources before may be out of date.
        self._filled: set[int] = set()
        #: For what nothing was free when it was looked for last; forgotten when a plan moves.
        self._nowhere: list[tuple[Demand, Period]] = []
        #: The highest id of the rows that this transaction has locked.
        self._highest = max(tx.hold({kind.inventory for kind in types}), default=0)

    def touch(self, versions: Mapping[int, int]) -> None:
        """Rest the decision on these versions, too; raises ``Overtaken`` where somebody was faster."""
        if any(self._raised.get(number, version) != version for number, version in versions.items()):
            raise Overtaken
        new = {number: version for number, version in versions.items() if number not in self._raised}
        if not new:
            return
        # Nobody who holds a row waits for one before it: no two can wait for each other.
        self._tx.resources.raise_versions(new, wait=self._highest < min(new))
        self._highest = max(self._highest, *new)
        self._raised.update({number: version + 1 for number, version in new.items()})

    def book(
        self,
        reservation_id: str,
        demand: Demand,
        period: Period,
        *,
        position: int,
        without: Collection[int] = (),
        requested: int | None = None,
        kept: int | None = None,
        state: AllocationState = AllocationState.PLANNED,
    ) -> list[int]:
        """Assign between ``demand.minimum`` and ``demand.maximum`` resources to the reservation.

        Plans of leases that have not started are moved where that makes the room that is missing. Raises
        ``NotEnoughResources`` with the counts of each stage where it does not, and ``Overtaken`` where others have
        given back enough in the meantime.
        """
        found = self._tx.allocations.candidates(demand, period, now=self._now, turn=self._turn, without=without)
        self._nowhere = [] if found else [(demand, period)]
        chosen = choose(found, period, demand.maximum, turn=self._turn)
        self.touch({candidate.resource_id: candidate.version for candidate in chosen})
        ids = [candidate.resource_id for candidate in chosen]
        if len(ids) < demand.minimum:
            ids += self._make_room(demand, period, demand.minimum - len(ids), without=[*without, *ids])
        if len(ids) < demand.minimum:
            shortfall = self._shortfall(
                demand, period, position=position, without=without, requested=requested, kept=kept
            )
            if shortfall.free >= demand.minimum:
                raise Overtaken  # as many have come free since they were looked for
            raise NotEnoughResources(shortfall, field=f"reservations[{position}].min")
        self._tx.allocations.add(reservation_id, ids, period, demand, state=state)
        return ids

    def clear(
        self, demand: Demand, period: Period, resource_ids: Collection[int], *, ignoring: str, without: Collection[int]
    ) -> bool:
        """Move the plans of others off these resources for the period; whether that worked for all of them.

        Nothing is put on the resources in ``without``, which the caller is about to take for longer.
        """
        blocked = self._tx.allocations.blocked_by_plans(
            demand,
            period,
            now=self._now,
            only=resource_ids,
            ignoring=ignoring,
            limit=max(ROOM_SAMPLE, len(resource_ids)),
        )
        demands = self._demands(plan for _, plans in blocked.values() for plan in plans)
        self._nowhere = []
        return set(resource_ids) <= set(blocked) and all(
            self._move_all(resource_id, version, plans, demands, without={*resource_ids, *without})
            for resource_id, (version, plans) in sorted(blocked.items())
        )

    def replace(
        self, allocation: Allocation, demand: Demand, *, without: Collection[int] = (), make_room: bool = False
    ) -> int | None:
        """Move one allocation to another resource that is free for it from now on; its id, None where there is none.

        With ``make_room`` also to one that is free once the plans of others have moved.
        """
        place = self._place_for(allocation, demand, without=without)
        if place is not None:
            self.touch({place.resource_id: place.version})
            found = place.resource_id
        elif make_room and allocation.period.end > self._now:
            period = Period(max(allocation.period.start, self._now), allocation.period.end)
            made = self._make_room(_one(demand), period, 1, without={allocation.resource_id, *without})
            if not made:
                return None
            [found] = made
        else:
            return None
        self._tx.allocations.move(allocation, found, start=max(allocation.period.start, self._now))
        self._filled.add(found)
        self._nowhere.clear()
        return found

    def add_one(
        self,
        reservation_id: str,
        demand: Demand,
        period: Period,
        *,
        without: Collection[int],
        state: AllocationState,
    ) -> int | None:
        """Assign one more resource, none of those ``without``; its id, None where there is none to be had."""
        one = _one(demand)
        found = self._tx.allocations.candidates(one, period, now=self._now, turn=self._turn, without=without)
        self._nowhere = [] if found else [(one, period)]
        if found:
            [chosen] = choose(found, period, 1, turn=self._turn)
            self.touch({chosen.resource_id: chosen.version})
            ids = [chosen.resource_id]
        else:
            ids = self._make_room(one, period, 1, without=without)
        self._tx.allocations.add(reservation_id, ids, period, one, state=state)
        return next(iter(ids), None)

    def _place_for(self, allocation: Allocation, demand: Demand, *, without: Collection[int]) -> Candidate | None:
        """Another resource that is free for an allocation from now on."""
        if allocation.period.end <= self._now:
            return None
        period = Period(max(allocation.period.start, self._now), allocation.period.end)
        found = self._tx.allocations.candidates(
            _one(demand), period, now=self._now, turn=self._turn, without={allocation.resource_id, *without}
        )
        if not found:
            self._nowhere.append((demand, period))
        return next(iter(choose(found, period, 1, turn=self._turn)), None)

    def shortfall(self, demand: Demand, period: Period, *, position: int, kept: int, requested: int) -> Shortfall:
        """Why a started reservation cannot have what was asked."""
        return self._shortfall(demand, period, position=position, without=(), requested=requested, kept=kept)

    def _make_room(self, demand: Demand, period: Period, missing: int, *, without: Collection[int]) -> list[int]:
        """Free up to ``missing`` resources by moving plans elsewhere; those that are free then."""
        blocked = self._tx.allocations.blocked_by_plans(
            demand, period, now=self._now, without=without, limit=ROOM_SAMPLE + missing
        )
        if blocked and self._nowhere and demand.expression.comparisons:
            # Where nothing at all is free, no plan that lasts as long can move: one look instead of one for each.
            anything = replace(demand, minimum=1, maximum=1, expression=Expression(()))
            if not self._tx.allocations.candidates(anything, period, now=self._now, turn=self._turn, without=without):
                self._nowhere.append((anything, period))
        demands = self._demands(plan for _, plans in blocked.values() for plan in plans)
        made: list[int] = []
        for resource_id, (version, plans) in blocked.items():
            if len(made) == missing:
                break
            if resource_id in self._filled:
                again = self._tx.allocations.blocked_by_plans(
                    demand, period, now=self._now, only=[resource_id], limit=1
                )
                if resource_id not in again:
                    continue
                version, plans = again[resource_id]
                demands |= self._demands(plans)  # also of those that others have just put there
            if self._move_all(resource_id, version, plans, demands, without=[*without, *made]):
                made.append(resource_id)
        return made

    def _demands(self, plans: Iterable[Allocation]) -> dict[str, Demand]:
        """What the reservations of these plans ask for."""
        reservations = self._tx.leases.reservations_by_ids({plan.reservation_id for plan in plans})
        return {
            number: self._types[reservation.resource_type].demand(reservation.parameters)
            for number, reservation in reservations.items()
        }

    def _has_nowhere_to_go(self, plan: Allocation, demand: Demand) -> bool:
        """Whether it is known already that nothing is free for as long and as much as the plan asks for."""
        start = max(plan.period.start, self._now)
        asked = set(demand.expression.comparisons)
        return len(self._nowhere) > FRUITLESS or any(
            other.inventory == demand.inventory
            and asked.issuperset(other.expression.comparisons)
            and start <= taken.start
            and taken.end <= plan.period.end
            for other, taken in self._nowhere
        )

    def _move_all(
        self,
        resource_id: int,
        version: int,
        plans: list[Allocation],
        demands: Mapping[str, Demand],
        *,
        without: Collection[int],
    ) -> bool:
        """Move every one of these plans off the resource, or none of them."""
        if any(self._has_nowhere_to_go(plan, demands[plan.reservation_id]) for plan in plans):
            return False
        if plans and self._place_for(plans[0], demands[plans[0].reservation_id], without=without) is None:
            return False  # before anything is locked: most searches for room find none
        raised = dict(self._raised)
        with self._tx.session.begin_nested() as attempt:
            self.touch({resource_id: version})
            for plan in plans:
                if self.replace(plan, demands[plan.reservation_id], without=without) is None:
                    attempt.rollback()
                    self._raised = raised
                    return False
        return True

    def _shortfall(
        self,
        demand: Demand,
        period: Period,
        *,
        position: int,
        without: Collection[int],
        requested: int | None,
        kept: int | None,
    ) -> Shortfall:
        return Shortfall(
            resource_type=demand.inventory,
            noun=demand.noun,
            requested=demand.minimum if requested is None else requested,
            stages=self._tx.allocations.stages(demand, period, now=self._now, ignoring=None, without=without),
            reservation=position,
            unknown_properties=self._tx.resources.unknown_names(demand.inventory, demand.expression.names),
            kept=kept,
        )


def _one(demand: Demand) -> Demand:
    """The same demand for a single resource."""
    return replace(demand, minimum=1, maximum=1)
