"""A search picks exactly the resources of the ledger that ``Expression.matches`` does, one by one."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.requirement import MAX_COMPARISONS, OPERATORS, AnyOf, Comparison, Expression, Not, parse_expression
from tenure.domain.resource import DiscoveredResource
from tenure.planning import candidates, shortfalls
from tenure.store.database import Database, Transaction
from tests.store.rows import Undone, add_hosts, demand, hours
from tests.support import snapshots
from tests.support.expressions import GPU_IS_1, TRICKY, a_tree, expressions, properties, says
from tests.support.snapshots import snapshot_of
from tests.support.world import HOST, NOW


def matching(db: Database, owned: list[dict[str, str]], expression: Expression) -> list[bool]:
    """Which of the hosts with these properties a search in the database finds."""
    found: list[int] = []
    ids: list[int] = []

    def ask(tx: Transaction) -> None:
        hosts = [
            DiscoveredResource(HOST, str(number), f"host-{number}", Capacity({WHOLE: 1}))
            for number in range(len(owned))
        ]
        tx.resources.add_many(hosts, owned, now=NOW)
        for host in hosts:
            resource = tx.resources.by_external_id(HOST, host.external_id)
            assert resource is not None
            ids.append(resource.id)
        asked = demand(len(owned), expression=expression)
        snapshot = snapshot_of(tx, NOW)
        stages = shortfalls.stages(snapshot, asked, hours(0, 1))
        found.extend(candidate.resource_id for candidate in candidates.find(snapshot, asked, hours(0, 1), seed=0))
        assert [(stage.stage, stage.count) for stage in stages] == [
            ("reservable", len(owned)),
            ("matching", len(found)),
            ("free", len(found)),
        ]
        raise Undone

    with pytest.raises(Undone):
        db.write(ask)
    assert len(found) == len(set(found))
    return [number in found for number in ids]


@pytest.mark.slow
def test_searches_of_all_and_of_single_hosts_agree(db: Database):
    @given(owned=st.lists(properties, min_size=1, max_size=6), expression=expressions)
    @example(
        owned=[{"gpu": "1"}, {"gpu": "1.0"}, {"gpu": "a"}, {}], expression=Expression((Comparison("!=", "gpu", "1"),))
    )
    @example(owned=[{"gpu": "10"}, {"gpu": "9"}, {"gpu": "9a"}], expression=Expression((Comparison(">", "gpu", "9"),)))
    @example(owned=[{"gpu": "a "}, {"gpu": "A"}, {"GPU": "a"}], expression=Expression((Comparison("==", "gpu", "a"),)))
    @example(owned=[{"gpu": "1"}, {"gpu": "2"}, {}], expression=Expression((Not(GPU_IS_1),)))
    @example(owned=[{"gpu": "1"}, {"gpu": "2"}, {}], expression=Expression((Not(Expression((Not(GPU_IS_1),))),)))
    @example(
        owned=[{"gpu": "1"}, {"gpu": "a"}, {}],
        expression=Expression((AnyOf((GPU_IS_1, Expression((Not(Expression((Comparison(">", "gpu", "0"),))),)))),)),
    )
    def agree(owned: list[dict[str, str]], expression: Expression):
        expected = [expression.matches({"id": str(number), **properties}) for number, properties in enumerate(owned)]
        assert matching(db, owned, expression) == expected

    agree()


def test_expressions_find_the_described_resources(db: Database):
    """From the text of a request to the hosts that are found: nothing on the way is shared with ``says``."""
    rng = random.Random(20)
    words = ["1", "2", "2.0", "8", "10", "64", "r1", "r2", "a100", "R1"]
    hosts = []
    for number in range(1, 13):
        own = {name: rng.choice(words) for name in ("rack", "gpu") if rng.random() < 0.7}
        facts = {"vcpus": rng.choice([2, 8, 10, 64]), "availability_zone": rng.choice(["r1", "r2"])}
        add_hosts(db, 1, [own], facts=facts, first=number)
        hosts.append({**own, **{name: str(value) for name, value in facts.items()}})
    numbers = set()
    with db.read() as tx:
        snapshot = snapshot_of(tx, NOW)
        for _ in range(40):
            tree = a_tree(rng, words)
            asked = demand(12, expression=parse_expression(json.dumps(tree), field="resource_properties"))
            found = candidates.find(snapshot, asked, hours(0, 1), seed=0)
            names = {
                host.external_id
                for host in tx.resources.by_ids([candidate.resource_id for candidate in found]).values()
            }
            assert names == {str(number) for number, properties in enumerate(hosts, 1) if says(tree, properties)}, tree
            numbers.add(len(names))
    assert len(numbers) > 6  # not all of them found everything or nothing


@pytest.mark.slow
def test_tricky_values_compare_as_in_python(db: Database):
    """All pairs, by every operator; a host for each value."""
    add_hosts(db, len(TRICKY), [{"value": text} for text in TRICKY])
    with db.read() as tx:
        snapshot = snapshot_of(tx, NOW)
        number = {tx.resources.by_external_id(HOST, str(index + 1)).id: index for index in range(len(TRICKY))}  # type: ignore[union-attr]
        for wanted in filter(None, TRICKY):
            for op in OPERATORS:
                expression = Expression((Comparison(op, "value", wanted),))
                asked = demand(len(TRICKY), expression=expression)
                found = candidates.find(snapshot, asked, hours(0, 1), seed=0)
                expected = {text for text in TRICKY if expression.matches({"value": text})}
                assert {TRICKY[number[candidate.resource_id]] for candidate in found} == expected, (op, wanted)


def test_facts_are_asked_as_text_and_not_hidden_by_properties(db: Database):
    add_hosts(db, 2, [{"vcpus": "1", "id": "77"}], facts={"vcpus": 64, "pinned": True, "ratio": 1.5})
    for name, value, count in (
        ("vcpus", "64", 2),
        ("vcpus", "64.0", 2),
        ("vcpus", "1", 0),
        ("pinned", "True", 2),
        ("ratio", "1.50", 2),
        ("id", "2", 1),
        ("id", "77", 0),
    ):
        asked = demand(2, expression=Expression((Comparison("==", name, value),)))
        with db.read() as tx:
            assert len(snapshots.find(tx, asked, hours(0, 1), now=NOW)) == count, (name, value)


def test_longest_expression(db: Database):
    add_hosts(db, 3, [{"gpu": "a100"}])
    others = [["!=", "$gpu", f"b{number}"] for number in range(31)]
    none = ["not", ["in", "$gpu", *(f"c{number}" for number in range(32))]]
    text = json.dumps(["and", ["==", "$gpu", "a100"], *others, none])
    expression = parse_expression(text, field="resource_properties")
    assert len(expression.comparisons) == MAX_COMPARISONS
    with db.read() as tx:
        stages = snapshots.stages(tx, demand(3, expression=expression), hours(0, 1), now=NOW)
    assert [stage.count for stage in stages] == [3, 1, 1]


def test_property_name_that_cannot_exist_matches_nothing(db: Database):
    add_hosts(db, 1)
    asked = demand(expression=Expression((Comparison("!=", "x" * 5000, "1"),)))
    with db.read() as tx:
        snapshot = snapshot_of(tx, NOW)
    assert candidates.find(snapshot, asked, hours(0, 1), seed=0) == []
    refusal = shortfalls.shortfall(snapshot, asked, hours(0, 1), position=0, apart=())
    assert refusal.unknown_properties == ("x" * 5000,)
