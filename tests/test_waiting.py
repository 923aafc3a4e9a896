"""Waits are stretched by the load of the machine, and by nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.support.waiting import COMMAND_SECONDS, HANG_SECONDS, MOST, SECONDS, Deadline, Machine, patience, wait_for


@dataclass
class Load:
    """A machine of two processors on which time passes only while a test waits."""

    now: float = 0.0
    average: float = 0.0
    running: int = 1
    niceness: int = 0
    #: Ticks of all processors since the start of the machine, and those of them that its host gave to others.
    ticks: int = 1000
    stolen: int = 0
    pauses: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def statistics(self) -> str:
        cpu = f"cpu  0 0 0 {self.ticks - self.stolen} 0 0 0 {self.stolen} 0 0"
        return f"{cpu}\ncpu0 {cpu[5:]}\nprocs_running {self.running}\nprocs_blocked 0\n"

    def pass_ticks(self, ticks: int, stolen: int) -> None:
        self.ticks += ticks
        self.stolen += stolen

    @property
    def machine(self) -> Machine:
        return Machine(
            clock=lambda: self.now,
            sleep=self.sleep,
            load=lambda: self.average,
            statistics=self.statistics,
            processors=lambda: 2,
            niceness=lambda: self.niceness,
        )


@pytest.mark.parametrize(
    ("load", "busyness"),
    [
        pytest.param(Load(), 1, id="idle"),
        pytest.param(Load(average=2.0, running=2), 1, id="a process for each processor"),
        pytest.param(Load(average=6.0), 3, id="three for each by the average of a minute"),
        pytest.param(Load(running=6), 3, id="three for each since just now"),
        pytest.param(Load(average=3.0, niceness=3), 1 + 0.5 * 1.25**3, id="at low priority"),
        pytest.param(Load(niceness=19), 1, id="at low priority on an idle machine"),
        pytest.param(Load(stolen=500), 2, id="half of the time is stolen"),
        pytest.param(Load(average=6.0, stolen=500), 6, id="load and stolen time"),
        pytest.param(Load(average=6.0, niceness=19, stolen=900), MOST, id="no more than the most"),
    ],
)
def test_work_takes_longer_on_a_busy_machine(load: Load, busyness: float):
    assert load.machine.busyness() == pytest.approx(busyness)


def test_stolen_time_is_that_of_the_last_second():
    load = Load(stolen=500)
    machine = load.machine
    assert machine.busyness() == pytest.approx(2)
    load.pass_ticks(99, stolen=99)
    assert machine.busyness() == pytest.approx(2)  # too short to tell
    load.pass_ticks(101, stolen=51)
    assert machine.busyness() == pytest.approx(4)  # 150 of 200 ticks
    load.pass_ticks(200, stolen=0)
    assert machine.busyness() == pytest.approx(1)


def test_time_on_a_busy_machine_counts_for_less():
    load = Load()
    deadline = Deadline(10, load.machine)
    load.now = 9
    assert not deadline.passed()
    load.average = 6.0  # from now on three seconds count as one
    load.now = 11.9
    assert not deadline.passed()
    load.now = 12.1
    assert deadline.passed()
    assert deadline.waited == pytest.approx(12.1)


def test_a_wait_returns_the_first_answer_that_is_true():
    load, answers = Load(), iter([0, None, "", "here", "too late"])
    assert wait_for("an answer", lambda: next(answers), machine=load.machine) == "here"
    assert len(load.pauses) == 3


def test_a_wait_that_is_over_at_once_does_not_pause():
    load = Load()
    assert wait_for("an answer", lambda: True, machine=load.machine)
    assert load.pauses == []


def test_a_wait_is_long_on_a_busy_machine_and_ends():
    load = Load(average=4.0)
    with pytest.raises(AssertionError, match=r"waited 2\d s \(10 s of an idle machine\) for a miracle"):
        wait_for("a miracle", lambda: False, seconds=10, machine=load.machine)
    assert 20 < load.now < 21


def test_a_failed_wait_reports_the_last_state():
    load = Load()
    with pytest.raises(AssertionError, match="for a third, at 1 s"):
        wait_for(lambda: f"a third, at {load.now:.0f} s", lambda: False, seconds=1, machine=load.machine)


def test_pauses_grow_up_to_the_longest():
    load = Load()
    with pytest.raises(AssertionError):
        wait_for("nothing", lambda: False, seconds=10, pause=0.5, machine=load.machine)
    assert load.pauses[0] == pytest.approx(0.01)
    assert load.pauses == sorted(load.pauses)
    assert load.pauses[-1] == pytest.approx(0.5)


def test_limits_of_this_machine(pytestconfig: pytest.Config):
    """No wait of the usual length, no program and nothing that hangs lasts until pytest ends the whole run."""
    assert SECONDS <= patience() <= MOST * SECONDS
    given_up = float(pytestconfig.getini("faulthandler_timeout"))
    assert COMMAND_SECONDS < MOST * SECONDS < HANG_SECONDS < given_up
