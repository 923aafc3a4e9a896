"""Servers that are booted for a lease, by hints to the real Nova, with our filter before its API."""

from __future__ import annotations

import json
from typing import Any

from keystoneauth1.session import Session

from tests.support.cloud import Cloud
from tests.support.site import Lease, Server, Site, answered, moment, wait_for

COMPUTE = "2.90"


def boot(site: Site, by: Session, lease: dict[str, str] | str | None) -> Any:
    """The answer of Nova to a request to boot a server, with hints for a lease."""
    body: dict[str, object] = {
        "server": {
            "name": "by-hint",
            "imageRef": site.nova._image,
            "flavorRef": site.nova.flavor("m1.tiny"),
            "networks": "none",
        }
    }
    if lease is not None:
        text = lease if isinstance(lease, str) else json.dumps(lease)
        body["os:scheduler_hints"] = {"reserved": "True", "lease_params": text}
    answer = site.cloud.service(by, "compute", COMPUTE).post("/servers", json=body, raise_exc=False)
    if answer.status_code == 202:
        site.nova.booted.append(Server(site.nova, answer.json()["server"]["id"]))
    return answer


def servers_of(site: Site, by: Session) -> set[str]:
    return {one["id"] for one in site.cloud.service(by, "compute", COMPUTE).get("/servers").json()["servers"]}


def lease_of(site: Site, by: Session, server: Server) -> Lease:
    """The lease that the server names in its metadata, with the server in it."""
    found = server.show()
    assert found is not None
    marks = found["metadata"]
    lease = Lease(site.api(by, "1.2"), marks["tenure:lease"], marks["tenure:reservation"])
    (reservation,) = lease.show()["reservations"]
    assert (reservation["id"], reservation["server_id"]) == (lease.reservation, server.id)
    assert found["tags"] == [f"tenure:lease={lease.id}"]
    return lease


def status(server: Server) -> str:
    found = server.show()
    return "gone" if found is None else str(found["status"])


def test_a_server_sleeps_until_its_lease_starts_and_goes_with_it(site: Site, cloud: Cloud):
    """And one that is booted beside it, without hints, is nobody's business."""
    owner = cloud.session("demo")
    site.register("compute-1")
    answer = boot(site, owner, {"name": "by-hint", "start": moment(seconds=60), "end": moment(seconds=110)})
    assert answer.status_code == 202, answer.text
    server = site.nova.booted[-1]
    assert boot(site, owner, None).status_code == 202
    other = site.nova.booted[-1]
    lease = lease_of(site, owner, server)
    wait_for("the server to sleep", lambda: status(server) == "RESERVED", seconds=50)
    lease.wait("ACTIVE", seconds=120)
    assert server.place() == "compute-1"
    assert other.place() != "compute-1"
    lease.wait("TERMINATED", seconds=120)
    server.wait_until_gone()
    assert status(other) == "ACTIVE"


def test_from_now_to_a_day_of_one_digit(site: Site, cloud: Cloud):
    owner = cloud.session("demo")
    site.register("compute-1")
    answer = boot(site, owner, {"name": "lease1", "start": "now", "end": "2027-12-1 16:07", "at_end": "delete"})
    assert answer.status_code == 202, answer.text
    server = site.nova.booted[-1]
    lease = lease_of(site, owner, server)
    assert lease.show()["end_date"] == "2027-12-01T16:07:00Z"
    lease.wait("ACTIVE", seconds=120)
    assert server.place() == "compute-1"
    lease.delete()
    lease.wait_until_gone()
    server.wait_until_gone()


def test_without_room_no_server_is_made_and_the_reason_is_told(site: Site, cloud: Cloud):
    owner = cloud.session("demo")
    site.register("compute-1")
    site.book(owner, on="compute-1", seconds=7200)
    before = servers_of(site, owner)
    refused = boot(site, owner, {"start": "now", "end": moment(seconds=3600)})
    assert refused.status_code == 409, refused.text
    assert "free" in refused.json()["conflictingRequest"]["message"]
    assert servers_of(site, owner) == before
    leases = answered(site.api(owner, "1.2").get("/leases"), 200)["leases"]
    assert [lease["name"] for lease in leases] == ["of-a-test"]


def test_a_server_of_a_lease_that_nobody_confirmed_is_deleted(site: Site, cloud: Cloud):
    """As when nova-api is killed after it has booted the server, and before it has confirmed the lease."""
    owner = cloud.session("demo")
    site.register("compute-1")
    api = site.api(owner, "1.2")
    body = {
        "name": "killed",
        "start_date": moment(seconds=1800),
        "end_date": moment(seconds=3600),
        "hold_for": 5,
        "reservations": [{"resource_type": "virtual:server", "flavor_id": site.nova.flavor("m1.tiny")}],
    }
    held = answered(api.post("/leases", json=body), 201)["lease"]
    marks = {
        "tenure:lease": held["id"],
        "tenure:reservation": held["reservations"][0]["id"],
        "tenure:reserved": "true",
    }
    server = site.nova._boot(owner, None, {}, {"metadata": marks})["server"]
    made = Server(site.nova, server["id"])
    site.nova.booted.append(made)
    wait_for("the hold to be over", lambda: api.get(f"/leases/{held['id']}").status_code == 404, seconds=30)
    wait_for("the end of the server", lambda: made.show() is None, seconds=150)


def test_a_tenure_that_is_down_is_noticed_by_those_only_who_ask_for_a_lease(site: Site, cloud: Cloud):
    owner = cloud.session("demo")
    (api,) = site.deployment.apis
    api.stop()
    try:
        lease = {"start": "now", "end": moment(seconds=3600)}
        before = servers_of(site, owner)
        refused = boot(site, owner, lease)
        assert (refused.status_code, "serviceUnavailable" in refused.json()) == (503, True)
        wrong = boot(site, owner, "{")
        assert (wrong.status_code, "lease_params" in wrong.json()["badRequest"]["message"]) == (400, True)
        assert servers_of(site, owner) == before
        assert boot(site, owner, None).status_code == 202
        assert not site.nova.booted[-1].place().startswith("No valid host")
        assert site.cloud.service(owner, "compute", COMPUTE).get("/servers/detail").status_code == 200
    finally:
        api.start()
        site.deployment.wait_until_well()
