"""Reservations of volumes, as Cinder and those who use them see them, from the start to the end and after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session

from tests.support.cloud import Cloud
from tests.support.site import Lease, Site, answered, open_site, wait_for

#: How much of the pool is lent, in GiB.
LENT = 4


@pytest.fixture(scope="module")
def volumes_site(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Tenure with a pool of volumes, which looks every second for what is gone."""
    options = {"manager": {"repair_interval": 1}}
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
    for one in admin.get("/volumes?all_tenants=1").json()["volumes"]:
        admin.delete(f"/volumes/{one['id']}?cascade=true")
    path = f"/volume-pools/{made['id']}"
    wait_for("the pool to be nobody's", lambda: latest.delete(path).status_code == 204, pause=0.5)


def cinder(site: Site, session: Session) -> Adapter:
    return site.cloud.service(session, "block-storage")


def volumes(site: Site, session: Session) -> dict[str, dict[str, Any]]:
    """The volumes that an account sees, by id."""
    return {one["id"]: one for one in cinder(site, session).get("/volumes/detail").json()["volumes"]}


def reserve(site: Site, by: Session, **more: object) -> Lease:
    return site.reserve(by, {"resource_type": "virtual:volume", "amount": 2, "size_gb": 1, **more})


def refused(site: Site, by: Session, **more: object) -> dict[str, Any]:
    asked = {"resource_type": "virtual:volume", "amount": 2, "size_gb": 1, **more}
    body = {"name": "refused", "start_date": "now", "end_date": "2099-01-01T00:00:00Z", "reservations": [asked]}
    return dict(answered(site.api(by).post("/leases", json=body), 409))


def end(lease: Lease) -> None:
    lease.change(end_date="now")
    lease.wait("TERMINATED")


def test_volumes_are_made_in_their_owners_project_and_deleted_at_the_end(
    volumes_site: Site, pool: dict[str, Any], demo: Session, other: Session
):
    site = volumes_site
    lease = reserve(site, demo)
    [reservation] = lease.wait("ACTIVE")["reservations"]
    mine = volumes(site, demo)
    assert sorted(reservation["volume_ids"]) == sorted(mine)
    assert {(one["name"], one["size"], one["status"]) for one in mine.values()} == {
        ("of-a-test-1", 1, "available"),
        ("of-a-test-2", 1, "available"),
    }
    seen_by_admin = cinder(site, site.nova.admin).get(f"/volumes/{reservation['volume_ids'][0]}").json()["volume"]
    assert seen_by_admin["os-vol-host-attr:host"] == pool["name"]
    assert volumes(site, other) == {}
    assert refused(site, other, amount=3)["error_name"] == "NotEnoughResources"
    lease.change(reservations=[{"id": lease.reservation, "amount": 4}])
    wait_for("two more", lambda: len(volumes(site, demo)) == 4)
    assert refused(site, other, amount=1)["error_name"] == "NotEnoughResources"
    gone = next(iter(mine))
    cinder(site, demo).delete(f"/volumes/{gone}")
    wait_for("another in its place", lambda: len(volumes(site, demo).keys() - {gone}) == 4)
    lease.wait("ACTIVE")
    end(lease)
    assert volumes(site, demo) == {}


@pytest.mark.parametrize("at_end", ["keep", "snapshot"])
def test_what_is_kept_goes_on_using_the_pool_until_it_is_deleted(
    volumes_site: Site, pool: dict[str, Any], demo: Session, at_end: str
):
    site, own = volumes_site, cinder(volumes_site, demo)
    amount = {"keep": 4, "snapshot": 2}[at_end]
    lease = reserve(site, demo, amount=amount, at_end=at_end)
    lease.wait("ACTIVE")
    end(lease)
    kept = volumes(site, demo)
    assert len(kept) == amount
    snapshots = own.get("/snapshots").json()["snapshots"]
    assert sorted(one["volume_id"] for one in snapshots) == (sorted(kept) if at_end == "snapshot" else [])
    lease.delete()
    lease.wait_until_gone()
    assert refused(site, demo, amount=1)["error_name"] == "NotEnoughResources"
    for one in snapshots:
        own.delete(f"/snapshots/{one['id']}")
    wait_for("snapshots to go", lambda: own.get("/snapshots").json()["snapshots"] == [])
    for volume in kept:
        own.delete(f"/volumes/{volume}")
    wait_for("the room", lambda: room(site, demo), pause=1)
    assert volumes(site, demo).keys() & kept.keys() == set()


def room(site: Site, by: Session) -> bool:
    """Whether the whole pool can be booked."""
    asked = {"resource_type": "virtual:volume", "amount": 4, "size_gb": 1}
    body = {"name": "again", "start_date": "now", "end_date": "2099-01-01T00:00:00Z", "reservations": [asked]}
    return bool(site.api(by).post("/leases", json=body).status_code == 201)
