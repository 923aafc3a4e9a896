"""The search for room in the ledger, inside a transaction: for new leases, changes and moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

from tenure.domain.admission import AdmissionWay
from tenure.domain.allocation import Allocation, Candidate, Choice, Demand, Place, Spread, beside, choose
from tenure.domain.capacity import Capacity
from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import AllocationState
from tenure.domain.period import Period
from tenure.domain.requirement import ORDER, Comparison, Expression
from tenure.domain.shortfall import Shortfall, Stage
from tenure.resources.contract import ResourceTypes
from tenure.services.planning.arrangements import Arrangement, Moved, OutdatedArrangement
from tenure.services.planning.budget import Budget
from tenure.services.planning.demands import demand_of
from tenure.store.conditions import Fixed
from tenure.store.conflict import Overtaken
from tenure.store.database import Transaction

#: How many resources are considered when plans must move to make room.
ROOM_SAMPLE = 32
#: A request for more resources than this is first compared with their number.
MANY = 1000
#: How many searches for another place of a plan may fail before a request is refused.
FRUITLESS = ROOM_SAMPLE
#: How many orders of its reservations are tried before a lease is refused.
ORDERS = 8


@dataclass(frozen=True, slots=True)
class _Nowhere:
    """No resource has room for the demand in the whole period, except perhaps the ``excluded`` resources."""

    demand: Demand
    period: Period
    excluded: frozenset[int]

    def covers(
        self, plan: Allocation, demand: Demand, start: datetime, *, amounts: Capacity, without: Collection[int]
    ) -> bool:
        """Whether these amounts of a plan, which must not move to resources in ``without``, have no room either."""
        other = self.demand
        return (
            other.inventory == demand.inventory
            and other.region == demand.region
            and other.exclusive == demand.exclusive
            # Beside a plan for parts there may be room for another plan; a whole resource has no such room.
            and (demand.exclusive or self.excluded <= {plan.resource_id, *without})
            # The limits of providers may refuse the units of one demand and admit those of the other.
            and (demand.exclusive or other.at_once == demand.at_once)
            and amounts.fits(other.amounts.times(other.units_together))
            and set(demand.expression.terms).issuperset(other.expression.terms)
            and demand.required >= other.required
            and demand.forbidden >= other.forbidden
            and start <= self.period.start
            and self.period.end <= plan.period.end
        )


class Counts(Protocol):
    """Counts resources faster than the database."""

    @property
    def is_ready(self) -> bool:
        """Whether it can count at once."""

    def stages(self, demand: Demand, period: Period) -> tuple[tuple[Stage, ...], int]:
        """Return the stages of the choice, and how many units would have room if there were no plans."""

    def any_hopeless(self, demands: Collection[Demand], period: Period) -> bool:
        """Whether there is too little room for one of the demands, even if there were no plans."""


class Stuck(Exception):
    """A plan that must move cannot."""


class Planner:
    """The choices of a transaction, and the versions of the resources that they depend on.

    A version is raised as soon as a choice depends on it, before the ledger is written: another transaction that wants
    the same resource waits for its row, finds a new version, and starts again. If versions were raised at the end, two
    transactions could wait for each other's writes.
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
        counts: Counts | None = None,
    ) -> None:
        """``budget`` is the search time of the request; without it, as for the engine, the time is unlimited.

        ``counts`` counts the resources for refusals, without what the transaction itself has allocated; without it, the
        database counts.
        """
        self._tx = tx
        self._budget = budget
        self._counts = counts
        self._types = types
        self._now = now
        #: Plans that start soon do not move: preemptible servers in their way have been notified.
        self._fixed = Fixed(now + notice if notice else None)
        highest = tx.resources.highest_id()
        self._turn = turn % highest + 1 if highest else 0
        #: The resources whose versions this transaction has raised, with the versions that they have now.
        self._raised: dict[int, int] = {}
        #: Resources to which this transaction has moved plans; earlier reads of these may be out of date.
        self._filled: set[int] = set()
        #: The places of an arrangement, units by resource id, by reservation.
        self._arranged: Mapping[str, Mapping[int, int]] | None = None
        #: Demands for which the last search found no room; forgotten when a plan moves.
        self._nowhere: list[_Nowhere] = []
        #: The new resource of reservations whose units stay together, once a unit has moved.
        self._gathered: dict[str, int] = {}
        #: The highest id of the locked rows.
        self._highest = max(tx.lock_contended({kind.inventory for kind in types}), default=0)

    def book_surveyed(
        self, reservation_ids: Sequence[str], chosen: Mapping[int, Choice], *, missing: int = 0
    ) -> set[int]:
        """Book the choices of a survey, by the positions of the reservations, if all of them are still free.

        Return the booked positions: all of them, or none. ``missing`` is the number of reservations for which the
        survey found no room. If there are any, a long search follows, and this one gives way to others like it.
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
        """Continue the search; raise the errors of ``Budget.spend``."""
        if self._budget is not None:
            self._budget.spend(self._tx)

    def pick(self, found: Iterable[Candidate], demand: Demand, period: Period) -> list[Place]:
        """Return the best places among the candidates."""
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
        """Return the places for a reservation: the preferred ones of the transaction if they are still free."""
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
        """Make the choices depend on these versions; raise ``Overtaken`` if another transaction has raised them."""
        if any(self._raised.get(resource_id, version) != version for resource_id, version in versions.items()):
            raise Overtaken
        new = {resource_id: version for resource_id, version in versions.items() if resource_id not in self._raised}
        if not new:
            return
        # A transaction never waits for a row before one that it has locked, so there are no deadlocks.
        with self._budget.waiting() if self._budget is not None else nullcontext():
            raised = self._tx.resources.raise_versions(new, wait=self._highest < min(new))
        self._highest = max(self._highest, *new)
        self._raised.update(raised)

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
        """Allocate between ``demand.minimum`` and ``demand.maximum`` units; return the ids of the new allocations.

        ``without`` are the resources that the reservation has already: no units are added there, and named resources
        among them are not required again. Plans of leases that have not started move if that makes the missing room.
        Raises ``NotEnoughResources`` with the counts of each stage if it does not, and ``Overtaken`` if enough
        resources have become free in the meantime.
        """
        if not demand.maximum:
            return []
        period = demand.span(period)
        if self._arranged is not None:
            return self._book_arranged(reservation_id, demand, period, self._arranged.get(reservation_id, {}), state)
        if demand.exclusive and demand.minimum > MANY:
            shortfall = self._shortfall(
                demand, period, position=position, without=without, requested=requested, kept=kept
            )
            if shortfall.matching < demand.minimum:  # refused without locks or a search
                field = f"reservations[{position}].{demand.parameter}"
                raise NotEnoughResources(shortfall, field=field, is_hopeless=True)
        named = self._tx.resources.ids_of(demand.inventory, demand.named, region=demand.region)
        if wanted := set(named).difference(without):
            self._make_room_on(wanted, demand.part(1), period, without=without)
        places = self._choose(reservation_id, demand, period, wanted=wanted, without=without, only=only)
        units = Counter({place.resource_id: place.units for place in places})
        missing = demand.minimum - units.total()
        added: list[int] = []
        hopeless = missing > 0 and self._is_hopeless(demand, period)
        if not hopeless:  # a refusal locks nothing
            self.touch({place.resource_id: place.version for place in places})
        self._spend()
        if missing > 0 and not hopeless and self._tx.allocations.any_planned(period):
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
                raise Overtaken  # enough have become free since the search
            if lacking and shortfall.free >= demand.minimum:
                shortfall = replace(shortfall, naming=demand.naming)
            field = f"reservations[{position}].{shortfall.naming or demand.parameter}"
            raise NotEnoughResources(shortfall, field=field, is_hopeless=hopeless)
        self._tx.chosen[reservation_id] = Choice(demand, period, units)
        if not added:
            added = self._take(reservation_id, demand, period, units, state=state)
        return added

    def arrange(self, arrangement: Arrangement) -> None:
        """Move plans as an arrangement says. From now on, units are booked at its places, and nowhere else.

        Raises ``OutdatedArrangement`` if the ledger has changed since it was made.
        """
        self._tx.defer_checks()
        try:
            self.touch(arrangement.versions)
            for moved in arrangement.moved:
                self._rearrange(moved)
        except Overtaken:
            raise OutdatedArrangement from None
        self._arranged = arrangement.places

    def _book_arranged(
        self, reservation_id: str, demand: Demand, period: Period, units: Mapping[int, int], state: AllocationState
    ) -> list[int]:
        """Allocate the units of an arrangement; raise ``OutdatedArrangement`` if the reservation needs other ones."""
        if not demand.minimum <= sum(units.values()) <= demand.maximum:
            raise OutdatedArrangement
        if units:
            self._tx.chosen[reservation_id] = Choice(demand, period, units)
        return self._take(reservation_id, demand, period, units, state=state)

    def _rearrange(self, moved: Moved) -> None:
        """Give the plans of a reservation their new places; what stays is not touched."""
        wanted = Counter(moved.units)
        leaving: list[Allocation] = []
        for plan in moved.plans:
            if wanted[plan.resource_id] >= plan.units:
                wanted[plan.resource_id] -= plan.units
            else:
                leaving.append(plan)
        self._tx.allocations.lapse(leaving, now=self._now)
        for plan in leaving:
            self._tx.allocations.drop(plan)
        new = {resource_id: count for resource_id, count in wanted.items() if count}
        plan = moved.plans[0]
        self._tx.allocations.add(
            plan.reservation_id, new, plan.period, moved.demand, booked_from=self._booked_from(leaving)
        )
        self._filled.update(new)

    @property
    def way(self) -> AdmissionWay:
        """How room was found for what has been booked."""
        if self._arranged is not None:
            return AdmissionWay.EXACT
        return AdmissionWay.MOVED if self._filled else AdmissionWay.GREEDY

    @property
    def _can_count(self) -> bool:
        """Whether the counts are those of this transaction: it has allocated nothing, and moved no plan."""
        return self._counts is not None and self._counts.is_ready and not self._tx.chosen and not self._filled

    def _is_hopeless(self, demand: Demand, period: Period) -> bool:
        """Whether there is known to be too little room wherever plans move."""
        if not self._can_count:
            return False
        assert self._counts is not None
        _, loose = self._counts.stages(demand, period)
        return loose < demand.minimum

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
        """Allocate these units, which are too few, and more units for which other plans move.

        Return all units, and the ids of the new allocations. If plans can move only to room that these units would
        take, a plan moves first: the returned units are then different ones, and not allocated yet. If there is no
        room either way, the given units are returned, and not allocated.
        """
        missing = demand.minimum - units.total()
        with suppress(Stuck), self._tentatively():
            added = self._take(reservation_id, demand, period, units, state=state)  # so that plans move beside them
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
        """Move a plan so that all units of the demand fit; return their places.

        The plan may take the room of some units if it makes room for more elsewhere. A bounded number of plans is
        considered, each with the target that has room for the fewest units. If no such plan exists, none moves, and the
        list is empty.
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
        """Return the target of a plan that takes the room of the fewest units of a demand, and their number.

        ``plan_demand`` is the demand of the plan's own reservation. ``free`` is the number of units of the demand that
        fit on each resource. Resources in ``closed`` are no targets.
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
        """Call ``place`` with the index of each demand, in this order; each may take room that a later one needs.

        If a demand finds no room, everything is undone and placed again with that demand first, in a bounded number of
        orders: demands that are hard to place move to the front ("Squeaky wheel" optimization, Joslin and Clements,
        1999). Orders that differ only in equal demands are tried once. ``begin`` is called with each order. Raises the
        ``NotEnoughResources`` of the first order if no order succeeds.
        """
        if len(order) == 1:
            begin(order)
            place(order[0])
            return
        if self._budget is not None:
            self._budget.refusal = None  # of an attempt that was undone
        first_equal = [demands.index(demand) for demand in demands]
        tried: set[tuple[int, ...]] = set()
        refusal: NotEnoughResources | None = None
        following = tuple(order)
        while (kinds := tuple(first_equal[index] for index in following)) not in tried and len(tried) < ORDERS:
            tried.add(kinds)
            index = 0
            try:
                with self._tentatively():
                    begin(following)
                    for index in following:
                        place(index)
                    return
            except NotEnoughResources as error:
                refusal = refusal or error
                if self._budget is not None:
                    self._budget.refusal = refusal
                following = (index, *(other for other in following if other != index))
        if refusal is not None:
            raise refusal

    @contextmanager
    def _tentatively(self) -> Iterator[None]:
        """Undo the block if it raises, including the raised versions."""
        raised, gathered, nowhere = dict(self._raised), dict(self._gathered), list(self._nowhere)
        filled, chosen = set(self._filled), dict(self._tx.chosen)
        try:
            with self._tx.session.begin_nested():
                yield
        except BaseException:
            self._raised, self._gathered, self._nowhere = raised, gathered, nowhere
            self._filled, self._tx.chosen = filled, chosen
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
        """Move plans off these resources until they have room for so many units; return whether all of them have.

        Allocations of the reservation ``ignoring`` do not count. No plan moves to the resources in ``without``, whose
        allocations the caller is about to extend.
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
        """Move an allocation to another resource that has room for it from now on; return the resource's id, or None.

        With ``make_room``, other plans may move to make the room.
        """
        if allocation.period.end <= self._now:
            return None
        period = self._from_now_on(allocation)
        found = self._find(allocation, demand, period, without=without, make_room=make_room)
        if found is not None:
            self._put(allocation, demand, found)
        return found

    def _put(self, allocation: Allocation, demand: Demand, resource_id: int) -> None:
        """Move an allocation, from now on, to another resource that has room for it and is touched."""
        self._tx.allocations.lapse([allocation], now=self._now)
        self._tx.allocations.move(allocation, resource_id, start=self._from_now_on(allocation).start)
        self._filled.add(resource_id)
        self._nowhere.clear()
        self._gather(allocation, demand, resource_id)

    def _gather(self, allocation: Allocation, demand: Demand, resource_id: int) -> None:
        """Let the units of a reservation that stay together follow an allocation to its new resource."""
        if demand.spread is Spread.TOGETHER:
            self._gathered[allocation.reservation_id] = resource_id

    def _booked_from(self, plans: Iterable[Allocation]) -> datetime | None:
        """Return since when plans in place of these are booked, if these were delayed; their past has lapsed."""
        return self._now if any(plan.booked_from is not None for plan in plans) else None

    def _from_now_on(self, allocation: Allocation) -> Period:
        """Return the rest of the period of an allocation that has not ended."""
        return Period(max(allocation.period.start, self._now), allocation.period.end)

    def relocate(self, allocation: Allocation, demand: Demand, *, without: Collection[int]) -> int | None:
        """Move an allocation as a whole, or its units to several resources, or either of these by moving other plans.

        Return the id of a new resource; or None, with nothing moved, if there is no room for all of it.
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
        """Allocate the same amount again on another resource for the period, pinned at once.

        Return the id of the new allocation and that of its resource, or None if there is no room.
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
        """Return another resource with room for the allocation, touched; or None."""
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
            excluded = closed | self._apart_from(allocation, demand)  # other plans may move to these
            only = None if gathered is None else [gathered]
            made = self._make_room(part, period, part.minimum, without=excluded, closed=closed, only=only)
            found, _ = next(made, (None, 0))
        return found

    def _place_for(
        self, allocation: Allocation, demand: Demand, period: Period, *, without: Collection[int]
    ) -> Place | None:
        """Return the best other resource that has room for an allocation in the whole period, or None."""
        part = demand.part(self._units_that_move(allocation, demand))
        found = self._targets(allocation, demand, period, without=without)
        return next(iter(self.pick(found, part, period)), None)

    def _targets(
        self, allocation: Allocation, demand: Demand, period: Period, *, without: Collection[int]
    ) -> list[Candidate]:
        """Return a bounded number of other resources that have room for an allocation in the whole period."""
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
        if not found and not apart and gathered is None:  # otherwise other plans may still find room
            self._nowhere.append(_Nowhere(part, period, frozenset({allocation.resource_id, *without})))
        return found

    def _units_that_move(self, allocation: Allocation, demand: Demand) -> int:
        """Return for how many units a target needs room: for all units that stay together with the allocation."""
        if demand.spread is not Spread.TOGETHER or allocation.reservation_id in self._gathered:
            return allocation.units
        mine, _ = self._tx.allocations.with_versions([allocation.reservation_id])
        return sum(other.units for other in mine)

    def is_required(self, allocation: Allocation, demand: Demand) -> bool:
        """Whether the reservation names the resource of the allocation, so that no other resource will do."""
        return allocation.resource_id in self._tx.resources.ids_of(demand.inventory, demand.named, region=demand.region)

    def _apart_from(self, allocation: Allocation, demand: Demand) -> set[int]:
        """Return the resources of the reservation's other allocations if its units must be apart."""
        if demand.exclusive or demand.spread is not Spread.APART:
            return set()
        mine, _ = self._tx.allocations.with_versions([allocation.reservation_id])
        return {other.resource_id for other in mine if other.id != allocation.id}

    def shortfall(self, demand: Demand, period: Period, *, position: int, kept: int, requested: int) -> Shortfall:
        """Return the shortfall of a change of a started reservation."""
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
        """Make room for up to ``missing`` units by moving plans; yield the resources, with the number of units.

        No room is made on the resources in ``without``, and no plan moves to those in ``closed``. A resource is yielded
        several times if several units need plans to move. Plans may move to the rest of a resource where room was made
        before, so the caller must allocate the units of a step before the next step. Plans of the reservation
        ``asking`` do not move.
        """
        fixed = replace(self._fixed, reservation_id=asking)
        blocked = self._tx.allocations.blocked_by_plans(
            demand, period, now=self._now, fixed=fixed, without=without, only=only, limit=ROOM_SAMPLE + missing
        )
        if blocked and self._nowhere and demand.expression.terms:
            # If nothing at all is free, no plan of the same length can move: one search instead of one per plan.
            anything = replace(demand.part(1), expression=Expression(()), required=frozenset(), forbidden=frozenset())
            if not self._tx.allocations.candidates(anything, period, now=self._now, turn=self._turn, without=closed):
                self._nowhere.append(_Nowhere(anything, period, frozenset(closed)))
        demands = self._demands(plan for _, plans in blocked.values() for plan in plans)
        has_a_single_unit = demand.exclusive or demand.spread is Spread.APART
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
                    demands |= self._demands(plans)  # including plans that have just moved there
                if not self._move_all(resource_id, version, plans, demands, fits, sufficient, without=closed):
                    break
                count = min(missing, self._units_on(resource_id, demand, period))
                missing -= count
                yield resource_id, count
                if has_a_single_unit:
                    break
                outdated = True  # plans have moved, and the units are allocated

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
        """Return the plans, of a bounded number, that make enough room on a resource by moving alone."""
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
        """Move plans off these resources to other resources, as far as they are in the way."""
        found = self._tx.allocations.candidates(part, period, now=self._now, turn=self._turn, only=resource_ids)
        lacking = set(resource_ids) - {candidate.resource_id for candidate in found}
        if lacking:
            closed = {*without, *resource_ids}
            list(self._make_room(part, period, len(lacking), without=without, closed=closed, only=lacking))

    def _units_on(self, resource_id: int, demand: Demand, period: Period) -> int:
        """Return how many units of the demand may go to the resource and have room there."""
        if demand.spread is Spread.APART:
            return 1
        found = self._tx.allocations.candidates(demand, period, now=self._now, turn=self._turn, only=[resource_id])
        return sum(candidate.units for candidate in found)

    def _demands(self, plans: Iterable[Allocation]) -> dict[str, Demand]:
        """Return the demands of the plans' reservations, by reservation id."""
        reservations = self._tx.leases.reservations_by_ids({plan.reservation_id for plan in plans})
        return {
            reservation_id: demand_of(self._types, reservation) for reservation_id, reservation in reservations.items()
        }

    def _has_nowhere_to_go(
        self, plan: Allocation, demand: Demand, *, without: Collection[int], whole: bool = True
    ) -> bool:
        """Whether earlier searches show that no resource has room for the plan in its whole period.

        Unless the ``whole`` plan must move, that is asked of a single unit.
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
        """Move these plans off the resource: all of them, or until ``fits`` is true; or none. Return whether it worked.

        A ``sufficient`` plan moves alone if it can, so that no other plan takes its target.
        """
        if fits is None:
            if any(self._has_nowhere_to_go(plan, demands[plan.reservation_id], without=without) for plan in plans):
                return False
            if plans and not self._could_move(plans[0], demands[plans[0].reservation_id], without=without):
                return False  # before any lock: most searches for room fail
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
        """Move a plan; or some of its units, if they may lie anywhere and the ``whole`` plan need not move."""
        whole = whole or demand.spread is not Spread.ANY
        if self._has_nowhere_to_go(plan, demand, without=without, whole=whole):
            return False
        if whole:
            return self.replace(plan, demand, without=without) is not None
        return bool(self._scatter(plan, demand, without=without))

    def scatter(
        self, plan: Allocation, demand: Demand, *, without: Collection[int], make_room: bool = False
    ) -> int | None:
        """Move all units of a plan whose units may lie anywhere, to several resources if needed.

        Return the id of one of these; or None, with nothing moved, if there is no room for all units. With
        ``make_room``, other plans may move to make the room.
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
        """Move the rest of a plan to resources where room can be made; ``units`` has the units that have moved."""
        left = plan.units - units.total()
        booked_from = self._booked_from([plan]) if units else plan.booked_from
        rest = replace(plan, units=left, amounts=demand.amounts.times(left), booked_from=booked_from)
        period = self._from_now_on(plan)
        some = replace(demand, minimum=1, maximum=left, named=())
        room = self._make_room(some, period, left, asking=plan.reservation_id, without=without, closed=without)
        for resource_id, count in room:
            self._tx.allocations.add(
                plan.reservation_id, {resource_id: count}, period, demand, booked_from=self._booked_from([plan])
            )
            self._filled.add(resource_id)
            units[resource_id] += count
        if units.total() < plan.units:
            raise Stuck
        self._tx.allocations.lapse([rest], now=self._now)
        self._tx.allocations.drop(rest)
        self._nowhere.clear()

    def _scatter_behind_a_move(self, plan: Allocation, demand: Demand, *, without: Collection[int]) -> int | None:
        """Move all units of a plan after moving a plan of another reservation."""
        period = self._from_now_on(plan)
        some = replace(demand, minimum=plan.units, maximum=plan.units, named=())
        places = self._move_first(some, period, asking=plan.reservation_id, without=without, closed=without)
        if not places:
            return None
        units = {place.resource_id: place.units for place in places}
        self._tx.allocations.add(plan.reservation_id, units, period, demand, booked_from=self._booked_from([plan]))
        self._tx.allocations.lapse([plan], now=self._now)
        self._tx.allocations.drop(plan)
        self._filled.update(units)
        self._nowhere.clear()
        return places[0].resource_id

    def _scatter(
        self, plan: Allocation, demand: Demand, *, without: Collection[int], at_least: int = 1
    ) -> dict[int, int]:
        """Move the units of a plan that have room elsewhere, if these are ``at_least`` so many; return their places."""
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
        self._tx.allocations.add(plan.reservation_id, units, period, demand, booked_from=self._booked_from([plan]))
        count = plan.units - left
        gone = replace(plan, units=count, amounts=demand.amounts.times(count))
        # Of a delayed plan, the past of the rest lapses, too: both are booked from now on.
        self._tx.allocations.lapse([gone if plan.booked_from is None else plan], now=self._now)
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
        stages: tuple[Stage, ...] = ()
        if self._can_count and not without:
            assert self._counts is not None
            stages, _ = self._counts.stages(demand, period)
        # Of enough room only the transaction itself can tell: the counts are of a later time, by a later clock.
        if not stages or stages[-1].count >= demand.minimum:
            stages = self._tx.allocations.stages(demand, period, now=self._now, ignoring=None, without=without)
        return Shortfall(
            resource_type=demand.resource_type or demand.inventory,
            noun=demand.noun,
            requested=demand.minimum if requested is None else requested,
            stages=stages,
            reservation=position,
            unknown_properties=self._tx.resources.unknown_names(
                demand.inventory, demand.expression.names if demand.names_are_asked else ()
            ),
            out_of_reach=self._out_of_reach(demand, stages),
            kept=kept,
            names_resources=not self._types.stock(demand.inventory).apart.isdisjoint(demand.expression.names),
        )

    def _out_of_reach(self, demand: Demand, stages: Sequence[Stage]) -> tuple[str, ...]:
        """Return a sentence for each amount that is asked for and that no resource has."""
        if not demand.names_are_asked or any(stage.stage == "matching" and stage.count for stage in stages):
            return ()
        amounts = [
            term
            for term in demand.expression.terms
            if isinstance(term, Comparison) and term.op in ORDER and term.number is not None
        ]
        ranges = self._tx.resources.ranges(demand.inventory, {term.name for term in amounts})
        sentences = []
        for term in amounts:
            least, most = ranges.get(term.name, (None, None))
            wants_more = term.op in (">", ">=")
            reach = most if wants_more else least
            shown = "" if reach is None else str(int(reach) if reach == int(reach) else reach)
            if shown and not term.matches({term.name: shown}):
                bound = "the most" if wants_more else "the least"
                sentences.append(f"No resource has {term.name} {term.op} {term.value}: {bound} is {shown}.")
        return tuple(sentences)
