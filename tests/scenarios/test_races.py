"""Races: many clients want few hosts, through HTTP, on every kind of database; nobody shares one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import ledger
from tests.support.engines import wait_until
from tests.support.racers import Race, Report, run
from tests.support.races import TOKEN, broken_promises, lay_out, watched
from tests.support.racing_manager import Figures, managers

#: Of each of the two races on a kind of database.
OPERATIONS = int(os.environ.get("TENURE_TEST_RACE_OPERATIONS", "5000"))
HOSTS = 8
THREADS = 16


@pytest.mark.races
@pytest.mark.parametrize("seed", [1, 2])
def test_nobody_shares_a_host(database_url: str, tmp_path: Path, seed: int):
    """16 threads, two managers, few hosts; half a day of them, planned over and over again."""
    cloud, tokens = lay_out(database_url, tmp_path, HOSTS)
    figures = Figures()
    with managers(database_url, cloud, tokens, 2, figures) as ports:
        with watched(database_url) as faults:
            report = run(Race(ports=ports, tokens=[TOKEN], threads=THREADS, operations=OPERATIONS, seed=seed))
        wait_until(lambda: not ledger.busy(database_url), seconds=60)
    show(database_url, report, figures)
    assert report.wrong == []
    assert ledger.faults(database_url) == []
    assert faults == []
    assert broken_promises(database_url, report) == []
    assert report.operations >= OPERATIONS
    for verb in ("POST", "PUT", "DELETE"):
        assert report.count(verb) > OPERATIONS / 50, verb
    assert report.answers["POST 409 NotEnoughResources"] > OPERATIONS / 50
    assert report.answers["PUT 409 NotEnoughResources"] > OPERATIONS / 50


def show(url: str, report: Report, figures: Figures) -> None:
    """Print the figures, for whoever asks pytest to show them (``-s`` or ``-rP``)."""
    print(
        f"\n{url.split(':')[0]}: {report.operations} operations in {report.seconds:.1f} s, "
        f"{report.operations / report.seconds:.0f} a second; median {report.median * 1000:.0f} ms, "
        f"slowest {report.slowest:.2f} s; {figures.cpu_seconds / report.operations * 1000:.0f} ms of the managers' "
        "processors for each"
    )
    for name, count in report.answers.items():
        print(f"  {count:6} {name}")
    print(f"  transactions that met: {dict(figures.meetings)}; at most {figures.attempts} attempts")
    print(f"  allocations: {dict(ledger.count_by_state(url))}")
