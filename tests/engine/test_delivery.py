"""Delivery: at least once, in order for each lease, with a stable key; undeliverable messages are visible."""

from __future__ import annotations

import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from sqlalchemy import func, select

from tenure.domain.errors import NotEnoughResources, Unavailable
from tenure.domain.lease import LeaseStatus
from tenure.engine.delivery import BATCH
from tenure.factory import Service
from tenure.services.notifications.outbox import DELIVERY_TIME, MAX_REFUSALS, Message, OutboxService
from tenure.store.database import Transaction
from tenure.store.tables import OutboxRow
from tests.support.engines import HOUR, MINUTE, SECOND, Killed, another, lease_of, rebuild
from tests.support.waiting import patience
from tests.support.world import OWNER, World

LIFE = [
    "lease.create",
    "lease.event.start_lease",
    "lease.event.before_end_lease",
    "lease.event.end_lease",
    "lease.delete",
]


class Sink:
    """A receiver; ``fails`` decides whether it refuses a message this time."""

    def __init__(self, fails: Callable[[Message], bool] = lambda _message: False) -> None:
        self.tried: list[Message] = []
        self.arrived: dict[str, list[Message]] = defaultdict(list)
        self.fails = fails

    def __call__(self, message: Message) -> None:
        self.tried.append(message)
        if self.fails(message):
            raise ConnectionError("nobody is there")
        self.arrived[message.lease_id].append(message)

    def topics(self, lease_id: str) -> list[str]:
        return [message.topic for message in self.arrived[lease_id]]


def deliver_until_quiet(world: World) -> None:
    """Let time pass from one attempt at a delivery to the next, until there are none left."""
    world.engine.settle()
    while (again := next_attempt(world)) is not None:
        world.clock.set(again)
        world.engine.settle()


def next_attempt(world: World) -> datetime | None:
    with world.db.read() as tx:
        return tx.session.scalar(select(func.min(OutboxRow.ready_at)).where(OutboxRow.ready_at > world.clock.now()))


def ailing(world: World) -> dict[str, str | None]:
    return {component.component: component.reason for component in world.service.manager.health() if not component.well}


def test_failure_keeps_the_order_of_its_lease_and_delays_no_other_lease(world: World):
    sink = Sink()
    rebuild(world, sink=sink)
    patient, other = world.book(1, start=1, hours=2), world.book(1, start=1, hours=2)
    sink.fails = lambda message: message.lease_id == patient.id and len(sink.tried) < 12
    world.pass_time(4 * HOUR)
    assert sink.topics(other.id) == LIFE[:-1]
    for lease in (patient, other):
        world.leases.delete(OWNER, lease.id)
    deliver_until_quiet(world)
    assert sink.topics(patient.id) == sink.topics(other.id) == LIFE


def test_a_repetition_bears_the_same_key(world: World):
    failures = [True, True, False]
    sink = Sink(lambda _message: failures.pop(0))
    rebuild(world, sink=sink)
    world.book(1, start=1)
    deliver_until_quiet(world)
    first, *others = sink.tried
    assert {message.key for message in others} == {first.key}
    assert [message.attempts for message in sink.tried] == [1, 2, 3]
    assert first.payload == others[-1].payload


def test_a_message_has_the_fields_of_blazars(world: World):
    """Consumers of Blazar's notifications read any of these."""
    sink = Sink()
    rebuild(world, sink=sink)
    lease = world.book(1, start=1)
    deliver_until_quiet(world)
    payload = sink.arrived[lease.id][0].payload
    assert set(payload) == {
        *("lease_id", "name", "user_id", "project_id", "trust_id", "status", "degraded", "start_date", "end_date"),
        *("created_at", "updated_at", "reservations", "events"),
        "status_reason",  # ours
    }
    assert (payload["lease_id"], payload["trust_id"]) == (lease.id, "")


def test_attempts_come_later_and_later(world: World):
    times: list[float] = []
    began = world.clock.now()

    def fail(_message: Message) -> None:
        times.append((world.clock.now() - began).total_seconds())
        raise ConnectionError

    rebuild(world, sink=fail)
    world.book(1, start=9)
    pass_attempts(world, 9)
    assert times == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]


def test_message_refused_while_others_arrive_is_given_up(world: World):
    sink = Sink(lambda message: message.topic == "lease.create")
    rebuild(world, sink=sink)
    assert ailing(world) == {}
    lease = world.book(1, start=1, hours=2)
    pass_attempts(world, MAX_REFUSALS - 1, meanwhile=another_arrives)
    assert world.service.outbox.undeliverable() == []
    pass_attempts(world, 1, meanwhile=another_arrives)
    assert ailing(world) == {"notifications": "1 could not be delivered"}
    [lost] = world.service.outbox.undeliverable()
    assert (lost.topic, lost.lease_id, lost.last_error) == (
        "lease.create",
        lease.id,
        "ConnectionError: nobody is there",
    )
    tried = len(sink.tried)
    world.pass_time(4 * HOUR)
    assert len(sink.tried) == tried  # later messages keep their place
    assert ailing(world) == {"notifications": "1 could not be delivered"}


