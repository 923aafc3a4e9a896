"""The bench runs, and its numbers of SQL statements hold in small clouds too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bench.cloud import CREATE, DELETE, RequestFigures, Timed
from bench.ledger import BLOCKS, GRAIN, Size, bookings, full_times, rush_times
from bench.measure import Comparison, Series
from bench.memory import MEBIBYTE, Load, MemoryFigures, Sample, measure_memory
from bench.memory import QUICK as QUICK_LOAD
from bench.operations import OPERATIONS, open_site, times_of
from bench.report import memory_table
from bench.scale import QUICK_LARGE, QUICK_SMALL, Scale, measure_scale
from tests.support import ledger
from tests.support.databases import SQLITE, DatabaseServers

NOW = datetime(2030, 1, 1, 10, 30, tzinfo=UTC)


@pytest.fixture(scope="module")
def scale(database_servers: DatabaseServers) -> Scale:
    return measure_scale(database_servers, SQLITE, small=QUICK_SMALL, large=QUICK_LARGE, huge=None, rounds=2, warm_up=0)


@pytest.mark.slow
def test_every_operation_is_measured_on_both_clouds(scale: Scale):
    assert [comparison.name for comparison in scale.comparisons] == [operation.name for operation in OPERATIONS]
    assert all(len(comparison.small.seconds) == len(comparison.large.seconds) == 2 for comparison in scale.comparisons)


@pytest.mark.slow
@pytest.mark.parametrize("name", [operation.name for operation in OPERATIONS])
def test_the_number_of_statements_does_not_depend_on_the_size_of_the_cloud(scale: Scale, name: str):
    comparison = next(found for found in scale.comparisons if found.name == name)
    assert min(comparison.small.statements) > 0
    assert set(comparison.small.statements) == set(comparison.large.statements)


@pytest.mark.slow
def test_the_ledger_that_is_measured_is_sound(fresh_database):
    with fresh_database(SQLITE) as url, open_site(url, QUICK_SMALL, times_of(QUICK_SMALL, datetime.now(UTC))):
        assert sum(ledger.count_by_state(url).values()) == QUICK_SMALL.allocations
        assert len(ledger.leases(url)) == QUICK_SMALL.leases
        assert ledger.overlaps(url) == []


def test_the_busy_days_are_busy():
    size = replace(QUICK_SMALL, hosts=2 * sum(BLOCKS))
    booked = list(bookings(size, NOW))

    def busy(at: datetime) -> int:
        return sum(len(lease.hosts) for lease in booked if lease.start <= at and at + GRAIN <= lease.end)

    assert {busy(at) for at in rush_times(NOW)} == {size.hosts - 2 * min(BLOCKS)}
    assert {busy(at) for at in full_times(NOW)} == {size.hosts}
    assert len({lease.end - lease.start for lease in booked}) > 4
    assert max(lease.end for lease in booked) - NOW > timedelta(days=30)


def test_a_size_that_leaves_hosts_over_is_refused():
    with pytest.raises(ValueError, match="blocks divide"):
        Size("odd", sum(BLOCKS) + 1)


def series(milliseconds: float, statements: int) -> Series:
    return Series([milliseconds / 1000] * 3, [statements] * 3)


@pytest.mark.parametrize(
    ("large", "limit", "complaints"),
    [
        (series(30, 9), 3.0, []),
        (series(31, 9), 3.0, ["3.1 times as long"]),
        (series(31, 9), None, []),
        (series(10, 10), 3.0, ["another number of SQL statements"]),
        (series(40, 10), 3.0, ["4.0 times as long", "another number of SQL statements"]),
    ],
)
def test_a_broken_promise_is_found(large: Series, limit: float | None, complaints: list[str]):
    found = list(Comparison("create", limit, series(10, 9), large).complaints())
    assert len(found) == len(complaints)
    assert all(words in line for words, line in zip(complaints, found, strict=True))


@pytest.mark.parametrize(
    ("milliseconds", "logins", "calls", "complaints"),
    [
        (69, 0, 0, []),
        (71, 0, 0, ["create a lease: the median is 71 ms", "delete a lease"]),
        (60, 1, 0, ["1 logins"]),
        (60, 0, 2, ["2 calls"]),
    ],
)
def test_a_broken_promise_beside_a_cloud_is_found(milliseconds: int, logins: int, calls: int, complaints: list[str]):
    tenure = [Timed([milliseconds / 1000], name=name) for name in (CREATE, DELETE, "page of 100 leases")]
    figures = RequestFigures(1, 1, tenure, [], 2, logins, calls, {}, {})
    found = list(figures.complaints())
    assert len(found) == len(complaints)
    assert all(words in line for words, line in zip(complaints, found, strict=True))


def memory(*mebibytes: float, failures: Sequence[str] = ()) -> MemoryFigures:
    samples = [
        Sample(60.0 * minute, int(size * MEBIBYTE), 100 * minute, 20 * minute, 10 * minute)
        for minute, size in enumerate(mebibytes)
    ]
    before = samples[-1].resident
    return MemoryFigures(Load(held=10), samples, before, before + 10 * 1024, failures=failures)


@pytest.mark.parametrize(
    ("found", "complaints"),
    [
        (memory(100, 180, 200, 210, 219), []),
        (memory(100, 180, 200, 210, 221), ["the second half grew by 21.0 MiB from 200.0 MiB"]),
        (memory(200, 200, 200, failures=["GET /v1/leases: 500 None"]), ["GET /v1/leases: 500"]),
    ],
)
def test_memory_that_goes_on_growing_is_found(found: MemoryFigures, complaints: list[str]):
    said = list(found.complaints())
    assert len(said) == len(complaints)
    assert all(expected in line for expected, line in zip(complaints, said, strict=True))


def test_memory_is_counted_for_each_lease():
    found = memory(100, 180, 200, 210, 219)
    assert found.per_lease_held == 1024
    assert found.per_lease_gone == 19 * MEBIBYTE / 20


@pytest.mark.slow
def test_memory_is_measured_under_a_mixed_load():
    found = measure_memory(replace(QUICK_LOAD, held=3), lambda _line: None)
    assert found.failures == []
    assert len(found.samples) > 2
    assert found.requests["create"] > 3
    assert len(list(memory_table(found))) > 10
