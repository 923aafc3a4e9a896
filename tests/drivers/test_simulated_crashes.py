"""The simulated cloud under threads, under several processes, and when a process is killed."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import tenure
from tenure.drivers.contract import CloudBusy, CloudNotFound, Command, Progress, ResourceOccupied, ResourceRef
from tenure.drivers.simulated import POOL, EffectKind, Fault, FaultKind
from tests.drivers.crash_commands import command_for, trusting
from tests.support.simulated import SimulatedCloud
from tests.support.waiting import patience

HOST = "physical:host"
ROOT = Path(__file__).parents[2]
SOURCES = Path(tenure.__file__).parents[1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "cloud.db"
    with SimulatedCloud.create(path, hosts=6) as cloud:
        for number in range(1, 7):
            cloud.ensure_registered(HOST, ResourceRef(str(number), f"sim-host-{number:03d}"))
    return path


@contextmanager
def worker(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.drivers.crash_worker", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{SOURCES}{os.pathsep}{ROOT}"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def assert_whole(path: Path, cloud: SimulatedCloud) -> None:
    """The file is sound, and the journal tells how everything came to be where it is."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    place: dict[str | None, str | None] = {}
    for effect in cloud.world.journal():
        match effect.kind:
            case EffectKind.HOST_POOLED:
                place[effect.host] = POOL
            case EffectKind.HOST_TAKEN:
                assert place[effect.host] == POOL
                place[effect.host] = effect.reservation_id
            case EffectKind.HOST_RETURNED:
                assert place[effect.host] == effect.reservation_id
                place[effect.host] = POOL
            case _:
                pass
    assert place == {host.id: host.belongs_to for host in cloud.world.hosts()}
    subjects = Counter((effect.kind, effect.host, effect.subject) for effect in cloud.world.journal() if effect.subject)
    assert set(subjects.values()) <= {1}


@pytest.mark.crash
@pytest.mark.parametrize("effects", range(10))
def test_a_start_that_was_killed_is_completed_by_another_process(path: Path, effects: int):
    with SimulatedCloud(path) as cloud:
        before = len(cloud.world.journal())
        cloud.inject(Fault(FaultKind.BLOCK, "ensure_started", after_effects=effects))
        with worker("hold", str(path), "ensure_started", "1,2,3") as process:
            assert said(process) == "held"
            process.kill()
            process.wait()
        assert len(cloud.world.journal()) == before + effects
        assert_whole(path, cloud)

        cloud.clear_faults()
        cloud.ensure_started(command_for("r-1", "1,2,3"))
        assert cloud.world.groups()["r-1"].hosts == ("1", "2", "3")
        taken = [effect.host for effect in cloud.world.journal("r-1") if effect.kind == EffectKind.HOST_TAKEN]
        assert sorted(taken, key=str) == ["1", "2", "3"]
        assert_whole(path, cloud)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("verb", "effects"), [("before_end", 1), *(("ensure_ended", effects) for effects in range(10))]
)
def test_an_end_that_was_killed_is_completed_by_another_process(path: Path, verb: str, effects: int):
    with SimulatedCloud(path) as cloud:
        command = trusting(cloud, command_for("r-1", "1,2,3"))
        cloud.ensure_started(command)
        for _ in range(2):
            cloud.world.boot_server(command.project_id, reservation_id="r-1")
        before = len(cloud.world.journal())
        cloud.inject(Fault(FaultKind.BLOCK, verb, after_effects=effects))
        with worker("hold", str(path), verb, "1,2,3") as process:
            assert said(process) == "held"
            process.kill()
            process.wait()
        assert len(cloud.world.journal()) == before + effects
        assert_whole(path, cloud)

        cloud.clear_faults()
        assert cloud.before_end(command, "snapshot").done
        assert cloud.ensure_ended(command).done
        assert cloud.world.servers() == []
        assert cloud.world.pool() == {"1", "2", "3", "4", "5", "6"}
        assert_whole(path, cloud)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("verb", "effects"),
    [*(("ensure_started", effects) for effects in (1, 3, 6)), *(("ensure_ended", effects) for effects in (1, 3, 5))],
)
def test_instances_survive_a_process_that_was_killed(path: Path, verb: str, effects: int):
    command = command_for("r-1", "1,2", "virtual:instance")
    with SimulatedCloud(path) as cloud:
        if verb == "ensure_ended":
            cloud.ensure_started(command)
            cloud.world.instances.boot(command.project_id, "r-1")
        before = len(cloud.world.journal())
        cloud.inject(Fault(FaultKind.BLOCK, verb, after_effects=effects))
        with worker("hold", str(path), verb, "1,2", "virtual:instance") as process:
            assert said(process) == "held"
            process.kill()
            process.wait()
        assert len(cloud.world.journal()) == before + effects
        assert cloud.world.instances.traces("r-1")
        assert_whole(path, cloud)

        cloud.clear_faults()
        if verb == "ensure_started":
            assert cloud.ensure_started(command).done
            assert cloud.drift(HOST, [command], []) == []
            assert cloud.world.instances.units("r-1") == {"1": 2, "2": 2}
        assert cloud.ensure_ended(command).done
        assert cloud.world.instances.traces("r-1") == frozenset()
        assert cloud.world.servers() == []
        assert_whole(path, cloud)


