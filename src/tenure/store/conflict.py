"""When transactions meet, and when a transaction is wrong."""

from collections.abc import Sequence


class Overtaken(Exception):
    """Somebody else changed what this transaction had read; it is rolled back and tried again."""


class GaveWay(Overtaken):
    """Other transactions wait for what this one has locked for long; it is rolled back, and tried again after them."""


class Overbooked(Exception):
    """This transaction would promise a resource twice: a mistake of ours, so that it is of no use to try it again."""

    def __init__(self, resource_id: int, reservation_ids: Sequence[str]) -> None:
        super().__init__(f"resource {resource_id} would be promised to reservations {', '.join(reservation_ids)}")
