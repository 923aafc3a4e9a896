from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.errors import InvalidParameter, MalformedRequirements
from tenure.domain.requirement import (
    MAX_COMPARISONS,
    MAX_DEPTH,
    OPERATORS,
    Comparison,
    Expression,
    HasTrait,
    Language,
    Not,
    number_of,
    parse_expression,
)

#: What Blazar 18 accepted and refused on a real cloud; among the accepted are expressions that match no host.
ACCEPTED_BY_BLAZAR = [
    "",
    "[]",
    '["==", "$vcpus", "8"]',
    '["=", "$vcpus", "8"]',
    '[">=", "$memory_mb", "30000"]',
    '["==", "$nosuch", "1"]',
    '["==", "$rack", "r2"]',
    '["!=", "$rack", "r2"]',
    '["==", "$gpu", "True"]',
    '["==", "$hypervisor_hostname", "compute-3"]',
    '["and", [">=", "$vcpus", "1"], ["<", "$vcpus", "10"]]',
]
REFUSED_BY_BLAZAR = {
    "not json": "not json",
    '["==", "vcpus", "8"]': "['==', 'vcpus', '8']",
    '["or", ["==", "$vcpus", "8"], ["==", "$vcpus", "16"]]': ("['or', ['==', '$vcpus', '8'], ['==', '$vcpus', '16']]"),
    '["in", "$rack", "r1", "r2"]': "['in', '$rack', 'r1', 'r2']",
    '["not", ["==", "$rack", "r2"]]': "['not', ['==', '$rack', 'r2']]",
    '{"a": 1}': "{'a': 1}",
    '["=="]': "['==']",
    '["==", "$vcpus", 8]': "['==', '$vcpus', 8]",
    '["~", "$vcpus", "8"]': "['~', '$vcpus', '8']",
}
REFUSED = [
    "['==', '$vcpus', '8']",
    '["==", "$", "8"]',
    '["==", "$vcpus", ""]',
    '["==", "$vcpus", null]',
    '["==", "$vcpus", true]',
    '["==", "$vcpus", ["8"]]',
    '["==", 8, "8"]',
    '["==", "$vcpus", "8", "9"]',
    '["==", "$vcpus"]',
    '["and"]',
    '["and", []]',
    '["and", "$vcpus"]',
    '["and", ["==", "$vcpus", "8"], ["OR", ["==", "$vcpus", "8"]]]',
    '["or"]',
    '["or", []]',
    '["or", ["==", "$vcpus", "8"], "$vcpus"]',
    '["not"]',
    '["not", "$vcpus"]',
    '["not", ["==", "$vcpus", "8"], ["==", "$vcpus", "9"]]',
    '["in"]',
    '["in", "$vcpus"]',
    '["in", "vcpus", "8"]',
    '["in", "$vcpus", "8", 9]',
    '["in", "$vcpus", ["8", "9"]]',
    '["in", "$vcpus", "8", ""]',
    '["AND", ["==", "$vcpus", "8"], ["==", "$vcpus", "8"]]',
    '[["==", "$vcpus", "8"]]',
    '[null, "$vcpus", "8"]',
    '[["and"], "$vcpus", "8"]',
    '[{}, "$vcpus", "8"]',
    '["", "$vcpus", "8"]',
    "null",
    "0",
    "{}",
    '""',
    "false",
    "NaN",
    '["==", "$vcpus", NaN]',
    "[" * 100_000,
    '["==", "$vcpus", "8"',
    '["s=", "$vcpus", "8"]',
    '["<or>", "$vcpus", "8"]',
    '["==", "$trait:CUSTOM_A", "yes"]',
    '["!=", "$trait:CUSTOM_A", "required"]',
    '["==", "$trait:custom", "required"]',
    '["==", "$trait:", "required"]',
]

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
names = words
values = words | st.integers().map(str) | st.floats(allow_nan=False).map(str)
comparisons = st.builds(Comparison, st.sampled_from(OPERATORS), names, values)


def read(text: str) -> Expression:
    return parse_expression(text, field="resource_properties")


def matches(text: str, **properties: str) -> bool:
    return read(text).matches(properties)


def conjunction(branches: list[list[object]]) -> list[object]:
    return ["and", *branches]


def term(comparison: Comparison) -> list[object]:
    return [comparison.op, f"${comparison.name}", comparison.value]


@pytest.mark.parametrize("text", ACCEPTED_BY_BLAZAR)
def test_accepts_all_expressions_of_blazar(text: str):
    read(text)


