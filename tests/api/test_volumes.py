"""Volumes over HTTP: pools, and leases of volumes in them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tenure.domain.volume import pool_id
from tenure.drivers.simulated import Fault, FaultKind
from tests.api.rig import Api

PATH = "/v1/volume-pools"
POOL = "sim-storage@fast#nvme"


def volumes(**parameters: Any) -> dict[str, Any]:
    return {"resource_type": "virtual:volume", "amount": 2, "size_gb": 30, "volume_type": "fast", **parameters}


@pytest.fixture
def latest(api: Api) -> Api:
    return api.using("admin", "1.2")


def lend(api: Api, capacity_gb: int = 100, name: str = POOL) -> dict[str, Any]:
    made = api.using("admin", "1.2").post(PATH, {"name": name, "capacity_gb": capacity_gb})
    assert made.status_code == 201, made.text
    pool: dict[str, Any] = made.json["volume_pool"]
    return pool


def book(api: Api, *, start: float = 0.0, hours: float = 1, **parameters: Any) -> dict[str, Any]:
    return api.using("demo", "1.2").book(start=start, hours=hours, reservations=[volumes(**parameters)])


def run(api: Api, **parameters: Any) -> dict[str, Any]:
    """A lease that has started, as it is shown then."""
    lease = book(api, **parameters)
    api.world.pass_time(timedelta(0))
    shown: dict[str, Any] = api.get(f"/v1/leases/{lease['id']}").json["lease"]
    assert shown["status"] == "ACTIVE", shown
    return shown


def refused(api: Api, *, start: float = 0.0, hours: float = 1, **parameters: Any) -> Any:
    asked = api.using("demo", "1.2")
    return asked.post("/v1/leases", asked.lease_body(start=start, hours=hours, reservations=[volumes(**parameters)]))


class TestPools:
    def test_a_pool_is_registered_shown_and_unregistered(self, latest: Api) -> None:
        pool = lend(latest)
        assert (pool["id"], pool["name"], pool["capacity_gb"], pool["reservable"]) == (pool_id(POOL), POOL, 100, True)
        assert latest.get(PATH).json == {"volume_pools": [pool]}
        assert latest.get(f"{PATH}?name=sim-storage%40slow%23disk").json == {"volume_pools": []}
        assert latest.get(f"{PATH}/{pool['id']}").json == {"volume_pool": pool}
        again = latest.post(PATH, {"name": POOL, "capacity_gb": 100})
        assert (again.status_code, again.json["field"]) == (409, "name")
        assert latest.delete(f"{PATH}/{pool['id']}").status_code == 204
        assert latest.get(f"{PATH}/{pool['id']}").status_code == 404

    def test_the_lent_capacity_of_a_pool_changes(self, latest: Api) -> None:
        path = f"{PATH}/{lend(latest)['id']}"
        assert refused(latest, amount=5).status_code == 409
        shown = latest.put(path, {"capacity_gb": 150}).json["volume_pool"]
        assert (shown["capacity_gb"], shown) == (150, latest.get(path).json["volume_pool"])
        book(latest, amount=5)
        assert latest.put(path, {"capacity_gb": 150}).status_code == 200
        too_much = latest.put(path, {"capacity_gb": 2001})
        assert (too_much.status_code, too_much.json["field"]) == (400, "capacity_gb")
        assert latest.get(path).json["volume_pool"] == shown

    def test_the_lent_capacity_covers_all_bookings(self, latest: Api) -> None:
        path = f"{PATH}/{lend(latest, 150)['id']}"
        book(latest, start=1, amount=2)
        later = book(latest, start=1.5, amount=1)
        run(latest, amount=1, at_end="keep")
        latest.world.pass_time(timedelta(minutes=10))

        def least() -> int:
            """How much must be lent: one GiB less is refused."""
            shown: int = latest.get(path).json["volume_pool"]["capacity_gb"]
            too_little = latest.put(path, {"capacity_gb": shown - 1})
            assert (too_little.status_code, too_little.json["field"]) == (409, "capacity_gb"), too_little.text
            return shown

        assert latest.put(path, {"capacity_gb": 120}).json["volume_pool"]["capacity_gb"] == least()
        assert latest.using("demo").delete(f"/v1/leases/{later['id']}").status_code == 204
        assert latest.put(path, {"capacity_gb": 90}).json["volume_pool"]["capacity_gb"] == least()
        latest.world.pass_time(timedelta(hours=3))
        assert latest.put(path, {"capacity_gb": 30}).json["volume_pool"]["capacity_gb"] == least()
        assert refused(latest, amount=1).status_code == 409

    @pytest.mark.slow
    def test_the_lent_capacity_covers_volumes_not_yet_deleted(self, latest: Api) -> None:
        pool = lend(latest)
        lease = run(latest, amount=2)
        [ending] = lease["reservations"]
        latest.world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_ended", reservation_id=ending["id"], count=None))
        latest.world.pass_time(timedelta(hours=2))
        assert latest.put(f"{PATH}/{pool['id']}", {"capacity_gb": 59}).status_code == 409
        assert latest.put(f"{PATH}/{pool['id']}", {"capacity_gb": 60}).status_code == 200

    def test_only_administrators_change_the_lent_capacity(self, latest: Api) -> None:
        path = f"{PATH}/{lend(latest)['id']}"
        assert latest.using("demo", "1.2").put(path, {"capacity_gb": 1}).status_code == 403
        for version in ("1.0", "1.1"):
            assert latest.using("admin", version).put(path, {"capacity_gb": 1}).status_code == 404

    @pytest.mark.parametrize(
        ("body", "status", "field"),
        [
            ({"name": "elsewhere@lvm#lvm", "capacity_gb": 1}, 404, "name"),
            ({"name": POOL, "capacity_gb": 2001}, 400, "capacity_gb"),
            ({"name": POOL, "capacity_gb": 0}, 400, "capacity_gb"),
            ({"name": POOL}, 400, "capacity_gb"),
            ({"capacity_gb": 1}, 400, "name"),
            ({"name": POOL, "capacity_gb": 1, "size": 2}, 400, "size"),
        ],
    )
    def test_invalid_pools_are_refused(self, latest: Api, body: dict[str, Any], status: int, field: str) -> None:
        answer = latest.post(PATH, body)
        assert (answer.status_code, answer.json["field"]) == (status, field), answer.text

    def test_pools_are_for_administrators_from_1_2_on(self, latest: Api) -> None:
        assert latest.using("demo").get(PATH).status_code == 403
        assert latest.using("demo").post(PATH, {"name": POOL, "capacity_gb": 1}).status_code == 403
        for version in ("1.0", "1.1"):
            assert latest.using(version=version).get(PATH).status_code == 404
            assert latest.using(version=version).get(f"{PATH}/allocations").status_code == 404

    def test_allocations_are_listed_by_pool(self, latest: Api) -> None:
        pool = lend(latest)
        lease = book(latest, start=1)
        [reservation] = lease["reservations"]
        part = {"id": reservation["id"], "lease_id": lease["id"]}
        part |= {"start_date": lease["start_date"], "end_date": lease["end_date"]}
        found = {"resource_id": pool["id"], "reservations": [part]}
        assert latest.get(f"{PATH}/allocations").json == {"allocations": [found]}
        [leased] = latest.using("demo").get(f"/v1/leases/{lease['id']}/volume_pools").json["volume_pools"]
        assert (leased["id"], leased["name"], leased["status"]) == (pool["id"], POOL, "planned")

    def test_a_deleted_lease_with_kept_volumes_is_still_listed(self, latest: Api) -> None:
        """The kept volumes still fill the pool, and the operator must find their owner."""
        pool = lend(latest)
        lease = run(latest.using("demo"), at_end="keep")
        assert latest.using("demo").delete(f"/v1/leases/{lease['id']}").status_code == 204
        latest.world.pass_time(timedelta(minutes=2))
        assert latest.delete(f"{PATH}/{pool['id']}").status_code == 409
        [found] = latest.get(f"{PATH}/allocations").json["allocations"]
        assert [affected["lease_id"] for affected in found["reservations"]] == [lease["id"]]
        assert latest.get(f"{PATH}/{pool['id']}/allocation").json == {"allocation": found}
        for volume in list(latest.world.cloud.world.volumes.all()):
            latest.world.cloud.world.volumes.delete(volume)
        latest.world.service.reconciler.run()
        assert latest.get(f"{PATH}/{pool['id']}/allocation").json["allocation"]["reservations"] == []

    def test_disabled_pool_is_not_booked(self, latest: Api) -> None:
        pool = lend(latest)
        latest.post(f"{PATH}/{pool['id']}/disable", {"reason": "worn out"})
        assert refused(latest).status_code == 409
        latest.post(f"{PATH}/{pool['id']}/enable", {})
        book(latest)

    def test_pool_that_is_down_is_not_booked(self, latest: Api) -> None:
        pool = lend(latest)
        latest.world.cloud.world.volumes.mark_pool(POOL, up=False)
        latest.world.service.health_check.run()
        shown = latest.get(f"{PATH}/{pool['id']}").json["volume_pool"]
        assert (shown["reservable"], shown["health_reason"]) == (False, f"The volume pool {POOL} is down.")
        assert refused(latest).status_code == 409


class TestLeases:
    def test_volumes_are_made_at_the_start_and_deleted_at_the_end(self, latest: Api) -> None:
        lend(latest)
        lease = book(latest, start=1)
        [reservation] = lease["reservations"]
        assert {name: reservation[name] for name in ("amount", "size_gb", "volume_type", "at_end", "volume_ids")} == {
            "amount": 2,
            "size_gb": 30,
            "volume_type": "fast",
            "at_end": "delete",
            "volume_ids": [],
        }
        assert latest.world.cloud.world.volumes.all() == {}
        latest.world.pass_time(timedelta(hours=1, minutes=1))
        [reservation] = latest.get(f"/v1/leases/{lease['id']}").json["lease"]["reservations"]
        made = latest.world.cloud.world.volumes.all()
        assert reservation["volume_ids"] == list(made)
        assert {(volume.project_id, volume.size_gb, volume.pool, volume.status) for volume in made.values()} == {
            ("demo-project", 30, POOL, "available")
        }
        assert [volume.name for volume in made.values()] == ["lease-1", "lease-2"]
        latest.world.cloud.world.volumes.attach(next(iter(made)), "server-1")
        latest.world.pass_time(timedelta(hours=1))
        assert latest.world.cloud.world.volumes.all() == {}
        assert latest.get(f"/v1/leases/{lease['id']}").json["lease"]["status"] == "TERMINATED"
        book(latest, amount=3)

    def test_no_more_is_promised_than_there_is_at_any_instant(self, latest: Api) -> None:
        lend(latest)
        book(latest, start=1, hours=1)
        answer = refused(latest, start=0, hours=5)
        assert answer.status_code == 409
        assert answer.json["error_message"].startswith("Not enough volumes available: 2 asked for")
        assert answer.json["details"]["unknown_properties"] == []
        book(latest, start=0, hours=1)
        book(latest, start=1, hours=1, amount=1)
        book(latest, start=2, hours=5)

    @pytest.mark.parametrize(("at_end", "size"), [("keep", 30), ("snapshot", 20)])
    def test_kept_volumes_go_on_using_the_pool(self, latest: Api, at_end: str, size: int) -> None:
        pool = lend(latest)
        lease = book(latest, at_end=at_end, size_gb=size)
        latest.world.pass_time(timedelta(hours=2))
        kept = latest.world.cloud.world.volumes.all()
        assert [volume.snapshots for volume in kept.values()] == [int(at_end == "snapshot")] * 2
        assert latest.get(f"/v1/leases/{lease['id']}").json["lease"]["status"] == "TERMINATED"
        latest.world.service.reconciler.run()
        assert refused(latest).status_code == 409
        assert latest.using("demo").delete(f"/v1/leases/{lease['id']}").status_code == 204
        latest.world.service.reconciler.run()
        assert (refused(latest).status_code, len(latest.world.cloud.world.volumes.all())) == (409, 2)
        assert latest.delete(f"{PATH}/{pool['id']}").status_code == 409
        first, second = kept
        self.delete(latest, first)
        latest.world.service.reconciler.run()
        assert refused(latest, amount=3).status_code == 409
        book(latest)
        latest.world.pass_time(timedelta(hours=2))
        self.delete(latest, second)
        latest.world.service.reconciler.run()
        book(latest, amount=3)

    def delete(self, latest: Api, volume: str) -> None:
        latest.world.cloud.world.volumes.delete_snapshot(volume)
        latest.world.cloud.world.volumes.delete(volume)

    def test_keeping_is_refused_where_it_has_no_room_beside_later_bookings(self, latest: Api) -> None:
        lend(latest)
        later = book(latest, start=100)
        assert refused(latest, at_end="keep").status_code == 409
        assert refused(latest, at_end="snapshot", amount=1, size_gb=21).status_code == 409
        lease = run(latest)
        path, demo = f"/v1/leases/{lease['id']}", latest.using("demo", "1.2")
        change = {"reservations": [{"id": lease["reservations"][0]["id"], "at_end": "keep"}]}
        assert demo.put(path, change).status_code == 409
        assert demo.delete(f"/v1/leases/{later['id']}").status_code == 204
        assert demo.put(path, change).status_code == 200
        assert refused(latest, start=100).status_code == 409
        change["reservations"][0]["at_end"] = "snapshot"
        answer = demo.put(path, change)
        assert (answer.status_code, answer.json["field"]) == (409, "reservations[0].at_end"), answer.text
        change["reservations"][0]["at_end"] = "delete"
        assert demo.put(path, change).status_code == 200
        book(latest, start=100)

    def test_an_unstarted_reservation_keeps_no_volumes(self, latest: Api) -> None:
        lend(latest)
        lease = book(latest, start=5, at_end="keep")
        assert latest.using("demo").delete(f"/v1/leases/{lease['id']}").status_code == 204
        book(latest, amount=3)

    def test_prolonging_and_growing(self, latest: Api) -> None:
        lend(latest)
        lease = run(latest)
        path, demo = f"/v1/leases/{lease['id']}", latest.using("demo", "1.2")
        reservation_id = lease["reservations"][0]["id"]
        grown = demo.put(path, {"reservations": [{"id": reservation_id, "amount": 3}]})
        assert grown.status_code == 200, grown.text
        assert len(grown.json["lease"]["reservations"][0]["volume_ids"]) == 3
        assert demo.put(path, {"reservations": [{"id": reservation_id, "amount": 4}]}).status_code == 409
        for wrong in ({"amount": 2}, {"size_gb": 31}, {"volume_type": "slow"}):
            answer = demo.put(path, {"reservations": [{"id": reservation_id, **wrong}]})
            assert answer.status_code == 409, answer.text
        body = latest.lease_body(hours=9, start=0)
        assert demo.put(path, {"end_date": body["end_date"]}).status_code == 200
        assert refused(latest, start=5).status_code == 409

    @pytest.mark.parametrize(
        ("wrong", "field"),
        [
            ({"amount": 0}, "amount"),
            ({"size_gb": 0}, "size_gb"),
            ({"size_gb": None}, "size_gb"),
            ({"at_end": "burn"}, "at_end"),
            ({"before_end": "snapshot"}, "before_end"),
            ({"volume_type": "unknown"}, "volume_type"),
            ({"volume_type": "any"}, "volume_type"),
            ({"pool": POOL}, "pool"),
        ],
    )
    def test_bad_requests(self, latest: Api, wrong: dict[str, Any], field: str) -> None:
        lend(latest)
        answer = refused(latest, **wrong)
        assert answer.status_code in {400, 404}, answer.text
        assert answer.json["field"] == f"reservations[0].{field}"

    def test_the_default_type_is_named(self, latest: Api) -> None:
        lend(latest, name="sim-storage@slow#disk")
        lease = book(latest, volume_type="")
        assert lease["reservations"][0]["volume_type"] == "slow"

    def test_a_volume_that_vanishes_is_made_again(self, latest: Api) -> None:
        lend(latest)
        lease = run(latest)
        [first, second] = lease["reservations"][0]["volume_ids"]
        latest.world.cloud.world.volumes.delete(first)
        latest.world.cloud.world.volumes.change_metadata(second, {})
        latest.world.service.reconciler.run()
        latest.world.engine.settle()
        [reservation] = latest.get(f"/v1/leases/{lease['id']}").json["lease"]["reservations"]
        assert sorted(reservation["volume_ids"]) == sorted(latest.world.cloud.world.volumes.all())
        assert second in reservation["volume_ids"]
        latest.world.pass_time(timedelta(hours=2))
        assert latest.world.cloud.world.volumes.all() == {}
