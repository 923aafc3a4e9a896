"""What is seen of a wait."""

from __future__ import annotations

import io
from datetime import timedelta

from tenureclient.cli.progress import ProgressDisplay
from tenureclient.lease_watch import WaitProgress
from tenureclient.models import Lease

LEASE = {
    "id": "x",
    "name": "bio",
    "start_date": "2027-03-01T10:00:00Z",
    "end_date": "2027-03-02T10:00:00Z",
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress(status: str | None, seconds: int, until_start: int | None = None) -> WaitProgress:
    return WaitProgress(
        None if status is None else Lease.from_wire({**LEASE, "status": status}),
        timedelta(seconds=seconds),
        None if until_start is None else timedelta(seconds=until_start),
    )


def test_on_a_terminal_one_line_changes() -> None:
    terminal = Terminal()
    with ProgressDisplay(terminal) as display:
        display(progress("PENDING", 0, 90))
        display(progress("ACTIVE", 90))
    assert terminal.getvalue() == (
        "\rLease bio: PENDING, starts in 1m30s (0s elapsed)\rLease bio: ACTIVE (1m30s elapsed)               \n"
    )


def test_log_has_a_line_per_change_and_per_minute() -> None:
    log = io.StringIO()
    with ProgressDisplay(log) as display:
        for second in range(0, 130, 10):
            display(progress("PENDING", second, 130 - second))
        display(progress("DELETING", 130))
        display(progress(None, 131))
    assert log.getvalue().splitlines() == [
        "Lease bio: PENDING, starts in 2m10s (0s elapsed)",
        "Lease bio: PENDING, starts in 1m10s (1m elapsed)",
        "Lease bio: PENDING, starts in 10s (2m elapsed)",
        "Lease bio: DELETING (2m10s elapsed)",
        "Lease bio: gone (2m11s elapsed)",
    ]


def test_missing_lease_is_shown_under_the_users_name_for_it() -> None:
    log = io.StringIO()
    with ProgressDisplay(log, "bio-42") as display:
        display(progress(None, 0))
    assert log.getvalue() == "Lease bio-42: gone (0s elapsed)\n"


def test_display_without_progress_writes_nothing() -> None:
    terminal = Terminal()
    with ProgressDisplay(terminal):
        pass
    assert terminal.getvalue() == ""
