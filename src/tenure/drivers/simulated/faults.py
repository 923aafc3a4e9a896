"""Faults on demand: failures of real clouds, at the time that a test or a demonstration chooses.

Faults are stored with the objects of the cloud, so that another process can set them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from tenure.clock import Clock
from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudBusy, CloudDriver, CloudError, CloudRefused
from tenure.drivers.simulated.openstack.objects import Objects, Table

#: Every method of a driver that calls its cloud.
VERBS: Final = frozenset(
    name for name, method in vars(CloudDriver).items() if callable(method) and name[0] != "_" and name != "by_region"
)
#: How often a blocked call checks whether another process has cleared the fault; the same process wakes it at once.
_RELEASE_LOOK_SECONDS: Final = 0.05


class FaultKind(StrEnum):
    LATENCY = "latency"  # the call takes ``seconds``
    BUSY = "busy"  # fails, and may work later
    REFUSED = "refused"  # fails for good
    LOST_REPLY = "lost reply"  # everything happens, and the caller gets an error
    SLOW = "slow"  # slow operations, such as deleting servers and saving images, are not done before ``until``
    BLOCK = "block"  # the call waits until the fault is cleared


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure or a delay.

    It applies to the next ``count`` calls (None: all until it is cleared) of ``verb`` for that reservation, lease name
    and host (id or name), where None stands for any. ``after_effects`` is the number of effects of a call that happen
    before the fault; a call with fewer effects does not fail. ``LOST_REPLY`` applies at the end of the call. ``SLOW``
    is a state that lasts until ``until``, or until it is cleared, for any number of calls.
    """

    kind: FaultKind
    verb: str | None = None
    reservation_id: str | None = None
    lease_name: str | None = None
    host: str | None = None
    count: int | None = 1
    seconds: float = 0.0
    until: datetime | None = None
    after_effects: int = 0
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.verb is not None and self.verb not in VERBS:
            raise ValueError(f"a driver has no verb {self.verb}")
        if (self.count is not None and self.count < 1) or self.seconds < 0 or self.after_effects < 0:
            raise ValueError("a fault strikes at least once, and its numbers are not negative")
        if self.until is not None and self.until.utcoffset() is None:
            raise ValueError("a fault needs a timezone-aware time")


@dataclass(frozen=True)
class _Set:
    """A fault that is set. Also when it is used up, the calls that it blocks wait."""

    fault: Fault
    is_used_up: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """The subject of a verb's call, with which faults are compared."""

    verb: str
    reservation_id: str | None = None
    lease_name: str | None = None
    hosts: frozenset[str] = frozenset()

    def concerns(self, fault: Fault) -> bool:
        return (
            fault.verb in (None, self.verb)
            and fault.reservation_id in (None, self.reservation_id)
            and fault.lease_name in (None, self.lease_name)
            and (fault.host is None or fault.host in self.hosts)
        )


class Call:
    """A verb's call in progress; it reports its effects to the faults."""

    def __init__(self, faults: Faults, scope: Scope, armed: Sequence[tuple[int, Fault]]) -> None:
        self.scope = scope
        self._faults = faults
        self._armed = armed
        self._effects = 0
        self._broken: CloudError | None = None

    def effects_happened(self, count: int) -> None:
        """Record the number of effects of a request; called after each request that changed something."""
        for _ in range(count):
            self._effects += 1
            self.strike()

    def strike(self) -> None:
        for fault_id, fault in self._armed:
            if fault.kind not in (FaultKind.LOST_REPLY, FaultKind.SLOW) and fault.after_effects == self._effects:
                self._strike(fault_id, fault)

    def lose_reply(self) -> None:
        for fault_id, fault in self._armed:
            if fault.kind is FaultKind.LOST_REPLY:
                self._strike(fault_id, fault)

    def refuse_if_broken(self) -> None:
        """Raise the error with which the call was interrupted: it sends no further requests."""
        if self._broken is not None:
            raise self._broken

    def slowed_by(self) -> int | None:
        """Return the fault that slows the operations of the call; None if there is none."""
        for fault_id, fault in self._armed:
            if fault.kind is FaultKind.SLOW and not self._faults.is_over(fault_id):
                return fault_id
        return None

    def _strike(self, fault_id: int, fault: Fault) -> None:
        try:
            self._faults.strike(fault_id, fault, self.scope)
        except CloudError as error:
            self._broken = error
            raise