@pytest.mark.parametrize(("text", "shown"), REFUSED_BY_BLAZAR.items())
def test_blazar_language_refuses_with_blazars_error_texts(text: str, shown: str):
    with pytest.raises(InvalidParameter) as caught:
        parse_expression(text, field="resource_properties", language=Language.BLAZAR)
    assert str(caught.value) == f"Malformed requirements {shown}"
    assert caught.value.field == "resource_properties"


@pytest.mark.parametrize(
    ("text", "matched"),
    [
        ('["or", ["==", "$gpu", "a100"], ["==", "$gpu", "v100"]]', "a100 v100"),
        ('["or", ["==", "$gpu", "a100"]]', "a100"),
        ('["in", "$gpu", "a100", "v100"]', "a100 v100"),
        ('["in", "$gpu", "8.0"]', "8"),
        ('["not", ["==", "$gpu", "a100"]]', "v100 8 none"),
        ('["!=", "$gpu", "a100"]', "v100 8"),  # the host must have another GPU
        ('["not", ["!=", "$gpu", "a100"]]', "a100 none"),
        ('["not", [">", "$gpu", "9"]]', "a100 v100 8 none"),
        ('["not", ["in", "$gpu", "a100", "8"]]', "v100 none"),
        ('["not", ["and", ["!=", "$gpu", "a100"], ["!=", "$gpu", "v100"]]]', "a100 v100 none"),
        ('["and", ["not", ["==", "$gpu", "8"]], ["or", ["==", "$gpu", "8"], ["==", "$gpu", "v100"]]]', "v100"),
        ('["or", ["and", ["==", "$gpu", "a100"], ["==", "$gpu", "8"]], ["not", ["!=", "$gpu", "0"]]]', "none"),
    ],
)
def test_matches_of_or_not_and_in(text: str, matched: str):
    found = {name for name in ("a100", "v100", "8") if matches(text, gpu=name)}
    assert found | ({"none"} if matches(text, rack="r1") else set()) == set(matched.split())


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:60])
def test_invalid_expressions_are_refused(text: str):
    with pytest.raises(InvalidParameter, match=r"^Malformed requirements"):
        read(text)


@pytest.mark.parametrize("text", ["", "  ", "[]", " [ ] "])
def test_empty_expression_matches_everything(text: str):
    assert read(text) == Expression()
    assert read(text).matches({})


def test_both_spellings_of_equal_mean_the_same():
    assert read('["=", "$gpu", "a100"]') == read('["==", "$gpu", "a100"]')


def test_a_nested_and_keeps_all_its_terms():
    text = '["and", ["and", ["==", "$a", "1"], ["==", "$b", "2"]], ["and", ["==", "$c", "3"]]]'
    assert [comparison.name for comparison in read(text).comparisons] == ["a", "b", "c"]
    assert not matches(text, a="1", b="1", c="3")
    assert matches(text, a="1", b="2", c="3")


@pytest.mark.parametrize(
    ("op", "value", "found", "matched"),
    [
        ("==", "8", "8", True),
        ("==", "8", "8.0", True),
        ("==", "1e3", "1000", True),
        ("!=", "8", "8.0", False),
        (">", "9", "10", True),  # Blazar compared letters here: "10" < "9"
        ("<", "9", "10", False),
        (">=", "10", "10", True),
        ("<=", "-1", "-2", True),
        # A number is not held against a property that is none.
        ("==", "8", "eight", False),
        ("!=", "8", "eight", True),
        (">", "8", "eight", False),
        ("<", "8", "eight", False),
        # Text is compared as text, letter by letter.
        ("==", "r2", "r2", True),
        ("==", "True", "true", False),
        (">", "r10", "r9", True),
        ("<", "r10", "r9", False),
        ("!=", "r2", "2", True),
        ("==", "8 ", "8", False),
        ("==", "nan", "nan", True),
        ("==", "inf", "inf", True),
        ("==", "1_000", "1000", False),
        ("==", "٨", "8", False),
    ],
)
def test_numbers_compare_as_numbers_and_text_as_text(op: str, value: str, found: str, matched: bool):
    assert matches(json.dumps([op, "$property", value]), property=found) is matched


