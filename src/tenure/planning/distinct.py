"""Lists of distinct values, for arrays that have values as numbers."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

V = TypeVar("V", bound=Hashable)


class Distinct(Generic[V]):
    """A list of distinct values that only grows, so that numbers stay valid; each value has a number.

    Several threads may add values.
    """

    def __init__(self) -> None:
        self.values: list[V] = []
        self._numbers: dict[V, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.values)

    def number(self, value: V) -> int:
        """Return the number of the value, which is added if it is new."""
        found = self._numbers.get(value)
        if found is not None:
            return found
        with self._lock:
            if value not in self._numbers:
                self.values.append(value)  # before its number is known to others
                self._numbers[value] = len(self.values) - 1
            return self._numbers[value]

    def find(self, value: V) -> int | None:
        """Return the number of the value; None if it is not in the list."""
        return self._numbers.get(value)

    def shortened(self, numbers: NDArray[np.int32]) -> tuple[Distinct[V], NDArray[np.int32]]:
        """Return a list of the values of these numbers alone, and the numbers that they have there."""
        used, indexes = np.unique(numbers, return_inverse=True)
        shorter: Distinct[V] = Distinct()
        for number in used:
            shorter.number(self.values[number])
        found: NDArray[Any] = indexes.astype(np.int32).reshape(-1)
        return shorter, found
