"""Managers that have no room for a call, take it too late, or are stopping: which calls are begun."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from oslo_config.cfg import ConfigOpts

from tenure.clock import SimulatedClock
from tenure.domain.actor import Actor
from tenure.domain.errors import Unavailable
from tenure.rpc.client import RpcClient, remote_manager
from tenure.rpc.server import RpcServer
from tenure.services.manager import Manager
from tests.rpc.conftest import in_memory
from tests.support.waiting import patience, wait_for
from tests.support.world import OWNER

pytestmark = pytest.mark.slow


@dataclass
class Slow:
    """Leases whose deletion hangs until it is released."""

    begun: list[str] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)

    def delete(self, actor: Actor, lease_id: str) -> None:
        self.begun.append(lease_id)
        assert self.go_on.wait(patience())

    def wait_until_begun(self, number: int) -> None:
        wait_for(lambda: f"{number} calls after {self.begun}", lambda: len(self.begun) >= number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_positional, **_named: None


def manager_of(leases: Slow) -> Manager:
    return Manager.of(lambda _name: leases, lambda: ())


@contextmanager
def serving(conf: ConfigOpts, name: str, leases: Slow, *, threads: int) -> Iterator[RpcServer]:
    server = RpcServer(conf, manager_of(leases), topic=conf.manager.rpc_topic, name=name, threads=threads)
    server.start()
    try:
        yield server
    finally:
        leases.go_on.set()
        server.stop()


@pytest.fixture
def conf(tmp_path: Path) -> ConfigOpts:
    made = in_memory(tmp_path)
    remote(made)
    made.set_override("rpc_response_timeout", 10)
    return made


def remote(conf: ConfigOpts) -> Manager:
    return remote_manager(RpcClient(conf, topic=conf.manager.rpc_topic))


def begin(clients: ThreadPoolExecutor, far: Manager, lease_id: str) -> Future[None]:
    return clients.submit(far.leases.delete, OWNER, lease_id)


def test_a_free_manager_takes_the_calls_of_a_busy_manager(conf: ConfigOpts):
    busy, free, far = Slow(), Slow(), remote(conf)
    free.go_on.set()
    with ThreadPoolExecutor(16) as clients, serving(conf, "busy", busy, threads=1):
        blocked = begin(clients, far, "the first")
        busy.wait_until_begun(1)
        # Several: the in-memory bus gives a call to the first that polls, and two may keep polling in the same order.
        with ExitStack() as others:
            for number in range(3):
                others.enter_context(serving(conf, f"free-{number}", free, threads=16))
            for answer in [begin(clients, far, f"lease-{number}") for number in range(12)]:
                answer.result(patience())
        busy.go_on.set()
        blocked.result(patience())
    assert busy.begun == ["the first"]
    assert len(free.begun) == 12


def test_refused_call_is_not_carried_out_later(conf: ConfigOpts):
    busy, far = Slow(), remote(conf)
    with ThreadPoolExecutor(16) as clients, serving(conf, "busy", busy, threads=2):
        held = [begin(clients, far, "held") for _ in range(2)]
        busy.wait_until_begun(2)
        for answer in [begin(clients, far, "refused") for _ in range(8)]:
            with pytest.raises(Unavailable):
                answer.result(patience())
        busy.go_on.set()
        for answer in held:
            answer.result(patience())
        far.leases.delete(OWNER, "the last")
    assert busy.begun == ["held", "held", "the last"]


def test_a_stop_begins_nothing_and_does_not_wait_for_ever(conf: ConfigOpts):
    busy, far = Slow(), remote(conf)
    conf.set_override("rpc_response_timeout", 4)
    with ThreadPoolExecutor(16) as clients, serving(conf, "busy", busy, threads=1) as server:
        held = begin(clients, far, "held")
        busy.wait_until_begun(1)
        waiting = [begin(clients, far, "waits") for _ in range(4)]
        assert not server.stop(seconds=0.5)
        busy.go_on.set()
        assert server.stop(seconds=patience())
        for answer in waiting:
            with pytest.raises(Unavailable):
                answer.result(patience())
        held.result(patience())
    assert busy.begun == ["held"]


def test_call_without_a_waiting_caller_is_not_carried_out(conf: ConfigOpts):
    """The call is still in the queue when a manager comes; by its clock the caller has given up."""
    leases, far = Slow(), remote(conf)
    with serving(conf, "before", leases, threads=2):
        far.health()  # it has its connection to the message bus
    conf.set_override("rpc_response_timeout", 1)
    with pytest.raises(Unavailable):
        far.leases.delete(OWNER, "late")
    clock = SimulatedClock(datetime.now(UTC) + timedelta(seconds=15))
    server = RpcServer(conf, manager_of(leases), topic=conf.manager.rpc_topic, name="one", threads=2, clock=clock)
    server.start()
    try:
        remote_manager(RpcClient(conf, topic=conf.manager.rpc_topic, clock=clock)).leases.delete(OWNER, "in time")
    finally:
        server.stop()
    assert leases.begun == ["in time"]