@pytest.mark.slow
def test_attempts_during_an_outage_do_not_count(world: World):
    away = [True]
    sink = Sink(lambda message: away[0] or message.topic == "lease.create")
    rebuild(world, sink=sink)
    world.book(1, start=9, hours=2)
    pass_attempts(world, 3 * MAX_REFUSALS)
    away.clear()
    away.append(False)
    pass_attempts(world, MAX_REFUSALS - 1, meanwhile=another_arrives)
    assert world.service.outbox.count_undeliverable() == 0
    pass_attempts(world, 1, meanwhile=another_arrives)
    assert world.service.outbox.count_undeliverable() == 1


def test_message_of_a_dead_manager_is_delivered_by_another(world: World):
    """With the same key, so that a receiver can recognize the repetition."""
    died: list[Message] = []

    def die(message: Message) -> None:
        died.append(message)
        raise Killed

    rebuild(world, sink=die)
    lease = world.book(1)
    with pytest.raises(Killed):
        world.engine.settle()
    sink = Sink()
    rebuild(world, sink=sink)
    world.engine.settle()
    assert sink.tried == []  # it may still be on its way
    world.pass_time(MINUTE)
    assert sink.topics(lease.id)[0] == "lease.create"
    assert sink.tried[0].key == died[0].key


def test_message_of_the_only_manager_is_delivered_right_after_its_restart(world: World):
    """A manager that knows that there is no other takes over; a message that is for later stays for later."""

    def die(message: Message) -> None:
        raise Killed

    rebuild(world, sink=die)
    lease = world.book(1)
    later = world.clock.now() + HOUR
    world.db.write(
        lambda tx: tx.outbox.add(
            key="later", lease_id="another", topic="lease.event", payload={}, now=world.clock.now(), ready_at=later
        )
    )
    with pytest.raises(Killed):
        world.engine.settle()
    sink = Sink()
    rebuild(world, sink=sink)
    assert world.service.outbox.take_over() == 1
    world.engine.settle()
    assert sink.topics(lease.id)[0] == "lease.create"
    assert sink.arrived.keys() == {lease.id}


@pytest.mark.parametrize("fails", [False, True])
def test_message_delivered_by_another_stays_delivered(world: World, fails: bool, caplog: pytest.LogCaptureFixture):
    """The first is so slow that its claim expires. By then the other has delivered; the first's outcome is ignored."""
    quick = Sink()
    rebuild(world, sink=quick)
    other = another(world)

    def dawdle(_message: Message) -> None:
        world.clock.advance(DELIVERY_TIME + SECOND)
        other.engine.settle()
        if fails:
            raise ConnectionError

    rebuild(world, sink=dawdle)
    lease = world.book(1, start=9)
    world.engine.settle()
    assert quick.topics(lease.id) == ["lease.create"]
    assert "took too long" in caplog.text
    assert next_attempt(world) is None
    deliver_until_quiet(world)
    assert quick.topics(lease.id) == ["lease.create"]
    assert ailing(world) == {}


def test_two_managers_deliver_each_message_once_and_in_order(world: World):
    """Both have claimed messages before either delivers any; none overtakes an older message of its lease."""
    meeting = threading.Barrier(2)
    arrived: list[tuple[str, str]] = []
    delivered_by: Counter[str] = Counter()

    def manager(name: str) -> Service:
        def sink(message: Message) -> None:
            if not delivered_by[name]:
                meeting.wait(patience())
            delivered_by[name] += 1
            arrived.append((message.lease_id, message.topic))

        return another(world, sink=sink)

    leases = [f"lease-{number}" for number in range(BATCH + 10)]  # more than a manager claims at a time
    for topic in ("first", "second"):
        add_messages(world, topic, leases)
        leases.reverse()  # the last message of a claim, delivered late, is the first that could be overtaken
    managers = [manager("one"), manager("other")]
    with ThreadPoolExecutor(2) as pool:
        for settled in [pool.submit(manager.engine.settle) for manager in managers]:
            settled.result(patience())
    assert len(arrived) == 2 * len(leases)
    assert {lease_id: topics_of(lease_id, arrived) for lease_id in leases} == {
        lease_id: ["first", "second"] for lease_id in leases
    }
    assert min(delivered_by["one"], delivered_by["other"]) >= 10


def topics_of(lease_id: str, arrived: Iterable[tuple[str, str]]) -> list[str]:
    return [topic for about, topic in arrived if about == lease_id]


def add_messages(world: World, topic: str, lease_ids: Iterable[str]) -> None:
    """Write a message about each of these leases in one transaction."""

    def write(tx: Transaction) -> None:
        for lease_id in lease_ids:
            key = str(uuid.uuid4())
            tx.outbox.add(key=key, lease_id=lease_id, topic=topic, payload={}, now=world.clock.now())

    world.db.write(write)


