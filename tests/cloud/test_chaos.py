"""Another administrator changes aggregates, their metadata and members, and providers; reconciling undoes that."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from keystoneauth1.session import Session

from tests.support import ledger
from tests.support.cloud import Cloud
from tests.support.databases import MARIADB, fresh_database_on
from tests.support.interception import Interception, interception
from tests.support.lengths import times
from tests.support.seeded import enrol, seeded_hosts
from tests.support.site import FREE_POOL, HOSTS, MARIADB_URL, Lease, Site, answered, moment, open_site
from tests.support.waiting import wait_for

SEEDED = 12
CHANGES = times(18, 30)
SEED = 20301
REPAIR_SECONDS = 3
#: How long after the last change all is well again: a pass that had begun before it, the next one, and one more for
#: what two changes together have made impossible at once; with longer than that for what is to be done.
MENDED_SECONDS = 3 * REPAIR_SECONDS + 20
OWNER = "blazar:owner"


@dataclass(frozen=True)
class Rig:
    site: Site
    between: Interception
    database: str
    seeded: tuple[str, ...]


@pytest.fixture
def rig(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A deployment whose calls are seen, over the four hosts that work and some that nothing runs on."""
    options = {"manager": {"reconcile_interval": REPAIR_SECONDS}}
    with (
        seeded_hosts(SEEDED, pooled=True) as names,
        interception(cloud) as between,
        fresh_database_on(MARIADB, MARIADB_URL) as database,
        open_site(
            tmp_path_factory.mktemp("chaos"), cloud, options={**options, **between.options}, database=database
        ) as site,
    ):
        enrol(database, cloud)
        site.register(*HOSTS)
        yield Rig(site, between, database, tuple(names))


@dataclass
class Meddler:
    """An administrator who makes random changes; changes that Nova refuses are skipped."""

    site: Site
    rng: random.Random
    leases: dict[str, set[str]]
    free: list[str]
    #: Where nothing runs, leased or not.
    idle: list[str]
    done: list[str] = field(default_factory=list)

    @property
    def kinds(self) -> list[Callable[[], bool]]:
        """What he can do, the seldom possible ones among them."""
        return [
            self.delete_aggregate,
            self.take_host,
            self.change_owner,
            self.change_zone,
            self.forget_owner,
            self.add_stranger,
            self.pool_as_well,
            self.swap,
            self.empty_pool,
            self.delete_pool,
            self.delete_provider,
        ]

    def meddle(self) -> None:
        """Try all that he can do once, in any order."""
        for act in self.rng.sample(self.kinds, len(self.kinds)):
            if act():
                self.done.append(act.__name__)

    def delete_aggregate(self) -> bool:
        name, group = self._group()
        return (
            group is not None
            and all(self._move(name, "remove_host", host) for host in group["hosts"])
            and (self.site.nova.api.delete(f"/os-aggregates/{group['id']}", raise_exc=False).status_code == 200)
        )

    def take_host(self) -> bool:
        name, group = self._group()
        return bool(group and group["hosts"]) and self._move(name, "remove_host", self.rng.choice(group["hosts"]))

    def change_owner(self) -> bool:
        return self._set({OWNER: self.rng.choice(["somebody", ""])})

    def forget_owner(self) -> bool:
        return self._set({OWNER: None})

    def change_zone(self) -> bool:
        return self._set({"availability_zone": f"zone-{self.rng.randrange(3)}"})

    def add_stranger(self) -> bool:
        return self._move(self._group()[0], "add_host", self.rng.choice(self.free))

    def pool_as_well(self) -> bool:
        return self._move(FREE_POOL, "add_host", self.rng.choice(sorted(self.leases[self._group()[0]])))

    def swap(self) -> bool:
        """Give a host of one reservation to another one."""
        giver, other = self.rng.sample(sorted(self.leases), 2)
        host = self.rng.choice(sorted(self.leases[giver]))
        return self._move(giver, "remove_host", host) and self._move(other, "add_host", host)

    def empty_pool(self) -> bool:
        return self._move(FREE_POOL, "remove_host", self.rng.choice(self.free))

    def delete_pool(self) -> bool:
        group = self.site.nova.aggregates().get(FREE_POOL)
        return (
            group is not None
            and all(self._move(FREE_POOL, "remove_host", host) for host in group["hosts"])
            and self.site.nova.api.delete(f"/os-aggregates/{group['id']}", raise_exc=False).status_code == 200
        )

    def delete_provider(self) -> bool:
        """Of a host that nothing runs on: a compute service remembers what it had below its own for a while."""
        found = self.site.nova.providers().get(f"blazar_{self.rng.choice(self.idle)}")
        path = f"/resource_providers/{found['uuid']}" if found else ""
        return found is not None and self.site.nova.placement.delete(path, raise_exc=False).status_code == 204

    def _group(self) -> tuple[str, Any]:
        name = self.rng.choice(sorted(self.leases))
        return name, self.site.nova.aggregates().get(name)

    def _set(self, metadata: dict[str, str | None]) -> bool:
        _, group = self._group()
        return group is not None and self._act(group["id"], {"set_metadata": {"metadata": metadata}})

    def _move(self, aggregate: str, action: str, host: str) -> bool:
        group = self.site.nova.aggregates().get(aggregate)
        return group is not None and self._act(group["id"], {action: {"host": host}})

    def _act(self, number: int, body: dict[str, Any]) -> bool:
        answer = self.site.nova.api.post(f"/os-aggregates/{number}/action", json=body, raise_exc=False)
        return bool(answer.status_code == 200)


