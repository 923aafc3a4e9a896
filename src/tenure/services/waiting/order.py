"""The order of requests: no later request takes room for which a lease on the waiting list comes first."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from tenure.store.conflict import WaitersFirst
from tenure.store.database import Transaction

R = TypeVar("R")


def in_order(
    work: Callable[[Transaction], R], *, before: int | None = None, served: Collection[int] = ()
) -> Callable[[Transaction], R]:
    """Return the same work, which raises ``WaitersFirst`` if it takes room for which a waiting lease comes first.

    A waiting lease comes first if it waits for something of the same inventory and region, and if something of that was
    freed that it was not offered yet. With ``before``, only leases of lower numbers come first; these were offered what
    was ``served``, as ids of ``freed_room``.

    The check comes after the search for room. So if the search has seen what another transaction has freed, the check
    sees that it was freed; and what is freed after the search is not taken by this transaction.
    """

    def checked(tx: Transaction) -> R:
        result = work(tx)
        gained = tx.gains.resource_ids
        lines = tx.waiting.to_be_served(before, without=served) if gained else set()
        if lines and lines & tx.waiting.lines_of(gained):
            raise WaitersFirst
        return result

    return checked
