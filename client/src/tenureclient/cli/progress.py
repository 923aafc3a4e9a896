"""The display of a running wait."""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import Self, TextIO

from tenureclient.cli.printable import printable
from tenureclient.lease_watch import WaitProgress
from tenureclient.moments import format_duration

_QUIET = timedelta(minutes=1)


class ProgressDisplay:
    """Shows the status, the elapsed time and the time until the start.

    On a terminal it is a single line that changes. Elsewhere, as in a log, it writes a line for each change
    of the status, and at least one a minute to show that it is alive.
    """

    def __init__(self, stream: TextIO, name: str = "") -> None:
        """Show the progress on a stream; ``name`` names a lease that no longer exists."""
        self._stream = stream
        self._name = name
        self._on_terminal = stream.isatty()
        self._width = 0
        self._last_status: str | None = None
        self._last_shown = timedelta()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            self._stream.write("\n")
            self._stream.flush()

    def __call__(self, progress: WaitProgress) -> None:
        status = "gone" if progress.lease is None else progress.lease.status
        self._name = self._name if progress.lease is None else progress.lease.name
        start = "" if progress.until_start is None else f", starts in {format_duration(progress.until_start)}"
        elapsed = format_duration(progress.elapsed)
        text = f"Lease {printable(self._name)}: {status}{start} ({elapsed} elapsed)"
        if self._on_terminal:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        elif status != self._last_status or progress.elapsed - self._last_shown >= _QUIET:
            self._stream.write(text + "\n")
            self._last_shown = progress.elapsed
        self._last_status = status
        self._stream.flush()
