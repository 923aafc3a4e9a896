"""Servers that are booted for a lease and made at its start, by hints to the real Nova, with our filter before it."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import requests
from keystoneauth1.exceptions import ConnectFailure
from keystoneauth1.session import Session

from tests.cloud.test_clients import runner
from tests.cloud.test_identity import hanging
from tests.support.cloud import Cloud, Undo
from tests.support.commands import document, in_minutes
from tests.support.hints import (
    COMPUTE,
    NAME,
    NOVA_SECONDS,
    boot,
    compute,
    kill_nova_api,
    later,
    lease_of_planned,
    made_for,
    stand_in,
    start_soon,
    statuses,
)
from tests.support.interception import Fault, Interception, interception
from tests.support.site import HOSTS, Lease, Server, Site, answered, moment, open_site
from tests.support.waiting import wait_for

RESERVED = "compute-1"
NAME_OF_KEY = "of-a-test"
USER_DATA = base64.b64encode(b"#!/bin/sh\n").decode()
#: How many servers are booted at a time, and for how many there is room.
BOOTS, ROOM = 20, 5


@dataclass(frozen=True)
class Rig:
    """A deployment, and what is between it and its cloud."""

    site: Site
    between: Interception


@pytest.fixture(scope="module")
def opened(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with interception(cloud) as between:
        options = {**between.options, "manager": {"reconcile_interval": 1}}
        with open_site(tmp_path_factory.mktemp("planned"), cloud, options=options) as site:
            yield Rig(site, between)


@pytest.fixture(scope="module")
def demo(opened: Rig) -> Session:
    """A member of the project ``demo``, whose token is new: Nova keeps the catalogue of one that it has seen before."""
    return opened.site.cloud.session("demo")


@pytest.fixture
def rig(undo: Undo, opened: Rig) -> Iterator[Rig]:
    """One host can be reserved. Without leases before the test and after it; then it undoes what else it has made."""
    opened.site.register(RESERVED)
    yield opened
    opened.between.heal()
    opened.site.nova.delete_booted()
    opened.site.clear()


@pytest.fixture
def site(rig: Rig) -> Site:
    return rig.site


def booked(answer: requests.Response) -> str:
    """The reservation by whose id the user is told of the server."""
    assert answer.status_code == 202, answer.text
    return str(answer.json()["server"]["id"])


def only(servers: list[Server]) -> tuple[Server, dict[str, Any]]:
    """The only one of these servers, and what Nova says of it."""
    (server,) = servers
    found = server.show()
    assert found is not None
    return server, found


def leases_of(site: Site, by: Session) -> list[Lease]:
    api = site.api(by, "1.4")
    leases = answered(api.get("/leases"), 200)["leases"]
    return [Lease(api, lease["id"], lease["reservations"][0]["id"]) for lease in leases]


def flavor_of_share(site: Site, undo: Undo, count: int) -> str:
    """A new flavor, of which this number fits into the reserved host."""
    provider = site.nova.providers()[RESERVED]["uuid"]
    inventories = site.nova.placement.get(f"/resource_providers/{provider}/inventories").json()["inventories"]
    memory = inventories["MEMORY_MB"]
    usable = int((memory["total"] - memory["reserved"]) * memory["allocation_ratio"])
    wanted = {"name": f"of-a-test-{uuid4().hex[:8]}", "vcpus": 1, "ram": usable // count, "disk": 1}
    made = answered(site.nova.api.post("/flavors", json={"flavor": wanted}), 200)["flavor"]["id"]
    undo.append(lambda: site.nova.api.delete(f"/flavors/{made}", raise_exc=False))
    return str(made)


def network_of(site: Site, by: Session, undo: Undo) -> str:
    """A new network of the account's project, with addresses."""
    api = site.cloud.service(by, "network")
    made = answered(api.post("/v2.0/networks", json={"network": {"name": "of-a-test"}}), 201)["network"]["id"]
    undo.append(lambda: api.delete(f"/v2.0/networks/{made}"))
    subnet = {"network_id": made, "ip_version": 4, "cidr": "10.20.31.0/28", "enable_dhcp": False}
    answered(api.post("/v2.0/subnets", json={"subnet": subnet}), 201)
    return str(made)


def key_of(site: Site, by: Session, undo: Undo) -> str:
    """A new key pair of the user, which nobody else may use."""
    api = compute(site, by)
    answered(api.post("/os-keypairs", json={"keypair": {"name": NAME_OF_KEY}}), 201)
    undo.append(lambda: api.delete(f"/os-keypairs/{NAME_OF_KEY}"))
    return NAME_OF_KEY


