"""When a preemptible server that is in the way is stopped and deleted, in whatever cloud."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum, auto
from typing import Final

#: How long before the deadline a server is deleted at the latest; less where its notice is short.
_MARGIN: Final = timedelta(seconds=15)
#: The least of that, however short the notice is. It is longer than the time between two looks at a server.
_LAST: Final = timedelta(seconds=6)


class Step(Enum):
    """What is done with a server that has been notified."""

    STAY = auto()
    STOP = auto()
    DELETE = auto()


def next_step(left: timedelta, notice: timedelta) -> Step:
    """What is due where so much time is left before the deadline, of the time that was left when it was notified.

    A server is stopped when half of its notice is over. With a short notice it is stopped earlier, so that at least one
    look finds it due before the look that deletes it.
    """
    deleted_from = max(_LAST, min(_MARGIN, notice / 4))
    if left <= deleted_from:
        return Step.DELETE
    return Step.STOP if left <= max(notice / 2, deleted_from + _LAST) else Step.STAY
