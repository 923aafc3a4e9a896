"""Workers: one attempt per event, a limit for each lane, and no lost attempts."""

from __future__ import annotations

import threading

import pytest

from tenure.services.execution.workers import Lane, Workers
from tests.support.waiting import patience


def test_an_event_is_never_attempted_twice_at_once_and_a_lane_limits_its_workers():
    workers, go, made = Workers(1), threading.Event(), []

    def attempt() -> None:
        made.append(threading.current_thread())
        assert go.wait(patience())

    assert workers.begin("first", Lane.STARTS, attempt)
    assert not workers.begin("first", Lane.OTHERS, attempt)  # it is under way
    assert not workers.begin("second", Lane.STARTS, attempt)  # all workers are busy
    assert workers.begin("second", Lane.OTHERS, attempt)
    assert not workers.has_room(Lane.STARTS)
    assert workers.has_room(Lane.REQUESTS)
    assert workers.is_at("first")
    assert not workers.is_at("third")
    assert not workers.join(0.01)
    go.set()
    assert workers.join(patience())
    assert not workers.is_at("first")
    assert len(made) == 2
    assert threading.current_thread() not in made


def test_without_workers_attempts_run_in_the_calling_thread():
    made: list[threading.Thread] = []
    workers = Workers(0)
    assert workers.has_room(Lane.STARTS)
    assert workers.begin("first", Lane.STARTS, lambda: made.append(threading.current_thread()))
    assert made == [threading.current_thread()]


def test_callback_when_a_worker_is_free():
    free = threading.Event()
    workers = Workers(1, free.set)
    assert workers.begin("first", Lane.STARTS, lambda: None)
    assert free.wait(patience())
    assert workers.begin("first", Lane.STARTS, lambda: None)
    assert workers.join(patience())


def test_failed_thread_start_loses_neither_worker_nor_event(monkeypatch: pytest.MonkeyPatch):
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers, made = Workers(1), threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert not workers.begin("first", Lane.STARTS, made.set)
    assert workers.join(0)
    assert workers.begin("first", Lane.STARTS, made.set)
    assert made.wait(patience())
    assert workers.join(patience())
