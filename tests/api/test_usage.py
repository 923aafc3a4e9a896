"""What projects have had in a period, through the API."""

from __future__ import annotations

import csv
import io
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlalchemy import event

from tenure.domain.lease import AllocationState, LeaseStatus
from tenure.domain.request import LeaseChange
from tenure.drivers.simulated import Fault, FaultKind
from tests.api.rig import ADDRESSES, HOSTS, INSTANCES, Api, api_over, open_api, rfc3339
from tests.support import world as worlds
from tests.support.engines import rebuild
from tests.support.world import NOW, STRANGER

HOUR = timedelta(hours=1)
STEP = timedelta(minutes=10)
HOST, INSTANCE = "physical:host", "virtual:instance"
#: Project, resource type and resource class.
Key = tuple[str, str, str]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as api:
        yield api.using(version="1.3")


def usage(api: Api, start: float = -100, end: float = 100, **query: object) -> list[dict[str, Any]]:
    """Return the accounts of a period, given in hours from the beginning of the test."""
    period = {"start_date": rfc3339(NOW + start * HOUR), "end_date": rfc3339(NOW + end * HOUR)}
    answer = api.get("/v1/usage?" + urlencode({**period, **query}))
    assert answer.status_code == 200, answer.text
    assert (answer.json["start_date"], answer.json["end_date"]) == tuple(period.values())
    found: list[dict[str, Any]] = answer.json["usage"]
    return found


def hours(api: Api, start: float = -100, end: float = 100, **query: object) -> list[tuple[float, float]]:
    """Return the booked and the held hours of each row."""
    return [(row["booked_hours"], row["held_hours"]) for row in usage(api, start, end, **query)]


def test_hosts_and_instances_count_in_their_own_classes(api: Api):
    api.book(start=0, hours=2, reservations=[{**HOSTS, "min": 2, "max": 2}])
    apart = {**INSTANCES, "vcpus": 2, "memory_mb": 512, "disk_gb": 0, "amount": 2, "affinity": False}
    api.book(start=1, hours=3, reservations=[apart])
    api.world.pass_time(2 * HOUR)
    of_project = {"project_id": "demo-project", "region": None, "used_hours": None}
    assert usage(api) == [
        {
            **of_project,
            "resource_type": HOST,
            "resource_class": "WHOLE",
            "booked_hours": 4.0,
            "held_hours": 4.0,
        },
        {
            **of_project,
            "resource_type": INSTANCE,
            "resource_class": "MEMORY_MB",
            "booked_hours": 3072.0,
            "held_hours": 1024.0,
        },
        {**of_project, "resource_type": INSTANCE, "resource_class": "VCPU", "booked_hours": 12.0, "held_hours": 4.0},
    ]
    assert [row["resource_class"] for row in usage(api, resource_type=HOST)] == ["WHOLE"]


def test_addresses_count_as_a_whole(api: Api):
    api.register_address()
    api.book(start=0, hours=2, reservations=[ADDRESSES])
    assert [(row["resource_class"], row["booked_hours"]) for row in usage(api)] == [("WHOLE", 2.0)]


def test_only_the_part_in_the_period_counts(api: Api):
    api.book(start=1, hours=2)
    api.world.pass_time(10 * HOUR)
    assert hours(api, 1, 3) == [(2.0, 2.0)]
    assert hours(api, 0, 2) == [(1.0, 1.0)]
    assert hours(api, 2.5, 9) == [(0.5, 0.5)]
    assert hours(api, 1, 1 + 1 / 3) == [(0.333333, 0.333333)]
    assert hours(api, 0, 1) == []
    assert hours(api, 3, 9) == []


def test_lease_to_come_is_booked_and_not_held(api: Api):
    api.book(start=1, hours=2)
    assert hours(api) == [(2.0, 0.0)]
    api.world.pass_time(1.5 * HOUR)
    assert hours(api) == [(2.0, 0.5)]


