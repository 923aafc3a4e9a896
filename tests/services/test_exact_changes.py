"""A change of a lease is refused only if no arrangement of what has not started admits it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.allocation import Spread
from tenure.domain.arrangement import Problem, Solution
from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import AllocationState, Lease, LeaseStatus
from tenure.domain.period import Period
from tenure.domain.request import LeaseChange, ReservationChange
from tenure.domain.usage import MICROSECOND, UsageQuery
from tenure.planning.cp_sat import CpSatSolver
from tenure.planning.exact import Answer
from tenure.services.planning.demands import demand_of
from tests.services.test_exact_admission import Asked, Demander, Load, can_be_arranged, is_possible, prepared
from tests.support import ledger
from tests.support.chains import CASES, RACK_A, RACK_A_OR_D, Case, Chain, carry_out, change_of, crowd, search_for
from tests.support.engines import HOUR, MINUTE
from tests.support.interrupting import after_exact_searches, without_exact_answers
from tests.support.world import ADMIN, HOST, OWNER, World, instance_reservation, open_world, reservation

cases = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@pytest.fixture(autouse=True)
def unhurried(world: World) -> None:
    search_for(world, MINUTE)


def assert_rearranged(world: World, chain: Chain) -> None:
    with world.db.read() as tx:
        by_id = {}
        for lease in (chain.lease, chain.first, chain.second):
            reservations = tx.leases.get(lease.id).reservations  # type: ignore[union-attr]  # it exists
            by_id[lease.id] = {
                allocation.resource_id
                for allocation in tx.allocations.of_reservations([reservation.id for reservation in reservations])
            }
        names = {
            resource_id: tx.resources.by_ids([resource_id])[resource_id].external_id for resource_id in range(1, 5)
        }
    assert "1" in {names[resource_id] for resource_id in by_id[chain.lease.id]}
    assert {names[resource_id] for resource_id in by_id[chain.first.id]} == {"2"}
    assert {names[resource_id] for resource_id in by_id[chain.second.id]} <= {"3", "4"}
    assert ledger.faults(str(world.db.engine.url), now=world.clock.now()) == []


@cases
def test_plans_are_rearranged_for_a_change(world: World, case: Case):
    chain = crowd(world, case)
    search_for(world, timedelta(0))
    with pytest.raises(NotEnoughResources) as refused:
        carry_out(world, case, chain)
    assert not refused.value.is_proven
    assert not refused.value.is_undecided
    search_for(world, MINUTE)
    carry_out(world, case, chain)
    assert_rearranged(world, chain)


@cases
def test_a_refused_change_is_proven(world: World, case: Case):
    chain = crowd(world, case)
    for host in ("3", "4"):
        world.resources.disable(ADMIN, HOST, host, reason="out of order")  # the second plan has nowhere to go
    before = ledger.holdings(str(world.db.engine.url))
    with pytest.raises(NotEnoughResources) as refused:
        carry_out(world, case, chain)
    assert refused.value.is_proven
    assert not refused.value.is_undecided
    assert ledger.holdings(str(world.db.engine.url)) == before


@cases
def test_a_change_that_is_not_searched_in_time_is_not_proven(world: World, monkeypatch: pytest.MonkeyPatch, case: Case):
    chain = crowd(world, case)
    without_exact_answers(monkeypatch)
    with pytest.raises(NotEnoughResources) as refused:
        carry_out(world, case, chain)
    assert refused.value.is_undecided
    assert not refused.value.is_proven


@cases
def test_a_dry_run_of_a_change_is_searched_too(world: World, case: Case):
    chain = crowd(world, case)
    dry_runs = world.service.manager.dry_runs
    if case.adds:
        asked = reservation(1, 1, resource_properties=case.adds)
        outcome = dry_runs.add_reservation(OWNER, chain.lease.id, asked)
    else:
        outcome = dry_runs.update(OWNER, chain.lease.id, change_of(case, chain))
    assert outcome.lease.id == chain.lease.id
    carry_out(world, case, chain)  # nothing has moved before
    assert_rearranged(world, chain)


def test_plans_are_rearranged_for_a_confirmation(world: World):
    case = CASES[0]
    chain = crowd(world, case)
    world.leases.delete(OWNER, chain.lease.id)
    held = world.reserve_on(
        4,
        reservation(1, 1, resource_properties=RACK_A_OR_D),
        start=2,
        hours=2,
        hold_for=timedelta(hours=1),
    )
    grown = (ReservationChange(held.reservations[0].id, {"min": 2, "max": 2}),)
    confirmed = world.leases.confirm(OWNER, held.id, grown)
    assert confirmed.hold_until is None
    assert_rearranged(world, Chain(held, chain.first, chain.second, chain.began))


def interrupted(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> list[Answer]:
    """Let ``action`` happen after the first search, before its answer is used; return the answers."""
    answers: list[Answer] = []

    def act_once(found: Answer) -> None:
        answers.append(found)
        if len(answers) == 1:
            action()

    after_exact_searches(monkeypatch, act_once)
    return answers


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in {"grows", "earlier-start"}], ids=lambda case: case.name
)
def test_plans_whose_start_passes_during_the_search_are_counted_once(
    world: World, monkeypatch: pytest.MonkeyPatch, case: Case
):
    """The search and the write go by one time, that of the request: by it, no plan that moves has begun."""
    chain = crowd(world, case)
    start, end = world.clock.now(), chain.date(9)
    interrupted(monkeypatch, lambda: world.clock.set(chain.date(3) + MINUTE))
    carry_out(world, case, chain)
    for _ in range(2):
        [usage] = world.service.manager.usage.show(ADMIN, UsageQuery(start, end)).sums
        assert usage.booked * MICROSECOND == (2 * 2 + 2 + 2 if case.name == "grows" else 5 + 2 + 2) * HOUR
        world.engine.settle()
    assert_rearranged(world, chain)


def test_an_arrangement_for_an_earlier_state_of_the_lease_is_not_used(world: World, monkeypatch: pytest.MonkeyPatch):
    """The lease gets a later end while the arrangement is made; until then host 1 is not free."""
    case = next(case for case in CASES if case.name == "other-properties")
    chain = crowd(world, case)
    world.reserve(reservation(1, 1, resource_properties=RACK_A), start=4, hours=1)
    later = LeaseChange(ends_at=chain.date(5))
    searches = interrupted(monkeypatch, lambda: world.leases.update(OWNER, chain.lease.id, later))
    with pytest.raises(NotEnoughResources) as refused:
        carry_out(world, case, chain)
    assert len(searches) == 2
    assert refused.value.is_proven
    assert ledger.faults(str(world.db.engine.url), now=world.clock.now()) == []


def test_an_arrangement_with_another_number_of_units_is_not_used(world: World, monkeypatch: pytest.MonkeyPatch):
    case = CASES[0]
    chain = crowd(world, case)
    solve = CpSatSolver.solve

    def solve_for_less(self: CpSatSolver, problem: Problem, seconds: float) -> Solution:
        found = solve(self, problem, seconds)
        assert found.units is not None
        return Solution(tuple({} for _ in found.units))

    monkeypatch.setattr(CpSatSolver, "solve", solve_for_less)
    with pytest.raises(NotEnoughResources) as refused:
        carry_out(world, case, chain)
    assert not refused.value.is_proven


def test_a_host_that_takes_no_new_leases_is_not_kept_by_a_lease_that_grows(world: World):
    case = CASES[0]
    chain = crowd(world, case)
    world.resources.disable(ADMIN, HOST, "4", reason="out of order")
    with pytest.raises(NotEnoughResources) as refused:
        carry_out(world, case, chain)
    assert refused.value.is_proven


def test_units_that_are_apart_do_not_grow_on_one_host(world: World):
    lease = world.reserve_on(1, instance_reservation(1, affinity=False), start=0, hours=4)
    world.book(3, start=0, hours=4)
    world.pass_time(MINUTE)
    with pytest.raises(NotEnoughResources) as refused:
        world.change(lease, amount=2)
    assert refused.value.is_proven


@cases
def test_an_arrangement_of_an_earlier_ledger_is_made_anew(world: World, monkeypatch: pytest.MonkeyPatch, case: Case):
    chain = crowd(world, case)
    searches = interrupted(monkeypatch, lambda: world.resources.update(ADMIN, HOST, "1", {"rack": "a", "row": "1"}))
    carry_out(world, case, chain)
    assert len(searches) == 2
    assert_rearranged(world, chain)


def test_what_a_running_lease_holds_stays(world: World):
    """A running lease cannot be extended by moving what it holds, though it could be elsewhere."""
    chain = crowd(world, next(case for case in CASES if case.name == "runs-and-is-prolonged"))
    world.leases.delete(OWNER, chain.first.id)
    world.reserve(reservation(1, 1, resource_properties=RACK_A), start=3, hours=1)  # nowhere but on host 1
    with pytest.raises(NotEnoughResources) as refused:
        world.leases.update(OWNER, chain.lease.id, LeaseChange(ends_at=chain.date(4)))
    assert refused.value.is_proven


class Changer(Demander):
    """Random leases and random changes of them."""

    def change(self) -> None:
        """Change a lease, and compare the answer with that of a model of the ledger as it was before."""
        self.leases = [
            lease
            for known in self.leases
            if (lease := self.world.leases.get(OWNER, known.id)).status in {LeaseStatus.PENDING, LeaseStatus.ACTIVE}
        ]
        if not self.leases:
            return
        index = self.dice.randrange(len(self.leases))
        lease = self.leases[index]
        ways = [self._add, self._grow] + ([self._prolong] if lease.status is LeaseStatus.ACTIVE else [self._move] * 2)
        expected, carry_out = self.dice.choice(ways)(lease)
        refusal = None
        try:
            self.leases[index] = carry_out()
        except NotEnoughResources as error:
            refusal = error
        assert expected is (refusal is None), lease
        self.asked += 1
        if refusal is not None:
            self.refused += 1
            assert refusal.is_proven
        assert ledger.faults(str(self.world.db.engine.url), now=self.world.clock.now()) == []

    @property
    def _cleaning_time(self) -> timedelta:
        return self.world.service.components.rules.cleaning_time

    def _period(self, lease: Lease) -> Period:
        return Period(max(lease.starts_at, self.world.clock.now()), lease.ends_at + self._cleaning_time)

    def _add(self, lease: Lease) -> tuple[bool, Callable[[], Lease]]:
        added = self.requested()[0]
        expected = is_possible(self.world, [added], self._period(lease))
        return expected, lambda: self.world.leases.add_reservation(OWNER, lease.id, added)

    def _move(self, lease: Lease) -> tuple[bool, Callable[[], Lease]]:
        begin = self.world.clock.now() + self.dice.randint(1, 8) * HOUR
        end = begin + self.dice.randint(1, 4) * HOUR
        types = self.world.service.components.types
        requested = [
            Asked(demand_of(types, reservation), Period(begin, end + self._cleaning_time))
            for reservation in lease.reservations
        ]
        expected = can_be_arranged(
            self.world, requested, replaced=[reservation.id for reservation in lease.reservations]
        )
        return expected, lambda: self.world.leases.update(OWNER, lease.id, LeaseChange(starts_at=begin, ends_at=end))

    def _prolong(self, lease: Lease) -> tuple[bool, Callable[[], Lease]]:
        end = lease.ends_at + self.dice.randint(1, 4) * HOUR
        until = {reservation.id: end + self._cleaning_time for reservation in lease.reservations}
        expected = can_be_arranged(self.world, [], until=until)
        return expected, lambda: self.world.leases.update(OWNER, lease.id, LeaseChange(ends_at=end))

    def _grow(self, lease: Lease) -> tuple[bool, Callable[[], Lease]]:
        chosen = self.dice.choice(lease.reservations)
        demand = demand_of(self.world.service.components.types, chosen)
        count = demand.minimum + self.dice.randint(1, 2)
        parameters = {"min": count, "max": count} if chosen.resource_type == HOST else {"amount": count}
        changed = replace(demand, minimum=count, maximum=count)
        with self.world.db.read() as tx:
            held = [
                allocation
                for allocation in tx.allocations.of_reservations([chosen.id])
                if allocation.state is AllocationState.HELD
            ]
        taken = {allocation.resource_id for allocation in held}
        asked = Asked(
            changed,
            self._period(lease),
            count - sum(allocation.units for allocation in held),
            without=taken if changed.spread is Spread.ANTI_AFFINITY else (),
            only=taken if held and changed.spread is Spread.AFFINITY else None,
        )
        expected = can_be_arranged(self.world, [asked], replaced=[chosen.id])
        changes = (ReservationChange(chosen.id, parameters),)
        return expected, lambda: self.world.leases.update(OWNER, lease.id, LeaseChange(reservations=changes))


def play(changer: Changer, steps: int) -> None:
    for _ in range(steps):
        changer.step()
        changer.change()


@pytest.mark.parametrize("load", Load)
def test_an_answer_to_a_change_is_that_of_an_exact_solver(world: World, load: Load):
    changer = Changer(prepared(world, load), 5, load)
    play(changer, 15)
    assert changer.asked > 20
    assert changer.refused > 3


@pytest.mark.long
@pytest.mark.parametrize("load", Load)
def test_many_answers_to_changes_are_those_of_an_exact_solver(tmp_path: Path, load: Load):
    asked = refused = 0
    for seed in range(10):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with open_world(folder, hosts=4) as world:
            changer = Changer(prepared(world, load), 100 + seed, load)
            play(changer, 30)
            asked, refused = asked + changer.asked, refused + changer.refused
    assert asked > 400
    assert 50 < refused < asked - 50
