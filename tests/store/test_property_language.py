"""A search picks exactly the resources of the ledger that ``Expression.matches`` does, one by one."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from decimal import Decimal
from typing import Any

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
from tests.support.snapshots import snapshot_of
from tests.support.world import HOST, NOW

#: Values that are equal, or ordered otherwise, under other rules of comparison than ours.
TRICKY = [
    *("1", "1.0", "01", "+1", "1e0", "10", "9", "2", "-1", "-0", "0", "0.0", ".5", "5.", "1e3", "1000", "1E3"),
    *("0.1", "0.1000", "0.30000000000000004", "0.3", "9007199254740993", "9007199254740992", "1e308", "-1e308"),
    *("2.2250738585072014e-308", "1e-400", "123456789012345678901234567890"),
    *(
        "1e400",
        "-1e400",
        "nan",
        "inf",
        "Infinity",
        "1_0",
        "0x10",
        "1 ",
        " 1",
        "1\n",
        "\uff11",
        "٣",
        "1,5",
        "--1",
        "+",
        ".",
    ),
    *("a", "A", "b", "a ", " a", "a\t", "aa", "Aa", "á", "a\u0301", "ä", "ae", "ß", "ss", "ẞ", "i", "I", "\u0131", "İ"),
    *("Z", "z", "~", "\x7f", "\x01", "\u00a0", "\u200b", "ﬀ", "ff", "\ud7ff", "\ue000", "\uffff", "😀", "\U0010ffff"),
    # As long as the indexed prefix, and longer: equal for the index, but not equal.
    *("x" * 63, "x" * 64, "x" * 64 + "y", "x" * 64 + "z", "0" * 63 + "1", "0" * 64 + "1"),
    *("true", "True", "NULL", "null", "'", '"', "\\", "%", "_", "a%", "{}", "[]", "a100", "A100", "yes", ""),
]
NAMES = ["gpu", "GPU", "gpu ", "gpü", "memory"]

texts = st.one_of(
    st.sampled_from(TRICKY),
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False).map(repr),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
    st.from_regex(r"\A[+-]?[0-9]{0,3}\.?[0-9]{0,3}(e[+-]?[0-9]{1,2})?\Z"),
)
properties = st.dictionaries(st.sampled_from(NAMES), texts, max_size=3)
comparisons = st.builds(Comparison, st.sampled_from(OPERATORS), st.sampled_from(NAMES), texts.filter(bool))


def conjunctions(terms: st.SearchStrategy[Comparison | AnyOf | Not], least: int = 0) -> st.SearchStrategy[Expression]:
    return st.lists(terms, min_size=least, max_size=3).map(lambda found: Expression(tuple(found)))


terms = st.recursive(
    comparisons,
    lambda inner: (
        st.lists(conjunctions(inner, 1), min_size=1, max_size=3).map(lambda found: AnyOf(tuple(found)))
        | conjunctions(inner, 1).map(Not)
    ),
    max_leaves=6,
)
expressions = conjunctions(terms)
GPU_IS_1 = Expression((Comparison("==", "gpu", "1"),))


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


def a_tree(rng: random.Random, words: list[str], depth: int = 3) -> list[Any]:
    op = rng.choice(["and", "or", "not", "in", "in", *OPERATORS] if depth else ["in", *OPERATORS])
    if op in {"and", "or", "not"}:
        branches = 1 if op == "not" else rng.randint(2, 3)
        return [op, *(a_tree(rng, words, depth - 1) for _ in range(branches))]
    name = rng.choice(["$rack", "$gpu", "$vcpus", "$availability_zone"])
    return [op, name, *rng.sample(words, rng.randint(1, 3) if op == "in" else 1)]


def says(tree: list[Any], properties: dict[str, str]) -> bool:
    """What the user's guide promises of an expression, of a host with these properties."""
    op, *parts = tree
    if op in {"and", "or"}:
        answers = [says(part, properties) for part in parts]
        return all(answers) if op == "and" else any(answers)
    if op == "not":
        return not says(parts[0], properties)
    name, *values = parts
    if op == "in":
        return any(says(["==", name, value], properties) for value in values)
    found: Any = properties.get(name.removeprefix("$"))
    wanted: Any = values[0]
    if found is None:
        return False
    with suppress(ArithmeticError):
        wanted = Decimal(wanted)
        found = Decimal(found) if found[0].isdigit() else None
    if found is None:  # a number is asked for, and this is none: all that can be said is that it differs
        return bool(op == "!=")
    return {
        "==": found == wanted,
        "!=": found != wanted,
        "<": found < wanted,
        "<=": found <= wanted,
        ">": found > wanted,
        ">=": found >= wanted,
    }[op]


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
