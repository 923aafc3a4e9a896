"""A real region and a simulated one under one Tenure: a lease over both, also when a region fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session

from tenure.drivers.simulated import Fault, FaultKind
from tests.support.cloud import Cloud
from tests.support.interception import Interception, interception
from tests.support.simulated import SimulatedCloud
from tests.support.site import FREE_POOL, Lease, Site, answered, moment, open_site
from tests.support.waiting import wait_for

REAL, SOUTH = "real", "south"
#: The host of the testbed, and what the simulated region calls its own.
HERE, THERE = "compute-1", "sim-host-001"


@dataclass(frozen=True)
class Regions:
    """One host in each region. ``real`` is reached through servers that fail on demand, ``south`` fails by itself."""

    site: Site
    real: Interception
    south: SimulatedCloud

    def api(self, session: Session) -> Adapter:
        return self.site.api(session, "1.2")

    def book(self, by: Session, *regions: str) -> Both:
        """A lease of a host in each of these regions, from now on."""
        wanted = [
            {"resource_type": "physical:host", "min": 1, "max": 1, "hypervisor_properties": "", "region": region}
            for region in regions
        ]
        body = {"name": "both", "start_date": "now", "end_date": moment(hours=1), "reservations": wanted}
        lease = answered(self.api(by).post("/leases", json=body), 201)["lease"]
        return Both(
            Lease(self.api(by), lease["id"], lease["reservations"][0]["id"]),
            {reservation["region"]: reservation["id"] for reservation in lease["reservations"]},
        )

    def hosts(self) -> dict[str, dict[str, Any]]:
        """The hosts of both regions by their ids in the ledger."""
        found = answered(self.api(self.site.nova.admin).get("/os-hosts"), 200)["hosts"]
        return {host["id"]: host for host in found}


@dataclass(frozen=True)
class Both:
    """A lease, and its reservations by region."""

    lease: Lease
    reservations: dict[str, str]

    def wait_until_reason(self, status: str, *words: str) -> None:
        """Wait until it has that status, and its status reason has all these words."""

        def has_reason() -> bool:
            found = self.lease.show()
            return found["status"] == status and all(word in (found["status_reason"] or "") for word in words)

        wait_for(f"{status} because of {words}", has_reason)


@pytest.fixture(scope="module")
def deployed(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Regions]:
    folder = tmp_path_factory.mktemp("regions")
    with SimulatedCloud.create(folder / "south.db", hosts=1) as south, interception(cloud) as real:
        options: dict[str, dict[str, object]] = {
            "DEFAULT": {"regions": f"{REAL}, {SOUTH}"},
            f"region:{REAL}": {
                "os_region_name": cloud.openrc["OS_REGION_NAME"],
                "auth_url": real.options["service_auth"]["auth_url"],
            },
            f"region:{SOUTH}": {"driver": "simulated", "path": folder / "south.db"},
            "cloud": {"request_timeout": 6, "verb_timeout": 20},
            "manager": {"max_attempts": 20},
        }
        with open_site(folder, cloud, options=options) as site:
            admin = site.api(site.nova.admin, "1.2")
            for name, region in ((HERE, REAL), (THERE, SOUTH)):
                answered(admin.post("/os-hosts", json={"name": name, "region": region}), 201)
            yield Regions(site, real, south)


@pytest.fixture
def regions(deployed: Regions) -> Iterator[Regions]:
    """All is well and without leases before and after the test."""
    yield deployed
    deployed.real.heal()
    deployed.south.clear_faults()
    deployed.site.nova.delete_booted()
    deployed.site.delete_leases()
    assert HERE in (deployed.site.nova.members(FREE_POOL) or set())
    assert len(deployed.south.world.pool()) == 1


def test_a_lease_over_two_regions_starts_and_ends_in_both(regions: Regions, demo: Session):
    (here, there) = regions.hosts().values()
    assert (here["region"], here["hypervisor_hostname"]) == (REAL, HERE)
    assert (there["id"], there["region"], there["hypervisor_hostname"]) == (f"{SOUTH}:1", SOUTH, THERE)
    both = regions.book(demo, REAL, SOUTH)
    both.lease.wait("ACTIVE")
    assert both.lease.hosts() == {HERE, THERE}
    assert regions.site.nova.members(both.reservations[REAL]) == {HERE}
    assert regions.south.world.groups()[both.reservations[SOUTH]].hosts == ("1",)

    # Neither region has room for another one, and nothing is booked in one of them alone.
    again = {"resource_type": "physical:host", "min": 1, "max": 1, "hypervisor_properties": ""}
    for region in (REAL, SOUTH):
        body = {"name": "x", "start_date": "now", "end_date": moment(hours=1)}
        refused = regions.api(demo).post("/leases", json={**body, "reservations": [{**again, "region": region}]})
        assert refused.status_code == 409, refused.text

    both.lease.delete()
    both.lease.wait_until_gone()
    assert regions.site.nova.members(both.reservations[REAL]) is None
    assert regions.south.world.groups() == {}


def test_the_real_region_starts_while_the_simulated_region_fails_to_start(regions: Regions, demo: Session):
    regions.south.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=None, reason="made to fail"))
    both = regions.book(demo, REAL, SOUTH)
    both.wait_until_reason("STARTING", f"Region {SOUTH}", "made to fail")
    wait_for("the real part", lambda: regions.site.nova.members(both.reservations[REAL]) == {HERE})
    assert regions.site.nova.boot(demo, reservation=both.reservations[REAL]).place() == HERE
    assert both.reservations[SOUTH] not in regions.south.world.groups()
    regions.south.clear_faults()
    assert both.lease.wait("ACTIVE")["status_reason"] is None
    assert both.reservations[SOUTH] in regions.south.world.groups()


def test_the_simulated_region_ends_while_the_real_region_fails_to_end(regions: Regions, demo: Session):
    both = regions.book(demo, REAL, SOUTH)
    both.lease.wait("ACTIVE")
    regions.real.compute.refuse()
    both.lease.delete()
    both.wait_until_reason("DELETING", f"Region {REAL}", "Nova cannot be reached")
    assert both.reservations[SOUTH] not in regions.south.world.groups()
    assert regions.site.nova.members(both.reservations[REAL]) == {HERE}
    regions.book(demo, SOUTH).lease.wait("ACTIVE")  # while the real region is still away
    regions.real.heal()
    both.lease.wait_until_gone()
    assert regions.site.nova.members(both.reservations[REAL]) is None
