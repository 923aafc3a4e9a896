"""Amounts of resources: vectors over Placement's resource classes, and their use over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from tenure.domain.period import Period

#: The resource class of a resource that can only be taken as a whole.
WHOLE = "WHOLE"
#: The largest amount: the largest integer that fits every database.
MAX_AMOUNT = 2**31 - 1


class Capacity(Mapping[str, int]):
    """An immutable vector of amounts by resource class, such as ``{"VCPU": 64, "MEMORY_MB": 262144}``.

    A missing class counts as 0. Two vectors are equal if every class has the same amount. Raises ``ValueError``
    for an amount that is negative or not a whole number.
    """

    __slots__ = ("_amounts",)

    def __init__(self, amounts: Mapping[str, int] = MappingProxyType({})) -> None:
        for resource_class, amount in amounts.items():
            if isinstance(amount, bool) or not isinstance(amount, int) or amount < 0:
                raise ValueError(f"the amount of {resource_class} must be a whole number of at least 0")
        self._amounts = {name: amounts[name] for name in sorted(amounts) if amounts[name]}

    def __getitem__(self, resource_class: str) -> int:
        return self._amounts.get(resource_class, 0)

    def __contains__(self, resource_class: object) -> bool:
        return resource_class in self._amounts

    def __iter__(self) -> Iterator[str]:
        return iter(self._amounts)

    def __len__(self) -> int:
        return len(self._amounts)

    def __hash__(self) -> int:
        return hash(tuple(self._amounts.items()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Capacity):
            return NotImplemented
        return self._amounts == other._amounts

    def __repr__(self) -> str:
        return f"Capacity({self._amounts!r})"

    def __add__(self, other: Capacity) -> Capacity:
        return Capacity({name: self[name] + other[name] for name in {*self, *other}})

    def times(self, count: int) -> Capacity:
        return Capacity({name: amount * count for name, amount in self.items()})

    def fits(self, demand: Capacity) -> bool:
        """Whether ``demand`` is at most this much in every class."""
        return all(amount <= self[name] for name, amount in demand.items())


def peak(usages: Iterable[tuple[Period, Capacity]], within: Period) -> Capacity:
    """Return, for each resource class, the largest amount in use at any instant of ``within``.

    The classes reach their peaks at different instants. So the answer is an upper bound of the use at any single
    instant, and the exact answer to "does this much more fit throughout?".
    """
    steps: dict[str, list[tuple[object, int]]] = {}
    for period, amounts in usages:
        if period.overlaps(within):
            for resource_class, amount in amounts.items():
                steps.setdefault(resource_class, []).extend(((period.start, amount), (period.end, -amount)))
    return Capacity({name: _highest(changes) for name, changes in steps.items()})


def _highest(changes: list[tuple[object, int]]) -> int:
    level = highest = 0
    for _, change in sorted(changes):  # at equal times the release sorts first
        level += change
        highest = max(highest, level)
    return highest


def units_free(capacity: Capacity, usages: Iterable[tuple[Period, Capacity]], amounts: Capacity, within: Period) -> int:
    """Return how many units of ``amounts`` fit beside the usages during the whole period; 0 if ``amounts`` is empty."""
    used = peak(usages, within)
    return max(0, min(((capacity[name] - used[name]) // amount for name, amount in amounts.items()), default=0))
