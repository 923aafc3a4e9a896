"""Groups of a table's objects, and sums over these groups, without reading all objects.

Both follow the table: an object that was changed in place counts as before until it is given to ``save``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=str | int)
V = TypeVar("V")


class Index(Generic[K, V]):
    """The keys of the objects of each group."""

    def __init__(self, group_of: Callable[[V], Hashable]) -> None:
        self._group_of = group_of
        self._group_by_key: dict[K, Hashable] = {}
        self._keys: dict[Hashable, dict[K, None]] = {}

    def put(self, key: K, value: V) -> None:
        """Add the object to its current group."""
        group = self._group_of(value)
        if key in self._group_by_key:
            if self._group_by_key[key] == group:
                return
            self.drop(key)
        self._group_by_key[key] = group
        self._keys.setdefault(group, {})[key] = None

    def drop(self, key: K) -> None:
        """Remove the object with this key, if it is known."""
        if key not in self._group_by_key:
            return
        group = self._group_by_key.pop(key)
        keys = self._keys[group]
        del keys[key]
        if not keys:
            del self._keys[group]

    def keys(self, group: Hashable) -> Mapping[K, None]:
        """Return the keys of the objects of a group, in the order in which they were added to it."""
        return self._keys.get(group, {})


class Tally(Generic[K, V]):
    """The sums of amounts over the objects of each group."""

    def __init__(self, amounts_of: Callable[[V], tuple[Hashable, Mapping[str, int]]]) -> None:
        """``amounts_of`` returns the group of an object, and its amounts by name."""
        self._amounts_of = amounts_of
        self._added: dict[K, tuple[Hashable, Mapping[str, int]]] = {}
        self._sums: dict[Hashable, Counter[str]] = {}

    def put(self, key: K, value: V) -> None:
        """Count the object with its current amounts."""
        self.drop(key)
        group, found = self._amounts_of(value)
        amounts = {name: amount for name, amount in found.items() if amount}
        self._added[key] = group, amounts
        if amounts:
            self._sums.setdefault(group, Counter()).update(amounts)

    def drop(self, key: K) -> None:
        """Remove the object with this key, if it is known."""
        if key not in self._added:
            return
        group, amounts = self._added.pop(key)
        if not amounts:
            return
        sums = self._sums[group]
        sums.subtract(amounts)
        for name in amounts:
            if not sums[name]:
                del sums[name]
        if not sums:
            del self._sums[group]

    def sum(self, group: Hashable, name: str) -> int:
        """Return the sum of the amounts of this name over the objects of a group."""
        return self._sums[group][name] if group in self._sums else 0
