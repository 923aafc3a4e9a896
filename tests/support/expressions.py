"""Expressions of the property language, drawn at random, and what the user's guide says of them."""

from __future__ import annotations

import random
from contextlib import suppress
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from tenure.domain.requirement import OPERATORS, TEXT_OPERATORS, AnyOf, Comparison, Expression, HasTrait, Not, Term

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
#: Texts with other values inside, and the names of these; ``info:gpu`` may also be the name of a property.
DOCUMENTS = [
    '{"gpu": "a100", "count": 8, "list": ["a", "b"], "none": null, "deep": {"gpu": 1.5, "true": true}}',
    '{"gpu": ["1", "x, y", ""], "deep": "{\\"gpu\\": \\"inner\\"}"}',
    *("[]", "8", '"gpu"', "{", ""),
]
INSIDE = ["info:gpu", "info:count", "info:list", "info:none", "info:deep:gpu", "info:deep:true", "info:", "info::gpu"]
TRAITS = ["HW_CPU_X86_AVX2", "CUSTOM_A"]

texts = st.one_of(
    st.sampled_from(TRICKY),
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False).map(repr),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
    st.from_regex(r"\A[+-]?[0-9]{0,3}\.?[0-9]{0,3}(e[+-]?[0-9]{1,2})?\Z"),
)
properties = st.builds(
    lambda own, within: {**own, **within},
    st.dictionaries(st.sampled_from([*NAMES, "info:gpu"]), texts, max_size=3),
    st.dictionaries(st.sampled_from(["info", "aggregate_metadata"]), st.sampled_from(DOCUMENTS)),
)
traits = st.frozensets(st.sampled_from(TRAITS))
comparisons = st.builds(
    Comparison,
    st.sampled_from([*OPERATORS, *TEXT_OPERATORS]),
    st.sampled_from([*NAMES, "info", *INSIDE, "aggregate_metadata:gpu", "aggregate_metadata:deep"]),
    st.sampled_from(["a100", "8", "1.5", "x", "x, y"]) | texts.filter(bool),
)
leaves = comparisons | st.builds(HasTrait, st.sampled_from(TRAITS))


def conjunctions(terms: st.SearchStrategy[Term], least: int = 0) -> st.SearchStrategy[Expression]:
    return st.lists(terms, min_size=least, max_size=3).map(lambda found: Expression(tuple(found)))


terms = st.recursive(
    leaves,
    lambda inner: (
        st.lists(conjunctions(inner, 1), min_size=1, max_size=3).map(lambda found: AnyOf(tuple(found)))
        | conjunctions(inner, 1).map(Not)
    ),
    max_leaves=6,
)
expressions = conjunctions(terms)
GPU_IS_1 = Expression((Comparison("==", "gpu", "1"),))


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