@pytest.mark.parametrize(
    ("op", "value", "found", "matched"),
    [
        ("s==", "8", "8", True),
        ("s==", "8", "8.0", False),
        ("s!=", "8", "8.0", True),
        ("s<", "9", "10", True),  # letter by letter, also of numbers
        ("s<=", "9", "9", True),
        ("s>", "9", "10", False),
        ("s>=", "9", "90", True),
        ("<in>", "vx2", "['avx2', 'aes']", True),
        ("<in>", "aes avx2", "['avx2', 'aes']", False),
        ("<all-in>", "aes avx2", "['avx2', 'aes']", True),
        ("<all-in>", "aes vmx", "['avx2', 'aes']", False),
    ],
)
def test_operators_of_extra_specs_compare_texts(op: str, value: str, found: str, matched: bool):
    text = json.dumps([op, "$property", value])
    assert matches(text, property=found) is matched
    assert not matches(text, other=found)
    with pytest.raises(MalformedRequirements):
        parse_expression(text, field="resource_properties", language=Language.BLAZAR)


@pytest.mark.parametrize(
    ("op", "name", "value", "matched"),
    [
        ("==", "cpu_info:vendor", "AMD", True),
        ("==", "cpu_info:vendor", "Intel", False),
        (">=", "cpu_info:topology:cores", "9", True),
        ("<in>", "cpu_info:features", "avx2", True),
        ("==", "cpu_info:features:0", "avx2", False),
        ("!=", "cpu_info:model", "x", False),
        ("!=", "cpu_info:none", "x", False),
        ("==", "cpu_info:turbo", "True", True),
        ("==", "rack:row", "7", True),  # a property of that name
        ("==", "rack:row:x", "7", False),
        ("==", "gpu:x", "7", False),
        ("==", "aggregate_metadata:tier", "gold", True),
        ("==", "aggregate_metadata:tier", "silver", True),
        ("==", "aggregate_metadata:tier", "bronze", False),
        ("<all-in>", "aggregate_metadata:tier", "go ver", False),
        ("==", "aggregate_metadata:a:b", "1", True),
        ("==", "aggregate_metadata:ssd", "true", False),
    ],
)
def test_values_within_the_text_of_a_property(op: str, name: str, value: str, matched: bool):
    cpu = {"vendor": "AMD", "topology": {"cores": 16}, "features": ["avx2"], "none": None, "turbo": True}
    properties = {
        "cpu_info": json.dumps(cpu),
        "rack": '{"row": 8}',
        "rack:row": "7",
        "gpu": "a100",
        "aggregate_metadata": json.dumps({"tier": ["gold", "silver"], "a:b": ["1"], "ssd": "true"}),
    }
    assert read(json.dumps([op, f"${name}", value])).matches(properties) is matched


def test_names_of_an_expression_are_all_properties_that_it_reads():
    expression = read('["and", ["==", "$cpu_info:topology:cores", "8"], ["==", "$gpu", "a100"]]')
    assert expression.names == {"cpu_info:topology:cores", "cpu_info", "gpu"}


def test_traits_are_required_or_forbidden():
    required = read('["==", "$trait:CUSTOM_A", "required"]')
    assert required == Expression((HasTrait("CUSTOM_A"),))
    assert required.matches({"trait:CUSTOM_A": "required"})
    assert not required.matches({"gpu": "a100"})
    forbidden = read('["=", "$trait:CUSTOM_A", "forbidden"]')
    assert forbidden == Expression((Not(required),))
    assert read('["or", ["==", "$trait:CUSTOM_A", "required"], ["==", "$gpu", "a100"]]').matches({"gpu": "a100"})
    many = [["==", f"$trait:CUSTOM_{number}", "required"] for number in range(MAX_COMPARISONS + 1)]
    assert read(json.dumps(["and", *many[1:]])).size == MAX_COMPARISONS
    with pytest.raises(InvalidParameter, match="more than 64 comparisons"):
        read(json.dumps(["and", *many]))


@given(comparisons, st.dictionaries(names, values))
def test_comparison_is_false_without_the_property(comparison: Comparison, properties: dict[str, str]):
    properties.pop(comparison.name, None)
    assert not comparison.matches(properties)


@given(st.integers(), st.integers())
def test_whole_numbers_are_ordered_as_numbers(first: int, second: int):
    if float(first) != float(second):
        assert matches(json.dumps(["<", "$n", str(second)]), n=str(first)) is (first < second)
        assert matches(json.dumps([">", "$n", str(second)]), n=str(first)) is (first > second)


@given(names, values, values)
def test_the_operators_agree_with_each_other(name: str, value: str, found: str):
    answers = {op: Comparison(op, name, value).matches({name: found}) for op in OPERATORS}
    assert answers["=="] is not answers["!="]
    assert answers["<="] is (answers["<"] or answers["=="])
    assert answers[">="] is (answers[">"] or answers["=="])
    assert answers["<"] + answers["=="] + answers[">"] <= 1