def test_failed_change_sends_no_notification(world: World):
    """Messages are written with the change: a rollback removes them."""
    sink = Sink()
    rebuild(world, sink=sink)
    world.book(3, start=1)
    with pytest.raises(NotEnoughResources):
        world.book(3, start=1)
    world.engine.settle()
    assert len(sink.tried) == 1


def test_failing_sink_blocks_no_start(world: World):
    rebuild(world, sink=Sink(lambda _message: True))
    lease = world.book(1, start=1)
    world.pass_time(HOUR + SECOND)
    assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE


def test_a_slow_sink_gets_each_message_once_and_in_order(world: World):
    """What was taken together is not kept until its claims run out, and others overtake it."""
    leases = [world.book(1, start=1, hours=1) for _ in range(4)]

    def take_time(message: Message) -> bool:
        world.clock.advance(DELIVERY_TIME - 20 * SECOND)
        assert another(world).outbox.take(100) == []  # no other manager gets the claimed message, nor a later one
        return False

    sink = Sink(take_time)
    rebuild(world, sink=sink)
    for lease in leases:
        world.leases.delete(OWNER, lease.id)
    world.engine.settle()
    assert {tuple(sink.topics(lease.id)) for lease in leases} == {("lease.create", "lease.delete")}
    assert [message.attempts for message in sink.tried] == [1] * 8


def test_deliveries_that_cannot_be_recorded_are_made_again(world: World, monkeypatch: pytest.MonkeyPatch):
    leases = [world.book(1, start=1, hours=1) for _ in range(3)]
    sink = Sink()
    rebuild(world, sink=sink)

    def fail(_outbox: OutboxService, _messages: Sequence[Message]) -> list[Message]:
        raise Unavailable("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(OutboxService, "delivered", fail)
        with pytest.raises(Unavailable):
            world.engine.settle()
    assert [message.lease_id for message in sink.tried] == [lease.id for lease in leases]
    world.engine.settle()
    assert len(sink.tried) == 3  # their claims have not run out
    world.clock.advance(DELIVERY_TIME)
    world.engine.settle()
    assert [message.lease_id for message in sink.tried] == [lease.id for lease in leases] * 2
    assert [message.attempts for message in sink.tried] == [1, 1, 1, 2, 2, 2]


@pytest.mark.slow
def test_nothing_is_given_up_during_an_outage(world: World):
    sink = Sink(lambda _message: True)
    rebuild(world, sink=sink)
    leases = [world.book(1, start=1, hours=2) for _ in range(2)]
    began = world.clock.now()
    pass_attempts(world, 3 * MAX_REFUSALS)
    assert world.service.outbox.undeliverable() == []
    waited = (world.clock.now() - began).total_seconds()
    assert ailing(world) == {"notifications": f"the oldest has been waiting for {waited:.0f} seconds"}
    sink.fails = lambda _message: False
    world.pass_time(4 * HOUR)
    assert [sink.topics(lease.id) for lease in leases] == [LIFE[:-1]] * 2
    assert ailing(world) == {}


def test_the_log_has_one_line_for_each_attempt_and_the_trace_once(world: World, caplog: pytest.LogCaptureFixture):
    rebuild(world, sink=Sink(lambda _message: True))
    world.book(1, start=9)
    pass_attempts(world, 5)
    records = [record for record in caplog.records if record.name == "tenure.engine.delivery"]
    assert [record.getMessage().partition(" was ")[2] for record in records] == [
        "not delivered: ConnectionError: nobody is there"
    ] * 6
    assert [bool(record.exc_info) for record in records] == [True, *[False] * 5]


@pytest.mark.slow
def test_retried_message_keeps_its_order(world: World):
    refused = ["lease.create"]
    sink = Sink(lambda message: message.topic in refused)
    rebuild(world, sink=sink)
    lease = world.book(1, start=1, hours=2)
    pass_attempts(world, 3 * MAX_REFUSALS, meanwhile=another_arrives)
    [lost] = world.service.outbox.undeliverable()
    assert lost.lease_id == lease.id
    world.pass_time(4 * HOUR)
    assert sink.topics(lease.id) == []
    refused.clear()
    assert world.service.outbox.retry() == 1
    world.engine.settle()
    assert sink.topics(lease.id) == LIFE[:-1]


def pass_attempts(world: World, number: int, *, meanwhile: Callable[[World], None] = lambda _world: None) -> None:
    """Let time pass for so many attempts at a message that does not arrive."""
    world.engine.settle()
    for _ in range(number):
        meanwhile(world)
        world.clock.set(next_attempt(world) or world.clock.now())
        world.engine.settle()


def another_arrives(world: World) -> None:
    """Something of another lease gets through."""
    world.clock.advance(SECOND / 10)  # before the next attempt at what does not
    add_messages(world, "other", [str(uuid.uuid4())])
    world.engine.settle()
