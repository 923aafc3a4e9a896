"""The precedence of requests: no later request takes room for which a lease on the waiting list comes first."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tenure.store.conflict import WaitersFirst
from tenure.store.database import Transaction


@dataclass(frozen=True, slots=True)
class Precedence:
    """Which leases come before a request: all waiting leases, or those of lower numbers than ``number``.

    These were offered what was ``served``, as ids of ``freed_room``.
    """

    number: int | None = None
    served: Collection[int] = ()

    def check(self, tx: Transaction, taken_on: Collection[int]) -> None:
        """Raise ``WaitersFirst`` if something on these resources is taken for which a waiting lease comes first.

        A waiting lease comes first if it waits for something of the same inventory and region, and if something of that
        was freed that it was not offered yet. The check comes after the search for room: if the search has seen what
        another transaction has freed, the check sees that it was freed. What is freed after the search is not taken.
        """
        lines = tx.waiting.to_be_served(self.number, without=self.served) if taken_on else set()
        if lines and lines & tx.waiting.lines_of(taken_on):
            raise WaitersFirst


#: The precedence of requests that do not wait: after all waiting leases.
LAST = Precedence()
