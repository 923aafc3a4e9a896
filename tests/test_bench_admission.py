"""The parts of ``python -m bench admission``, on cases that can be checked by hand."""

from __future__ import annotations

from datetime import timedelta

import pytest

from bench.admission import EXACT, MIXES, MOVES, Admissions, Refusals, admission_table, measure_admission
from bench.demand import HOUR, ORIGIN, TYPES, Request, plain
from bench.exact import is_possible
from bench.replay import Placed
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.period import Period

DAY = Period(ORIGIN, ORIGIN + timedelta(days=1))


def hosts(count: int, start: int, hours: int) -> Request:
    parameters = {"min": count, "max": count, "hypervisor_properties": "", "resource_properties": ""}
    asked = {"resource_type": "physical:host", **parameters}
    period = Period(ORIGIN + start * HOUR, ORIGIN + (start + hours) * HOUR)
    return Request(start, ORIGIN, period, "physical:host", asked, TYPES["physical:host"].demand(asked))


def test_the_model_counts_what_stays_and_what_may_move():
    two = plain(2)
    assert is_possible(two, [], [hosts(1, 1, 2), hosts(1, 2, 2)])
    assert not is_possible(two, [], [hosts(1, 1, 2), hosts(2, 2, 2)])
    held = [Placed(1, DAY, Capacity({WHOLE: 1}), whole=True)]
    assert is_possible(two, held, [hosts(1, 1, 2), hosts(1, 3, 2)])
    assert not is_possible(two, held, [hosts(1, 1, 2), hosts(1, 2, 2)])


@pytest.mark.slow
def test_both_ways_are_measured():
    found = measure_admission(MIXES[0], seeds=1, say=lambda _line: None)
    assert found.refusals[EXACT].wrong == 0
    assert len(found.refusals[MOVES].seconds) == found.refusals[MOVES].count > 0
    assert list(found.complaints()) == []
    assert len(list(admission_table([found]))) == 7


def test_a_wrong_proof_is_found():
    found = Admissions(MIXES[0], 9, {MOVES: Refusals(5, 1, 5), EXACT: Refusals(4, 1, deceived=True)})
    assert len(list(found.complaints())) == 1
