"""``kill -9`` of the real program while an enforcement service has received its call and not yet answered.

After a restart the service has committed every lease that exists once, and no other lease.
"""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.support.crashes import Traces, wait_until_gone
from tests.support.credits import Call, Credits, open_credits
from tests.support.standalone import Caller, Standalone, rfc3339, start
from tests.support.waiting import wait_for

HOSTS = 2
CALLS = ("check-create", "commit-create", "check-update", "commit-update", "on-end")

pytestmark = pytest.mark.crash


@contextmanager
def running(data_dir: Path, credits: Credits) -> Iterator[Standalone]:
    service = start(data_dir, hosts=HOSTS, program=("tests.scenarios.enforced_standalone:main", credits.url))
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.kill()


def let_time_pass(data_dir: Path) -> None:
    """Make all waiting messages due, also those that the killed process had claimed or was about to book."""
    with closing(sqlite3.connect(data_dir / "tenure.db")) as file, file:
        file.execute("UPDATE outbox SET ready_at = '2020-01-01 00:00:00.000000' WHERE ready_at IS NOT NULL")


def all_messages_sent(data_dir: Path) -> bool:
    with closing(sqlite3.connect(data_dir / "tenure.db")) as file:
        return file.execute("SELECT count(*) FROM outbox WHERE ready_at IS NOT NULL").fetchone() == (0,)


def calls_of(credits: Credits, call: str) -> list[Call]:
    return [received for received in credits.calls if received.path.endswith(f"/{call}")]


def kill(service: Standalone, credits: Credits, call: str, received: Call) -> None:
    """Kill the program in the middle of this call, if it is about a lease that was committed or is being created."""
    never_made = call == "on-end" and "commit-create" not in credits.order[received.body["lease"]["id"]]
    if received.path.endswith(f"/{call}") and not never_made:
        service.process.kill()


class Story:
    """The life of a lease: booked, extended and deleted. After a crash it continues where it was."""

    def __init__(self, credits: Credits) -> None:
        self._credits = credits

    def wait_for_call(self, lease: dict[str, Any], call: str) -> None:
        wait_for(call, lambda: call in self._credits.order.get(lease["id"], []))

    def go_on(self, caller: Caller) -> str:
        """Do the remaining steps, and return the id of the lease. Raises the errors of a client of a killed service."""
        [lease] = caller.call("GET", "/leases")[1]["leases"] or [self._booked(caller)]
        self.wait_for_call(lease, "commit-create")
        begin, end = (datetime.fromisoformat(lease[name]) for name in ("start_date", "end_date"))
        if end - begin < timedelta(hours=2):
            longer = {"end_date": rfc3339(end + timedelta(hours=1))}
            status, answer = caller.call("PUT", f"/leases/{lease['id']}", longer)
            assert status == 200, answer
        self.wait_for_call(lease, "commit-update")
        assert caller.call("DELETE", f"/leases/{lease['id']}")[0] == 204
        wait_until_gone(caller, lease)
        self.wait_for_call(lease, "on-end")
        return str(lease["id"])

    def _booked(self, caller: Caller) -> dict[str, Any]:
        status, lease = caller.book(1, delay=7200, seconds=3600)
        assert status == 201, lease
        return dict(lease)


def test_standalone_killed_during_each_call_of_the_enforcement_service_continues(tmp_path: Path):
    """The program is killed during the first call of each kind; each time the story continues where it was."""
    data_dir = tmp_path / "data"
    with open_credits() as credits:
        story = Story(credits)
        for call in CALLS:
            with running(data_dir, credits) as service:
                credits.then = partial(kill, service, credits, call)
                with suppress(OSError, HTTPException):
                    story.go_on(service.caller())
                assert service.ended() == -signal.SIGKILL, call
            credits.then = lambda _call: None
            let_time_pass(data_dir)
        with running(data_dir, credits) as service:
            wait_for("the last call once more", lambda: len(calls_of(credits, "on-end")) == 3)
            wait_for("all calls to be recorded", lambda: all_messages_sent(data_dir))
            assert service.stop() == 0
    withdrawn, booked = sorted(credits.order.values(), key=len)
    assert withdrawn == ["on-end"]
    assert booked == ["commit-create", "commit-update", "on-end"]
    assert [len(calls_of(credits, call)) for call in ("check-create", "check-update")] == [2, 2]
    for call in ("commit-create", "commit-update"):
        repeated = calls_of(credits, call)
        assert len(repeated) > 1, "the call was not repeated"
        assert len({received.headers["idempotency-key"] for received in repeated}) == 1
    Traces(f"sqlite:///{data_dir / 'tenure.db'}", data_dir / "cloud.db", HOSTS).assert_sound(idle=True)
