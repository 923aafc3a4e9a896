"""Reservations and conditions as they are written on a command line."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenureclient import ReservationChange, ReservationRequest, Version
from tenureclient.conditions import UnreadableCondition, conditions_from_json, conditions_to_json
from tenureclient.reservation_text import (
    format_reservation,
    parse_pairs,
    parse_reservation,
    parse_reservation_change,
)
from tenureclient.reservation_type import UnreadableReservation, parse_count
from tenureclient.wire import JsonValue


def test_the_form_of_python_blazarclient_is_read() -> None:
    text = (
        'resource_type=physical:host,min=1,max=2,hypervisor_properties=[">=", "$vcpus", "2"],'
        'resource_properties=["and", ["==", "$gpu", "v100"], ["!=", "$rack", "a,b"]]'
    )
    assert parse_reservation(text) == ReservationRequest(
        "physical:host",
        {
            "min": 1,
            "max": 2,
            "hypervisor_properties": '[">=", "$vcpus", "2"]',
            "resource_properties": '["and", ["==", "$gpu", "v100"], ["!=", "$rack", "a,b"]]',
        },
    )


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1", {"a": 1}),
        ("min=3", {"min": 3}),
        ("flavor_id=3", {"flavor_id": "3"}),
        ("a=", {"a": ""}),
        ("resource_properties=", {"resource_properties": ""}),
        ("a=x=y", {"a": "x=y"}),
        (" a = b , c = d ", {"a": "b", "c": "d"}),
        ("a='b,c',d=1", {"a": "b,c", "d": 1}),
        ('a="b,c",d=1', {"a": "b,c", "d": 1}),
        ("a=it's,b=2", {"a": "it's", "b": 2}),
        ("a=x[1,b=2", {"a": "x[1", "b": 2}),
        (
            'resource_properties=["==", "$a", "]"],min=1',
            {"resource_properties": '["==", "$a", "]"]', "min": 1},
        ),
        (
            'resource_properties=["==", "$a", "\\",["],min=1',
            {"resource_properties": '["==", "$a", "\\",["]', "min": 1},
        ),
        ('resource_properties=\'["==", "$a", "1"]\'', {"resource_properties": '["==", "$a", "1"]'}),
        ('required_floatingips=["10.0.0.6","10.0.0.7"]', {"required_floatingips": ["10.0.0.6", "10.0.0.7"]}),
        ("affinity=None,x=-1", {"affinity": None, "x": -1}),
        ("affinity=True", {"affinity": True}),
        ("affinity=0", {"affinity": False}),
    ],
)
def test_pairs_are_read(text: str, values: dict[str, JsonValue]) -> None:
    assert parse_pairs(text) == values


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("min=1", "resource_type"),
        ("resource_type=physical:host", "min"),
        ("resource_type=physical:host,min=two", "min=two"),
        ("resource_type=physical:host,min=", "min="),
        ("resource_type=physical:host,min=1,min=2", "twice"),
        ("resource_type=physical:host,min=1,oops", "oops"),
        ('resource_type=physical:host,min=1,resource_properties=["==", "$a"', "not closed"),
        ("resource_type=virtual:instance,affinity=perhaps", "affinity"),
        ("resource_type=virtual:floatingip,required_floatingips=[x]", "required_floatingips"),
        ("", "key=value"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, complaint: str) -> None:
    with pytest.raises(UnreadableReservation, match=complaint):
        parse_reservation(text)


def test_counts_of_hosts_complete_each_other() -> None:
    assert parse_reservation("resource_type=physical:host,min=2").parameters == {"min": 2, "max": 2}
    assert parse_reservation("resource_type=physical:host,max=2").parameters == {"max": 2, "min": 1}


def test_a_change_names_its_reservation() -> None:
    assert parse_reservation_change("id=abc,min=2") == ReservationChange("abc", {"min": 2})
    for text in ("min=2", "id=abc", "id=,min=2"):
        with pytest.raises(UnreadableReservation):
            parse_reservation_change(text)


@pytest.mark.parametrize(("text", "count"), [("2", (2, 2)), ("2-4", (2, 4)), (" 1-1 ", (1, 1))])
def test_a_count_is_read(text: str, count: tuple[int, int]) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "0", "4-2", "-2", "2-", "two", "1.5"])
def test_what_is_not_a_count_is_refused(text: str) -> None:
    with pytest.raises(UnreadableReservation):
        parse_count(text)


@pytest.mark.parametrize(
    ("conditions", "expression"),
    [
        ([], ""),
        (["vcpus>=8"], '[">=", "$vcpus", "8"]'),
        (["gpu=v100"], '["==", "$gpu", "v100"]'),
        (["gpu == v100", "rack!=r2"], '["and", ["==", "$gpu", "v100"], ["!=", "$rack", "r2"]]'),
        (["$a.b:c-d<x y"], '["<", "$a.b:c-d", "x y"]'),
        (["url=http://x?a=b"], '["==", "$url", "http://x?a=b"]'),
        (["rack in r1, r2"], '["in", "$rack", "r1", "r2"]'),
        (["note=one in two"], '["==", "$note", "one in two"]'),
        (["not gpu=v100"], '["not", ["==", "$gpu", "v100"]]'),
        (["not not  $rack in r1"], '["not", ["not", ["in", "$rack", "r1"]]]'),
        (
            ["gpu=a100 or not vcpus<8 or rack in r1,r2", "x=1"],
            '["and", ["or", ["==", "$gpu", "a100"], ["not", ["<", "$vcpus", "8"]],'
            ' ["in", "$rack", "r1", "r2"]], ["==", "$x", "1"]]',
        ),
        (["vcpus>=4 and gpu=a100"], '["and", [">=", "$vcpus", "4"], ["==", "$gpu", "a100"]]'),
        (
            ["a=1 and b=2 or c=3 and not d=4"],
            '["or", ["and", ["==", "$a", "1"], ["==", "$b", "2"]],'
            ' ["and", ["==", "$c", "3"], ["not", ["==", "$d", "4"]]]]',
        ),
        (
            ["vcpus>=4 AND (gpu=a100 Or gpu=v100)"],
            '["and", [">=", "$vcpus", "4"], ["or", ["==", "$gpu", "a100"], ["==", "$gpu", "v100"]]]',
        ),
        (["not (a=1 or b=2)"], '["not", ["or", ["==", "$a", "1"], ["==", "$b", "2"]]]'),
        (["(rack in r1, r2) and x=y"], '["and", ["in", "$rack", "r1", "r2"], ["==", "$x", "y"]]'),
        (["cpu=Intel(R) Xeon(R)"], '["==", "$cpu", "Intel(R) Xeon(R)"]'),
        (["(cpu=Intel(R) Xeon(R))"], '["==", "$cpu", "Intel(R) Xeon(R)"]'),
        (
            ["motto='this and that' or x=\"1 or 2\""],
            '["or", ["==", "$motto", "this and that"], ["==", "$x", "1 or 2"]]',
        ),
        (["rack in 'a, b', c"], '["in", "$rack", "a, b", "c"]'),
        (["android=order"], '["==", "$android", "order"]'),
        (
            ["memory_mb>=1t", "local_gb>=2t"],
            '["and", [">=", "$memory_mb", "1048576"], [">=", "$local_gb", "2048"]]',
        ),
        (["memory_mb>=64 GiB"], '[">=", "$memory_mb", "65536"]'),
        (
            ["memory_mb>=4096", "disk_gb<=1.5"],
            '["and", [">=", "$memory_mb", "4096"], ["<=", "$disk_gb", "1.5"]]',
        ),
        (["vcpus>=1,000"], '[">=", "$vcpus", "1000"]'),
        (["memory_mb in 4g, 8g"], '["in", "$memory_mb", "4096", "8192"]'),
    ],
)
def test_conditions_become_an_expression(conditions: list[str], expression: str) -> None:
    assert conditions_to_json(conditions) == expression


@pytest.mark.parametrize(
    ("expression", "conditions"),
    [
        ('["==", "$gpu", "v100"]', ["gpu=v100"]),
        ('["and", ["==", "$gpu", "v100"], [">=", "$vcpus", "8"]]', ["gpu=v100", "vcpus>=8"]),
        ('["==", "$rack", "a b"]', ["rack=a b"]),
        ('["==", "$motto", "this or that"]', ['["==", "$motto", "this or that"]']),
        ('["==", "$memory_mb", "4g"]', ['["==", "$memory_mb", "4g"]']),
        ('["or", ["==", "$a", "1"], ["==", "$b", "2"]]', ['["or", ["==", "$a", "1"], ["==", "$b", "2"]]']),
        ('["in", "$rack", "r1"]', ['["in", "$rack", "r1"]']),
    ],
)
def test_an_expression_becomes_conditions(expression: str, conditions: list[str]) -> None:
    assert conditions_from_json(expression) == conditions
    assert json.loads(conditions_to_json(conditions)) == json.loads(expression)


@pytest.mark.parametrize(
    "condition",
    [
        *("", "vcpus", "vcpus>=", ">=8", "a b=c", "a=>3", "a<=>3"),
        *("not", "not vcpus", "a in", "a in b,,c", "in b", "a in b=c", "a=1 or b", "a=1 or or b=2"),
        *(
            "vcpus>=4 and gpu",
            "a=rock and roll",
            "and a=1",
            "a=1 and",
            "(a=1",
            "a=1)",
            "a=1) or (b=2",
            "()",
            "not=1",
        ),
        *("memory_mb>=lots", "memory_mb>=1x", "local_gb>=100m", "a='b' c", "vcpus>=4 && gpu=a100"),
    ],
)
def test_what_is_not_a_condition_is_refused(condition: str) -> None:
    with pytest.raises(UnreadableCondition):
        conditions_to_json([condition])


@given(
    st.dictionaries(
        st.sampled_from(["name", "other", "third"]),
        st.lists(st.tuples(st.sampled_from(["==", ">="]), st.text(max_size=5), st.text(max_size=5)), max_size=3),
        min_size=1,
    )
)
def test_json_values_are_kept_unchanged(values: dict[str, list[tuple[str, str, str]]]) -> None:
    text = ",".join(f"{key}={json.dumps(value)}" for key, value in values.items())
    assert parse_pairs(text) == json.loads(json.dumps(values))


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(UnreadableReservation):
        parse_pairs(text)


def test_blazars_required_keys_are_sent() -> None:
    request = ReservationRequest("physical:host", {"min": 1, "max": 1})
    assert request.to_wire(Version.V1_0) == {
        "resource_type": "physical:host",
        "hypervisor_properties": "",
        "resource_properties": "",
        "min": 1,
        "max": 1,
    }
    assert request.to_wire(Version.V1_1) == {"resource_type": "physical:host", "min": 1, "max": 1}


@pytest.mark.parametrize(
    "text",
    [
        "resource_type=physical:host,min=1,max=2",
        'resource_type=physical:host,min=1,resource_properties=["==", "$gpu", "a100"]',
        "resource_type=virtual:instance,amount=2,vcpus=1,memory_mb=1,disk_gb=0,affinity=false",
        "resource_type=virtual:instance,amount=2,vcpus=1,memory_mb=1,disk_gb=0,affinity=none",
        'resource_type=physical:host,min=1,extra_specs={"vcpus": ">= 8"}',
        'resource_type=virtual:floatingip,network_id=net,required_floatingips=["203.0.113.20"]',
        "resource_type=virtual:server,server_id=s,in_place=true",
        "resource_type=instruments:telescope,name=it's a 'large' one,mirrors=3,empty=",
    ],
)
def test_a_written_reservation_is_read_as_the_same(text: str) -> None:
    request = parse_reservation(text)
    assert parse_reservation(format_reservation(request)) == request


@given(st.text())
def test_any_text_is_written_so_that_it_is_read_as_the_same(text: str) -> None:
    request = ReservationRequest("virtual:volume", {"volume_type": text})
    assert parse_reservation(format_reservation(request)) == request


@pytest.mark.parametrize("text", ['["==", "$gpu", "a100"]', ' ["in", "$rack", "r1", "r2"]'])
def test_an_expression_of_the_api_is_a_condition(text: str) -> None:
    assert json.loads(conditions_to_json([text])) == json.loads(text)
    assert json.loads(conditions_to_json([text, "vcpus>=8"])) == [
        "and",
        json.loads(text),
        [">=", "$vcpus", "8"],
    ]