def test_a_server_is_made_at_the_start_as_requested_though_no_host_is_open(undo: Undo, site: Site, demo: Session):
    """Until then it is shown as RESERVED, by the id of its reservation, which means the server also afterwards."""
    site.register(*(host for host in HOSTS if host != RESERVED))
    network, key = network_of(site, demo, undo), key_of(site, demo, undo)
    before = statuses(site, demo)
    wanted = {"networks": [{"uuid": network}], "key_name": key, "user_data": USER_DATA, "tags": ["mine"]}
    reservation = booked(boot(site, demo, later(), **wanted, metadata={"role": "web"}))
    assert statuses(site, demo) == before | {reservation: "RESERVED"}
    assert made_for(site, reservation) == []

    lease = lease_of_planned(site, demo, reservation)
    start_soon(lease)
    server, found = only(made_for(site, reservation))
    assert server.place() in HOSTS
    assert (found["name"], found["image"]["id"], found["key_name"]) == (NAME, site.nova.image, key)
    assert (found["user_id"], found["tenant_id"]) == (demo.get_user_id(), demo.get_project_id())
    assert found["OS-EXT-SRV-ATTR:user_data"] == USER_DATA
    assert found["metadata"].items() >= {"role": "web", "tenure:lease": lease.id}.items()
    assert set(found["tags"]) == {"mine", "tenure:reserved", f"tenure:lease={lease.id}"}
    assert list(found["addresses"]) == ["of-a-test"]
    assert lease.show_reservation()["server_id"] == server.id
    assert statuses(site, demo) == before | {server.id: "ACTIVE"}
    shown = answered(compute(site, demo).get(f"/servers/{reservation}"), 200)["server"]
    assert shown["id"] == server.id

    lease.change(end_date="now")
    lease.wait("TERMINATED", seconds=NOVA_SECONDS)
    server.wait_until_gone()
    assert compute(site, demo).get(f"/servers/{reservation}", raise_exc=False).status_code == 404
    assert (statuses(site, demo), reservation in site.nova.aggregates()) == (before, False)


def test_as_many_of_several_servers_are_booked_and_made_as_there_is_room_for(undo: Undo, site: Site, demo: Session):
    flavor = flavor_of_share(site, undo, 2)
    wanted = {"flavorRef": flavor, "min_count": 2, "max_count": 3}
    booked(boot(site, demo, later(), **wanted))
    (lease,) = leases_of(site, demo)
    reservations = [reservation["id"] for reservation in lease.show()["reservations"]]
    assert len(reservations) == 2
    assert statuses(site, demo).items() >= dict.fromkeys(reservations, "RESERVED").items()
    assert boot(site, demo, later(), **wanted).status_code == 409

    start_soon(lease)
    made = [only(made_for(site, reservation)) for reservation in reservations]
    assert sorted(found["name"] for _, found in made) == [f"{NAME}-1", f"{NAME}-2"]
    assert [server.place() for server, _ in made] == [RESERVED] * 2


def test_servers_of_the_command_line_are_renamed_and_deleted_before_they_are_made(site: Site, demo: Session):
    """With the standard client. Of a lease of two servers one is deleted; a lease of one goes with its server."""
    openstack = runner(site, "tenure", "openstack", "--os-compute-api-version", COMPUTE, "server")
    wanted = json.dumps({"start": in_minutes(60), "end": in_minutes(120)})
    hints = ("--hint", "reserved=True", "--hint", f"lease_params={wanted}")
    common = ("--flavor", "m1.tiny", "--image", "tiny", "--no-network", "-f", "json", *hints)

    def listed() -> dict[str, str]:
        rows = document(openstack("list", "-f", "json", by="demo"))
        return {row["Name"]: row["Status"] for row in rows if row["Name"] not in before}

    before: dict[str, str] = {}
    before = listed()
    document(openstack("create", "web", "--min", "2", "--max", "2", *common, by="demo"))
    document(openstack("create", "alone", *common, by="demo"))
    assert listed() == dict.fromkeys(("web-1", "web-2", "alone"), "RESERVED")
    openstack("set", "--name", "front", "web-1", by="demo")
    openstack("delete", "web-2", by="demo")
    openstack("delete", "alone", by="demo")
    assert listed() == {"front": "RESERVED"}
    assert document(openstack("show", "front", "-f", "json", by="demo"))["status"] == "RESERVED"

    (lease,) = wait_for("the lease of one server to go", lambda: the_only(leases_of(site, demo)))
    start_soon(lease)
    assert listed() == {"front": "ACTIVE"}
    reservations = [reservation["id"] for reservation in lease.show()["reservations"]]
    _, found = only([server for reservation in reservations for server in made_for(site, reservation)])
    assert (found["name"], found["OS-EXT-SRV-ATTR:host"]) == ("front", RESERVED)


