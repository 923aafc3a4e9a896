"""``python -m bench fairness`` runs, and its verdict is that of its figures."""

from __future__ import annotations

import pytest

from bench.fairness import LOADS, QUICK, Answer, Fairness, fairness_table, measure_fairness
from tests.support.databases import SQLITE, DatabaseServers


@pytest.mark.slow
def test_each_flood_is_measured(database_servers: DatabaseServers):
    found = measure_fairness(database_servers, SQLITE, lambda _line: None, scale=QUICK)
    assert [load.load for load in found] == list(LOADS)
    assert all(len(load.flood) >= QUICK.at_once for load in found)
    assert {answer.status for load in found for answer in load.others} == {201}
    assert {status for load in found for status in load.statuses} <= {200, 201, 204, 409, 503}
    assert len(list(fairness_table(found))) == len(LOADS) + 5


def answers(*seconds: float, status: int = 201) -> list[Answer]:
    return [Answer(second, status, {}) for second in seconds]


@pytest.mark.parametrize(
    ("flood", "others", "complaints"),
    [
        (answers(5.9), answers(1.0), []),
        (answers(6.1), answers(0.1), ["6.1 s, 6 are allowed"]),
        (answers(1.0), answers(*[0.1] * 198, 1.1, 1.2), []),
        (answers(1.0), answers(*[0.1] * 98, 1.1, 1.2), ["of another project took up to 1.10 s"]),
        (answers(1.0), answers(0.1, status=503), ["another project could not book"]),
        (answers(1.0, status=503), answers(0.1), ["no request succeeded"]),
        (answers(1.0, status=500), answers(0.1), ["requests failed"]),
        (answers(1.0) + answers(0.1, status=0), answers(0.1), ["requests failed"]),
    ],
)
def test_what_is_not_as_promised_is_found(flood: list[Answer], others: list[Answer], complaints: list[str]):
    found = list(Fairness("sqlite", LOADS[0], flood, others).complaints())
    assert len(found) == len(complaints)
    assert all(text in complaint for text, complaint in zip(complaints, found, strict=True))
