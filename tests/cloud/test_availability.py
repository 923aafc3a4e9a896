"""Many leases start in one minute, while managers are killed, and the message bus and the database restart."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from keystoneauth1.session import Session
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from testbed import backing
from testbed.processes import start_all, stop, wait_until_listening
from tests.support import ledger
from tests.support.cloud import Cloud
from tests.support.databases import MARIADB, fresh_database_on
from tests.support.deployment import Program
from tests.support.lengths import times
from tests.support.seeded import empty, enrol, seeded_hosts
from tests.support.site import FREE_POOL, MARIADB_URL, Site, answered, moment, open_site
from tests.support.waiting import COMMAND_SECONDS, patience, wait_for

LEASES = times(50, 100)
CLIENTS = 8
#: How long after the first booking all of them start: longer than it takes to make them on an idle machine.
HEADWAY_SECONDS = times(25, 40)
#: How long it may take until all run, and until all are over.
STARTS_SECONDS = 300
ENDS_SECONDS = 240
#: How often a manager is killed, and how long it works in between. What it has begun is taken up by another when its
#: claim has run out, a minute later.
KILLS = times(3, 6)
LIFE_SECONDS = 3
#: What a manager says when it works.
RUNS = " runs\n"


@dataclass
class Harm:
    """What was done to the deployment."""

    kills: int = 0
    restarted: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def database(cloud: Cloud) -> Iterator[str]:
    with fresh_database_on(MARIADB, MARIADB_URL) as url:
        yield url


@pytest.fixture(scope="module")
def crowd(cloud: Cloud, database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, list[str]]]:
    """Two managers and two APIs beside the cloud, and as many hosts that are reservable."""
    folder = tmp_path_factory.mktemp("crowd")
    with (
        seeded_hosts(LEASES, pooled=True) as names,
        open_site(folder, cloud, managers=2, apis=2, database=database) as site,
    ):
        assert sorted(enrol(database, cloud)) == sorted(names)
        yield site, names
        site.delete_leases()
        empty(database)


@pytest.mark.long
def test_all_leases_start_despite_failures_of_managers_bus_and_database(
    crowd: tuple[Site, list[str]], database: str, demo: Session, capsys: pytest.CaptureFixture[str]
):
    site, names = crowd
    before = site.nova.aggregates().keys()
    headway = patience(HEADWAY_SECONDS)
    starts_at = time.monotonic() + headway
    start = moment(seconds=headway)
    together(lambda number: book(site, demo, number, start), range(LEASES))
    booked_seconds = time.monotonic() - starts_at + headway
    assert time.monotonic() < starts_at, f"it took {booked_seconds:.0f} s to book them all"

    with harmed(site.deployment.managers[0], starts_at) as harm:
        wait_for("all to be active", lambda: statuses(database) == {"ACTIVE": LEASES}, seconds=STARTS_SECONDS, pause=1)
        started_seconds = time.monotonic() - starts_at
        wait_for("the harm to be done", lambda: harm.kills == KILLS and len(harm.restarted) == 2, seconds=120)
    site.deployment.wait_until_well()

    wait_for("every start to be recorded", lambda: events(database).get("start_lease") == {"DONE": LEASES})
    assert not any("ERROR" in found for found in events(database).values())
    assert ledger.faults(database) == []
    held = {
        reservation: lease.hosts for lease in ledger.leases(database).values() for reservation in lease.reservation_ids
    }
    ids = {host["id"]: host["hypervisor_hostname"] for host in answered(site.admin.get("/os-hosts"), 200)["hosts"]}
    groups = {name: found["hosts"] for name, found in site.nova.aggregates().items() if name not in before}
    assert groups == {reservation: [ids[host] for host in hosts] for reservation, hosts in held.items()}
    assert sorted(host for hosts in groups.values() for host in hosts) == sorted(names)
    assert not set(names) & (site.nova.members(FREE_POOL) or set())

    ending = time.monotonic()
    leases = list(ledger.leases(database))
    together(lambda number: delete(site, demo, number, leases[number]), range(LEASES))
    wait_for("all to be over", lambda: statuses(database) == {"DELETED": LEASES}, seconds=ENDS_SECONDS, pause=0.5)
    ended_seconds = time.monotonic() - ending
    assert site.nova.aggregates().keys() == before
    assert set(names) <= (site.nova.members(FREE_POOL) or set())
    assert ledger.faults(database) == []
    with capsys.disabled():
        print(
            f"\n{LEASES} leases: booked in {booked_seconds:.0f} s, all ACTIVE {started_seconds:.0f} s after their "
            f"start with {harm.kills} kills and a restart of {' and '.join(harm.restarted)}, all over in "
            f"{ended_seconds:.0f} s"
        )


def book(site: Site, by: Session, number: int, start: str) -> None:
    body = {
        "name": f"crowd-{number}",
        "start_date": start,
        "end_date": moment(hours=2),
        "reservations": [{"resource_type": "physical:host", "min": 1, "max": 1}],
    }
    answered(site.api(by, number=number % 2).post("/leases", json=body), 201)


def delete(site: Site, by: Session, number: int, lease_id: str) -> None:
    answered(site.api(by, number=number % 2).delete(f"/leases/{lease_id}"), 204)


def together(act: Callable[[int], object], numbers: Sequence[int]) -> None:
    """Do it for every number, several at a time; raises what it raises."""
    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(act, numbers))


@contextmanager
def harmed(manager: Program, starts_at: float) -> Iterator[Harm]:
    """From the start on: a manager is killed over and over, the bus restarts once, and the database once."""
    harm = Harm()
    over = threading.Event()

    def kill() -> None:
        over.wait(max(0.0, starts_at - time.monotonic()))
        while harm.kills < KILLS and not over.wait(LIFE_SECONDS):
            manager.kill()
            harm.kills += 1
            lives = manager.log.read_text().count(RUNS)
            manager.start()
            while manager.log.read_text().count(RUNS) == lives and not over.wait(0.2):
                if not manager.is_running:  # whatever it has met, its unit starts it again
                    manager.stop()
                    manager.start()

    def restart() -> None:
        over.wait(max(0.0, starts_at + 2 - time.monotonic()))
        for name in ("rabbitmq", "mariadb"):
            stop([name], grace_seconds=40)
            backing.prepare()
            start_all(backing.processes())
            wait_until_listening(backing.processes())
            harm.restarted.append(name)
            over.wait(5)

    threads = [threading.Thread(target=act) for act in (kill, restart)]
    for thread in threads:
        thread.start()
    try:
        yield harm
    finally:
        over.set()
        for thread in threads:
            thread.join(COMMAND_SECONDS)
        assert not any(thread.is_alive() for thread in threads)


def statuses(database: str) -> Counter[str]:
    """How many leases there are in each status; nothing while the database is away."""
    try:
        return Counter(lease.status for lease in ledger.leases(database).values())
    except OperationalError:
        return Counter()


def events(database: str) -> dict[str, Counter[str]]:
    """How many events of each type there are in each status."""
    found: dict[str, Counter[str]] = {}
    with create_engine(database, poolclass=NullPool).connect() as connection:
        rows = connection.execute(text("SELECT event_type, status, COUNT(*) FROM events GROUP BY event_type, status"))
        for event_type, status, count in rows:
            found.setdefault(event_type, Counter())[status] = int(count)
    return found
