"""When a preemptible server that is in the way is stopped and deleted, in any cloud."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum, auto
from typing import Final

#: How long before the deadline a server is deleted; less if its notice is short.
_MARGIN: Final = timedelta(seconds=15)
#: The minimum of that time, however short the notice is. It is longer than the time between two checks of a server.
_LAST: Final = timedelta(seconds=6)


class Step(Enum):
    """The next step for a server that has been notified."""

    STAY = auto()
    STOP = auto()
    DELETE = auto()


def next_step(left: timedelta, notice: timedelta) -> Step:
    """Return the step that is due ``left`` before the deadline, for a server that was notified ``notice`` before it.

    A server is stopped when half of its notice is over. With a short notice it is stopped earlier, so that at least one
    check finds the stop due before the check that deletes the server.
    """
    deleted_from = max(_LAST, min(_MARGIN, notice / 4))
    if left <= deleted_from:
        return Step.DELETE
    return Step.STOP if left <= max(notice / 2, deleted_from + _LAST) else Step.STAY
