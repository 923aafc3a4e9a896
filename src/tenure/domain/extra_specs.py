"""Extra specs as conditions on hosts, by the rules of Nova's scheduler.

The rules are those of its filters: ``ComputeCapabilitiesFilter`` reads ``capabilities:`` and names without a scope, and
``AggregateInstanceExtraSpecsFilter`` reads ``aggregate_instance_extra_specs:``. Each condition is an expression of the
property language; nothing else decides which hosts match.

A value begins with an operator, or is the text that the host must have. ``=`` means at least. ``==``, ``!=``, ``>=``
and ``<=`` compare numbers, the operators with an ``s`` texts. ``<in>`` and ``<all-in>`` look for words anywhere in the
text, ``<or>`` is followed by one of several texts. An operator has one word, except ``<all-in>`` and ``<or>``; Nova
ignores further words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from tenure.domain.requirement import (
    AGGREGATE_METADATA,
    FORBIDDEN,
    REQUIRED,
    TEXT_OPERATORS,
    AnyOf,
    Comparison,
    Expression,
    Term,
    trait_term,
)

CAPABILITIES: Final = "capabilities"
AGGREGATES: Final = "aggregate_instance_extra_specs"
TRAIT: Final = "trait"
#: The scopes of extra specs that are conditions on hosts, for the text of a refusal.
SCOPES: Final = (CAPABILITIES, TRAIT, AGGREGATES)
#: The attributes of hosts in Nova's scheduler that do not depend on what runs there, and the facts that they are.
ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "host": "service_name",
        "nodename": "hypervisor_hostname",
        "hypervisor_hostname": "hypervisor_hostname",
        "hypervisor_type": "hypervisor_type",
        "hypervisor_version": "hypervisor_version",
        "cpu_info": "cpu_info",
        "vcpus_total": "vcpus",
        "total_usable_ram_mb": "memory_mb",
        "total_usable_disk_gb": "local_gb",
    }
)
#: Metadata of aggregates that give hosts to projects and reservations: it is not said of hosts.
_INTERNAL_METADATA: Final = re.compile(r"(filter_tenant_id|blazar:|tenure:).*|reservation|affinity_id")
_ADDRESS_BITS: Final = "hw:maxphysaddr_bits"
#: The value that this spec is compared with: of an attribute of hosts, in the property language.
_HOST_ADDRESS_BITS: Final = "cpu_info:maxphysaddr:bits"
_THREADS: Final = "hw:cpu_thread_policy"
#: The specs that name devices: aliases of Nova's configuration, and a device profile of Cyborg.
PCI_ALIAS: Final = "pci_passthrough:alias"
DEVICE_PROFILE: Final = "accel:device_profile"
DEVICE_SPECS: Final = (PCI_ALIAS, DEVICE_PROFILE)
_NUMA_NODES: Final = "hw:numa_nodes"
#: Specs with which a server has NUMA nodes, and with that devices of the same nodes.
_NUMA: Final = re.compile(r"hw:(cpu_policy|pmem)|resources[a-zA-Z0-9_-]{0,64}:PCPU")
#: How many NUMA nodes a host has: with one, a server of one node takes of it what it takes of the host.
_HOST_CELLS: Final = "cpu_info:topology:cells"
#: The effect of the thread policy on the host's hyperthreading trait.
THREAD_POLICIES: Final[Mapping[str, str]] = MappingProxyType({"require": REQUIRED, "isolate": FORBIDDEN})
HYPERTHREADING: Final = "HW_CPU_HYPERTHREADING"

_OR: Final = "<or>"
_NUMBER_OPERATORS: Final = frozenset({"=", "==", "!=", ">=", "<="})


def is_internal_metadata(key: str) -> bool:
    """Whether metadata of an aggregate gives hosts to projects or reservations."""
    return _INTERNAL_METADATA.fullmatch(key) is not None


def values_in_aggregates(aggregates: Iterable[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return the values of each key in the metadata of these aggregates; a comma separates values."""
    found: dict[str, set[str]] = {}
    for metadata in aggregates:
        for key, values in metadata.items():
            if not is_internal_metadata(key):
                found.setdefault(key, set()).update(value.strip() for value in values.split(","))
    return {key: sorted(values) for key, values in sorted(found.items())}


