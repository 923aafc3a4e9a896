"""Conflicts between transactions, and wrong transactions."""

from collections.abc import Sequence


class Overtaken(Exception):
    """Another transaction changed what this one had read. This one is rolled back and retried."""


class Overbooked(Exception):
    """This transaction would promise a resource twice: a bug, so a retry is useless."""

    def __init__(self, resource_id: int, reservation_ids: Sequence[str]) -> None:
        super().__init__(f"resource {resource_id} would be promised to reservations {', '.join(reservation_ids)}")


class WaitersFirst(Exception):
    """Leases on the waiting list come before this transaction, which is rolled back and retried after them."""
