"""The short form of ``python -m bench cloud``: it runs, and bookings make no call to the cloud."""

from __future__ import annotations

import pytest

from bench.cloud import CREATE, QUICK, RequestFigures, StartFigures, measure_cloud
from bench.report import requests_table, starts_table
from tests.support.cloud import Cloud

ROUNDS = 3

pytestmark = pytest.mark.long


def test_requests_and_starts_are_measured(cloud: Cloud):
    del cloud  # the bench finds it by itself; the fixture says if it is not there
    requests, starts = measure_cloud(ROUNDS, lambda _line: None, size=QUICK)
    assert isinstance(requests, RequestFigures)
    assert isinstance(starts, StartFigures)
    assert (requests.bookings, requests.logins, requests.calls) == (2 * ROUNDS, 0, 0)
    assert {timed.name: len(timed.seconds) for timed in requests.tenure}[CREATE] == ROUNDS
    assert all(seconds > 0 for seconds in requests.shares.values())
    assert len(starts.late) == QUICK.hosts // 2
    assert len(list(requests_table(requests))) > len(requests.tenure)
    assert "ACTIVE" in next(starts_table(starts))
