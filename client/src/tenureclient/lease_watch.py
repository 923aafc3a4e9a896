"""Watching a lease until it has changed as expected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenureclient import errors
from tenureclient.models import Lease
from tenureclient.moments import format_duration

_POLL = timedelta(seconds=3)
_LONGEST_POLL = timedelta(seconds=60)
_FAILURES_IN_A_ROW = 5


@dataclass(frozen=True, slots=True)
class WaitProgress:
    """The lease as last seen (None if it is gone) and the times of a wait."""

    lease: Lease | None
    elapsed: timedelta
    until_start: timedelta | None
    """Time until the lease starts; None if the start is in the past."""


class LeaseWatch:
    """Asks for a lease again and again, less often while its start is far away."""

    def __init__(
        self, get: Callable[[str], Lease], *, clock: Callable[[], datetime], sleep: Callable[[float], None]
    ) -> None:
        self._get = get
        self._clock = clock
        self._sleep = sleep

    def until(
        self, lease_id: str, timeout: timedelta | None, on_progress: Callable[[WaitProgress], None] | None, awaited: str
    ) -> Iterator[Lease | None]:
        """Yield the lease repeatedly, None once it is gone, until the timeout passes."""
        started = self._clock()
        failures = 0
        while True:
            try:
                lease: Lease | None = self._get(lease_id)
            except errors.NotFound:
                lease = None
            except (errors.ConnectionFailed, errors.ServerError):
                failures += 1
                if failures >= _FAILURES_IN_A_ROW:
                    raise
            else:
                failures = 0
            now = self._clock()
            until_start: timedelta | None = None
            if not failures:
                if lease is not None and lease.status in ("PENDING", "CREATING") and lease.start_date > now:
                    until_start = lease.start_date - now
                if on_progress is not None:
                    on_progress(WaitProgress(lease, now - started, until_start))
                yield lease
            pause = _POLL if until_start is None else min(max(until_start, _POLL), _LONGEST_POLL)
            if timeout is not None:
                left = timeout - (now - started)
                if left <= timedelta():
                    raise errors.WaitTimedOut(
                        f"Lease {lease_id} did not come to {awaited} within {format_duration(timeout)}."
                    )
                pause = min(pause, left)
            self._sleep(pause.total_seconds())