@pytest.mark.crash
@pytest.mark.parametrize("rounds", [1, 3, 7])
def test_a_process_that_is_killed_anywhere_leaves_a_whole_file(path: Path, rounds: int):
    with worker("churn", str(path), "r-1", "1,2,3") as process:
        for _ in range(rounds):
            assert said(process) == "round"
        process.kill()
        process.wait()
    with SimulatedCloud(path) as cloud:
        assert_whole(path, cloud)
        assert cloud.ensure_ended(command_for("r-1", "1,2,3")).done
        assert cloud.world.pool() == {"1", "2", "3", "4", "5", "6"}
        assert cloud.world.servers() == []
        assert_whole(path, cloud)


@pytest.mark.races
def test_processes_share_a_cloud(path: Path):
    """Four processes, two of which want the same hosts, all get on, and one is killed in the middle."""
    with (
        worker("churn", str(path), "r-1", "1,2") as first,
        worker("churn", str(path), "r-2", "2,3") as second,
        worker("churn", str(path), "r-3", "4,5") as third,
        SimulatedCloud(path) as cloud,
    ):
        assert said(third) == "round"
        third.kill()
        third.wait()
        for _ in range(10):
            assert said(first) == "round"
            assert said(second) == "round"
        for process in (first, second):
            process.kill()
            process.wait()
        for reservation, hosts in (("r-1", "1,2"), ("r-2", "2,3"), ("r-3", "4,5")):
            assert cloud.ensure_ended(command_for(reservation, hosts)).done
        assert list(cloud.held(HOST)) == []
        assert cloud.world.pool() == {"1", "2", "3", "4", "5", "6"}
        assert_whole(path, cloud)


@pytest.mark.races
@pytest.mark.parametrize("in_memory", [False, True], ids=["file", "memory"])
def test_sixteen_threads_make_each_effect_once(path: Path, in_memory: bool):
    cloud = SimulatedCloud.create(hosts=6) if in_memory else SimulatedCloud(path)
    ready = threading.Barrier(16)

    def work(command_number: int) -> None:
        command = command_for(f"r-{command_number % 2}", "1,2,3" if command_number % 2 else "4,5,6")
        ready.wait()
        for attempt in range(16):
            try:
                cloud.ensure_started(command)
                break
            except CloudBusy:  # another thread has moved the host at that moment
                assert attempt < 15
        cloud.discover(HOST)
        assert command.reservation_id in cloud.held(HOST)

    with cloud, ThreadPoolExecutor(16) as pool:
        for call in [pool.submit(work, number) for number in range(16)]:
            call.result()
        effects = Counter(
            (effect.kind, effect.reservation_id, effect.host, effect.subject)
            for effect in cloud.world.journal()
            if effect.kind != EffectKind.GROUP_CHANGED
        )
        assert set(effects.values()) == {1}
        assert len([effect for effect in effects if effect[0] == EffectKind.HOST_TAKEN]) == 6


@pytest.mark.races
def test_exactly_one_of_sixteen_threads_gets_the_same_host(path: Path):
    """In twenty rounds; the holder gives the host back only after all threads have tried."""
    together = threading.Barrier(16, timeout=patience())
    holders: list[list[str]] = [[] for _ in range(20)]

    def work(cloud: SimulatedCloud, number: int) -> None:
        command = command_for(f"r-{number}", "1")
        for having in holders:
            together.wait()
            try:
                cloud.ensure_started(command)
                having.append(command.reservation_id)
            except CloudBusy:
                pass
            together.wait()
            assert having == [cloud.world.host("1").belongs_to]
            together.wait()
            if command.reservation_id in having:
                assert cloud.ensure_ended(command).done

    with SimulatedCloud(path) as cloud, ThreadPoolExecutor(16) as pool:
        for call in [pool.submit(work, cloud, number) for number in range(16)]:
            call.result()
        for number in range(16):
            assert cloud.ensure_ended(command_for(f"r-{number}", "1")).done
        assert_whole(path, cloud)