def test_lease_that_is_deleted_before_its_start_counts_for_nothing(api: Api):
    lease = api.book(start=1, hours=2)
    assert api.delete(f"/v1/leases/{lease['id']}").status_code == 204
    api.world.pass_time(5 * HOUR)
    assert usage(api) == []


def test_accounts_of_the_past_stay_when_kept_volumes_are_deleted_later(api: Api):
    pool = {"name": "sim-storage@fast#nvme", "capacity_gb": 100}
    assert api.using("admin").post("/v1/volume-pools", pool).status_code == 201
    volumes = {"resource_type": "virtual:volume", "amount": 5, "size_gb": 10, "volume_type": "fast", "at_end": "keep"}
    api.book(start=0, hours=1, reservations=[volumes])
    api.world.pass_time(24 * HOUR)
    assert hours(api) == [(50, 50)]
    kept = api.world.cloud.world.volumes
    for left in (3, 2, 0):
        for volume_id in sorted(kept.all())[: len(kept.all()) - left]:
            kept.delete(volume_id)
        api.world.service.reconciler.run()
        api.world.engine.settle()
        assert hours(api) == [(50, 50)]
        [shown] = api.using("admin").get("/v1/volume-pools").json["volume_pools"]
        assert shown["capacity_gb"] == 100
    api.book(start=0, hours=1, reservations=[{**volumes, "amount": 10}])  # all of the pool is free again


def test_lease_that_is_deleted_while_it_runs_counts_until_then(api: Api):
    lease = api.book(start=1, hours=4)
    api.world.pass_time(2 * HOUR)
    assert api.delete(f"/v1/leases/{lease['id']}").status_code == 204
    api.world.pass_time(8 * HOUR)
    assert hours(api) == [(1.0, 1.0)]


def test_time_of_cleaning_does_not_count(api: Api, tmp_path: Path):
    rebuild(api.world, rules=replace(api.world.service.components.rules, cleaning_time=HOUR))
    (tmp_path / "rebuilt").mkdir()
    with_cleaning = api_over(api.world, tmp_path / "rebuilt").using(version="1.3")
    ended = with_cleaning.book(start=0, hours=2)
    deleted = with_cleaning.book(start=0, hours=5)
    api.world.pass_time(2 * HOUR)
    assert with_cleaning.delete(f"/v1/leases/{deleted['id']}").status_code == 204
    api.world.pass_time(8 * HOUR)
    assert ended["id"] != deleted["id"]
    assert hours(with_cleaning) == [(4.0, 4.0)]


def test_late_start_is_held_from_when_it_became_active(api: Api):
    api.world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=1))
    api.book(start=0, hours=3)
    api.world.pass_time(5 * HOUR)
    assert hours(api) == [(3.0, 2.999722)]  # the second attempt comes after a second


@pytest.mark.slow
def test_lease_that_never_starts_is_never_held(api: Api):
    api.world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=None))
    api.book(start=0, hours=3)
    api.world.pass_time(HOUR / 2)
    assert hours(api) == [(3.0, 0.0)]
    api.world.pass_time(9 * HOUR)
    assert [held for _, held in hours(api)] == [0.0]


def test_members_see_their_own_project_only(api: Api):
    api.book(start=0, hours=1)
    other = api.using("other")
    other.book(start=0, hours=2)
    assert [(row["project_id"], row["booked_hours"]) for row in usage(api)] == [("demo-project", 1.0)]
    assert [(row["project_id"], row["booked_hours"]) for row in usage(other)] == [("other-project", 2.0)]
    assert usage(api.using("reader")) == usage(api)
    assert usage(api, project_id="demo-project") == usage(api)
    period = urlencode({"start_date": rfc3339(NOW), "end_date": rfc3339(NOW + HOUR)})
    for project in ("other-project", "missing-project"):
        for shown in ("json", "csv"):
            refused = api.get(f"/v1/usage?{period}&project_id={project}&format={shown}")
            assert refused.status_code == 403, refused.text
            assert "booked_hours" not in refused.text
    assert api.using("nobody").get(f"/v1/usage?{period}").status_code == 403


