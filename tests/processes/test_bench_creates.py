"""``python -m bench creates`` runs, and its verdict is that of its figures."""

from __future__ import annotations

import pytest

from bench.creates import Creates, creates_table, measure_creates
from bench.http import Throughput
from tests.support.databases import DatabaseServers


@pytest.mark.slow
@pytest.mark.postgresql
def test_creates_are_measured_and_their_rows_written_by_bare_sql(database_servers: DatabaseServers, message_bus: str):
    found = measure_creates(
        database_servers, lambda _line: None, seconds=1, managers=1, connections=2, hosts=60, bus=message_bus
    )
    assert found.tenure.latencies
    assert found.bare_per_second > 0
    # Lease, reservation, three events, one or two allocations, history, message, entry of the feed.
    assert found.rows in {9, 10}
    assert len(list(creates_table(found))) == 9


@pytest.mark.parametrize(("bare", "complaints"), [(400.0, 0), (401.0, 1)])
def test_bare_sql_may_write_four_times_as_many_leases(bare: float, complaints: int):
    found = Creates(2, 2, Throughput("create a lease", 16, 1.0, [0.1] * 100), bare, 10)
    assert len(list(found.complaints())) == complaints
