"""Reservations of volumes, as Cinder and their users see them, from the start to the end and after it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session

from tests.support.cloud import Cloud
from tests.support.site import Lease, Site, answered, open_site
from tests.support.waiting import wait_for

#: How much of the pool is lent, in GiB.
LENT = 3
#: How many want a part of it at once.
AT_ONCE = 6


@pytest.fixture(scope="module")
def volumes_site(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Tenure with a pool of volumes, which looks every second for what is gone."""
    options = {"manager": {"reconcile_interval": 1}}
    with open_site(tmp_path_factory.mktemp("volumes"), cloud, options=options) as site:
        yield site


@pytest.fixture
def pool(volumes_site: Site, demo: Session) -> Iterator[dict[str, Any]]:
    """The cloud's pool, of which a little is lent; nothing of it is booked or kept before the test nor after it."""
    site = volumes_site
    admin = cinder(site, site.nova.admin)
    [found] = admin.get("/scheduler-stats/get_pools?detail=true").json()["pools"]
    latest = site.api(site.nova.admin, "1.2")
    made = answered(latest.post("/volume-pools", json={"name": found["name"], "capacity_gb": LENT}), 201)["volume_pool"]
    yield made
    site.delete_leases()
    for volume in admin.get("/volumes?all_tenants=1").json()["volumes"]:
        admin.delete(f"/volumes/{volume['id']}?cascade=true")
    path = f"/volume-pools/{made['id']}"
    wait_for("the pool to be unused", lambda: latest.delete(path).status_code == 204, pause=0.5)


def cinder(site: Site, session: Session) -> Adapter:
    return site.cloud.service(session, "block-storage")


def volumes(site: Site, session: Session) -> dict[str, dict[str, Any]]:
    """The volumes that an account sees, by id."""
    return {volume["id"]: volume for volume in cinder(site, session).get("/volumes/detail").json()["volumes"]}


def reserve(site: Site, by: Session, **more: object) -> Lease:
    return site.reserve(by, {"resource_type": "virtual:volume", "amount": 1, "size_gb": 1, **more})


def ask(site: Site, by: Session, amount: int, *, start: str = "now") -> Any:
    """Ask for so many volumes of a GiB, and return the answer."""
    asked = {"resource_type": "virtual:volume", "amount": amount, "size_gb": 1}
    body = {"name": "asked", "start_date": start, "end_date": "2099-01-01T00:00:00Z", "reservations": [asked]}
    return site.api(by).post("/leases", json=body)


def assert_refused(site: Site, by: Session, amount: int) -> None:
    assert answered(ask(site, by, amount), 409)["error_name"] == "NotEnoughResources"


def all_can_be_booked(site: Site, by: Session) -> bool:
    """Whether the whole pool can be booked; the booking is far in the future, so that no volume is made."""
    answer = ask(site, by, LENT, start="2098-01-01T00:00:00Z")
    return bool(answer.status_code == 201)


@pytest.mark.long
def test_concurrent_bookings_never_exceed_the_lent_capacity(
    volumes_site: Site, pool: dict[str, Any], demo: Session, other: Session
):
    site = volumes_site
    admin = cinder(site, site.nova.admin)
    leases: list[tuple[str, str | None]] = []

    def are_made() -> bool:
        there = admin.get("/volumes?all_tenants=1").json()["volumes"]
        assert len(there) <= LENT
        leases[:] = [(lease["status"], lease["status_reason"]) for lease in site.leases()]
        return len(there) == LENT and {status for status, _ in leases} == {"ACTIVE"}

    with ThreadPoolExecutor(AT_ONCE) as clients:
        asked = [clients.submit(ask, site, (demo, other)[number % 2], 1) for number in range(AT_ONCE)]
        answers = [future.result() for future in asked]
    granted = [answer.status_code for answer in answers].count(201)
    refused = [answer for answer in answers if answer.status_code != 201]
    assert granted == LENT, [answer.text for answer in refused]
    assert {answer.json()["error_name"] for answer in refused} == {"NotEnoughResources"}
    try:
        wait_for("as many volumes as are lent", are_made, seconds=150, pause=1)
    except AssertionError as error:
        raise AssertionError(f"{error}: {leases}") from None


def test_volumes_are_made_in_their_owners_project_and_deleted_at_the_end(
    volumes_site: Site, pool: dict[str, Any], demo: Session, other: Session
):
    site = volumes_site
    lease = reserve(site, demo, amount=2)
    [reservation] = lease.wait("ACTIVE")["reservations"]
    mine = volumes(site, demo)
    assert sorted(reservation["volume_ids"]) == sorted(mine)
    assert {(volume["name"], volume["size"], volume["status"]) for volume in mine.values()} == {
        ("of-a-test-1", 1, "available"),
        ("of-a-test-2", 1, "available"),
    }
    seen_by_admin = cinder(site, site.nova.admin).get(f"/volumes/{reservation['volume_ids'][0]}").json()["volume"]
    assert seen_by_admin["os-vol-host-attr:host"] == pool["name"]
    assert volumes(site, other) == {}
    assert_refused(site, other, 2)
    lease.change(reservations=[{"id": lease.reservation, "amount": 3}])
    wait_for("one more", lambda: len(volumes(site, demo)) == 3)
    assert_refused(site, other, 1)
    gone = next(iter(mine))
    cinder(site, demo).delete(f"/volumes/{gone}")
    wait_for("another in its place", lambda: len(volumes(site, demo).keys() - {gone}) == 3)
    lease.wait("ACTIVE")
    lease.change(end_date="now")
    lease.wait("TERMINATED")
    assert volumes(site, demo) == {}


def test_kept_volumes_go_on_using_the_pool_until_deleted(volumes_site: Site, pool: dict[str, Any], demo: Session):
    """A volume, and another with the snapshot of it, which counts as much again."""
    site, own = volumes_site, cinder(volumes_site, demo)
    leases = [reserve(site, demo, at_end=at_end) for at_end in ("keep", "snapshot")]
    [[kept], [below]] = [lease.wait("ACTIVE")["reservations"][0]["volume_ids"] for lease in leases]
    for lease in leases:
        lease.change(end_date="now")
    for lease in leases:
        lease.wait("TERMINATED")
        lease.delete()
        lease.wait_until_gone()
    assert volumes(site, demo).keys() == {kept, below}
    [snapshot] = own.get("/snapshots").json()["snapshots"]
    assert snapshot["volume_id"] == below
    assert_refused(site, demo, 1)
    own.delete(f"/snapshots/{snapshot['id']}")
    wait_for("the snapshot to go", lambda: own.get("/snapshots").json()["snapshots"] == [])
    for volume in (kept, below):
        own.delete(f"/volumes/{volume}")
    wait_for("the room", lambda: all_can_be_booked(site, demo), pause=1)
    assert volumes(site, demo) == {}