def test_administrators_see_all_projects(api: Api):
    api.book(start=0, hours=1)
    api.using("other").book(start=0, hours=2)
    admin = api.using("admin")
    assert [row["project_id"] for row in usage(admin)] == ["demo-project", "other-project"]
    assert usage(admin, project_id="other-project") == usage(api.using("other"))


def test_accounts_as_csv(api: Api):
    api.book(start=0, hours=1)
    period = urlencode({"start_date": rfc3339(NOW), "end_date": rfc3339(NOW + HOUR)})
    answer = api.get(f"/v1/usage?{period}&format=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert list(csv.DictReader(io.StringIO(answer.text))) == [
        {
            "start_date": rfc3339(NOW),
            "end_date": rfc3339(NOW + HOUR),
            "incomplete_before": "",
            "project_id": "demo-project",
            "resource_type": HOST,
            "region": "",
            "resource_class": "WHOLE",
            "booked_hours": "1.0",
            "held_hours": "0.0",
            "used_hours": "",
        }
    ]
    described = api.get("/openapi.json?version=1.3").json["paths"]["/v1/usage"]["get"]["responses"]["200"]["content"]
    assert answer.text.splitlines()[0] in described["text/csv"]["schema"]["description"]


def test_older_versions_have_no_accounts(api: Api):
    period = urlencode({"start_date": rfc3339(NOW), "end_date": rfc3339(NOW + HOUR)})
    assert api.using(version="1.2").get(f"/v1/usage?{period}").status_code == 404


def test_number_of_statements_does_not_grow_with_the_leases(api: Api):
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        statements.append(statement)

    def asked() -> int:
        statements.clear()
        usage(api)
        return sum(statement.startswith("SELECT") for statement in statements)

    event.listen(api.world.db.engine, "before_cursor_execute", note)
    api.book(start=0, hours=1)
    few = asked()
    for number in range(1, 10):
        api.book(start=2 * number, hours=1)
    api.world.pass_time(5 * HOUR)
    assert asked() == few == 3  # one of them asks since when the ledger is whole


class History:
    """Random requests of two projects, and what each of them is seen to have in each step of time."""

    def __init__(self, api: Api, seed: int) -> None:
        self.users = [api, api.using("other")]
        self.admin = api.using("admin")
        self.dice = random.Random(seed)  # a test's randomness is not for security
        self.booked: dict[datetime, Counter[Key]] = {}
        self.held: dict[datetime, Counter[Key]] = {}
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        """Make some requests, which may be refused, and let a step of time pass."""
        api = self.dice.choice(self.users)
        for _ in range(self.dice.randint(0, 2)):
            action = self.dice.choice((self.book, self.book, self.change, self.delete))
            self.done[action.__name__] += action(api)
        api.world.pass_time(timedelta(0))
        self.booked[api.now], self.held[api.now] = self.seen_at(api.now)
        api.world.pass_time(STEP)

    def book(self, api: Api) -> bool:
        dice, count = self.dice, self.dice.randint(1, 2)
        parts = {**INSTANCES, "vcpus": dice.randint(1, 2), "memory_mb": 512, "disk_gb": 0, "amount": count}
        requested = dice.choice(({**HOSTS, "min": count, "max": count}, parts))
        start, length = dice.randint(0, 6) * STEP, dice.randint(1, 9) * STEP
        body = api.lease_body(start=start / HOUR, hours=length / HOUR, reservations=[requested])
        return bool(api.post("/v1/leases", body).status_code == 201)

    def change(self, api: Api) -> bool:
        """Give a lease another end, or a reservation of hosts another size."""
        leases = self.open_leases(api)
        if not leases:
            return False
        lease = self.dice.choice(leases)
        change: dict[str, Any] = {"end_date": rfc3339(api.now + self.dice.randint(1, 9) * STEP)}
        [reservation] = lease["reservations"]
        if reservation["resource_type"] == HOST and self.dice.random() < 0.5:
            count = self.dice.randint(1, 3)
            change = {"reservations": [{"id": reservation["id"], "min": count, "max": count}]}
        return bool(api.put(f"/v1/leases/{lease['id']}", change).status_code == 200)

    def delete(self, api: Api) -> bool:
        leases = self.open_leases(api)
        return bool(leases) and api.delete(f"/v1/leases/{self.dice.choice(leases)['id']}").status_code == 204

    def open_leases(self, api: Api) -> list[dict[str, Any]]:
        leases = api.get("/v1/leases?limit=1000").json["leases"]
        return [lease for lease in leases if lease["status"] in {"PENDING", "ACTIVE"}]

    def seen_at(self, moment: datetime) -> tuple[Counter[Key], Counter[Key]]:
        """Return what the leases that are shown now promise at a moment, and what those of them that run have."""
        booked: Counter[Key] = Counter()
        held: Counter[Key] = Counter()
        for lease in self.admin.get("/v1/leases?limit=1000").json["leases"]:
            start, end = (datetime.fromisoformat(lease[name]) for name in ("start_date", "end_date"))
            if not start <= moment < end or lease["status"] not in {"PENDING", "ACTIVE"}:
                continue
            for reservation in lease["reservations"]:
                for resource_class, amount in amounts_of(reservation).items():
                    key = lease["project_id"], reservation["resource_type"], resource_class
                    booked[key] += amount
                    held[key] += amount if lease["status"] == "ACTIVE" else 0
        return booked, held


