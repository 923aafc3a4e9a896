"""The property language picks exactly the resources of a catalogue that ``Expression.matches`` does one by one."""

from __future__ import annotations

import json
import random

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tenure.domain.capacity import Capacity
from tenure.domain.listing import ListedResource
from tenure.domain.requirement import (
    OPERATORS,
    TEXT_OPERATORS,
    AnyOf,
    Comparison,
    Expression,
    HasAmount,
    HasTrait,
    Not,
    parse_expression,
)
from tenure.planning.catalogue import Catalogue
from tests.support.expressions import GPU_IS_1, TRICKY, a_tree, expressions, properties, says, traits


def matching(
    owned: list[dict[str, str]], expression: Expression, traits: list[frozenset[str]] | None = None
) -> list[bool]:
    """Return which of the resources with these attributes, and these traits, match."""
    traits = traits or [frozenset()] * len(owned)
    resources = [
        ListedResource(number, "host", "", "", "", Capacity(), {}, own_traits, attributes, True, 1, 0)
        for number, (attributes, own_traits) in enumerate(zip(owned, traits, strict=True))
    ]
    found = Catalogue().changed(resources).meets(expression)
    assert found.dtype == np.bool_
    return found.tolist()


@given(hosts=st.lists(st.tuples(properties, traits), min_size=1, max_size=6), expression=expressions)
@example(hosts=[({}, frozenset({"CUSTOM_A"})), ({}, frozenset())], expression=Expression((HasTrait("CUSTOM_A"),)))
@example(
    hosts=[
        ({"info": '{"gpu": "1"}', "info:gpu": "2"}, frozenset()),
        ({"info": '{"gpu": "1"}'}, frozenset()),
        ({"info:gpu": "1"}, frozenset()),
    ],
    expression=Expression((Comparison("s==", "info:gpu", "1"),)),
)
def test_a_catalogue_and_single_hosts_with_traits_agree(
    hosts: list[tuple[dict[str, str], frozenset[str]]], expression: Expression
):
    owned, traits = [properties for properties, _ in hosts], [own for _, own in hosts]
    singly = [{**properties, **{f"trait:{trait}": "required" for trait in own}} for properties, own in hosts]
    assert matching(owned, expression, traits) == [expression.matches(properties) for properties in singly]


@given(owned=st.lists(properties, min_size=1, max_size=6), expression=expressions)
@example(owned=[{"gpu": "1"}, {"gpu": "1.0"}, {"gpu": "a"}, {}], expression=Expression((Comparison("!=", "gpu", "1"),)))
@example(owned=[{"gpu": "10"}, {"gpu": "9"}, {"gpu": "9a"}], expression=Expression((Comparison(">", "gpu", "9"),)))
@example(owned=[{"gpu": "a "}, {"gpu": "A"}, {"GPU": "a"}], expression=Expression((Comparison("==", "gpu", "a"),)))
@example(owned=[{"gpu": "1"}, {"gpu": "2"}, {}], expression=Expression((Not(GPU_IS_1),)))
@example(owned=[{"gpu": "1"}, {"gpu": "2"}, {}], expression=Expression((Not(Expression((Not(GPU_IS_1),))),)))
@example(
    owned=[{"gpu": "1"}, {"gpu": "a"}, {}],
    expression=Expression((AnyOf((GPU_IS_1, Expression((Not(Expression((Comparison(">", "gpu", "0"),))),)))),)),
)
def test_a_catalogue_and_single_resources_agree(owned: list[dict[str, str]], expression: Expression):
    assert matching(owned, expression) == [expression.matches(properties) for properties in owned]


def test_an_amount_is_that_of_a_class_and_at_least_as_much():
    amounts = [Capacity({"PGPU": 4}), Capacity({"PGPU": 3, "VCPU": 8}), Capacity()]
    resources = [
        ListedResource(number, "host", "", "", "", capacity, {}, frozenset(), {}, True, 1, 0)
        for number, capacity in enumerate(amounts)
    ]
    catalogue = Catalogue().changed(resources)
    for least in (1, 3, 4, 5):
        expression = Expression((HasAmount("PGPU", least),))
        singly = [{f"resources:{name}": str(amount) for name, amount in capacity.items()} for capacity in amounts]
        expected = [capacity["PGPU"] >= least for capacity in amounts]
        assert catalogue.meets(expression).tolist() == expected
        assert [expression.matches(properties) for properties in singly] == expected


def test_tricky_values_compare_as_single_ones():
    """All pairs, by every operator; a resource for each value."""
    owned = [{"value": text} for text in TRICKY]
    for value in filter(None, TRICKY):
        for op in (*OPERATORS, *TEXT_OPERATORS):
            expression = Expression((Comparison(op, "value", value),))
            assert matching(owned, expression) == [expression.matches(properties) for properties in owned], (op, value)


def test_expressions_find_the_described_resources():
    """From the text of a request to the hosts that are found: nothing on the way is shared with ``says``."""
    rng = random.Random(20)
    words = ["1", "2", "2.0", "8", "10", "64", "r1", "r2", "a100", "R1"]
    hosts: list[dict[str, str]] = []
    for _ in range(12):
        own = {name: rng.choice(words) for name in ("rack", "gpu") if rng.random() < 0.7}
        facts = {"vcpus": rng.choice(("2", "8", "10", "64")), "availability_zone": rng.choice(("r1", "r2"))}
        hosts.append({**own, **facts})
    numbers = set()
    for _ in range(200):
        tree = a_tree(rng, words)
        expected = [says(tree, properties) for properties in hosts]
        assert matching(hosts, parse_expression(json.dumps(tree), field="resource_properties")) == expected, tree
        numbers.add(sum(expected))
    assert len(numbers) > 6  # not all of them found everything or nothing


def test_a_name_that_no_resource_has_matches_nothing():
    assert matching([{"gpu": "1"}], Expression((Comparison("!=", "x" * 5000, "1"),))) == [False]
