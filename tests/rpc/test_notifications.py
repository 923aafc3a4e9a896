"""Notifications to consumers of leases, and notifications from Nova."""

from __future__ import annotations

import queue
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import oslo_messaging
import pytest
from oslo_config.cfg import ConfigOpts

from tenure.domain.errors import Unavailable
from tenure.drivers.contract import Health
from tenure.rpc import serving
from tenure.rpc.bus import notification_transport
from tenure.rpc.listener import NovaListener, Report
from tenure.rpc.notifier import NotificationSink
from tenure.services.notifications.outbox import Message
from tests.rpc.conftest import in_memory
from tests.support.waiting import patience
from tests.support.world import NOW, World


class Consumer:
    """Takes notifications as any consumer does."""

    def __init__(self) -> None:
        self.got: queue.Queue[dict[str, Any]] = queue.Queue()

    def info(self, _context: object, publisher_id: str, event_type: str, payload: Any, metadata: Any) -> None:
        self.got.put({"publisher": publisher_id, "type": event_type, "payload": payload, "id": metadata["message_id"]})


@contextmanager
def consumer_of(conf: ConfigOpts, topic: str) -> Iterator[Consumer]:
    consumer = Consumer()
    listener = oslo_messaging.get_notification_listener(
        notification_transport(conf), [oslo_messaging.Target(topic=topic)], [consumer]
    )
    listener.start()
    try:
        yield consumer
    finally:
        listener.stop()
        listener.wait()


@pytest.fixture
def conf(tmp_path: Path) -> ConfigOpts:
    made = in_memory(tmp_path)
    notification_transport(made)
    made.set_override("driver", ["messagingv2"], group="oslo_messaging_notifications")
    made.set_override("topics", [f"topic-{uuid.uuid4().hex}"], group="oslo_messaging_notifications")
    return made


def message(key: str = "k-1") -> Message:
    return Message(1, key, "lease-1", "lease.create", {"lease_id": "lease-1", "status": "PENDING"}, NOW, 1)


def test_a_message_arrives_under_blazars_names(conf: ConfigOpts, world: World):
    sink = NotificationSink(conf, publisher_id="blazar.lease", clock=world.clock)
    with consumer_of(conf, conf.oslo_messaging_notifications.topics[0]) as consumer:
        sink(message())
        sink(message())
        sink(message("k-2"))
        arrived = [consumer.got.get(timeout=patience()) for _ in range(3)]  # in any order: the listener has threads
    for notification in arrived:
        assert (notification["publisher"], notification["type"]) == ("blazar.lease", "lease.create")
        assert notification["payload"] == {"lease_id": "lease-1", "status": "PENDING"}
    copies = Counter(notification["id"] for notification in arrived)
    assert sorted(copies.values()) == [1, 2]


def test_sink_raises_if_the_bus_refuses(conf: ConfigOpts, world: World):
    sink = NotificationSink(conf, publisher_id="blazar.lease", clock=world.clock)
    with pytest.raises(ValueError, match="primitive"):
        sink(Message(1, "k", "lease-1", "lease.create", {"object": object()}, NOW, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "health"),
    [
        ({"host": "compute-1", "disabled": False, "forced_down": False}, Health(True)),
        (
            {"host": "compute-1", "disabled": True, "forced_down": False, "disabled_reason": "new disk"},
            Health(False, "The compute service is disabled: new disk", works=True),
        ),
        (
            {"host": "compute-1", "disabled": False, "forced_down": True},
            Health(False, "The compute service was forced down."),
        ),
    ],
)
def test_compute_service_notification_is_reported(conf: ConfigOpts, data: dict[str, Any], health: Health):
    heard: queue.Queue[tuple[str, Health]] = queue.Queue()
    topic = conf.oslo_messaging_notifications.topics[0]
    listener = NovaListener(conf, lambda host, health: heard.put((host, health)), topics=[topic], exchange="openstack")
    listener.start()
    nova = oslo_messaging.Notifier(
        notification_transport(conf), "nova-compute:compute-1", driver="messagingv2", topics=[topic]
    )
    try:
        nova.info({}, "service.update", {"nova_object.data": {**data, "binary": "nova-conductor"}})
        nova.info({}, "instance.create.end", {"nova_object.data": {"host": "compute-1"}})
        nova.info({}, "service.update", "nonsense")
        nova.info({}, "service.update", {"nova_object.data": {**data, "binary": "nova-compute"}})
        assert heard.get(timeout=patience()) == ("compute-1", health)
    finally:
        listener.stop()
    assert heard.empty()


