"""``kill -9`` of the real program while a service of the site has taken its call and not yet answered.

After a restart the service has been charged once for everything that is, and for nothing that is not.
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
    """Until what waits to be told may be told: what is claimed by the dead, what they had still to book."""
    with closing(sqlite3.connect(data_dir / "tenure.db")) as file, file:
        file.execute("UPDATE outbox SET ready_at = '2020-01-01 00:00:00.000000' WHERE ready_at IS NOT NULL")


def told_everything(data_dir: Path) -> bool:
    with closing(sqlite3.connect(data_dir / "tenure.db")) as file:
        return file.execute("SELECT count(*) FROM outbox WHERE ready_at IS NOT NULL").fetchone() == (0,)


def calls_of(credits: Credits, call: str) -> list[Call]:
    return [one for one in credits.calls if one.path.endswith(f"/{call}")]


def kill(service: Standalone, credits: Credits, call: str, taken: Call) -> None:
    """Kill the program in the middle of that call about the lease that came about."""
    never_made = call == "on-end" and "commit-create" not in credits.order[taken.body["lease"]["id"]]
    if taken.path.endswith(f"/{call}") and not never_made:
        service.process.kill()


class Story:
    """A lease that is booked, prolonged and deleted, as far as it goes; and from there on again."""

    def __init__(self, credits: Credits) -> None:
        self._credits = credits

    def told(self, lease: dict[str, Any], what: str) -> None:
        wait_for(what, lambda: what in self._credits.order.get(lease["id"], []))

    def go_on(self, caller: Caller) -> str:
        """Do what is not done yet; the lease's id. Raises what a client sees of a service that is killed."""
        [lease] = caller.call("GET", "/leases")[1]["leases"] or [self._booked(caller)]
        self.told(lease, "commit-create")
        begin, end = (datetime.fromisoformat(lease[name]) for name in ("start_date", "end_date"))
        if end - begin < timedelta(hours=2):
            longer = {"end_date": rfc3339(end + timedelta(hours=1))}
            status, answer = caller.call("PUT", f"/leases/{lease['id']}", longer)
            assert status == 200, answer
        self.told(lease, "commit-update")
        assert caller.call("DELETE", f"/leases/{lease['id']}")[0] == 204
        wait_until_gone(caller, lease)
        self.told(lease, "on-end")
        return str(lease["id"])

    def _booked(self, caller: Caller) -> dict[str, Any]:
        status, lease = caller.book(1, delay=7200, seconds=3600)
        assert status == 201, lease
        return dict(lease)


def test_killed_when_the_service_has_taken_each_of_the_calls(tmp_path: Path):
    """One after the other, the first time that it is made; each time the story goes on where it was."""
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
            wait_for("all calls to be recorded", lambda: told_everything(data_dir))
            assert service.stop() == 0
    withdrawn, booked = sorted(credits.order.values(), key=len)
    assert withdrawn == ["on-end"]
    assert booked == ["commit-create", "commit-update", "on-end"]
    assert [len(calls_of(credits, call)) for call in ("check-create", "check-update")] == [2, 2]
    for call in ("commit-create", "commit-update"):
        again = calls_of(credits, call)
        assert len(again) > 1, "it was told again"
        assert len({one.headers["idempotency-key"] for one in again}) == 1
    Traces(f"sqlite:///{data_dir / 'tenure.db'}", data_dir / "cloud.db", HOSTS).assert_sound(idle=True)
