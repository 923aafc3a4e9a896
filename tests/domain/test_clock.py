from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest

from tenure.clock import SimulatedClock, SystemClock
from tests.support.waiting import patience

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_a_simulated_clock_stands_still_until_it_is_moved():
    clock = SimulatedClock(NOW)
    assert clock.now() == clock.now() == NOW
    clock.advance(HOUR)
    assert clock.now() == NOW + HOUR
    clock.set(NOW)
    assert clock.now() == NOW


def test_a_simulated_clock_is_in_utc():
    east = timezone(timedelta(hours=5))
    assert SimulatedClock(NOW.astimezone(east)).now().tzinfo is UTC
    clock = SimulatedClock(NOW)
    clock.set(NOW.astimezone(east))
    assert clock.now() == NOW
    assert clock.now().tzinfo is UTC


def test_a_simulated_clock_needs_a_zone():
    with pytest.raises(ValueError):
        SimulatedClock(NOW.replace(tzinfo=None))
    with pytest.raises(ValueError):
        SimulatedClock(NOW).set(NOW.replace(tzinfo=None))


def test_waiting_for_a_past_time_returns_at_once():
    SimulatedClock(NOW).wait(threading.Event(), NOW)
    SystemClock().wait(threading.Event(), datetime.now(UTC) - HOUR)


def test_waiting_ends_when_the_time_has_come():
    clock = SimulatedClock(NOW)
    with ThreadPoolExecutor() as pool:
        waits = [pool.submit(clock.wait, threading.Event(), NOW + HOUR) for _ in range(3)]
        clock.advance(HOUR / 2)
        clock.advance(HOUR / 2)
        for wait in waits:
            wait.result(timeout=patience())


def test_waiting_goes_on_before_the_time_has_come():
    clock, wake = SimulatedClock(NOW), threading.Event()
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(clock.wait, wake, NOW + HOUR)
        clock.advance(HOUR / 2)
        with pytest.raises(TimeoutError):
            wait.result(timeout=0.005)
        wake.set()
        wait.result(timeout=patience())


@pytest.mark.parametrize("clock", [SimulatedClock(NOW), SystemClock()], ids=["simulated", "system"])
def test_waiting_ends_when_woken_and_leaves_the_wake_up_set(clock: SimulatedClock | SystemClock):
    wake = threading.Event()
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(clock.wait, wake, clock.now() + HOUR)
        wake.set()
        wait.result(timeout=patience())
    assert wake.is_set()
    clock.wait(wake, clock.now() + HOUR)


def test_system_clock_is_timezone_aware_and_in_utc():
    before = datetime.now(UTC)
    assert before <= SystemClock().now() <= datetime.now(UTC)
    assert SystemClock().now().tzinfo is UTC
