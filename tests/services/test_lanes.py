"""Lanes: who runs, who waits and who is refused; and what a deadline ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from tenure import deadlines
from tenure.config import new_config
from tenure.deadlines import Arrival, CallerGone, Deadline, SearchTooLong
from tenure.deployment import bounds_of
from tenure.domain.errors import Busy
from tenure.domain.lanes import USUAL, Bounds, Lane
from tenure.services.lanes import Lanes, release_permits
from tenure.services.manager import LANES, OPERATIONS
from tests.support.waiting import patience, wait_for

#: Two at a time, one of a project; three wait, two of a project, for as long as a test takes.
NARROW = Bounds(2, 1, 3, 2, patience())


@dataclass
class Rig:
    """Lanes with operations that go on until they are released."""

    lanes: Lanes
    threads: ThreadPoolExecutor
    running: list[str] = field(default_factory=list)
    go_on: dict[str, threading.Event] = field(default_factory=dict)

    def begin(self, project: str, name: str, arrival: Arrival | None = None) -> Future[None]:
        """Begin an operation in a thread of its own."""
        self.go_on[name] = threading.Event()
        return self.threads.submit(self._carry_out, project, name, arrival)

    def wait_until_running(self, *names: str) -> None:
        wait_for(lambda: f"{names} to run, not {self.running}", lambda: set(names) <= set(self.running))

    def runs_last(self, name: str) -> bool:
        return self.running[-1] == name

    @property
    def waiting(self) -> int:
        return self.lanes.count_waiting(Lane.SEARCHING)

    def _carry_out(self, project: str, name: str, arrival: Arrival | None) -> None:
        with deadlines.arrived(arrival or deadlines.arrival()), self.lanes.enter(Lane.SEARCHING, project):
            self.running.append(name)
            assert self.go_on[name].wait(patience())


@contextmanager
def rig(bounds: Bounds = NARROW) -> Iterator[Rig]:
    with ThreadPoolExecutor(16) as threads:
        made = Rig(Lanes(dict.fromkeys(Lane, bounds), search_seconds=patience()), threads)
        try:
            yield made
        finally:
            for event in made.go_on.values():
                event.set()


def wait_until_waiting(made: Rig, number: int) -> None:
    wait_for(lambda: f"{number} to wait, not {made.waiting}", lambda: made.waiting == number)


def test_a_project_waits_for_itself_and_for_no_other():
    with rig() as made:
        made.begin("a", "a1")
        made.wait_until_running("a1")
        made.begin("a", "a2")
        wait_until_waiting(made, 1)
        made.begin("b", "b1")
        made.wait_until_running("b1")
        assert made.running == ["a1", "b1"]


def test_what_finds_no_room_to_wait_is_refused_at_once():
    with rig() as made:
        made.begin("a", "a1")
        made.wait_until_running("a1")
        for number in range(2):
            made.begin("a", f"waits-{number}")
            wait_until_waiting(made, number + 1)
        with pytest.raises(Busy):
            made.begin("a", "a4").result(patience())
        made.begin("b", "b1")
        made.wait_until_running("b1")
        made.begin("b", "b2")
        wait_until_waiting(made, 3)
        with pytest.raises(Busy):  # too many in all
            made.begin("c", "c1").result(patience())


def test_a_booking_has_a_deadline_until_it_has_changed_something():
    lanes = Lanes(search_seconds=5.0)
    long_ago = Arrival(deadlines.arrival().at - 11.0)
    with deadlines.arrived(long_ago), lanes.enter(Lane.BOOKING, "a"):
        with pytest.raises(Busy, match=r"not carried out within 10 seconds.*nothing was changed"):
            deadlines.check()
        deadlines.lift()
        deadlines.check()
    deadlines.check()


def test_nothing_waits_beyond_its_deadline():
    lanes = Lanes({**dict.fromkeys(Lane, Bounds(1, 1, 1, 1, patience()))}, search_seconds=5.0)
    with (
        lanes.enter(Lane.SEARCHING, "a"),
        deadlines.arrived(Arrival(deadlines.arrival().at - 6.0)),
        pytest.raises(Busy),
        lanes.enter(Lane.SEARCHING, "a"),
    ):
        pytest.fail("it ran beside the other")


def test_projects_take_turns():
    """A project that has waited for long with many comes no earlier than others with one."""
    with rig(Bounds(1, 1, 9, 9, patience())) as made:
        made.begin("a", "a1")
        made.wait_until_running("a1")
        for number, (project, name) in enumerate([("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")]):
            made.begin(project, name)
            wait_until_waiting(made, number + 1)
        for name in ("a1", "a2", "b1", "c1", "a3"):
            wait_for(lambda: f"the next to run, not {made.running}", partial(made.runs_last, name))
            made.go_on[name].set()
    assert made.running == ["a1", "a2", "b1", "c1", "a3"]


def test_what_waits_too_long_is_refused():
    with rig(Bounds(1, 1, 1, 1, 0.01)) as made:
        made.begin("a", "a1")
        made.wait_until_running("a1")
        with pytest.raises(Busy):
            made.begin("b", "b1").result(patience())
        assert made.waiting == 0


def test_what_waits_is_dropped_when_its_caller_disconnects():
    gone = threading.Event()
    with rig() as made:
        made.begin("a", "a1")
        made.wait_until_running("a1")
        waiting = made.begin("a", "a2", Arrival(deadlines.arrival().at, gone.is_set))
        gone.set()
        with pytest.raises(CallerGone):
            waiting.result(patience())
    assert made.running == ["a1"]


def test_an_operation_that_waits_for_the_cloud_releases_its_permit_once():
    lanes = Lanes(dict.fromkeys(Lane, Bounds(1, 1, 0, 0, 0.0)))
    with lanes.enter(Lane.BOOKING, "a"):
        with pytest.raises(Busy), lanes.enter(Lane.BOOKING, "a"):
            pass
        release_permits()
        with lanes.enter(Lane.BOOKING, "a"):
            pass
    with lanes.enter(Lane.BOOKING, "a"), pytest.raises(Busy), lanes.enter(Lane.BOOKING, "a"):
        pass


def test_the_deadline_of_a_search_begins_with_the_arrival_of_its_request():
    now, lanes = deadlines.arrival().at, Lanes(search_seconds=5)
    with deadlines.arrived(Arrival(now - 4)), lanes.enter(Lane.SEARCHING, "a"):
        assert deadlines.seconds_left() <= 1
    with deadlines.arrived(Arrival(now - 6)), lanes.enter(Lane.SEARCHING, "a"), pytest.raises(SearchTooLong):
        deadlines.check()


def test_a_deadline_inside_another_is_never_later():
    clock = [0.0]
    outer = Deadline(1.0, 1.0, seconds=lambda: clock[0])
    with deadlines.within(outer):
        inner = deadlines.until_at_most(1e9)
        assert inner.at <= outer.at or inner is outer
        clock[0] = 1.0
        with deadlines.within(inner), pytest.raises(SearchTooLong):
            deadlines.check()


def test_work_ends_when_its_caller_disconnects():
    gone = threading.Event()
    with deadlines.within(Deadline(deadlines.arrival().at + patience(), 1.0, gone.is_set)):
        deadlines.check()
        gone.set()
        with pytest.raises(CallerGone):
            deadlines.check()


def test_each_operation_has_a_lane():
    """Lanes are given by name, and what has been renamed would be in the lane of reading."""
    assert LANES.keys() | {"health"} == OPERATIONS


def test_the_options_have_the_usual_bounds():
    assert bounds_of(new_config()) == USUAL
