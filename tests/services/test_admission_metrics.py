"""The metrics of admissions: each new lease counts once, and only if it was really booked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from oslo_config import cfg
from prometheus_client import REGISTRY

from tenure.domain.admission import AdmissionWay
from tenure.domain.errors import NotEnoughResources, Unavailable
from tenure.domain.request import FlexibleRequest, LeaseRequest, ReservationRequest, Window
from tenure.store.conflict import Overtaken
from tenure.store.database import Database, OutcomeUnknown, Transaction
from tests.services.test_exact_admission import Demander, prepared
from tests.services.test_large_requests import Agreeing
from tests.support.engines import rebuild
from tests.support.interrupting import without_exact_answers
from tests.support.world import ADMIN, HOST, OWNER, World, instance_reservation, open_world, reservation

WAYS = tuple(way.value for way in AdmissionWay)
LEASE_ID = "0d3a4f4e-7c4f-4d53-9a5b-3a1de6a7c001"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, hosts=4) as world:
        yield world


class Count:
    """What the metrics have counted since this was made."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> dict[str, float]:
        samples = {way: REGISTRY.get_sample_value("tenure_admissions_total", {"way": way}) for way in WAYS}
        samples["unproven"] = REGISTRY.get_sample_value("tenure_exact_searches_unproven_total")
        return {name: value or 0.0 for name, value in samples.items()}

    def since(self) -> dict[str, float]:
        """Return the counters that have grown, and by how much."""
        now = self._now()
        return {name: now[name] - self._before[name] for name in now if now[name] != self._before[name]}


def asked(world: World, requested: ReservationRequest | None = None) -> LeaseRequest:
    begin = world.clock.now() + timedelta(hours=1)
    return LeaseRequest("lease", begin, begin + timedelta(hours=1), reservations=(requested or reservation(1, 1),))


def apart(amount: int) -> ReservationRequest:
    """Return a reservation of small instances on different hosts: a count of hosts proves nothing about it."""
    return instance_reservation(amount, affinity=False)


def test_lease_beside_all_plans_is_greedy(world: World):
    count = Count()
    world.book(1, start=1)
    world.book(2, start=0)
    assert count.since() == {"greedy": 2}


def test_lease_for_which_a_plan_makes_way_is_moved(world: World):
    for host in ("1", "2", "3", "4"):
        world.resources.update(ADMIN, HOST, host, {"rack": "a" if host == "1" else "b"})
    world.reserve_on(1, reservation(1, 1), start=1)
    count = Count()
    world.book(1, start=1, resource_properties='["==", "$rack", "a"]')
    assert count.since() == {"moved": 1}


@pytest.mark.slow
def test_each_lease_of_a_random_site_counts_once(world: World):
    demander, count = Demander(prepared(world), 113), Count()
    granted = 0
    for _ in range(40):
        before = demander.refused
        demander.step()
        granted += demander.refused == before
    found = count.since()
    assert sum(found.values()) == granted
    assert found["exact"] >= 1
    assert found.keys() <= {"greedy", "moved", "exact"}


def test_lease_counts_once_however_often_its_transaction_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch):
    commit, attempts = Transaction.commit, []

    def commit_late(tx: Transaction) -> None:
        attempts.append(tx)
        if len(attempts) < 3:
            raise Overtaken
        commit(tx)

    monkeypatch.setattr(Transaction, "commit", commit_late)
    count = Count()
    world.book(1, start=1)
    assert len(attempts) == 3
    assert count.since() == {"greedy": 1}


def test_repeated_request_counts_once(world: World):
    count, request = Count(), asked(world)
    world.leases.create(OWNER, request, lease_id=LEASE_ID)
    world.leases.create(OWNER, request, lease_id=LEASE_ID)
    assert count.since() == {"greedy": 1}


def test_lease_that_a_filter_is_asked_about_counts_once(tmp_path: Path):
    with open_world(tmp_path, hosts=4, filters={"agreeing": Agreeing(cfg.ConfigOpts())}) as world:
        count = Count()
        world.book(1, start=1)
        assert count.since() == {"greedy": 1}


def test_dry_run_does_not_count(world: World):
    count = Count()
    world.service.manager.dry_runs.create(OWNER, asked(world))
    assert count.since() == {}


def test_lease_whose_commit_fails_does_not_count(world: World, monkeypatch: pytest.MonkeyPatch):
    def fail(_database: Database, _session: object) -> None:
        raise OutcomeUnknown

    monkeypatch.setattr(Database, "commit", fail)
    count = Count()
    with pytest.raises(Unavailable):
        world.book(1, start=1)
    assert count.since() == {}


def test_refusal_without_proof_is_counted(world: World, monkeypatch: pytest.MonkeyPatch):
    without_exact_answers(monkeypatch)
    world.book(2, start=1)
    count = Count()
    with pytest.raises(NotEnoughResources):
        world.reserve(apart(3), start=1)
    assert count.since() == {"unproven": 1}
    with pytest.raises(NotEnoughResources):
        world.service.manager.dry_runs.create(OWNER, asked(world, apart(3)))
    assert count.since() == {"unproven": 1}


@pytest.mark.parametrize("form", ["choices", "window", "choices in a window"])
def test_refusal_of_a_flexible_request_without_proof_is_counted(
    world: World, monkeypatch: pytest.MonkeyPatch, form: str
):
    without_exact_answers(monkeypatch)
    world.book(2, start=1)
    begin, end = world.clock.now() + timedelta(hours=1), world.clock.now() + timedelta(hours=2)
    choices = ((apart(3),), (apart(4),))
    asked = FlexibleRequest("lease", choices if "choices" in form else choices[:1])
    if "window" in form:
        asked = replace(asked, window=Window(timedelta(hours=1), begin, begin))
    else:
        asked = replace(asked, starts_at=begin, ends_at=end)
    count = Count()
    with pytest.raises(NotEnoughResources):
        world.leases.create(OWNER, asked)
    assert count.since() == {"unproven": 1}


def test_refusal_of_an_added_reservation_without_proof_is_counted(world: World, monkeypatch: pytest.MonkeyPatch):
    without_exact_answers(monkeypatch)
    lease = world.book(2, start=1)
    count = Count()
    with pytest.raises(NotEnoughResources):
        world.leases.add_reservation(OWNER, lease.id, apart(3))
    assert count.since() == {"unproven": 1}


def test_proven_refusal_is_not_counted(world: World):
    world.book(2, start=1)
    count = Count()
    with pytest.raises(NotEnoughResources):
        world.reserve(apart(3), start=1)
    assert count.since() == {}


def test_refusal_without_a_search_is_not_counted(world: World):
    rebuild(world, rules=replace(world.service.components.rules, exact_time=timedelta(0)))
    world.book(2, start=1)
    count = Count()
    with pytest.raises(NotEnoughResources):
        world.reserve(apart(3), start=1)
    assert count.since() == {}