class Faults:
    """The faults that are set."""

    def __init__(self, objects: Objects, clock: Clock, sleep: Callable[[float], None]) -> None:
        self._objects = objects
        self._set: Table[int, _Set] = objects.table("fault", _Set, int)
        self._clock = clock
        self._sleep = sleep
        self._changed = threading.Condition()
        self._blocked = 0
        self._calls = threading.local()

    @property
    def current(self) -> Call | None:
        """The verb's call in this thread."""
        call: Call | None = getattr(self._calls, "current", None)
        return call

    def inject(self, fault: Fault) -> int:
        """Set a fault; return its id."""
        with self._objects.change():
            fault_id = max(self._set, default=0) + 1
            self._set[fault_id] = _Set(fault)
        return fault_id

    def clear(self, fault_id: int | None = None) -> None:
        """Clear one fault, or all; blocked calls continue."""
        with self._objects.change():
            for known in [known for known in self._set if fault_id in (None, known)]:
                del self._set[known]
        with self._changed:
            self._changed.notify_all()

    def all(self) -> dict[int, Fault]:
        """The faults that are active or block a call, by id."""
        with self._objects.look():
            return {fault_id: known.fault for fault_id, known in self._set.items()}

    def wait_until_blocked(self, calls: int, timeout_seconds: float) -> bool:
        """Wait until faults block this many calls of this process; return False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._blocked >= calls, timeout_seconds)

    @contextmanager
    def call(self, scope: Scope) -> Iterator[None]:
        """Carry out a call with the faults that match it."""
        with self._objects.look():
            armed = [
                (fault_id, known.fault)
                for fault_id, known in self._set.items()
                if scope.concerns(known.fault) and not known.is_used_up
            ]
        call, self._calls.current = Call(self, scope, armed), None
        call.strike()
        self._calls.current = call
        try:
            yield
        finally:
            self._calls.current = None
        call.refuse_if_broken()
        call.lose_reply()

    def is_over(self, fault_id: int) -> bool:
        """Whether a slow fault is over, by the clock or because it was cleared."""
        with self._objects.look():
            known = self._set.get(fault_id)
        return known is None or (known.fault.until is not None and known.fault.until <= self._clock.now())

    def strike(self, fault_id: int, fault: Fault, scope: Scope) -> None:
        if not self._use_up(fault_id):
            return  # other calls have used it up meanwhile
        about = Reason(f"{scope.verb}: {fault.reason or 'a fault that was asked for'} ({fault.kind})")
        match fault.kind:
            case FaultKind.LATENCY:
                self._sleep(fault.seconds)
            case FaultKind.BLOCK:
                self._stand_still(fault_id)
            case FaultKind.REFUSED:
                raise CloudRefused(about)
            case _:
                raise CloudBusy(about)

    def _use_up(self, fault_id: int) -> bool:
        """Count a use of the fault; of concurrent calls at most ``count`` fail."""
        with self._objects.change():
            known = self._set.get(fault_id)
            if known is None or known.is_used_up:
                return False
            count = known.fault.count
            if count is not None and count > 1:
                self._set[fault_id] = _Set(replace(known.fault, count=count - 1))
            elif count == 1 and known.fault.kind is FaultKind.BLOCK:
                self._set[fault_id] = _Set(known.fault, is_used_up=True)
            elif count == 1:
                del self._set[fault_id]
        return True

    def _stand_still(self, fault_id: int) -> None:
        with self._changed:
            self._blocked += 1
            self._changed.notify_all()
            try:
                while fault_id in self.all():
                    self._changed.wait(_RELEASE_LOOK_SECONDS)
            finally:
                self._blocked -= 1