def amounts_of(reservation: dict[str, Any]) -> dict[str, int]:
    if reservation["resource_type"] == HOST:
        return {"WHOLE": reservation["min"]}
    count = reservation["amount"]
    return {"VCPU": reservation["vcpus"] * count, "MEMORY_MB": reservation["memory_mb"] * count}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_accounts_are_the_sums_of_what_was_seen(database_url: str, tmp_path: Path, seed: int):
    with open_api(tmp_path, url=database_url, hosts=4) as api:
        history = History(api.using(version="1.3"), seed)
        for _ in range(50):
            history.step()
        assert min(history.done[name] for name in ("book", "change", "delete")) >= 3
        moments = sorted(history.booked)
        for _ in range(20):
            first, last = sorted(history.dice.sample(range(len(moments) + 1), 2))
            period = {"start_date": rfc3339(NOW + first * STEP), "end_date": rfc3339(NOW + last * STEP)}
            rows = history.admin.get("/v1/usage?" + urlencode(period)).json["usage"]
            for seen, column in ((history.booked, "booked_hours"), (history.held, "held_hours")):
                total: Counter[Key] = Counter()
                for moment in moments[first:last]:
                    total += seen[moment]
                shown = {(row["project_id"], row["resource_type"], row["resource_class"]): row[column] for row in rows}
                expected = {key: round(count * (STEP / HOUR), 6) for key, count in total.items()}
                assert {key: value for key, value in shown.items() if value} == expected
        ahead = NOW + len(moments) * STEP
        period = {"start_date": rfc3339(ahead), "end_date": rfc3339(ahead + 100 * STEP)}
        rows = history.admin.get("/v1/usage?" + urlencode(period)).json["usage"]
        to_come: Counter[Key] = Counter()
        for number in range(100):
            to_come += history.seen_at(ahead + number * STEP)[0]
        assert {
            (row["project_id"], row["resource_type"], row["resource_class"]): row["booked_hours"] for row in rows
        } == {key: round(count * (STEP / HOUR), 6) for key, count in to_come.items()}
        assert not any(row["held_hours"] for row in rows)


