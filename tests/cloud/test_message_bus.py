"""Calls on a real message bus that loses connections, refuses logins and goes away. No other part of a cloud is needed.

What a bus in memory can show is in ``tests/rpc``.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import oslo_messaging
import pytest
from kombu.connection import Connection
from oslo_config.cfg import ConfigOpts

from tenure.config import new_config, read_config
from tenure.domain.errors import Unavailable
from tenure.domain.request import LeaseQuery
from tenure.rpc.bus import notification_transport
from tenure.rpc.client import RpcClient, remote_manager
from tenure.rpc.listener import NovaListener
from tenure.rpc.server import RpcServer
from tenure.services.manager import Manager
from tenure.services.requests.leases import LeaseService
from tests.rpc.test_busy import Slow, begin, manager_of
from tests.rpc.test_repetition import request_of
from tests.support.bus import RABBITMQ_URL, VARIABLE, amqp
from tests.support.deployment import write_config
from tests.support.relay import Relay, relay_to
from tests.support.waiting import patience, wait_for
from tests.support.world import ADMIN, OWNER, World, open_world


@pytest.fixture(autouse=True)
def bus(request: pytest.FixtureRequest) -> None:
    """That of the testbed, unless another is named."""
    if VARIABLE not in os.environ:
        request.getfixturevalue("cloud")


@pytest.fixture
def relay() -> Iterator[Relay]:
    with relay_to(RABBITMQ_URL) as serving:
        yield serving


@pytest.fixture
def topic() -> Iterator[str]:
    name = f"tenure_{uuid4().hex[:8]}"
    yield name
    with Connection(amqp(RABBITMQ_URL), connect_timeout=patience()) as bus:
        for queue in (name, f"{name}.info", f"{name}.one", f"{name}.other"):
            bus.default_channel.queue_delete(queue)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path) as opened:
        yield opened


def at(url: str, folder: Path) -> ConfigOpts:
    conf = new_config()
    file = write_config(folder / f"{uuid4().hex}.conf", {"DEFAULT": {"transport_url": url}})
    read_config(conf, [], files=[file], prog="test")
    return conf


@contextmanager
def serving(conf: ConfigOpts, manager: Manager, *, topic: str, name: str, threads: int = 4) -> Iterator[RpcServer]:
    server = RpcServer(conf, manager, topic=topic, name=name, threads=threads)
    starting = threading.Thread(target=server.start, daemon=True)
    starting.start()
    try:
        yield server
    finally:
        server.stop()
        starting.join(patience())


@contextmanager
def calling(conf: ConfigOpts, *, topic: str) -> Iterator[Manager]:
    """A manager that is called over the bus."""
    client = RpcClient(conf, topic=topic)
    try:
        yield remote_manager(client)
    finally:
        client.close()


class Counting:
    """Leases of a manager, with how often one was asked for."""

    def __init__(self, leases: LeaseService) -> None:
        self._leases = leases
        self.asked: list[str] = []

    def create(self, *, lease_id: str, **named: Any) -> object:
        self.asked.append(lease_id)
        return self._leases.create(lease_id=lease_id, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leases, name)


def wait_until_well(far: Manager) -> None:
    def is_well() -> bool:
        try:
            far.health()
        except Unavailable:
            return False
        return True

    wait_for("the manager to answer", is_well)


def wait_for_managers(topic: str, number: int) -> None:
    """Wait until so many take calls: one that is given the same message twice leaves the second one alone."""
    with Connection(amqp(RABBITMQ_URL), connect_timeout=patience()) as bus:

        def consumers() -> int:
            return int(bus.default_channel.queue_declare(topic, passive=True).consumer_count)

        wait_for(f"{number} managers", lambda: consumers() >= number)


def test_a_call_that_is_delivered_twice_books_once(tmp_path: Path, relay: Relay, topic: str, world: World):
    counting = Counting(world.leases)
    manager = replace(world.service.manager, leases=cast(LeaseService, counting))
    direct = at(RABBITMQ_URL, tmp_path)
    with (
        serving(direct, manager, topic=topic, name="one"),
        serving(direct, manager, topic=topic, name="other"),
        calling(at(relay.url, tmp_path), topic=topic) as far,
    ):
        wait_until_well(far)
        wait_for_managers(topic, 2)
        relay.cut_after(b"leases.create")
        lease = far.leases.create(OWNER, request_of(world))
        wait_for(lambda: f"the second delivery after {counting.asked}", lambda: len(counting.asked) >= 2)
    assert relay.cuts == 1
    assert counting.asked == [lease.id, lease.id]
    assert [lease.id for lease in world.leases.list(ADMIN, LeaseQuery(limit=9)).items] == [lease.id]


def test_api_and_manager_connect_once_the_account_exists(tmp_path: Path, relay: Relay, topic: str):
    relay.refuses = True
    with (
        serving(at(relay.url, tmp_path), manager_of(Slow()), topic=topic, name="one"),
        calling(at(relay.url, tmp_path), topic=topic) as far,
    ):
        for _ in range(3):
            with pytest.raises(Unavailable):
                far.health()
        relay.refuses = False
        wait_until_well(far)


def test_a_busy_manager_leaves_calls_to_a_free_manager(tmp_path: Path, topic: str):
    busy, free, direct = Slow(), Slow(), at(RABBITMQ_URL, tmp_path)
    free.go_on.set()
    with (
        ThreadPoolExecutor(16) as clients,
        serving(direct, manager_of(busy), topic=topic, name="one", threads=1),
        calling(direct, topic=topic) as far,
    ):
        wait_until_well(far)
        blocked = begin(clients, far, "the first")
        busy.wait_until_begun(1)
        with serving(direct, manager_of(free), topic=topic, name="other", threads=16):
            for answer in [begin(clients, far, f"lease-{number}") for number in range(12)]:
                answer.result(patience())
        busy.go_on.set()
        blocked.result(patience())
    assert (busy.begun, len(free.begun)) == (["the first"], 12)


def test_a_stop_does_not_wait_for_a_bus_that_has_gone_away(tmp_path: Path, topic: str):
    """In a process of its own: what oslo.messaging leaves behind goes on looking for the bus until that ends."""
    process = get_context("spawn").Process(target=stop_without_bus, args=(tmp_path, topic))
    process.start()
    process.join(patience())
    ended = process.exitcode
    process.kill()
    assert ended == 0


def stop_without_bus(folder: Path, topic: str) -> None:
    """What that process does; it ends as a manager ends that cannot wait."""
    try:
        with relay_to(RABBITMQ_URL) as relay:
            conf = at(relay.url, folder)
            listener = NovaListener(conf, lambda _host, _health: None, topics=[topic], exchange="openstack")
            listener.start()
            server = RpcServer(conf, manager_of(Slow()), topic=topic, name="one", threads=4)
            threading.Thread(target=server.start, daemon=True).start()
            wait_until_well(remote_manager(RpcClient(at(RABBITMQ_URL, folder), topic=topic)))
            relay.go_away()
            server.stop(seconds=1.0)
            listener.stop(seconds=1.0)
    except BaseException:  # noqa: BLE001  # whatever it is, the process must end
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def test_no_notification_of_nova_stays_in_the_queue(tmp_path: Path, topic: str):
    conf, heard = at(RABBITMQ_URL, tmp_path), threading.Semaphore(0)
    listener = NovaListener(conf, lambda _host, _health: heard.release(), topics=[topic], exchange="openstack")
    listener.start()
    transport = notification_transport(conf)
    nova = oslo_messaging.Notifier(transport, "nova", driver="messagingv2", topics=[topic])
    service = {"host": "compute-1", "disabled": True, "forced_down": False, "binary": "nova-compute"}
    try:
        for _ in range(10):
            nova.info({}, "instance.create.end", {"nova_object.data": {}})
            nova.info({}, "service.update", {"nova_object.data": service})
        assert all(heard.acquire(timeout=patience()) for _ in range(10))
    finally:
        transport.cleanup()
        assert listener.stop()
    with Connection(amqp(RABBITMQ_URL), connect_timeout=patience()) as bus:
        queue = bus.default_channel.queue_declare(f"{topic}.info", passive=True)
        assert (queue.message_count, queue.consumer_count) == (0, 0)
