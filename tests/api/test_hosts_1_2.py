"""Closing, opening and emptying hosts, from 1.2 on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.api.rig import HOSTS, Api, open_api
from tests.support.simulated import HostHealth


@pytest.fixture
def admin(api: Api) -> Api:
    return api.using("admin", "1.2")


def host_of(admin: Api, lease: dict[str, Any]) -> str:
    """Return the id of the only host of a lease."""
    [host] = admin.get(f"/v1/leases/{lease['id']}/hosts").json["hosts"]
    return str(host["id"])


def test_a_host_shows_why_it_takes_no_reservations(admin: Api) -> None:
    host = admin.get("/v1/os-hosts/1").json["host"]
    well = {"enabled": True, "disabled_reason": None, "health": "well", "health_reason": None, "health_since": None}
    assert {name: host[name] for name in well} == well
    admin.world.cloud.world.mark_host("1", HostHealth.DOWN)
    admin.world.service.health_check.run()
    down = admin.get("/v1/os-hosts/1").json["host"]
    assert (down["reservable"], down["health"], down["health_reason"]) == (False, "down", "The hypervisor is down.")
    assert down["health_since"] == "2030-01-01T10:00:00Z"
    assert admin.get("/v1/os-hosts?reservable=false").json["hosts"] == [down]
    for old in ("1.0", "1.1"):
        shown = admin.using(version=old).get("/v1/os-hosts/1").json["host"]
        assert shown["reservable"] is False
        assert not {*well} & shown.keys()


def test_disabled_host_stays_with_its_lease_and_takes_no_new_lease(admin: Api) -> None:
    lease = admin.using("demo").book(start=5)
    host = host_of(admin, lease)
    path = f"/v1/os-hosts/{host}"
    previewed = admin.post(f"{path}/disable", {"reason": "a broken fan", "dry_run": True}).json
    assert (previewed["dry_run"], previewed["host"]["reservable"]) == (True, False)
    assert admin.get(path).json["host"]["reservable"] is True
    done = admin.post(f"{path}/disable", {"reason": "a broken fan"})
    assert done.status_code == 200, done.text
    assert done.json == {
        "host": admin.get(path).json["host"],
        "dry_run": False,
        "reservations": [
            {
                "id": lease["reservations"][0]["id"],
                "lease_id": lease["id"],
                "start_date": lease["start_date"],
                "end_date": lease["end_date"],
                "status": "planned",
                "moves_to": None,
                "reason": "It keeps the resource.",
            }
        ],
    }
    assert done.json["reservations"] == previewed["reservations"]
    assert (done.json["host"]["enabled"], done.json["host"]["disabled_reason"]) == (False, "a broken fan")
    all_hosts = {**HOSTS, "min": 4, "max": 4}
    full = admin.using("demo").post("/v1/leases", admin.lease_body(start=50, reservations=[all_hosts]))
    assert full.json["details"]["stages"][0] == {"stage": "reservable", "count": 3}
    assert host_of(admin, lease) == host
    opened = admin.post(f"{path}/enable").json
    assert (opened["host"]["enabled"], opened["host"]["reservable"], opened["reservations"]) == (True, True, [])
    admin.using("demo").book(start=50, reservations=[all_hosts])


def test_a_disabled_host_stays_disabled_when_the_cloud_reports_it_healthy(admin: Api) -> None:
    admin.post("/v1/os-hosts/1/disable", {"reason": "mine"})
    for health, reservable in ((HostHealth.DOWN, False), (HostHealth.UP, False)):
        admin.world.cloud.world.mark_host("1", health)
        admin.world.service.health_check.run()
        assert admin.get("/v1/os-hosts/1").json["host"]["reservable"] is reservable
    admin.world.cloud.world.mark_host("1", HostHealth.DOWN)
    admin.world.service.health_check.run()
    opened = admin.post("/v1/os-hosts/1/enable").json["host"]
    assert (opened["enabled"], opened["health"], opened["reservable"]) == (True, "down", False)


def test_disabling_again_changes_only_the_reason(admin: Api) -> None:
    first = admin.post("/v1/os-hosts/1/disable", {"reason": "mine"}).json
    admin.world.clock.advance(admin.world.service.components.reconcile_interval)
    assert admin.post("/v1/os-hosts/1/disable", {"reason": "mine"}).json == first
    assert admin.post("/v1/os-hosts/1/disable", {"reason": "yours"}).json["host"]["disabled_reason"] == "yours"


class TestReallocate:
    def test_a_dry_run_shows_the_host_to_which_a_reservation_moves(self, admin: Api) -> None:
        lease = admin.using("demo").book()
        host = host_of(admin, lease)
        before = admin.dump()
        previewed = admin.post(f"/v1/os-hosts/{host}/reallocate", {"dry_run": True}).json
        assert admin.dump() == before
        [part] = previewed["reservations"]
        assert (part["lease_id"], part["status"], part["reason"]) == (lease["id"], "planned", None)
        assert part["moves_to"] not in {None, host}
        done = admin.post(f"/v1/os-hosts/{host}/reallocate").json
        assert done["reservations"][0]["moves_to"] == host_of(admin, lease) != host

    def test_only_the_named_lease_moves(self, admin: Api) -> None:
        demo = admin.using("demo")
        lease, other = demo.book(start=1), demo.book(start=5)
        host = host_of(admin, lease)
        assert host_of(admin, other) == host
        done = admin.post(f"/v1/os-hosts/{host}/reallocate", {"lease_id": lease["id"]}).json
        assert [part["lease_id"] for part in done["reservations"]] == [lease["id"]]
        assert (host_of(admin, lease) == host, host_of(admin, other) == host) == (False, True)
        nowhere = admin.post(f"/v1/os-hosts/{host}/reallocate", {"lease_id": lease["id"]})
        assert (nowhere.status_code, nowhere.json["field"]) == (404, "lease_id")

    def test_a_reservation_stays_without_another_free_host(self, admin: Api) -> None:
        lease = admin.using("demo").book(reservations=[{**HOSTS, "min": 4, "max": 4}])
        done = admin.post("/v1/os-hosts/1/reallocate").json
        [part] = done["reservations"]
        assert (part["lease_id"], part["moves_to"], part["reason"]) == (
            lease["id"],
            None,
            "No other resource is free for it.",
        )

    def test_a_running_reservation_moves_only_on_request(self, admin: Api) -> None:
        demo, world = admin.using("demo"), admin.world
        lease = demo.book(start=0)
        world.engine.settle()
        host = host_of(admin, lease)
        [part] = admin.post(f"/v1/os-hosts/{host}/reallocate").json["reservations"]
        assert (part["status"], part["moves_to"]) == ("held", None)
        assert "running" in part["reason"]
        before = admin.dump()
        [part] = admin.post(f"/v1/os-hosts/{host}/reallocate", {"running": True, "dry_run": True}).json["reservations"]
        assert admin.dump() == before
        [moved] = admin.post(f"/v1/os-hosts/{host}/reallocate", {"running": True}).json["reservations"]
        assert moved["moves_to"] not in {None, host}
        assert demo.get(f"/v1/leases/{lease['id']}").json["lease"]["status"] == "UPDATING"
        world.engine.settle()
        shown = demo.get(f"/v1/leases/{lease['id']}").json["lease"]
        assert (shown["status"], shown["degraded"], shown["reservations"][0]["resources_changed"]) == (
            "ACTIVE",
            False,
            True,
        )
        [group] = world.cloud.world.groups().values()
        assert group.hosts == (moved["moves_to"],)
        history = demo.get(f"/v1/leases/{lease['id']}/history").json["history"]
        assert [entry["actor"] for entry in history if entry["action"] == "replace"] == ["admin-user"]


@pytest.mark.parametrize("action", ["disable", "enable", "reallocate"])
class TestPermissionsAndBodies:
    def test_only_administrators(self, api: Api, action: str) -> None:
        refused = api.using("demo", "1.2").post(f"/v1/os-hosts/1/{action}")
        assert refused.status_code == 403
        assert api.using("nobody at all", "1.2").post(f"/v1/os-hosts/1/{action}").status_code == 401

    def test_not_before_1_2(self, admin: Api, action: str) -> None:
        for old in ("1.0", "1.1"):
            assert admin.using(version=old).post(f"/v1/os-hosts/1/{action}").status_code == 404
        assert admin.get("/v1/os-hosts/1").json["host"]["enabled"] is True

    def test_a_host_that_is_not_there(self, admin: Api, action: str) -> None:
        assert admin.post(f"/v1/os-hosts/4711/{action}").json["error_name"] == "NotFound"

    @pytest.mark.parametrize("body", [{"nonsense": 1}, {"dry_run": "yes"}, {"dry_run": None}])
    def test_a_body_that_is_not_known(self, admin: Api, action: str, body: dict[str, Any]) -> None:
        refused = admin.post(f"/v1/os-hosts/1/{action}", body)
        assert (refused.status_code, refused.json["field"]) == (400, next(iter(body)))


def test_a_host_that_is_being_registered_cannot_be_closed(tmp_path: Path) -> None:
    with open_api(tmp_path, hosts=1) as api:
        admin = api.using("admin", "1.2")
        with api.world.db.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE resources SET registration = 'registering', reservable = 0")
        refused = admin.post("/v1/os-hosts/1/disable")
        assert (refused.status_code, refused.json["error_name"]) == (409, "Conflict")
