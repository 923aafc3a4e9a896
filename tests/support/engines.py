"""Shared by tests of the engine: ends at named points, a second manager, a watched cloud, waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from sqlalchemy import bindparam, func, select, text

from tenure.domain.lease import EventType, Lease, LeaseStatus
from tenure.drivers.cloud import SingleCloud
from tenure.drivers.simulated import Effect, EffectKind
from tenure.factory import Service, build
from tenure.store.tables import OutboxRow
from tests.support.simulated import SimulatedCloud
from tests.support.waiting import wait_for
from tests.support.world import ADMIN, World

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)

#: The points of an event at which a process can be killed, in order.
POINTS = ("after_claim", "after_act", "before_record")


class Killed(BaseException):
    """The process has ended. Nothing in the service catches this, as nothing survives SIGKILL."""


class Checkpoints:
    """Counts calls at the named points, and runs an action at a point once."""

    def __init__(self) -> None:
        self.reached: Counter[str] = Counter()
        self._wanted: dict[str, tuple[int, Callable[[], object]]] = {}

    def at(self, point: str, action: Callable[[], object], *, nth: int = 1) -> None:
        """Run ``action`` when the point is reached for the ``nth`` time from now."""
        self._wanted[point] = (nth, action)

    def kill_at(self, point: str, *, nth: int = 1) -> None:
        """End the process at this point."""

        def end() -> None:
            raise Killed(point)

        self.at(point, end, nth=nth)

    def forget(self) -> None:
        """Remove all actions."""
        self._wanted.clear()

    @property
    def armed(self) -> bool:
        return bool(self._wanted)

    def __call__(self, point: str) -> None:
        self.reached[point] += 1
        left, action = self._wanted.pop(point, (0, None))
        if action is None:
            return
        if left > 1:
            self._wanted[point] = (left - 1, action)
            return
        action()


class Watched:
    """A simulated cloud; ``before`` is called with the method and its arguments before every call, and may raise."""

    def __init__(
        self, cloud: SimulatedCloud, before: Callable[..., object], after: Callable[..., object] | None = None
    ):
        self._cloud = cloud
        self._before = before
        self._after = after

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._cloud, verb)
        if not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            self._before(verb, *arguments)
            try:
                return found(*arguments)
            finally:
                if self._after is not None:
                    self._after(verb, *arguments)

        return call


def rebuild(world: World, **components: Any) -> Service:
    """Build the world's service again with other components, as after the end of its process."""
    world.service = another(world, **components)
    return world.service


def another(world: World, **components: Any) -> Service:
    """Build another manager on the same database and cloud."""
    return build(replace(world.service.components, **components))


def watch(
    world: World, before: Callable[..., object], after: Callable[..., object] | None = None, **components: Any
) -> None:
    """Call ``before`` (and ``after``) around every call of the cloud; ``components`` replace the service's."""
    rebuild(world, driver=cast(SingleCloud, Watched(world.cloud, before, after)), **components)


@contextmanager
def running(world: World) -> Iterator[None]:
    """Run the world's engine in its own threads; blocked calls are released when it stops."""
    world.engine.start()
    try:
        yield
    finally:
        world.cloud.clear_faults()
        world.engine.stop()


def wait_for_leases(world: World, leases: Iterable[Lease], wanted: Collection[LeaseStatus]) -> None:
    """Wait until every lease has one of these statuses."""
    waiting = {lease.id for lease in leases}
    names: Any = bindparam("wanted", [event_type.value for event_type in wanted], expanding=True)

    def settled() -> bool:
        with world.db.read() as tx:  # one statement without locks, so that waiting delays no transaction
            found = tx.session.execute(text("SELECT id FROM leases WHERE status IN :wanted").bindparams(names))
            waiting.difference_update(found.scalars())
        return not waiting

    wait_for(lambda: f"{', '.join(waiting)} to be {', '.join(wanted)}", settled)


def deliver_all(world: World) -> None:
    """Let time pass until every message is delivered, also those that wait for others."""
    world.engine.settle()
    for _ in range(500):
        with world.db.read() as tx:
            again = tx.session.scalar(select(func.min(OutboxRow.ready_at)))
        if again is None:
            return
        world.pass_until(max(again, world.clock.now()))
    raise AssertionError("there is always something to be delivered")


def lease_of(world: World, lease_id: str) -> Lease:
    return world.leases.get(ADMIN, lease_id)


def status_of(world: World, lease_id: str) -> LeaseStatus:
    """Return the lease's status, also of a deleted lease."""
    with world.db.read() as tx:
        lease = tx.leases.get(lease_id, deleted=True)
    assert lease is not None
    return lease.status


def event_of(world: World, lease_id: str, event_type: EventType):
    event = lease_of(world, lease_id).event(event_type)
    assert event is not None
    return event


def path_of(world: World, lease_id: str) -> list[str]:
    """Return the statuses of the lease in order."""
    with world.db.read() as tx:
        entries = tx.leases.history(lease_id)
    return [entry.to_status for entry in entries if entry.from_status != entry.to_status]


def effects_of(world: World, *kinds: EffectKind, reservation_id: str | None = None) -> list[Effect]:
    """Return the effects of these kinds in the cloud, in order."""
    return [effect for effect in world.cloud.world.journal(reservation_id) if effect.kind in kinds]


def taken_and_returned(world: World, lease: Lease) -> list[tuple[str, str | None]]:
    """Return what was taken and returned for a lease, in order: the effect and the host."""
    ids = {reservation.id for reservation in lease.reservations}
    return [
        (effect.kind, effect.host)
        for effect in effects_of(world, EffectKind.HOST_TAKEN, EffectKind.HOST_RETURNED)
        if effect.reservation_id in ids
    ]


def assert_all_in_pool(world: World) -> None:
    """Check that every host is in the pool, and that no group is left."""
    assert world.cloud.world.groups() == {}
    assert world.cloud.world.pool() == {host.id for host in world.cloud.world.hosts()}