@given(st.recursive(comparisons.map(term), lambda inner: st.lists(inner, min_size=1, max_size=3).map(conjunction)))
def test_an_expression_is_the_conjunction_of_all_its_terms(tree: list[object]):
    expression = read(json.dumps(tree))
    assert [term(comparison) for comparison in expression.comparisons] == list(_leaves(tree))


@given(st.lists(comparisons, max_size=4), st.lists(comparisons, max_size=4), st.dictionaries(names, values))
def test_joined_expressions_must_both_hold(
    terms: list[Comparison], more_terms: list[Comparison], properties: dict[str, str]
):
    first, second = Expression(tuple(terms)), Expression(tuple(more_terms))
    assert (first & second).matches(properties) is (first.matches(properties) and second.matches(properties))
    assert (first & second).names == first.names | second.names


@given(st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_parsed_or_refused(text: str):
    try:
        read(text)
    except InvalidParameter as refused:
        refusal = refused
    else:
        return
    assert str(refusal).startswith("Malformed requirements")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('["==", "$x", 40]', 'values are texts, in quotes: "40" in place of 40.'),
        ('["==", "$x", true]', 'values are texts, in quotes: "true" in place of true.'),
        ('["in", "$x", "a", 40]', 'values are texts, in quotes: "40" in place of 40.'),
        ('["==", "$x", ""]', '"" is no value'),
        ('["==", "x", "40"]', 'begins with $, such as "$gpu", and "x" is not.'),
        ('["=~", "$x", "40"]', 'there is no operator "=~"; there are ==, !=,'),
        ('["==", "$x"]', 'a comparison has an operator, a property and a value, and ["==", "$x"] does not.'),
        ('["not", ["==", "$x", "1"], ["==", "$y", "1"]]', '"not" has a single expression, and here 2.'),
        ('["and", "x"]', 'looks like ["==", "$gpu", "a100"], and "x" does not.'),
        ("[==, $x, 40]", "the text is not JSON: Expecting value at line 1, column 2."),
    ],
)
def test_a_refusal_explains_what_is_wrong_beside_blazars_text(text: str, reason: str):
    with pytest.raises(MalformedRequirements) as refused:
        read(text)
    assert reason in refused.value.explanation
    assert reason not in refused.value.message


def test_an_expression_has_limits():
    leaf: list[object] = ["==", "$a", "1"]
    assert len(read(json.dumps(["and", *[leaf] * MAX_COMPARISONS])).comparisons) == MAX_COMPARISONS
    with pytest.raises(InvalidParameter, match="more than 64 comparisons"):
        read(json.dumps(["and", *[leaf] * (MAX_COMPARISONS + 1)]))
    values = [str(number) for number in range(MAX_COMPARISONS)]
    read(json.dumps(["in", "$a", *values]))
    for wide in (["in", "$a", *values, "x"], ["or", ["not", ["and", *[leaf] * MAX_COMPARISONS]], leaf]):
        with pytest.raises(InvalidParameter, match="more than 64 comparisons"):
            read(json.dumps(wide))
    for join in ("or", "not"):
        nested = leaf
        for _ in range(MAX_DEPTH):
            nested = [join, nested]
        read(json.dumps(nested))
        with pytest.raises(InvalidParameter, match="Malformed requirements"):
            read(json.dumps([join, nested]))
    deep = leaf
    for _ in range(MAX_DEPTH):
        deep = ["and", deep]
    read(json.dumps(deep))
    with pytest.raises(InvalidParameter, match="Malformed requirements"):
        read(json.dumps(["and", deep]))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8", 8.0),
        ("-8", -8.0),
        ("+8", 8.0),
        ("8.5", 8.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("1E-3", 0.001),
        *((text, None) for text in ("", " 8", "8 ", "8\n", "nan", "inf", "-inf", "1e999", "1_0", "0x10", "٨", "e5")),
        *((text, None) for text in ("8GB", "-", ".", "+", "1e", "--8", "1,5")),
    ],
)
def test_texts_that_are_numbers(text: str, number: float | None):
    assert number_of(text) == number


def _leaves(tree: list[object]) -> list[object]:
    if tree[0] != "and":
        return [tree]
    return [leaf for branch in tree[1:] if isinstance(branch, list) for leaf in _leaves(branch)]