def test_lease_that_starts_late_elsewhere_is_booked_from_its_start_date(tmp_path: Path):
    with open_api(tmp_path, hosts=2) as api:
        latest = api.using(version="1.3")
        world = api.world
        before = [world.reserve_on(number, worlds.reservation(1, 1)) for number in (1, 2)]
        world.engine.settle()
        world.teardown_lasts(before[0], until=NOW + 9 * HOUR)
        world.teardown_lasts(before[1], until=NOW + 2 * HOUR)
        late = [world.reserve(worlds.reservation(1, 1), start=1, hours=4, actor=STRANGER) for _ in range(2)]
        world.pass_time(1.5 * HOUR, leap=STEP)
        admin = api.using("admin", "1.3")
        assert hours(admin, project_id=STRANGER.project_id) == [(8, 0)]
        world.leases.update(STRANGER, late[1].id, LeaseChange(ends_at=NOW + 6 * HOUR))
        assert hours(admin, project_id=STRANGER.project_id) == [(9, 0)]
        world.leases.delete(STRANGER, late[1].id)  # it counts for nothing, as it never started
        assert hours(admin, project_id=STRANGER.project_id) == [(4, 0)]
        world.pass_time(7 * HOUR, leap=STEP)
        [(booked, held)] = hours(admin, project_id=STRANGER.project_id)
        assert booked == 4
        assert 2.5 < held <= 3  # from the moment at which the second host was given back
        assert latest.get(f"/v1/leases/{before[0].id}/hosts").json["hosts"] != []
        with world.db.read() as tx:
            [allocation] = tx.allocations.of_reservations([late[0].reservations[0].id])
        assert allocation.state is AllocationState.RELEASED


def test_instances_that_start_late_on_several_hosts_are_booked_from_their_start_date(tmp_path: Path):
    """Their host is not given back; of those that are, each has room for one of them only."""
    with open_api(tmp_path, hosts=3) as api:
        world = api.world
        world.resize(8, 4, 4)
        before = [world.reserve_on(number, worlds.reservation(1, 1)) for number in (1, 2, 3)]
        world.engine.settle()
        for lease, end in zip(before, (9, 2, 2), strict=True):
            world.teardown_lasts(lease, until=NOW + end * HOUR)
        late = world.reserve_on(1, worlds.instance_reservation(2, vcpus=4), start=1, hours=4, actor=STRANGER)
        admin, project_id = api.using("admin", "1.3"), STRANGER.project_id
        for hour in (1.5, 2.5, 6):
            world.pass_until(NOW + hour * HOUR, leap=STEP)
            _, processors = hours(admin, project_id=project_id)  # the first are those of memory
            assert processors[0] == 8 * 4
            assert len(world.units(late)) == (1 if hour < 2 else 2)


@pytest.mark.parametrize("hosts", [1, 2])
def test_lease_whose_host_is_cleaned_first_is_booked_from_its_start_date(tmp_path: Path, hosts: int):
    """Its plan begins when the hosts are clean, also if it is changed or deleted meanwhile."""
    with open_api(tmp_path, hosts=hosts) as api:
        world = api.world
        rebuild(world, rules=replace(world.service.components.rules, cleaning_time=HOUR / 2))
        before = world.reserve(worlds.reservation(hosts, hosts), hours=0.5)
        world.engine.settle()
        world.teardown_lasts(before, until=NOW + 0.75 * HOUR)  # clean at 1:15
        late = world.reserve(worlds.reservation(hosts, hosts), start=1, hours=2, actor=STRANGER)
        admin, project_id = api.using("admin", "1.3"), STRANGER.project_id
        end = 3.0
        for minute in (50, 65, 70):  # before its start date, and after it
            world.pass_until(NOW + minute * timedelta(minutes=1))
            assert world.leases.get(STRANGER, late.id).status is LeaseStatus.PENDING
            assert hours(admin, project_id=project_id) == [(hosts * (end - 1), 0)]
            end += 0.5
            world.leases.update(STRANGER, late.id, LeaseChange(ends_at=NOW + end * HOUR))
            assert hours(admin, project_id=project_id) == [(hosts * (end - 1), 0)]
        world.pass_until(NOW + 2 * HOUR, leap=STEP)
        assert world.leases.get(STRANGER, late.id).status is LeaseStatus.ACTIVE
        [(booked, held)] = hours(admin, project_id=project_id)
        assert booked == hosts * (end - 1)
        assert hosts * 0.5 < held <= hosts * 0.75  # from the moment at which the hosts are clean