@pytest.mark.slow
@pytest.mark.parametrize("with_hosts", [True, False])
def test_new_and_deleted_servers_are_heard_by_the_same_listener(conf: ConfigOpts, with_hosts: bool):
    heard: queue.Queue[str] = queue.Queue()
    topic = conf.oslo_messaging_notifications.topics[0]
    listener = NovaListener(
        conf,
        (lambda host, _health: heard.put(host)) if with_hosts else None,
        topics=[topic],
        exchange="openstack",
        on_server=lambda: heard.put("server"),
    )
    listener.start()
    nova = oslo_messaging.Notifier(notification_transport(conf), "nova", driver="messagingv2", topics=[topic])
    try:
        for event_type in ("instance.create.start", "instance.create.end", "instance.update", "instance.delete.end"):
            nova.info({}, event_type, {"nova_object.data": {"uuid": "s-1"}})
        nova.info({}, "service.update", {"nova_object.data": DISABLED})
        nova.info({}, "instance.create.end", "nonsense")
        expected = ["server", "server", *(["compute-2"] if with_hosts else []), "server"]
        assert [heard.get(timeout=patience()) for _ in expected] == expected
    finally:
        listener.stop()
    assert heard.empty()


DISABLED = {"host": "compute-2", "disabled": True, "forced_down": False, "binary": "nova-compute"}


@contextmanager
def nova_at(conf: ConfigOpts, report: Report) -> Iterator[oslo_messaging.Notifier]:
    """Nova's sender, for a listener."""
    topic = conf.oslo_messaging_notifications.topics[0]
    listener = NovaListener(conf, report, topics=[topic], exchange="openstack")
    listener.start()
    try:
        yield oslo_messaging.Notifier(notification_transport(conf), "nova", driver="messagingv2", topics=[topic])
    finally:
        listener.stop()


@pytest.mark.slow
def test_notification_that_cannot_be_recorded_is_requeued(conf: ConfigOpts):
    heard: queue.Queue[str] = queue.Queue()
    failed: list[str] = []

    def report(host: str, _health: Health) -> None:
        heard.put(host)
        if not failed:
            failed.append(host)
            raise LookupError("the database is away")

    with nova_at(conf, report) as nova:
        nova.info({}, "service.update", {"nova_object.data": DISABLED})
        assert [heard.get(timeout=patience()) for _ in range(2)] == ["compute-2"] * 2


@pytest.mark.slow
def test_requeued_notification_comes_at_growing_intervals(conf: ConfigOpts, caplog: pytest.LogCaptureFixture):
    heard: queue.Queue[float] = queue.Queue()

    def report(_host: str, _health: Health) -> None:
        heard.put(time.monotonic())
        raise Unavailable("the database is away")

    with nova_at(conf, report) as nova:
        nova.info({}, "service.update", {"nova_object.data": DISABLED})
        times = [heard.get(timeout=patience()) for _ in range(4)]
    between = [later - earlier for earlier, later in pairwise(times)]
    assert all(seconds >= pause for seconds, pause in zip(between, [0.5, 1, 2], strict=True)), between
    ours = [record for record in caplog.records if record.name.startswith("tenure")]
    assert all(record.exc_info is None and "the database is away" in record.getMessage() for record in ours)
    assert re.findall(r"taken up again in (\S+) s", caplog.text)[:3] == ["0.5", "1", "2"]


@pytest.mark.slow
def test_stop_does_not_wait_for_requeued_notifications(conf: ConfigOpts, monkeypatch: pytest.MonkeyPatch):
    limit = patience(10)
    monkeypatch.setattr(serving, "FIRST_PAUSE_SECONDS", 3 * limit)
    heard: queue.Queue[str] = queue.Queue()

    def report(host: str, _health: Health) -> None:
        heard.put(host)
        raise Unavailable("the database is away")

    topic = conf.oslo_messaging_notifications.topics[0]
    listener = NovaListener(conf, report, topics=[topic], exchange="openstack")
    listener.start()
    nova = oslo_messaging.Notifier(notification_transport(conf), "nova", driver="messagingv2", topics=[topic])
    nova.info({}, "service.update", {"nova_object.data": DISABLED})
    assert heard.get(timeout=patience()) == "compute-2"
    assert listener.stop(limit)


@pytest.mark.slow
def test_handled_notification_is_removed(conf: ConfigOpts):
    heard: queue.Queue[str] = queue.Queue()
    with nova_at(conf, lambda host, _health: heard.put(host)) as nova:
        nova.info({}, "instance.create.end", {"nova_object.data": {}})
        nova.info({}, "service.update", {"nova_object.data": DISABLED})
        assert heard.get(timeout=patience()) == "compute-2"
    with consumer_of(conf, conf.oslo_messaging_notifications.topics[0]) as consumer:
        nova.info({}, "the.last", {})
        assert consumer.got.get(timeout=patience())["type"] == "the.last"
