"""Races over HTTP: many clients book few hosts, parts of hosts and addresses, on every kind of database.

No resource is booked twice, no lease is booked in part, and the cloud agrees with the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tests.support import ledger
from tests.support.agreement import wait_for_agreement
from tests.support.lengths import RACE_OPERATIONS, times
from tests.support.racers import Race, Report, run
from tests.support.races import TOKEN, broken_promises, lay_out, watched
from tests.support.racing_manager import Figures, managers
from tests.support.simulated import SimulatedCloud
from tests.support.standalone import Caller

#: Fewer operations for the race of all types, each of which takes several times as long.
OPERATIONS_OF_ALL = max(150, RACE_OPERATIONS * 2 // 5)
HOSTS = 8
ADDRESSES = 5
THREADS = 16
#: The hours in which all leases are: so few that even a short race requests more than there is.
HOURS = times(4, 12)

HOST, INSTANCE, FLAVOR, ADDRESS = "physical:host", "virtual:instance", "flavor:instance", "virtual:floatingip"
#: The types of the reservations of leases: only whole hosts, or all types, alone and combined.
HOSTS_ONLY = ((HOST,),)
EVERYTHING = (
    (HOST,),
    (HOST,),
    (HOST,),
    (HOST, INSTANCE),
    (HOST, ADDRESS),
    (INSTANCE,),
    (INSTANCE,),
    (INSTANCE, FLAVOR),
    (INSTANCE, FLAVOR, ADDRESS),
    (FLAVOR,),
    (ADDRESS,),
)


@pytest.mark.races
@pytest.mark.parametrize(
    ("mixtures", "operations"),
    [(HOSTS_ONLY, RACE_OPERATIONS), (EVERYTHING, OPERATIONS_OF_ALL)],
    ids=["hosts", "all"],
)
def test_concurrent_clients_never_share_a_resource(
    database_url: str, tmp_path: Path, mixtures: Sequence[Sequence[str]], operations: int
):
    """16 threads and two managers book few hosts and addresses in few hours, over and over again."""
    cloud_path, tokens = lay_out(database_url, tmp_path, HOSTS, ADDRESSES)
    figures = Figures()
    with (
        managers(database_url, cloud_path, tokens, 2, figures) as ports,
        SimulatedCloud(cloud_path) as cloud,
    ):
        race = Race(
            ports=ports,
            tokens=[TOKEN],
            threads=THREADS,
            operations=operations,
            seed=1,
            hours=HOURS,
            mixtures=mixtures,
            network_id=PUBLIC_NETWORK,
        )
        with watched(database_url) as faults:
            report = run(race)
        wait_for_agreement(database_url, cloud)
        promised = broken_promises(database_url, report)
        left = ledger.faults(database_url)
        allocations = ledger.count_by_state(database_url)
        give_all_back(Caller(ports[0], TOKEN), report)
        wait_for_agreement(database_url, cloud)
    show(database_url, report, figures, allocations)
    assert report.wrong == []
    assert figures.errors == []
    assert left == []
    assert faults == []
    assert promised == []
    # Some starts are late on a busy machine.
    assert set(ledger.count_by_state(database_url)) <= {"released", "lapsed"}
    assert report.operations >= operations
    assert report.count_given_up() <= operations // 10
    least = max(1, operations // 200)
    for verb in ("POST", "PUT", "DELETE"):
        assert report.count(verb) >= least, verb
    assert report.answers["POST 409 NotEnoughResources"] >= least
    assert report.answers["PUT 409 NotEnoughResources"] >= least
    granted = Counter(resource_type for promise in report.promises.values() for resource_type in promise.types.values())
    for resource_type in {resource_type for mixture in mixtures for resource_type in mixture}:
        assert granted[resource_type] >= least, granted


def give_all_back(caller: Caller, report: Report) -> None:
    """Delete all remaining leases."""
    for lease_id, promise in report.promises.items():
        if not promise.deleted:
            status, answer = caller.call("DELETE", f"/leases/{lease_id}")
            assert status == 204, answer


def show(url: str, report: Report, figures: Figures, allocations: Counter[str]) -> None:
    """Print the figures, which pytest shows with ``-s`` or ``-rP``."""
    print(
        f"\n{url.split(':')[0]}: {report.operations} operations in {report.seconds:.1f} s, "
        f"{report.operations / report.seconds:.0f} a second; median {report.median * 1000:.0f} ms, "
        f"slowest {report.slowest:.2f} s; {figures.cpu_seconds / report.operations * 1000:.0f} ms of the managers' "
        "processors for each"
    )
    for name, count in report.answers.items():
        print(f"  {count:6} {name}")
    print(f"  transactions that met: {dict(figures.meetings)}; at most {figures.attempts} attempts")
    print(f"  allocations: {dict(allocations)}")