@pytest.mark.long
def test_all_changes_are_reconciled_and_then_nothing_is_written(
    rig: Rig, demo: Session, capsys: pytest.CaptureFixture[str]
):
    site = rig.site
    before = site.nova.aggregates().keys()
    leases = [site.book(demo, on=host) for host in HOSTS]
    leases += [book_seeded(site, demo, 2) for _ in range(3)]
    for lease in leases:
        lease.wait("ACTIVE")
    hosts = {lease.reservation: lease.hosts() for lease in leases}
    taken = set().union(*hosts.values())
    free = sorted(set(rig.seeded) - taken)
    assert len(taken) == len(HOSTS) + 6
    servers = [site.nova.boot(demo, reservation=lease.reservation) for lease in leases[:2]]
    assert [server.place() for server in servers] == list(HOSTS[:2])
    project = demo.get_project_id()

    def wrong() -> list[str]:
        """What is not as the ledger says."""
        aggregates, providers = site.nova.aggregates(), site.nova.providers()
        found = []
        for name in aggregates.keys() - before - hosts.keys():
            found.append(f"there is {name}")
        for reservation, wanted in hosts.items():
            group = aggregates.get(reservation)
            if group is None:
                found.append(f"{reservation} has no aggregate")
            elif set(group["hosts"]) != wanted or group["availability_zone"] != f"blazar_{reservation}":
                found.append(f"{reservation} has {group['hosts']} in {group['availability_zone']}, not {wanted}")
            elif group["metadata"].get(OWNER) != project:
                found.append(f"{reservation} is of {group['metadata']}")
        pool = aggregates.get(FREE_POOL, {"hosts": []})["hosts"]
        if set(pool) != set(free):
            found.append(f"in the pool are {pool}, not {free}")
        return found + [f"{host} has no provider" for host in rig.seeded if f"blazar_{host}" not in providers]

    assert wrong() == []
    meddler = Meddler(site, random.Random(SEED), hosts, free, sorted(rig.seeded))
    while len(meddler.done) < CHANGES:
        meddler.meddle()
    assert len(set(meddler.done)) >= 9, meddler.done  # of the others each was refused every time
    ended = time.monotonic()
    wait_for(lambda: f"an end of {wrong()}", lambda: not wrong(), seconds=MENDED_SECONDS, pause=0.5)
    seconds = time.monotonic() - ended

    # What has made it right may have something left to say to the schedulers.
    let_pass(rig.between, 1)
    let_pass(rig.between, 2)
    services = (rig.between.compute, rig.between.placement, rig.between.image)  # a login is none of it
    assert [request for proxy in services for request in proxy.seen() if request.writes] == []
    assert wrong() == []
    assert {lease.show()["status"] for lease in leases} == {"ACTIVE"}
    assert ledger.faults(rig.database) == []
    assert [server.place() for server in servers] == list(HOSTS[:2])
    kinds = len(set(meddler.done))
    with capsys.disabled():
        print(f"\n{len(meddler.done)} changes of {kinds} kinds were reconciled within {seconds:.0f} s")


def book_seeded(site: Site, by: Session, count: int) -> Lease:
    """A lease of hosts that nothing runs on."""
    reservation = {
        "resource_type": "physical:host",
        "min": count,
        "max": count,
        "hypervisor_properties": "",
        "resource_properties": "",
    }
    body = {
        "name": "seeded",
        "start_date": "now",
        "end_date": moment(hours=1),
        "reservations": [reservation],
    }
    api = site.api(by)
    lease = answered(api.post("/leases", json=body), 201)["lease"]
    return Lease(api, lease["id"], lease["reservations"][0]["id"])


def let_pass(between: Interception, passes: int) -> None:
    """Wait for so many more comparisons of the cloud with the ledger: each takes one look at all of Placement."""
    between.forget()

    def looks() -> int:
        return sum(request.path == "/resource_providers" for request in between.placement.seen())

    wait_for(f"{passes} more passes", lambda: looks() >= passes)
