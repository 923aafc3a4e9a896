"""Finding room in the ledger, inside a transaction: shared by creating, changing and moving."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from tenure.domain.allocation import Allocation, Candidate, Choice, Demand, Place, Spread, beside, choose
from tenure.domain.capacity import Capacity
from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import AllocationState
from tenure.domain.period import Period
from tenure.domain.requirement import Expression
from tenure.domain.shortfall import Shortfall
from tenure.resources.contract import ResourceTypes
from tenure.services.budget import Budget
from tenure.services.demands import demand_of
from tenure.store.conditions import Fixed
from tenure.store.conflict import Overtaken
from tenure.store.database import Transaction

#: How many resources are looked at when plans must move to make room.
ROOM_SAMPLE = 32
#: Of how many resources a request for still more is held against their number before any is looked at.
MANY = 1000
#: How many searches for another place for a plan may find none before a request is refused: one for each of these.
FRUITLESS = ROOM_SAMPLE
#: In how many orders the reservations of a lease are placed before the lease is refused.
ORDERS = 8


@dataclass(frozen=True, slots=True)
class _Nowhere:
    """Nothing has room for the demand throughout the period, but perhaps what is ``excluded``, where nobody looked."""

    demand: Demand
    period: Period
    excluded: frozenset[int]

    def covers(
        self, plan: Allocation, demand: Demand, start: datetime, *, amounts: Capacity, without: Collection[int]
    ) -> bool:
        """Whether so much of a plan, which goes to nothing that is ``without``, has nowhere to go either."""
        other = self.demand
        return (
            other.inventory == demand.inventory
            and other.region == demand.region
            and other.exclusive == demand.exclusive
            # Beside a plan for parts there may be room for another; what is had as a whole has room for nobody.
            and (demand.exclusive or self.excluded <= {plan.resource_id, *without})
            # What is too large for the cloud to hand out, or too small, may be one of these and not of the other.
            and (demand.exclusive or other.at_once == demand.at_once)
            and amounts.fits(other.amounts.times(other.units_together))
            and set(demand.expression.terms).issuperset(other.expression.terms)
            and demand.required >= other.required
            and demand.forbidden >= other.forbidden
            and start <= self.period.start
            and self.period.end <= plan.period.end
        )


class Stuck(Exception):
    """Something that must move cannot."""


class Planner:
    """The choices of one transaction, and the versions that they rest on.

    A version is raised as soon as something rests on it, before anything is written to the ledger: whoever wants the
    same resource at the same time waits at its row, finds another version, and begins anew. Were it raised in the end,
    each would wait for what the other has written.
    """

    def __init__(
        self,
        tx: Transaction,
        types: ResourceTypes,
        *,
        now: datetime,
        turn: int,
        notice: timedelta = timedelta(0),
        budget: Budget | None = None,
    ) -> None:
        """``budget`` is the time of the request that this is for; what the engine does takes as long as it takes."""
        self._tx = tx
        self._budget = budget
        self._types = types
        self._now = now
        #: Who is in the way of what starts soon was told already, so that this moves for nobody.
        self._fixed = Fixed(now + notice if notice else None)
        highest = tx.resources.highest_id()
        self._turn = turn % highest + 1 if highest else 0
        #: The versions of what was touched, as this transaction has raised them.
        self._raised: dict[int, int] = {}
        #: Where this transaction has put plans; what was read of these resources before may be out of date.
        self._filled: set[int] = set()
        #: For what nothing was free when it was looked for last; forgotten when a plan moves.
        self._nowhere: list[_Nowhere] = []
        #: Where the units of a reservation that are to stay together go, as soon as one of them has moved.
        self._gathered: dict[str, int] = {}
        #: The highest id of the rows that this transaction has locked.
        self._highest = max(tx.hold({kind.inventory for kind in types}), default=0)

    def book_surveyed(
        self, reservation_ids: Sequence[str], chosen: Mapping[int, Choice], *, missing: int = 0
    ) -> set[int]:
        """Book what a survey has chosen for these reservations, by their places, if all of it is to be had still.

        The places that are booked: all that were chosen, or none. Where the survey found no room for some, how many are
        ``missing``, what takes long follows, so that others need not wait for this as well: it is interrupted as that.
        """
        interrupt = self._spend if missing else lambda: None
        interrupt()
        versions = self._tx.allocations.versions_of(chosen.values(), now=self._now)
        if not versions:
            return set()
        self.touch(versions)
        interrupt()
        choices = {reservation_ids[place]: choice for place, choice in chosen.items()}
        self._tx.chosen.update(choices)
        self._tx.allocations.add_planned(choices)
        interrupt()
        return set(chosen)

    def _spend(self) -> None:
        """Go on looking. Raises what ``Budget.spend`` does."""
        if self._budget is not None:
            self._budget.spend(self._tx)

    def pick(self, found: Iterable[Candidate], demand: Demand, period: Period) -> list[Place]:
        """Where it goes, of the resources that were found to have room."""
        return choose(found, demand, period, turn=self._turn)

    def _choose(
        self,
        reservation_id: str,
        demand: Demand,
        period: Period,
        *,
        wanted: Collection[int],
        without: Collection[int],
        only: Collection[int] | None,
    ) -> list[Place]:
        """Where a reservation goes, of what has room; where this transaction was told to, if that still can be."""
        self._spend()
        search = partial(
            self._tx.allocations.candidates, demand, period, now=self._now, turn=self._turn, without=without
        )
        preferred = self._tx.preferred.get(reservation_id)
        if preferred is not None and set(wanted) <= preferred.units.keys():
            numbers = preferred.units.keys() if only is None else preferred.units.keys() & only
            if places := preferred.again(search(only=numbers), demand):
                return places
        found = search(only=only)
        self._nowhere = [] if found or only is not None else [_Nowhere(demand, period, frozenset(without))]
        if self._tx.spoken_for:
            places = self.pick(beside(found, self._tx.spoken_for, demand, period), demand, period)
            if sum(place.units for place in places) == demand.maximum:
                return places
        return self.pick(found, demand, period)

    def touch(self, versions: Mapping[int, int]) -> None:
        """Rest the decision on these versions, too; raises ``Overtaken`` where somebody was faster."""
        if any(self._raised.get(number, version) != version for number, version in versions.items()):
            raise Overtaken
        new = {number: version for number, version in versions.items() if number not in self._raised}
        if not new:
            return
        # Nobody who holds a row waits for one before it: no two can wait for each other.
        with self._budget.waiting() if self._budget is not None else nullcontext():
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
        only: Collection[int] | None = None,
    ) -> list[int]:
        """Assign between ``demand.minimum`` and ``demand.maximum`` units to the reservation; the new allocations' ids.

        ``without`` is what it has already: nothing is added there, and what is named need not be anywhere else.
        Plans of leases that have not started are moved where that makes the room that is missing. Raises
        ``NotEnoughResources`` with the counts of each stage where it does not, and ``Overtaken`` where others have
        given back enough in the meantime.
        """
        if not demand.maximum:
            return []
        period = demand.span(period)
        if demand.exclusive and demand.minimum > MANY:
            hopeless = self._shortfall(
                demand, period, position=position, without=without, requested=requested, kept=kept
            )
            if hopeless.matching < demand.minimum:  # nothing is locked for that, nor searched one by one
                raise NotEnoughResources(hopeless, field=f"reservations[{position}].{demand.parameter}")
        named = self._tx.resources.ids_of(demand.inventory, demand.named, region=demand.region)
        if wanted := set(named).difference(without):
            self._make_room_on(wanted, demand.part(1), period, without=without)
        places = self._choose(reservation_id, demand, period, wanted=wanted, without=without, only=only)
        self.touch({place.resource_id: place.version for place in places})
        self._spend()
        units = Counter({place.resource_id: place.units for place in places})
        missing = demand.minimum - units.total()
        added: list[int] = []
        if missing > 0 and self._tx.allocations.any_planned(period):
            units, added = self._take_with_moves(
                reservation_id, demand, period, units, state=state, without=without, only=only
            )
        lacking = len(named) < len(demand.named) or not wanted <= units.keys()
        if units.total() < demand.minimum or lacking:
            self._tx.allocations.remove(added)
            shortfall = self._shortfall(
                demand, period, position=position, without=without, requested=requested, kept=kept
            )
            if shortfall.free >= demand.minimum and only is None and not lacking:
                raise Overtaken  # as many have come free since they were looked for
            if lacking and shortfall.free >= demand.minimum:
                shortfall = replace(shortfall, naming=demand.naming)
            raise NotEnoughResources(
                shortfall, field=f"reservations[{position}].{shortfall.naming or demand.parameter}"
            )
        self._tx.chosen[reservation_id] = Choice(demand, period, units)
        if not added:
            added = self._take(reservation_id, demand, period, units, state=state)
        return added

    def _take(
        self, reservation_id: str, demand: Demand, period: Period, units: Mapping[int, int], *, state: AllocationState
    ) -> list[int]:
        return list(self._tx.allocations.add(reservation_id, units, period, demand, state=state).values())

    def _take_with_moves(
        self,
        reservation_id: str,
        demand: Demand,
        period: Period,
        units: Counter[int],
        *,
        state: AllocationState,
        without: Collection[int],
        only: Collection[int] | None,
    ) -> tuple[Counter[int], list[int]]:
        """Take these units, which are too few, and those for which plans of others move.

        All units, and the ids of the new allocations. Where plans can move only to what these units take, a plan moves
        first: then the units are others, and not taken yet. Where there is no room either way, the units are those
        that were given, and neither taken.
        """
        missing = demand.minimum - units.total()
        with suppress(Stuck), self._tentatively():
            added = self._take(reservation_id, demand, period, units, state=state)  # so that plans go beside them
            self._spend()
            full = [*without, *units] if demand.spread is Spread.APART else without
            more = Counter[int]()
            room = self._make_room(demand, period, missing, asking=reservation_id, without=full, only=only)
            for resource_id, count in room:
                added += self._take(reservation_id, demand, period, {resource_id: count}, state=state)
                more[resource_id] += count
            if more.total() < missing:
                raise Stuck
            return units + more, added
        if demand.spread is Spread.ANY and demand.minimum > 1:
            places = self._move_first(demand, period, asking=reservation_id, without=without, only=only)
            units = Counter({place.resource_id: place.units for place in places}) or units
        return units, []

    def _move_first(
        self,
        demand: Demand,
        period: Period,
        *,
        asking: str,
        without: Collection[int],
        only: Collection[int] | None = None,
        closed: Collection[int] = (),
    ) -> list[Place]:
        """Move a plan so that all units fit, which do not fit as things are: where they fit then.

        The plan may take the room of some units where it makes room for more elsewhere. A bounded number of plans are
        considered, for each the target that has room for the fewest units. Nothing has moved where there is no such
        plan.
        """
        fixed = replace(self._fixed, reservation_id=asking)
        blocked = self._tx.allocations.blocked_by_plans(
            demand, period, now=self._now, fixed=fixed, without=without, only=only, limit=ROOM_SAMPLE
        )
        if not blocked:
            return []
        ledger = self._tx.allocations
        search = partial(ledger.candidates, demand, period, now=self._now, turn=self._turn, without=without, only=only)
        free = Counter({candidate.resource_id: candidate.units for candidate in search()})
        missing = demand.minimum - free.total()
        rooms = self._tx.allocations.rooms(period, blocked, now=self._now)
        gains = [
            (rooms[plan.resource_id].without(plan).units(demand.amounts, period) - free[plan.resource_id], plan)
            for _, plans in blocked.values()
            for plan in plans
        ]
        sufficient = [(gain, plan) for gain, plan in gains if gain >= missing][:ROOM_SAMPLE]
        demands = self._demands(plan for _, plan in sufficient)
        for gain, plan in sufficient:
            plan_demand = demands[plan.reservation_id]
            target, loss = self._cheapest_target(plan, plan_demand, demand, period, free, closed=closed)
            if target is None or gain - loss < missing:
                continue
            version, _ = blocked[plan.resource_id]
            with suppress(Stuck), self._tentatively():
                self.touch({plan.resource_id: version, target.resource_id: target.version})
                self._put(plan, plan_demand, target.resource_id)
                places = self.pick(search(), demand, period)
                if sum(place.units for place in places) < demand.minimum:
                    raise Stuck
                self.touch({place.resource_id: place.version for place in places})
                return places
        return []

    def _cheapest_target(
        self,
        plan: Allocation,
        plan_demand: Demand,
        demand: Demand,
        period: Period,
        free: Mapping[int, int],
        *,
        closed: Collection[int],
    ) -> tuple[Candidate | None, int]:
        """Where a plan can move so that the fewest units of a demand lose their room, and how many these are.

        ``plan_demand`` is what the reservation of the plan asks for, ``free`` says for how many units of the demand
        each resource has room. Nothing is moved to what is ``closed``.
        """
        if plan.period.end <= self._now or self.is_required(plan, plan_demand):
            return None, 0
        if self._has_nowhere_to_go(plan, plan_demand, without=closed):
            return None, 0
        targets = self._targets(plan, plan_demand, self._from_now_on(plan), without=closed)
        rooms = self._tx.allocations.rooms(period, [target.resource_id for target in targets], now=self._now)

        def loss(target: Candidate) -> int:
            before = free.get(target.resource_id, 0)
            after = rooms[target.resource_id].beside(plan).units(demand.amounts, period)
            return before - min(before, after)

        target = min(targets, key=loss, default=None)
        return target, 0 if target is None else loss(target)

    def place_all(
        self,
        demands: Sequence[Demand],
        order: Sequence[int],
        place: Callable[[int], object],
        *,
        begin: Callable[[Sequence[int]], object] = lambda _order: None,
    ) -> None:
        """Call ``place`` with the place of each demand, in this order, where each may take what a later one needs.

        Where a demand finds no room, all is taken back and placed anew with that demand ahead of the others, in a
        bounded number of orders: what is hard to place moves to the front ("Squeaky wheel" optimization, Joslin and
        Clements, 1999). Equal demands are not placed in another order. ``begin`` is called with each order. Raises the
        ``NotEnoughResources`` of the first order where none serves.
        """
        if len(order) == 1:
            begin(order)
            place(order[0])
            return
        if self._budget is not None:
            self._budget.refusal = None  # of an attempt that was taken back
        first_equal = [demands.index(demand) for demand in demands]
        tried: set[tuple[int, ...]] = set()
        refusal: NotEnoughResources | None = None
        following = tuple(order)
        while (kinds := tuple(first_equal[number] for number in following)) not in tried and len(tried) < ORDERS:
            tried.add(kinds)
            number = 0
            try:
                with self._tentatively():
                    begin(following)
                    for number in following:
                        place(number)
                    return
            except NotEnoughResources as error:
                refusal = refusal or error
                if self._budget is not None:
                    self._budget.refusal = refusal
                following = (number, *(other for other in following if other != number))
        if refusal is not None:
            raise refusal

    @contextmanager
    def _tentatively(self) -> Iterator[None]:
        """Take back what is done inside where that raises, the versions that were raised as well."""
        raised, gathered, nowhere = dict(self._raised), dict(self._gathered), list(self._nowhere)
        try:
            with self._tx.session.begin_nested():
                yield
        except BaseException:
            self._raised, self._gathered, self._nowhere = raised, gathered, nowhere
            raise

    def clear(
        self,
        demand: Demand,
        period: Period,
        units: Mapping[int, int],
        *,
        ignoring: str | None,
        without: Collection[int],
    ) -> bool:
        """Move the plans of others off, until these resources have room for so many units; whether all of them do.

        What the reservation ``ignoring`` has does not count. Nothing is put on the resources in ``without``, which the
        caller is about to take for longer.
        """
        self._nowhere = []
        return all(
            self._clear(demand.part(count), period, resource_id, ignoring=ignoring, without={*units, *without})
            for resource_id, count in sorted(units.items())
        )

    def _clear(
        self, part: Demand, period: Period, resource_id: int, *, ignoring: str | None, without: Collection[int]
    ) -> bool:
        blocked = self._tx.allocations.blocked_by_plans(
            part, period, now=self._now, fixed=self._fixed, only=[resource_id], ignoring=ignoring, limit=1
        )
        if resource_id not in blocked:
            return False
        version, plans = blocked[resource_id]

        def fits() -> bool:
            return bool(
                self._tx.allocations.still_good(
                    part, period, {resource_id: part.minimum}, ignoring=ignoring, keep_unreservable=True
                )
            )

        everything = None if part.exclusive else fits
        sufficient = partial(self._sufficient, resource_id, part, period, ignoring=ignoring)
        demands = self._demands(plans)
        return self._move_all(resource_id, version, plans, demands, everything, sufficient, without=without)

    def replace(
        self, allocation: Allocation, demand: Demand, *, without: Collection[int] = (), make_room: bool = False
    ) -> int | None:
        """Move one allocation to another resource that has room for it from now on; its id, None where none has.

        With ``make_room`` also to one that has once the plans of others have moved.
        """
        if allocation.period.end <= self._now:
            return None
        period = self._from_now_on(allocation)
        found = self._find(allocation, demand, period, without=without, make_room=make_room)
        if found is not None:
            self._put(allocation, demand, found)
        return found

    def _put(self, allocation: Allocation, demand: Demand, resource_id: int) -> None:
        """Have an allocation on another resource from now on, which has room for it and is touched."""
        self._tx.allocations.move(allocation, resource_id, start=self._from_now_on(allocation).start)
        self._filled.add(resource_id)
        self._nowhere.clear()
        self._gather(allocation, demand, resource_id)

    def _gather(self, allocation: Allocation, demand: Demand, resource_id: int) -> None:
        """Have the units of a reservation that stay together follow an allocation to where it goes."""
        if demand.spread is Spread.TOGETHER:
            self._gathered[allocation.reservation_id] = resource_id

    def _from_now_on(self, allocation: Allocation) -> Period:
        """What is left of the time of an allocation that has not ended."""
        return Period(max(allocation.period.start, self._now), allocation.period.end)

    def relocate(self, allocation: Allocation, demand: Demand, *, without: Collection[int]) -> int | None:
        """Move an allocation as ``replace`` does: as a whole, or its units to several resources, or by moving others.

        The id of a resource that it has then; None, with nothing moved, where there is no room for all of it.
        """
        found = self.replace(allocation, demand, without=without)
        if found is None:
            found = self.scatter(allocation, demand, without=without)
        if found is None:
            found = self.replace(allocation, demand, without=without, make_room=True)
        return self.scatter(allocation, demand, without=without, make_room=True) if found is None else found

    def duplicate(
        self, allocation: Allocation, demand: Demand, period: Period, *, without: Collection[int]
    ) -> tuple[int, int] | None:
        """Assign as much as the allocation has once more, elsewhere, for the period; to be held at once.

        The id of the new allocation and that of its resource, None where there is none to be had.
        """
        period = demand.span(period)
        found = self._find(allocation, demand, period, without=without, make_room=True)
        if found is None:
            return None
        self._gather(allocation, demand, found)
        added = self._tx.allocations.add(
            allocation.reservation_id, {found: allocation.units}, period, demand, state=AllocationState.HELD
        )
        return added[found], found

    def _find(
        self, allocation: Allocation, demand: Demand, period: Period, *, without: Collection[int], make_room: bool
    ) -> int | None:
        """Another resource with room for what the allocation has, touched; None where there is none that will do."""
        if self.is_required(allocation, demand):
            return None
        place = self._place_for(allocation, demand, period, without=without)
        found: int | None = None
        if place is not None:
            self.touch({place.resource_id: place.version})
            found = place.resource_id
        elif make_room:
            part = demand.part(self._units_that_move(allocation, demand))
            gathered = self._gathered.get(allocation.reservation_id)
            closed = {allocation.resource_id, *without}
            excluded = closed | self._apart_from(allocation, demand)  # to which others may move all the same
            only = None if gathered is None else [gathered]
            made = self._make_room(part, period, part.minimum, without=excluded, closed=closed, only=only)
            found, _ = next(made, (None, 0))
        return found

    def _place_for(
        self, allocation: Allocation, demand: Demand, period: Period, *, without: Collection[int]
    ) -> Place | None:
        """Another resource that has room for an allocation throughout the period: the best."""
        part = demand.part(self._units_that_move(allocation, demand))
        found = self._targets(allocation, demand, period, without=without)
        return next(iter(self.pick(found, part, period)), None)

    def _targets(
        self, allocation: Allocation, demand: Demand, period: Period, *, without: Collection[int]
    ) -> list[Candidate]:
        """Other resources, a bounded number, each of which has room for an allocation throughout the period."""
        self._spend()
        gathered = self._gathered.get(allocation.reservation_id)
        part = demand.part(self._units_that_move(allocation, demand))
        apart = self._apart_from(allocation, demand)
        found = self._tx.allocations.candidates(
            part,
            period,
            now=self._now,
            turn=self._turn,
            without={allocation.resource_id, *without, *apart},
            only=None if gathered is None else [gathered],
        )
        if not found and not apart and gathered is None:  # others may go to where this one must not
            self._nowhere.append(_Nowhere(part, period, frozenset({allocation.resource_id, *without})))
        return found

    def _units_that_move(self, allocation: Allocation, demand: Demand) -> int:
        """For how many units there must be room where an allocation goes: for all that are to stay together with it."""
        if demand.spread is not Spread.TOGETHER or allocation.reservation_id in self._gathered:
            return allocation.units
        mine, _ = self._tx.allocations.with_versions([allocation.reservation_id])
        return sum(one.units for one in mine)

    def is_required(self, allocation: Allocation, demand: Demand) -> bool:
        """Whether the reservation names this very resource, so that no other is as good."""
        return allocation.resource_id in self._tx.resources.ids_of(demand.inventory, demand.named, region=demand.region)

    def _apart_from(self, allocation: Allocation, demand: Demand) -> set[int]:
        """The resources of its reservation that an allocation must not share. An exclusive one shares none anyway."""
        if demand.exclusive or demand.spread is not Spread.APART:
            return set()
        mine, _ = self._tx.allocations.with_versions([allocation.reservation_id])
        return {one.resource_id for one in mine if one.id != allocation.id}

    def shortfall(self, demand: Demand, period: Period, *, position: int, kept: int, requested: int) -> Shortfall:
        """Why a started reservation cannot have what was asked."""
        return self._shortfall(demand, period, position=position, without=(), requested=requested, kept=kept)

    def _make_room(
        self,
        demand: Demand,
        period: Period,
        missing: int,
        *,
        without: Collection[int],
        only: Collection[int] | None = None,
        closed: Collection[int] = (),
        asking: str | None = None,
    ) -> Iterator[tuple[int, int]]:
        """Make room for up to ``missing`` units by moving plans elsewhere: on which resource, and for how many.

        No room is made on the resources in ``without``, and nothing is moved to those in ``closed``. A resource comes
        several times where several units need plans to move. Plans may move to what is left where room was made before:
        the caller must have taken the units of a step before the next step. What is planned for the reservation that
        is ``asking`` does not move.
        """
        fixed = replace(self._fixed, reservation_id=asking)
        blocked = self._tx.allocations.blocked_by_plans(
            demand, period, now=self._now, fixed=fixed, without=without, only=only, limit=ROOM_SAMPLE + missing
        )
        if blocked and self._nowhere and demand.expression.terms:
            # Where nothing at all is free, no plan that lasts as long can move: one look instead of one for each.
            anything = replace(demand.part(1), expression=Expression(()), required=frozenset(), forbidden=frozenset())
            if not self._tx.allocations.candidates(anything, period, now=self._now, turn=self._turn, without=closed):
                self._nowhere.append(_Nowhere(anything, period, frozenset(closed)))
        demands = self._demands(plan for _, plans in blocked.values() for plan in plans)
        holds_one = demand.exclusive or demand.spread is Spread.APART
        for resource_id, (version, plans) in blocked.items():
            outdated = resource_id in self._filled
            fits = None if demand.exclusive else partial(self._has_room, resource_id, demand, period)
            sufficient = partial(self._sufficient, resource_id, demand, period)
            while missing > 0:
                self._spend()
                if outdated:
                    again = self._tx.allocations.blocked_by_plans(
                        demand, period, now=self._now, fixed=fixed, only=[resource_id], limit=1
                    )
                    if resource_id not in again:
                        break
                    version, plans = again[resource_id]
                    demands |= self._demands(plans)  # also of those that others have just put there
                if not self._move_all(resource_id, version, plans, demands, fits, sufficient, without=closed):
                    break
                count = min(missing, self._units_on(resource_id, demand, period))
                missing -= count
                yield resource_id, count
                if holds_one:
                    break
                outdated = True  # some plans have moved, and the units are taken

    def _has_room(self, resource_id: int, demand: Demand, period: Period) -> bool:
        return bool(self._tx.allocations.candidates(demand, period, now=self._now, turn=self._turn, only=[resource_id]))

    def _sufficient(
        self,
        resource_id: int,
        demand: Demand,
        period: Period,
        plans: Sequence[Allocation],
        *,
        ignoring: str | None = None,
    ) -> list[Allocation]:
        """Those of the plans on a resource each of which makes room enough by moving alone, of a bounded number."""
        if len(plans) == 1:
            return []  # there is no choice
        room = self._tx.allocations.rooms(period, [resource_id], ignoring=ignoring, now=self._now)[resource_id]
        return [
            plan
            for plan in plans[:ROOM_SAMPLE]
            if room.without(plan).units(demand.amounts, period) >= demand.units_together
        ]

    def _make_room_on(
        self, resource_ids: Collection[int], part: Demand, period: Period, *, without: Collection[int]
    ) -> None:
        """Move plans off these resources where they are in the way, to others than these."""
        found = self._tx.allocations.candidates(part, period, now=self._now, turn=self._turn, only=resource_ids)
        lacking = set(resource_ids) - {candidate.resource_id for candidate in found}
        if lacking:
            closed = {*without, *resource_ids}
            list(self._make_room(part, period, len(lacking), without=without, closed=closed, only=lacking))

    def _units_on(self, resource_id: int, demand: Demand, period: Period) -> int:
        """For how many units the resource has room, of those that the demand may put there."""
        if demand.spread is Spread.APART:
            return 1
        found = self._tx.allocations.candidates(demand, period, now=self._now, turn=self._turn, only=[resource_id])
        return sum(one.units for one in found)

    def _demands(self, plans: Iterable[Allocation]) -> dict[str, Demand]:
        """What the reservations of these plans ask for."""
        reservations = self._tx.leases.reservations_by_ids({plan.reservation_id for plan in plans})
        return {number: demand_of(self._types, reservation) for number, reservation in reservations.items()}

    def _has_nowhere_to_go(
        self, plan: Allocation, demand: Demand, *, without: Collection[int], whole: bool = True
    ) -> bool:
        """Whether it is known already that nothing has room for as long and as much as the plan asks for.

        Or, unless the ``whole`` of it must go, for one of its units.
        """
        start = max(plan.period.start, self._now)
        amounts = plan.amounts if whole else demand.amounts
        return len(self._nowhere) > FRUITLESS or any(
            known.covers(plan, demand, start, amounts=amounts, without=without) for known in self._nowhere
        )

    def _move_all(
        self,
        resource_id: int,
        version: int,
        plans: list[Allocation],
        demands: Mapping[str, Demand],
        fits: Callable[[], bool] | None,
        sufficient: Callable[[Sequence[Allocation]], Sequence[Allocation]],
        *,
        without: Collection[int],
    ) -> bool:
        """Move these plans off the resource: all of them, or as many as must go until something ``fits``; or none.

        A plan that is ``sufficient`` moves alone if it can: no other plan then takes the place that it can go to.
        """
        if fits is None:
            if any(self._has_nowhere_to_go(plan, demands[plan.reservation_id], without=without) for plan in plans):
                return False
            if plans and not self._could_move(plans[0], demands[plans[0].reservation_id], without=without):
                return False  # before anything is locked: most searches for room find none
        try:
            with self._tentatively():
                self.touch({resource_id: version})
                if fits is None:
                    for plan in plans:
                        if not self._move(plan, demands[plan.reservation_id], without=without, whole=True):
                            raise Stuck
                    return True
                for plan in sufficient(plans):
                    if self._move(plan, demands[plan.reservation_id], without=without, whole=True):
                        return True
                for plan in plans:
                    if self._move(plan, demands[plan.reservation_id], without=without, whole=False) and fits():
                        return True
                raise Stuck
        except Stuck:
            return False

    def _move(self, plan: Allocation, demand: Demand, *, without: Collection[int], whole: bool) -> bool:
        """Move a plan elsewhere; some of its units where not the ``whole`` of it must go and they may lie anywhere."""
        whole = whole or demand.spread is not Spread.ANY
        if self._has_nowhere_to_go(plan, demand, without=without, whole=whole):
            return False
        if whole:
            return self.replace(plan, demand, without=without) is not None
        return bool(self._scatter(plan, demand, without=without))

    def scatter(
        self, plan: Allocation, demand: Demand, *, without: Collection[int], make_room: bool = False
    ) -> int | None:
        """Move all units of a plan that may lie anywhere, to several resources if need be.

        One of these, None with nothing moved where there is no room for all of them. With ``make_room`` also to those
        that have room once the plans of others have moved.
        """
        if demand.spread is not Spread.ANY or plan.state is not AllocationState.PLANNED or plan.period.end <= self._now:
            return None
        if not make_room:
            return next(iter(self._scatter(plan, demand, without=without, at_least=plan.units)), None)
        try:
            with self._tentatively():
                units = Counter(self._scatter(plan, demand, without=without))
                if units.total() < plan.units:
                    self._scatter_rest(plan, demand, units, without={plan.resource_id, *without})
                return next(iter(units))
        except Stuck:
            return self._scatter_behind_a_move(plan, demand, without={plan.resource_id, *without})

    def _scatter_rest(self, plan: Allocation, demand: Demand, units: Counter[int], *, without: Collection[int]) -> None:
        """Move what is left of a plan to where room can be made; ``units`` is what has moved, and where."""
        left = plan.units - units.total()
        rest = replace(plan, units=left, amounts=demand.amounts.times(left))
        period = self._from_now_on(plan)
        some = replace(demand, minimum=1, maximum=left, named=())
        room = self._make_room(some, period, left, asking=plan.reservation_id, without=without, closed=without)
        for resource_id, count in room:
            self._tx.allocations.add(plan.reservation_id, {resource_id: count}, period, demand)
            self._filled.add(resource_id)
            units[resource_id] += count
        if units.total() < plan.units:
            raise Stuck
        self._tx.allocations.drop(rest)
        self._nowhere.clear()

    def _scatter_behind_a_move(self, plan: Allocation, demand: Demand, *, without: Collection[int]) -> int | None:
        """Move all units of a plan to where there is room for them after the plan of another reservation has moved."""
        period = self._from_now_on(plan)
        some = replace(demand, minimum=plan.units, maximum=plan.units, named=())
        places = self._move_first(some, period, asking=plan.reservation_id, without=without, closed=without)
        if not places:
            return None
        units = {place.resource_id: place.units for place in places}
        self._tx.allocations.add(plan.reservation_id, units, period, demand)
        self._tx.allocations.drop(plan)
        self._filled.update(units)
        self._nowhere.clear()
        return places[0].resource_id

    def _scatter(
        self, plan: Allocation, demand: Demand, *, without: Collection[int], at_least: int = 1
    ) -> dict[int, int]:
        """Move as many units of a plan as there is room for elsewhere; how many where, none where it is fewer."""
        if plan.period.end <= self._now:
            return {}
        self._spend()
        period = self._from_now_on(plan)
        some = replace(demand, minimum=1, maximum=plan.units, named=())
        found = self._tx.allocations.candidates(
            some, period, now=self._now, turn=self._turn, without={plan.resource_id, *without}
        )
        places = self.pick(found, some, period)
        if not places:
            self._nowhere.append(_Nowhere(some, period, frozenset({plan.resource_id, *without})))
        units = {place.resource_id: place.units for place in places}
        left = plan.units - sum(units.values())
        if left > plan.units - at_least:
            return {}
        self.touch({place.resource_id: place.version for place in places})
        self._tx.allocations.add(plan.reservation_id, units, period, demand)
        if left:
            self._tx.allocations.shrink(plan, left, demand)
        else:
            self._tx.allocations.drop(plan)
        self._filled.update(units)
        self._nowhere.clear()
        return units

    def _could_move(self, plan: Allocation, demand: Demand, *, without: Collection[int]) -> bool:
        if self.is_required(plan, demand):
            return False
        period = Period(max(plan.period.start, self._now), plan.period.end) if plan.period.end > self._now else None
        return period is not None and self._place_for(plan, demand, period, without=without) is not None

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
            resource_type=demand.resource_type or demand.inventory,
            noun=demand.noun,
            requested=demand.minimum if requested is None else requested,
            stages=self._tx.allocations.stages(demand, period, now=self._now, ignoring=None, without=without),
            reservation=position,
            unknown_properties=self._tx.resources.unknown_names(
                demand.inventory, demand.expression.names if demand.names_are_asked else ()
            ),
            kept=kept,
        )