def conditions_of_request(specs: Mapping[str, str]) -> Expression:
    """Return the conditions on hosts of the extra specs of a request.

    A name without a scope is that of a property, which the host must have. In the scope ``capabilities`` are Nova's
    names, and those of all facts and properties. Raises ``ValueError`` for any other scope, and for values that no host
    can have.
    """
    terms: list[Term] = []
    for name, value in specs.items():
        try:
            terms += _asked(name, value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return Expression(tuple(terms))


def conditions_of_flavor(specs: Mapping[str, str]) -> Expression:
    """Return the conditions on hosts of a flavor's extra specs, without its traits, which are in its footprint.

    A name without a scope is an attribute of hosts, or no condition. Other scopes are no conditions either, and nothing
    is said of specs that are undecided. Devices for a server with pinned processors must be in the NUMA node of these,
    which is known for hosts with one node. Raises ``ValueError`` for values that no host can have.
    """
    terms: list[Term] = []
    for name, value in specs.items():
        try:
            terms += _of_flavor(name, value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if not specs.keys().isdisjoint(DEVICE_SPECS) and any(map(_NUMA.fullmatch, specs)):
        terms.append(condition(_HOST_CELLS, "1"))
    return Expression(tuple(terms))


def is_undecided(name: str) -> bool:
    """Whether an extra spec of a flavor may choose hosts by what is not known of them.

    These are attributes that depend on what runs on a host, capabilities that only Nova's drivers know, and metadata of
    aggregates that belong to reservations. Names without a scope that are no attributes are such, too:
    ``AggregateInstanceExtraSpecsFilter`` looks for them in aggregates, if it is enabled.
    """
    scope, separator, rest = name.partition(":")
    if not separator:
        return name not in ATTRIBUTES
    if scope == CAPABILITIES:
        return rest.partition(":")[0] not in ATTRIBUTES
    return scope == AGGREGATES and is_internal_metadata(rest)


def condition(name: str, value: str) -> Term:
    """Return the condition on a property that the value of an extra spec is.

    Raises ``ValueError``, with the reason for the user, for a value that no host can have: an operator without a word,
    or one that compares numbers with a word that is none.
    """
    words = value.split()
    operator, operands = (words[0], words[1:]) if words else ("", [])
    if operator not in {_OR, *_NUMBER_OPERATORS, *TEXT_OPERATORS}:
        return Comparison("s==", name, value)
    if not operands:
        raise ValueError(f"{value!r} is an operator without a value")
    if operator == _OR:
        # Every second word is a value; Nova does not look at the words between them.
        return AnyOf(tuple(Expression((Comparison("s==", name, word),)) for word in operands[::2]))
    if operator in _NUMBER_OPERATORS:
        return _compared(operator, name, _number(operands[0]))
    return Comparison(operator, name, " ".join(operands) if operator == "<all-in>" else operands[0])


def _compared(operator: str, name: str, number: str) -> Term:
    if operator == "!=":  # of a text that is no number, it holds in the property language, and not in Nova
        return AnyOf(tuple(Expression((Comparison(op, name, number),)) for op in ("<", ">")))
    return Comparison(">=" if operator == "=" else operator, name, number)


def _number(word: str) -> str:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{word!r} is no number")
    return repr(number)


def _asked(name: str, value: str) -> Iterator[Term]:
    """Yield the conditions of an extra spec of a request."""
    scope, separator, rest = name.partition(":")
    match scope:
        case _ if not separator:
            yield condition(name, value)
        case "capabilities" if rest:
            root, colon, path = rest.partition(":")
            yield condition(f"{ATTRIBUTES.get(root, root)}{colon}{path}", value)
        case "trait" if rest:
            yield trait_term(rest, value)
        case _ if name == _THREADS and value in {*THREAD_POLICIES, "prefer"}:
            if value in THREAD_POLICIES:
                yield trait_term(HYPERTHREADING, THREAD_POLICIES[value])
        case _ if name == _ADDRESS_BITS or (scope == AGGREGATES and rest and not is_internal_metadata(rest)):
            yield from _of_flavor(name, value)
        case _:
            raise ValueError(
                f"it is no condition on hosts: these are properties, the scopes {', '.join(SCOPES)}, "
                f"{_ADDRESS_BITS} and {_THREADS}"
            )


def _of_flavor(name: str, value: str) -> Iterator[Term]:
    """Yield the conditions of an extra spec of a flavor."""
    if name == _ADDRESS_BITS:
        yield condition(_HOST_ADDRESS_BITS, f">= {value}")
        return
    if name == _NUMA_NODES and value.strip() == "1":
        yield condition(_HOST_CELLS, "1")
        return
    if is_undecided(name):
        return
    scope, separator, rest = name.partition(":")
    if scope == AGGREGATES:
        yield condition(f"{AGGREGATE_METADATA}:{rest}", value)
    elif not separator or scope == CAPABILITIES:
        root, colon, path = (rest if separator else scope).partition(":")
        yield condition(f"{ATTRIBUTES[root]}{colon}{path}", value)