@pytest.mark.races
def test_a_start_and_an_end_at_once_leave_one_or_the_other(path: Path):
    """An end that reports success leaves no host, or all those of a start after it; another one leaves some."""
    command = command_for("r-1", "1,2,3")
    succeeded: dict[str, bool] = {}
    outcomes: list[tuple[bool, bool, tuple[str, ...]]] = []

    def note() -> None:
        group = cloud.world.groups().get("r-1")
        outcomes.append((succeeded["start"], succeeded["end"], group.hosts if group else ()))

    ready, done = threading.Barrier(2, timeout=patience()), threading.Barrier(2, note, timeout=patience())

    def work(name: str, call: Callable[[Command], Progress]) -> None:
        for _ in range(30):
            ready.wait()
            try:
                succeeded[name] = call(command).done
            except CloudBusy:
                succeeded[name] = False
            done.wait()

    with SimulatedCloud(path) as cloud, ThreadPoolExecutor(2) as pool:
        verbs = {"start": cloud.ensure_started, "end": cloud.ensure_ended}
        for call in [pool.submit(work, *verb) for verb in verbs.items()]:
            call.result()
        assert len(outcomes) == 30
        for started, ended, hosts in outcomes:
            if ended:
                assert hosts == () or (started and hosts == ("1", "2", "3"))
            else:
                assert hosts
        # Claims keep two workers from acting on a reservation at once. Without claims, a start can remove hosts from
        # the pool after the end has removed them from the group; the repair then sets them aside again.
        lost = {host.id for host in cloud.world.hosts() if host.belongs_to is None}
        assert lost <= {"1", "2", "3"}
        for resource in command.resources:
            if resource.external_id in lost:
                cloud.ensure_registered(HOST, resource)
        assert_whole(path, cloud)
        assert cloud.ensure_ended(command).done
        assert cloud.world.pool() == {"1", "2", "3", "4", "5", "6"}


@pytest.mark.races
def test_many_openings_of_a_new_file_agree(tmp_path: Path):
    path = tmp_path / "new.db"
    ready = threading.Barrier(8)

    def open_it() -> int:
        ready.wait()
        with SimulatedCloud.create(path, hosts=50) as cloud:
            return len(cloud.discover(HOST))

    with ThreadPoolExecutor(8) as pool:
        assert {call.result() for call in [pool.submit(open_it) for _ in range(8)]} == {50}


def test_a_server_that_is_forced_onto_a_host_during_a_start_stops_it(path: Path):
    command = command_for("r-1", "1,2")
    with SimulatedCloud(path) as cloud, ThreadPoolExecutor() as pool:
        cloud.inject(Fault(FaultKind.BLOCK, "ensure_started", after_effects=2))
        start = pool.submit(cloud.ensure_started, command)
        assert cloud.wait_until_blocked(timeout_seconds=patience())
        cloud.world.force_server("stranger", "2")
        cloud.clear_faults()
        with pytest.raises(CloudBusy, match="HTTP 409"):
            start.result(timeout=patience())
        with pytest.raises(ResourceOccupied, match="sim-host-002"):
            cloud.ensure_started(command)
        assert cloud.world.groups()["r-1"].hosts == ()
        assert "1" in cloud.world.pool()
        assert len(cloud.world.servers()) == 1


def test_a_start_that_an_end_overtakes_takes_nothing_more(path: Path):
    command = command_for("r-1", "1,2")
    with SimulatedCloud(path) as cloud, ThreadPoolExecutor() as pool:
        cloud.inject(Fault(FaultKind.BLOCK, "ensure_started", after_effects=2))
        start = pool.submit(cloud.ensure_started, command)
        assert cloud.wait_until_blocked(timeout_seconds=patience())
        assert cloud.ensure_ended(command).done
        cloud.clear_faults()
        with pytest.raises((CloudBusy, CloudNotFound)):
            start.result(timeout=patience())
        assert list(cloud.held(HOST)) == []
        assert cloud.world.pool() == {"1", "2", "3", "4", "5", "6"}
