"""The resources as columns, so that a condition is checked for all of them at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

import numpy as np

from tenure.domain.allocation import Demand
from tenure.domain.capacity import MAX_AMOUNT, WHOLE, Capacity
from tenure.domain.listing import ListedResource
from tenure.domain.requirement import AnyOf, Comparison, Expression, HasAmount, HasTrait, Not, Term, number_of
from tenure.planning.distinct import Distinct
from tenure.planning.steps import Ints, Mask
from tenure.planning.timeline import Rows

V = TypeVar("V", bound=Hashable)

#: For how many kinds of demands a catalogue keeps what serves them.
MOST_KINDS = 64


@dataclass(slots=True)
class _Column(Generic[V]):
    """A value of each resource, as a number in a list of distinct values; -1 if a resource has none."""

    numbers: Rows
    distinct: Distinct[V] = field(default_factory=Distinct)

    def where(self, holds: Callable[[V], bool]) -> Mask:
        """Return which resources have a value for which the condition holds."""
        table = np.fromiter((holds(value) for value in self.distinct.values), dtype=np.bool_)
        found: Mask = np.append(table, False)[self.numbers]  # the last place is that of no value
        return found

    def value(self, row: int) -> V | None:
        """Return the value of a resource; None if it has none."""
        number = self.numbers[row]
        return None if number < 0 else self.distinct.values[number]

    def equals(self, value: V) -> Mask:
        """Return which resources have this value."""
        number = self.distinct.find(value)
        if number is None:
            return np.zeros(len(self.numbers), dtype=np.bool_)
        found: Mask = self.numbers == number
        return found

    def changed(self, rows: int, values: Mapping[int, V | None]) -> _Column[V]:
        """Return the column with so many rows, and other values in some of them."""
        numbers = np.full(rows, -1, dtype=np.int32)
        numbers[: len(self.numbers)] = self.numbers
        for row, value in values.items():
            numbers[row] = -1 if value is None else self.distinct.number(value)
        return _Column(numbers, self.distinct)


@dataclass(frozen=True, slots=True)
class Kind:
    """Resources that are alike: in some attributes, the capacity and the region. ``chosen`` are the resources."""

    attributes: Mapping[str, str]
    capacity: Capacity
    region: str
    chosen: Mask


#: Limits of single requests in a form that can be compared.
_Limits = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


class Catalogue:
    """All registered resources, in rows. It does not change; ``changed`` makes another."""

    def __init__(self) -> None:
        none = np.zeros(0, dtype=np.int32)
        self.ids: list[int] = []
        self.external_ids: list[str] = []
        self.names: list[str] = []
        #: The rows of resources by their ids.
        self.rows: dict[int, int] = {}
        self._types: _Column[str] = _Column(none)
        self._regions: _Column[str] = _Column(none)
        self._capacities: _Column[Capacity] = _Column(none)
        self._limits: _Column[_Limits] = _Column(none)
        self._traits: _Column[frozenset[str]] = _Column(none)
        self._attributes: dict[str, _Column[str]] = {}
        self.reservable: Mask = np.zeros(0, dtype=np.bool_)
        self.scarcities: Ints = np.zeros(0, dtype=np.int64)
        #: The resources that serve demands, by what they have in common; those that were asked for last at the end.
        self._serving: OrderedDict[Demand, Mask] = OrderedDict()

    @cached_property
    def id_array(self) -> Ints:
        """The ids of the resources, by row."""
        return np.array(self.ids[: len(self.reservable)], dtype=np.int64)

    @cached_property
    def by_id(self) -> Rows:
        """The rows in the order of the ids."""
        return np.argsort(self.id_array, kind="stable").astype(np.int32)

    def __len__(self) -> int:
        """Return the number of rows, including those of resources that do not exist any more."""
        return len(self.ids)

    @property
    def size(self) -> int:
        """Return the number of entries in its lists, those that nothing has any more included."""
        columns: list[_Column[Any]] = [self._types, self._regions, self._capacities, self._limits, self._traits]
        return len(self.ids) + sum(len(column.distinct) for column in (*columns, *self._attributes.values()))

    def changed(self, resources: Iterable[ListedResource], gone: Iterable[int] = ()) -> Catalogue:
        """Return the catalogue with these resources as they are now, and without those of the ids ``gone``.

        The lists of the old catalogue grow with those of the new one; its arrays do not change. If nothing differs, the
        same catalogue is returned.
        """
        resources = [resource for resource in resources if not self._has(resource)]
        gone = [resource_id for resource_id in gone if self._exists(resource_id)]
        if not resources and not gone:
            return self
        after = Catalogue()
        after.ids, after.external_ids, after.names, after.rows = self.ids, self.external_ids, self.names, self.rows
        by_row: dict[int, ListedResource | None] = {}
        for resource in resources:
            row = self.rows.setdefault(resource.id, len(self.ids))
            if row == len(self.ids):
                self.ids.append(resource.id)
                self.external_ids.append(resource.external_id)
                self.names.append(resource.name)
            self.external_ids[row], self.names[row] = resource.external_id, resource.name
            by_row[row] = resource
        by_row |= {self.rows[resource_id]: None for resource_id in gone}
        rows = len(self.ids)

        def column(before: _Column[V], value_of: Callable[[ListedResource], V | None]) -> _Column[V]:
            values = {row: None if resource is None else value_of(resource) for row, resource in by_row.items()}
            return before.changed(rows, values)

        after._types = column(self._types, lambda resource: resource.resource_type)
        after._regions = column(self._regions, lambda resource: resource.region)
        after._capacities = column(self._capacities, lambda resource: resource.capacity)
        after._limits = column(self._limits, lambda resource: _comparable(resource.limits))
        after._traits = column(self._traits, lambda resource: resource.traits)
        names = {name for resource in by_row.values() if resource is not None for name in resource.attributes}
        for name in sorted(names | self._attributes.keys()):
            before = self._attributes.get(name) or _Column(np.zeros(0, dtype=np.int32))
            after._attributes[name] = column(before, partial(_attribute, name=name))
        after.reservable = np.zeros(rows, dtype=np.bool_)
        after.reservable[: len(self.reservable)] = self.reservable
        after.scarcities = np.append(self.scarcities, np.zeros(rows - len(self.scarcities), dtype=np.int64))
        for row, known in by_row.items():
            after.reservable[row] = known is not None and known.reservable
            if known is not None:
                after.scarcities[row] = known.scarcity
        return after

    def _exists(self, resource_id: int) -> bool:
        row = self.rows.get(resource_id)
        return row is not None and bool(self._types.numbers[row] >= 0)

    def _has(self, resource: ListedResource) -> bool:
        """Whether a resource is in the catalogue just as it is."""
        row = self.rows.get(resource.id)
        return (
            row is not None
            and (self.external_ids[row], self.names[row]) == (resource.external_id, resource.name)
            and bool(self.reservable[row]) == resource.reservable
            and int(self.scarcities[row]) == resource.scarcity
            and self._types.value(row) == resource.resource_type
            and self._regions.value(row) == resource.region
            and self._capacities.value(row) == resource.capacity
            and self._limits.value(row) == _comparable(resource.limits)
            and self._traits.value(row) == resource.traits
            and resource.attributes.keys() <= self._attributes.keys()
            and all(column.value(row) == resource.attributes.get(name) for name, column in self._attributes.items())
        )

    # --- conditions

    def of_type(self, resource_type: str, region: str | None = None) -> Mask:
        """Return which resources are of the type, in that region or in any; reservable or not."""
        chosen = self._types.equals(resource_type)
        return chosen if region is None else chosen & self._regions.equals(region)

    def matching(self, demand: Demand, *, reservable: bool = True) -> Mask:
        """Return which resources can serve the demand if they are free.

        For a single resource, ``Expression.matches`` says the same of its properties. Without ``reservable`` these
        include resources that take no new leases.
        """
        serving = self._serving_of(demand)
        return serving & self.reservable if reservable else serving

    def _serving_of(self, demand: Demand) -> Mask:
        """Return which resources would serve the demand, reservable or not; do not write to it.

        Those of the last demands are kept: members ask for the same kinds again and again.
        """
        kind = demand.kind
        found = self._serving.get(kind)
        if found is None:
            found = self._find_serving(demand)
            self._serving[kind] = found
            while len(self._serving) > MOST_KINDS:
                self._serving.popitem(last=False)
        return found

    def _find_serving(self, demand: Demand) -> Mask:
        chosen = self.of_type(demand.inventory, demand.region) & self.meets(demand.expression)
        chosen &= self.has_traits(demand.required, demand.forbidden)
        if demand.exclusive:
            return chosen
        chosen &= self._capacities.where(demand.has_size)
        return chosen & self._limits.where(
            lambda limits: demand.is_admitted_by({name: dict(amounts) for name, amounts in limits})
        )

    def meets(self, expression: Expression) -> Mask:
        """Return which resources an expression of the property language matches."""
        chosen = np.ones(len(self.reservable), dtype=np.bool_)
        for term in expression.terms:
            chosen &= self._holds(term)
        return chosen

    def has_traits(self, required: Collection[str], forbidden: Collection[str]) -> Mask:
        """Return which resources have all required traits and no forbidden one."""
        if not required and not forbidden:
            return np.ones(len(self.reservable), dtype=np.bool_)
        return self._traits.where(lambda traits: traits.issuperset(required) and traits.isdisjoint(forbidden))

    def named(self, region: str, external_ids: Collection[str]) -> Mask:
        """Return which resources have these external ids."""
        ids = self._attributes.get("id")
        chosen = np.zeros(len(self.reservable), dtype=np.bool_)
        for external_id in external_ids if ids is not None else ():
            assert ids is not None
            chosen |= ids.equals(external_id)
        return chosen & self._regions.equals(region)

    def ids_named(self, region: str, external_ids: Collection[str]) -> list[int]:
        """Return the ids of the registered resources with these external ids."""
        return [self.ids[row] for row in np.flatnonzero(self.named(region, external_ids))] if external_ids else []

    def _holds(self, term: Term) -> Mask:
        match term:
            case AnyOf(branches):
                chosen = np.zeros(len(self.reservable), dtype=np.bool_)
                for branch in branches:
                    chosen |= self.meets(branch)
                return chosen
            case Not(branch):
                return ~self.meets(branch)
            case HasTrait(trait):
                return self._traits.where(lambda traits: trait in traits)
            case HasAmount(resource_class, amount):
                enough: Mask = self.capacity(resource_class) >= amount
                return enough
            case Comparison() as comparison:
                return self._compares(comparison)

    def _compares(self, comparison: Comparison) -> Mask:
        """Return for which resources a comparison holds: with the property of its name, or the value in another one."""
        name, container = comparison.name, comparison.container
        column = self._attributes.get(name)
        if column is None:
            found = np.zeros(len(self.reservable), dtype=np.bool_)
        elif comparison.op == "s==" or (comparison.op == "==" and comparison.number is None):
            found = column.equals(comparison.value)
        else:
            found = column.where(lambda text: comparison.matches({name: text}))
        around = None if container is None else self._attributes.get(container)
        if container is None or around is None:
            return found
        inside = around.where(lambda text: comparison.matches({container: text}))
        return found | (inside if column is None else inside & (column.numbers < 0))

    # --- values

    def capacity(self, resource_class: str) -> Ints:
        """Return how much of a class each resource has; 0 for resources that do not exist any more."""
        table = [capacity[resource_class] for capacity in self._capacities.distinct.values]
        found: Ints = np.array([*table, 0], dtype=np.int64)[self._capacities.numbers]
        return found

    def capacity_of(self, row: int) -> Capacity:
        """Return what a resource has."""
        return self._capacities.value(row) or Capacity()

    def amounts(self, resource_class: str) -> Ints:
        """Return how much of a class each resource has; of ``WHOLE`` one."""
        if resource_class == WHOLE:
            return np.ones(len(self.reservable), dtype=np.int64)
        return self.capacity(resource_class)

    def most_at_once(self, chosen: Mask, resource_class: str) -> int:
        """Return how much of a class the chosen resources give to a single request at most; 0 if they have none."""
        amounts = self.capacity(resource_class)[chosen]
        table = [
            dict(dict(limits).get(resource_class, ())).get("max", MAX_AMOUNT) for limits in self._limits.distinct.values
        ]
        limits = np.array([*table, MAX_AMOUNT], dtype=np.int64)[self._limits.numbers[chosen]]
        return int(np.minimum(amounts, limits).max(initial=0))

    def regions(self, chosen: Mask) -> list[str]:
        """Return the regions of the chosen resources, in alphabetical order."""
        return sorted(self._regions.distinct.values[number] for number in np.unique(self._regions.numbers[chosen]))

    def classes(self, chosen: Mask) -> list[str]:
        """Return the resource classes that the chosen resources have, in alphabetical order."""
        numbers = np.unique(self._capacities.numbers[chosen])
        return sorted({name for number in numbers if number >= 0 for name in self._capacities.distinct.values[number]})

    def values(self, name: str, chosen: Mask) -> list[str]:
        """Return the distinct values of an attribute that the chosen resources have, in alphabetical order."""
        column = self._attributes.get(name)
        if column is None:
            return []
        return sorted(column.distinct.values[number] for number in np.unique(column.numbers[chosen]) if number >= 0)

    def names_of(self, resource_type: str) -> frozenset[str]:
        """Return the names of the attributes that resources of a type have."""
        of_type = self.of_type(resource_type)
        return frozenset(name for name, column in self._attributes.items() if (column.numbers[of_type] >= 0).any())

    def ranges(self, resource_type: str, names: Collection[str]) -> dict[str, tuple[float, float]]:
        """Return the least and the largest value of each of these attributes, of those that are numbers."""
        of_type, found = self.of_type(resource_type), {}
        for name in names:
            texts = self.values(name, of_type)
            numbers = [number for number in map(number_of, texts) if number is not None]
            if numbers:
                found[name] = (min(numbers), max(numbers))
        return found

    def has(self, name: str, value: str) -> Mask:
        """Return which resources have this value of an attribute."""
        column = self._attributes.get(name)
        return np.zeros(len(self.reservable), dtype=np.bool_) if column is None else column.equals(value)

    def kinds(self, chosen: Mask, names: Sequence[str]) -> Iterator[Kind]:
        """Yield the kinds of the chosen resources, by attributes of these names, the most frequent first."""
        rows = np.flatnonzero(chosen)
        columns = {name: self._attributes[name] for name in names if name in self._attributes}
        everything: list[_Column[Any]] = [self._regions, self._capacities, *columns.values()]
        numbers = np.stack([column.numbers[rows] for column in everything], axis=1)
        distinct, kind_of, counts = np.unique(numbers, axis=0, return_inverse=True, return_counts=True)
        by_kind, ends = rows[np.argsort(kind_of.reshape(-1), kind="stable")], np.cumsum(counts)
        for index in np.argsort(-counts, kind="stable"):
            region, capacity, *values = distinct[index]
            mask = np.zeros(len(self.reservable), dtype=np.bool_)
            mask[by_kind[ends[index] - counts[index] : ends[index]]] = True
            attributes = {
                name: column.distinct.values[number]
                for (name, column), number in zip(columns.items(), values, strict=True)
                if number >= 0
            }
            yield Kind(
                attributes, self._capacities.distinct.values[capacity], self._regions.distinct.values[region], mask
            )


def _attribute(resource: ListedResource, *, name: str) -> str | None:
    return resource.attributes.get(name)


def _comparable(limits: Mapping[str, Mapping[str, int]]) -> _Limits:
    return tuple((name, tuple(sorted(limits[name].items()))) for name in sorted(limits))
