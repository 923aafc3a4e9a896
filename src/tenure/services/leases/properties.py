"""Conditions on properties of resources: which of them callers may use, and with which values."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tenure.domain.allocation import Demand
from tenure.domain.errors import InvalidParameter
from tenure.domain.requirement import IDENTITY, Comparison
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules
from tenure.store.database import Transaction

#: How many properties of a request are checked for being numbers, if the request compares them with texts.
MOST_NAMES = 64


def check_private(
    tx: Transaction, rules: Rules, inventory: str, names: Collection[str], position: int, *, seen: bool
) -> None:
    """Raise ``InvalidParameter`` if the caller asks for a private property without being allowed to see it.

    Repeated requests would reveal its value.
    """
    if seen or rules.private_asked_for or not names:
        return
    private = tx.resources.private_properties(inventory) & set(names)
    if private:
        raise InvalidParameter(
            f"The property {min(private)} is private: only administrators can ask for it.",
            field=f"reservations[{position}].resource_properties",
        )


def check_identifying(
    types: ResourceTypes, inventory: str, comparisons: Iterable[Comparison], position: int, *, seen: bool
) -> None:
    """Raise ``InvalidParameter`` if the caller compares names or ids by order without being allowed to see them.

    Each request would halve what a name can be. To name a resource, or all but one, one has to know it.
    """
    apart = types.inventory(inventory).apart
    for comparison in comparisons:
        if not seen and comparison.name in apart and comparison.op not in IDENTITY:
            raise InvalidParameter(
                f"The property {comparison.name} tells single resources apart: it is compared by == and != only.",
                field=f"reservations[{position}].resource_properties",
            )


def check_values(
    tx: Transaction,
    demand: Demand,
    comparisons: Iterable[Comparison],
    position: int,
    *,
    known: set[tuple[str, str]] | None = None,
) -> None:
    """Raise ``InvalidParameter`` if a property that is a number on all resources is compared with a text.

    As a text, ``512000`` is greater than ``1t``, so the request would get resources that it did not ask for. Operators
    that compare texts may be used for numbers, too. Only the first ``MOST_NAMES`` properties of a request are checked:
    ``known`` has those that were checked for its earlier reservations, and is extended.
    """
    known = set() if known is None else known
    for comparison in comparisons if demand.names_are_asked else ():
        property_ = demand.inventory, comparison.name
        is_checked = property_ in known or comparison.compares_texts or comparison.number is not None
        if is_checked or len(known) >= MOST_NAMES:
            continue
        known.add(property_)
        if tx.resources.is_number_everywhere(*property_):
            raise InvalidParameter(
                f"The property {comparison.name} is a number everywhere, and {comparison.value[:80]!r} is none.",
                field=f"reservations[{position}].resource_properties",
            )
