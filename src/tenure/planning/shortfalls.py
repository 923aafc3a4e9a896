"""Why a demand finds no room: how many resources are left after each step of the selection."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from tenure.domain.allocation import Demand
from tenure.domain.period import Period
from tenure.domain.requirement import ORDER, Comparison, HasAmount
from tenure.domain.shortfall import Shortfall, Stage
from tenure.planning.candidates import bounds_of, eligible
from tenure.planning.room import fitting, taken_as_whole, units
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import NewUnits


def stages(snapshot: Snapshot, demand: Demand, period: Period, *, without: Collection[int] = ()) -> tuple[Stage, ...]:
    """Return the stages of the choice; if the demand is for parts of resources, the last one counts units."""
    catalogue = snapshot.catalogue
    reservable = catalogue.of_type(demand.inventory, demand.region) & catalogue.reservable
    matching = catalogue.matching(_single(demand))
    left = eligible(snapshot, matching, without=without)
    rows, counts = units(snapshot, _single(demand), left, *bounds_of(demand.span(period)))
    found = Stage("reservable", int(reservable.sum())), Stage("matching", int(matching.sum()))
    if demand.exclusive:
        return (*found, Stage("free", len(rows)))
    return (*found, Stage("roomy", len(rows)), Stage("fitting", fitting(demand, counts)))


def most_units(snapshot: Snapshot, demand: Demand, period: Period) -> int:
    """Return how many units of a demand have room at most, wherever plans move.

    A plan that takes a whole resource moves to another one of the same type and region only: so plans take at least as
    many of the resources that would do as find no place elsewhere.
    """
    catalogue, bounds = snapshot.catalogue, bounds_of(demand.span(period))
    rows, counts = units(snapshot, _single(demand), catalogue.matching(_single(demand)), *bounds, planned=False)
    most = fitting(demand, counts)
    if not demand.exclusive:
        return most
    chosen = np.zeros(len(snapshot.changed), dtype=np.bool_)
    chosen[rows] = True
    others = int(np.count_nonzero(catalogue.of_type(demand.inventory, demand.region) & ~chosen))
    planned = int(taken_as_whole(snapshot, chosen).steps(*bounds).values.max())
    return most - max(0, planned - others)


def is_hopeless(snapshot: Snapshot, task: NewUnits) -> bool:
    """Whether a count shows that there is too little room, wherever plans move. It is not made for what is added."""
    if task.without or task.only is not None:
        return False
    least = task.least.demand
    return most_units(snapshot, least, task.period) < least.minimum


def shortfall(
    snapshot: Snapshot,
    demand: Demand,
    period: Period,
    *,
    position: int,
    apart: Collection[str],
    without: Collection[int] = (),
    requested: int | None = None,
    retained: int | None = None,
) -> Shortfall:
    """Return why a demand, at a position of the request, finds no room.

    ``apart`` are the names that tell single resources of the inventory apart. ``requested`` and ``retained`` are the
    number of units that is shown as asked for, if it is not the least one, and the number that a running reservation
    has.
    """
    found = stages(snapshot, demand, period, without=without)
    comparisons = demand.expression.comparisons if demand.names_are_asked else ()
    known = snapshot.catalogue.names_of(demand.inventory)
    return Shortfall(
        resource_type=demand.resource_type or demand.inventory,
        noun=demand.noun,
        requested=demand.minimum if requested is None else requested,
        stages=found,
        reservation=position,
        unknown_properties=tuple(
            sorted({comparison.name for comparison in comparisons if known.isdisjoint(comparison.reads)})
        ),
        out_of_reach=_out_of_reach(snapshot, demand),
        retained=retained,
        names_resources=not frozenset(apart).isdisjoint(demand.expression.names),
    )


def _single(demand: Demand) -> Demand:
    """Return the demand for as many units as a resource must have room for to count."""
    return demand if demand.exclusive else demand.of_units(1)


def _out_of_reach(snapshot: Snapshot, demand: Demand) -> tuple[str, ...]:
    """Return a sentence for each amount and each trait that is asked for and that no resource has."""
    if not demand.names_are_asked or snapshot.catalogue.matching(demand).any():
        return ()
    amounts = [
        term
        for term in demand.expression.terms
        if isinstance(term, Comparison) and term.op in ORDER and term.number is not None
    ]
    ranges: Mapping[str, tuple[float, float]] = snapshot.catalogue.ranges(
        demand.inventory, {term.name for term in amounts}
    )
    sentences = []
    for term in amounts:
        least, most = ranges.get(term.name, (None, None))
        wants_more = term.op in (">", ">=")
        reach = most if wants_more else least
        shown = "" if reach is None else str(int(reach) if reach == int(reach) else reach)
        if shown and not term.matches({term.name: shown}):
            bound = "the most" if wants_more else "the least"
            sentences.append(f"No resource has {term.name} {term.op} {term.value}: {bound} is {shown}.")
    return (*sentences, *_amounts_out_of_reach(snapshot, demand), *_traits_out_of_reach(snapshot, demand))


def _amounts_out_of_reach(snapshot: Snapshot, demand: Demand) -> tuple[str, ...]:
    """Return a sentence for each class of which a unit takes more than any resource has, or gives at once.

    Of a demand for whole resources these are the classes of which each must have some amount.
    """
    catalogue = snapshot.catalogue
    there = catalogue.of_type(demand.inventory, demand.region)
    least = {term.resource_class: term.amount for term in demand.expression.terms if isinstance(term, HasAmount)}
    together = least if demand.exclusive else demand.amounts.times(demand.units_together)
    sentences = []
    for name, amount in together.items():
        most = int(catalogue.amounts(name)[there].max(initial=0))
        at_once = 0 if demand.exclusive else max(portion[name] for portion in demand.at_once)
        if amount > most:
            sentences.append(f"No resource has {amount} {name}: the most is {most}.")
        elif at_once > (limit := catalogue.most_at_once(there, name)):
            sentences.append(f"No resource gives {at_once} {name} at once: the most is {limit}.")
    return tuple(sentences)


def _traits_out_of_reach(snapshot: Snapshot, demand: Demand) -> tuple[str, ...]:
    """Return a sentence about the required traits that no resource has, if there are such."""
    catalogue = snapshot.catalogue
    there = catalogue.of_type(demand.inventory, demand.region)
    missing = [trait for trait in sorted(demand.required) if not (catalogue.has_traits({trait}, ()) & there).any()]
    return (f"No resource has the trait {', '.join(missing)}.",) if missing else ()