def the_only(leases: list[Lease]) -> list[Lease] | None:
    return leases if len(leases) == 1 else None


def test_a_nova_killed_right_after_the_booking_leaves_one_lease_of_one_server(site: Site, cloud: Cloud, demo: Session):
    """The user has no answer, and finds the server in the list."""
    before = statuses(site, demo)
    with stand_in(site, hold_seconds=300) as service:
        owner = cloud.session("demo")  # whose catalogue names it
        service.after_booking = kill_nova_api
        with pytest.raises(ConnectFailure):
            boot(site, owner, later())
    (lease,) = leases_of(site, demo)
    assert statuses(site, demo) == before | {lease.reservation: "RESERVED"}
    start_soon(lease)
    server, _ = only(made_for(site, lease.reservation))
    assert statuses(site, demo) == before | {server.id: "ACTIVE"}
    assert server.place() == RESERVED


def test_a_manager_killed_before_it_hears_of_the_server_makes_no_second_one(rig: Rig, demo: Session):
    """Nova has accepted the boot, and the answer is lost; the next manager comes while the server is still built."""
    site, (manager,) = rig.site, rig.site.deployment.managers

    def is_boot(method: str, path: str, _body: bytes = b"") -> bool:
        return method == "POST" and path.endswith("/servers")

    def accepted() -> list[int]:
        return [request.status for request in rig.between.compute.seen() if is_boot(request.method, request.path)]

    rig.between.forget()
    rig.between.compute.fail(Fault(lose_answer=True, concerns=is_boot, times=1))
    with hanging("nova-scheduler"):
        reservation = booked(boot(site, demo, {"start": "now", "end": moment(seconds=3600)}))
        lease = lease_of_planned(site, demo, reservation)
        wait_for("Nova to accept the server", accepted)
        manager.kill()
        server, found = only(made_for(site, reservation))
        assert found["status"] == "BUILD"
        manager.start()
        site.deployment.wait_until_well()
    lease.wait("ACTIVE", seconds=NOVA_SECONDS)
    assert only(made_for(site, reservation))[0] == server
    assert (accepted(), server.place()) == ([202], RESERVED)
    assert lease.show_reservation()["server_id"] == server.id


def test_of_twenty_boots_at_a_time_as_many_are_booked_as_there_is_room_for(undo: Undo, site: Site, demo: Session):
    """All others are refused with the reason, and Nova answers other requests meanwhile."""
    flavor, wanted = flavor_of_share(site, undo, ROOM), later()
    before = statuses(site, demo)
    with ThreadPoolExecutor(BOOTS) as users:
        boots = [users.submit(boot, site, demo, wanted, flavorRef=flavor) for _ in range(BOOTS)]
        others = []
        while not all(answer.done() for answer in boots):
            others.append(compute(site, demo).get("/servers/detail", raise_exc=False).status_code)
    answers = [answer.result() for answer in boots]
    assert Counter(answer.status_code for answer in answers) == {202: ROOM, 409: BOOTS - ROOM}
    for answer in answers:
        assert answer.status_code == 202 or "0 have room" in answer.json()["conflictingRequest"]["message"]
    assert set(others) == {200}
    reservations = {booked(answer) for answer in answers if answer.status_code == 202}
    assert statuses(site, demo) == before | dict.fromkeys(reservations, "RESERVED")
    assert len(reservations) == len(leases_of(site, demo)) == ROOM


def test_only_boots_with_a_lease_fail_while_tenure_is_down_and_work_again_when_it_is_back(site: Site, demo: Session):
    reservation = booked(boot(site, demo, later()))
    (api,) = site.deployment.apis
    api.stop()
    try:
        refused = boot(site, demo, later())
        assert (refused.status_code, "serviceUnavailable" in refused.json()) == (503, True)
        wrong = boot(site, demo, "{")
        assert (wrong.status_code, "lease_params" in wrong.json()["badRequest"]["message"]) == (400, True)
        assert reservation not in statuses(site, demo)
        assert site.nova.boot(demo).place() in set(HOSTS) - {RESERVED}
    finally:
        api.start()
        site.deployment.wait_until_well()
    wait_for("boots with a lease to work again", lambda: boot(site, demo, later()).status_code == 202)
    wait_for("the first one to be shown again", lambda: statuses(site, demo).get(reservation) == "RESERVED")
