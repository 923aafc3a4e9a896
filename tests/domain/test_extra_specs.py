"""Extra specs, read as Nova's filters read them. ``tests/cloud`` compares the same cases with Nova's own code."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.extra_specs import (
    ATTRIBUTES,
    conditions_of_flavor,
    conditions_of_request,
    is_undecided,
    values_in_aggregates,
)
from tenure.domain.requirement import AGGREGATE_METADATA, TEXT_OPERATORS, Expression, HasTrait, Not

RECORDS = [json.loads(line) for line in (Path(__file__).parents[1] / "data/extra_specs.jsonl").read_text().splitlines()]
HOSTS = {record["host"]: record for record in RECORDS if "specs" not in record}
CASES = [(record["host"], record["specs"], record["verdict"]) for record in RECORDS if "specs" in record]


def properties_of(host: dict[str, Any]) -> dict[str, str]:
    """Return a host of Nova's scheduler as the property language sees it."""
    found = {
        ATTRIBUTES[name]: json.dumps(value, sort_keys=True) if isinstance(value, dict) else str(value)
        for name, value in host["attributes"].items()
    }
    metadata = values_in_aggregates(host["aggregates"])
    return {**found, AGGREGATE_METADATA: json.dumps(metadata)} if metadata else found


@pytest.mark.parametrize(("host", "specs", "verdict"), CASES)
def test_extra_specs_of_flavors_choose_the_hosts_that_nova_chooses(host: str, specs: dict[str, str], verdict: str):
    """``error``: Nova's filter raises an error for this host; ``refused``: no host ever passes it."""
    if verdict == "refused":
        with pytest.raises(ValueError, match=r"^[a-z_:]+: "):
            conditions_of_flavor(specs)
    else:
        assert conditions_of_flavor(specs).matches(properties_of(HOSTS[host])) is (verdict == "yes")


@pytest.mark.parametrize(("host", "specs", "verdict"), CASES)
def test_requests_say_the_same_as_flavors_in_the_scopes_of_hosts(host: str, specs: dict[str, str], verdict: str):
    scopes = ("capabilities:", "aggregate_instance_extra_specs:", "hw:maxphysaddr_bits")
    scoped = {name: value for name, value in specs.items() if name.startswith(scopes) and not name.endswith(":")}
    if verdict != "refused" and scoped == specs:
        assert conditions_of_request(specs) == conditions_of_flavor(specs)


def test_the_cases_are_many_and_of_all_verdicts():
    count = Counter(verdict for _, _, verdict in CASES)
    assert count.keys() == {"yes", "no", "error", "refused"}
    assert len(CASES) == len({(host, json.dumps(specs)) for host, specs, _ in CASES}) >= 150
    assert min(count["yes"], count["no"]) > 100
    operators = {value.split()[0] for _, specs, _ in CASES for value in specs.values()}
    assert operators >= {"=", "==", "!=", "<=", ">=", *TEXT_OPERATORS, "<or>"}


def test_names_without_a_scope_in_requests_are_properties_that_a_host_must_have():
    condition = conditions_of_request({"gpu": "<or> a100 <or> h100"})
    assert condition.matches({"gpu": "h100"})
    assert not condition.matches({"gpu": "v100"})
    assert not condition.matches({})


def test_capabilities_in_requests_are_facts_by_their_names_as_well():
    assert conditions_of_request({"capabilities:vcpus": "= 8"}) == conditions_of_request(
        {"capabilities:vcpus_total": "= 8"}
    )
    assert conditions_of_request({"capabilities:rack": "r1"}).matches({"rack": "r1"})


def test_traits_and_thread_policies_of_requests():
    avx = HasTrait("HW_CPU_X86_AVX2")
    assert conditions_of_request({"trait:HW_CPU_X86_AVX2": "required"}) == Expression((avx,))
    assert conditions_of_request({"trait:HW_CPU_X86_AVX2": "forbidden"}) == Expression((Not(Expression((avx,))),))
    threads = HasTrait("HW_CPU_HYPERTHREADING")
    assert conditions_of_request({"hw:cpu_thread_policy": "require"}) == Expression((threads,))
    assert conditions_of_request({"hw:cpu_thread_policy": "isolate"}) == Expression((Not(Expression((threads,))),))
    assert conditions_of_request({"hw:cpu_thread_policy": "prefer"}) == Expression()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("hw:cpu_policy", "dedicated", "it is no condition on hosts: these are properties, the scopes capabilities, "),
        ("quota:cpu_shares", "1", "it is no condition on hosts"),
        ("resources:VCPU", "1", "it is no condition on hosts"),
        ("trait1:CUSTOM_A", "required", "it is no condition on hosts"),
        ("capabilities:", "x", "it is no condition on hosts"),
        ("trait:", "required", "it is no condition on hosts"),
        ("aggregate_instance_extra_specs:", "x", "it is no condition on hosts"),
        ("aggregate_instance_extra_specs:filter_tenant_id", "x", "it is no condition on hosts"),
        ("aggregate_instance_extra_specs:reservation", "x", "it is no condition on hosts"),
        ("hw:cpu_thread_policy", "often", "it is no condition on hosts"),
        ("trait:CUSTOM_A", "maybe", 'a trait is required or forbidden, and not "maybe"'),
        ("trait:custom_a", "required", '"custom_a" is no trait'),
        ("capabilities:vcpus", "= many", "'many' is no number"),
        ("gpu", "<or>", "'<or>' is an operator without a value"),
        ("hw:maxphysaddr_bits", "wide", "'wide' is no number"),
    ],
)
def test_other_extra_specs_of_requests_are_refused_by_name(name: str, value: str, words: str):
    with pytest.raises(ValueError, match=words) as refused:
        conditions_of_request({name: value})
    assert str(refused.value).startswith(f"{name}: ")


def test_flavors_with_conditions_that_depend_on_more_than_facts_are_undecided():
    undecided = [
        "capabilities:free_ram_mb",
        "capabilities:boot_mode",
        "capabilities:stats:num_instances",
        "aggregate_instance_extra_specs:reservation",
        "aggregate_instance_extra_specs:filter_tenant_id_2",
        "num_instances",
        "gpu_model",
    ]
    decided = ["capabilities:cpu_info:vendor", "capabilities:host", "hypervisor_type", "hw:numa_nodes", "trait:X"]
    assert [name for name in (*undecided, *decided) if is_undecided(name)] == undecided
    assert conditions_of_flavor(dict.fromkeys(undecided, "x")) == Expression()


def test_metadata_of_aggregates_is_joined_and_that_of_projects_left_out():
    aggregates = [
        {"ssd": "true", "tier": "gold, silver", "filter_tenant_id": "p", "filter_tenant_id_2": "q"},
        {"tier": "gold,bronze", "blazar:owner": "p", "tenure:home:c": "1", "reservation": "r", "affinity_id": "g"},
    ]
    assert values_in_aggregates(aggregates) == {"ssd": ["true"], "tier": ["bronze", "gold", "silver"]}
