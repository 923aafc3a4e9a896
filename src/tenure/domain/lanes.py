"""The lanes of operations, and how many of each run and wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Lane(Enum):
    """The kinds of operations that do not wait for each other."""

    #: Cheap looks at what is stored.
    READING = "reading"
    #: Searches, and all that is tried and undone.
    SEARCHING = "searching"
    #: Changes.
    BOOKING = "booking"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many operations of a lane run and wait, in all and of a project, and how many seconds they wait at most."""

    running: int
    running_of_project: int
    waiting: int
    waiting_of_project: int
    wait_seconds: float

    @property
    def most(self) -> int:
        """How many operations there are in the lane at most."""
        return self.running + self.waiting


#: The bounds of the lanes of a process, unless the operator has set others.
USUAL: Mapping[Lane, Bounds] = {
    Lane.READING: Bounds(8, 4, 48, 24, 10.0),
    Lane.SEARCHING: Bounds(2, 1, 32, 16, 2.0),
    Lane.BOOKING: Bounds(8, 4, 64, 32, 10.0),
}
