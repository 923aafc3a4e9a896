"""Faults on demand: what goes wrong in real clouds, when one wants it to.

Faults are kept in the state file, so that another process can set them. A call that finds none pays for one
look into an empty table.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from tenure.clock import Clock
from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudBusy, CloudRefused, Progress
from tenure.drivers.simulated.state import StateFile

#: Every method of a driver.
VERBS: Final = frozenset({
    "discover", "look_up", "fetch", "ensure_registered", "ensure_unregistered", "ensure_prepared", "ensure_started",
    "make_way", "before_end", "ensure_ended", "held", "servers", "check", "drift", "delegate", "revoke",
})  # fmt: skip
#: The longest that a slow verb lets its caller wait before the next look.
_LOOK_AGAIN: Final = timedelta(seconds=15)
#: How often a blocked call looks whether another process released it; our own process wakes it at once.
_RELEASE_LOOK_SECONDS: Final = 0.05


class FaultKind(StrEnum):
    LATENCY = "latency"  # the call takes ``seconds``
    BUSY = "busy"  # fails, and may work later
    REFUSED = "refused"  # fails for good
    LOST_REPLY = "lost reply"  # everything happens, and the caller hears that it failed
    SLOW = "slow"  # what is taken back does not vanish, an image is not ready, before ``until``
    BLOCK = "block"  # the call stands still until the fault is cleared


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong.

    It strikes the next ``count`` calls (None: every one until it is cleared) of ``verb`` for that
    reservation, lease name and host (id or name), where None stands for any. ``after_effects`` lets so many
    effects of a call happen first: 0 strikes before anything is done; a call that has fewer effects than that
    is spared. ``LOST_REPLY`` strikes at the end. ``SLOW`` is a state, not a strike: it lasts until ``until``,
    or until it is cleared, and knows no count.
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


@dataclass(frozen=True, slots=True)
class Scope:
    """What a call is about: what faults are matched with."""

    verb: str
    reservation_id: str | None = None
    lease_name: str | None = None
    hosts: frozenset[str] = frozenset()


class Call:
    """One call of a verb on its way; tells the faults how far it got."""

    def __init__(self, faults: Faults, scope: Scope, armed: Sequence[tuple[int, Fault]]) -> None:
        self._faults = faults
        self._scope = scope
        self._armed = armed
        self._effects = 0

    @property
    def verb(self) -> str:
        return self._scope.verb

    def effect_happened(self) -> None:
        """To be called after each effect, outside of its transaction."""
        self._effects += 1
        self.strike()

    def strike(self) -> None:
        for fault_id, fault in self._armed:
            if fault.kind not in (FaultKind.LOST_REPLY, FaultKind.SLOW) and fault.after_effects == self._effects:
                self._faults.strike(fault_id, fault, self._scope)

    def lose_reply(self) -> None:
        for fault_id, fault in self._armed:
            if fault.kind is FaultKind.LOST_REPLY:
                self._faults.strike(fault_id, fault, self._scope)

    def slowed(self, reason: str) -> Progress | None:
        """What to answer where something does not finish yet; None where nothing holds it up."""
        for _, fault in self._armed:
            if fault.kind is FaultKind.SLOW and (left := self._faults.left(fault)):
                return Progress(False, min(left, _LOOK_AGAIN), Reason(fault.reason or reason))
        return None


class Faults:
    """The faults that are set."""

    def __init__(self, state: StateFile, clock: Clock, sleep: Callable[[float], None]) -> None:
        self._state = state
        self._clock = clock
        self._sleep = sleep
        self._changed = threading.Condition()
        self._blocked = 0

    def inject(self, fault: Fault) -> int:
        """Set a fault; the number is for clearing it."""
        with self._state.change() as tx:
            cursor = tx.execute(
                "INSERT INTO fault (kind, verb, reservation_id, lease_name, host, remaining, seconds, until,"
                " after_effects, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    fault.kind,
                    fault.verb,
                    fault.reservation_id,
                    fault.lease_name,
                    fault.host,
                    fault.count,
                    fault.seconds,
                    None if fault.until is None else fault.until.isoformat(),
                    fault.after_effects,
                    fault.reason,
                ),
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def clear(self, fault_id: int | None = None) -> None:
        """Clear one fault, or all; calls that it blocks go on."""
        with self._state.change() as tx:
            if fault_id is None:
                tx.execute("DELETE FROM fault")
            else:
                tx.execute("DELETE FROM fault WHERE id = ?", (fault_id,))
        with self._changed:
            self._changed.notify_all()

    def all(self) -> dict[int, Fault]:
        """The faults that will strike, or that hold a call, by number."""
        with self._state.look() as tx:
            rows = tx.execute("SELECT * FROM fault ORDER BY id").fetchall()
        return {row["id"]: _fault(row) for row in rows}

    def wait_until_blocked(self, calls: int, timeout_seconds: float) -> bool:
        """Wait until so many calls of this process stand still; False when that did not come."""
        with self._changed:
            return self._changed.wait_for(lambda: self._blocked >= calls, timeout_seconds)

    @contextmanager
    def call(self, scope: Scope) -> Iterator[Call]:
        """Go through a call with the faults that are meant for it."""
        with self._state.look() as tx:
            rows = tx.execute("SELECT * FROM fault ORDER BY id").fetchall()
        faults = ((row["id"], _fault(row)) for row in rows)
        call = Call(self, scope, [(number, fault) for number, fault in faults if _matches(fault, scope)])
        call.strike()
        yield call
        call.lose_reply()

    def left(self, fault: Fault) -> timedelta:
        """How long something stays slow."""
        return _LOOK_AGAIN if fault.until is None else max(timedelta(0), fault.until - self._clock.now())

    def strike(self, fault_id: int, fault: Fault, scope: Scope) -> None:
        if not self._use_up(fault_id, fault.kind):
            return  # it was meant for fewer calls, and others met it since
        about = f"{scope.verb}: {fault.reason or 'a fault that was asked for'} ({fault.kind})"
        match fault.kind:
            case FaultKind.LATENCY:
                self._sleep(fault.seconds)
            case FaultKind.BLOCK:
                self._stand_still(fault_id)
            case FaultKind.REFUSED:
                raise CloudRefused(Reason(about))
            case _:
                raise CloudBusy(Reason(about))

    def _use_up(self, fault_id: int, kind: FaultKind) -> bool:
        """Count the strike; of several calls at once no more than the count are struck."""
        with self._state.change() as tx:
            struck = tx.execute(
                "UPDATE fault SET remaining = remaining - 1 WHERE id = ? AND (remaining IS NULL OR remaining > 0)",
                (fault_id,),
            ).rowcount
            if kind is not FaultKind.BLOCK:  # which holds the calls that it struck for as long as it is there
                tx.execute("DELETE FROM fault WHERE id = ? AND remaining = 0", (fault_id,))
        return struck == 1

    def _stand_still(self, fault_id: int) -> None:
        with self._changed:
            self._blocked += 1
            self._changed.notify_all()
            try:
                while self._is_set(fault_id):
                    self._changed.wait(_RELEASE_LOOK_SECONDS)
            finally:
                self._blocked -= 1

    def _is_set(self, fault_id: int) -> bool:
        with self._state.look() as tx:
            return tx.execute("SELECT 1 FROM fault WHERE id = ?", (fault_id,)).fetchone() is not None


def _fault(row: sqlite3.Row) -> Fault:
    return Fault(
        kind=FaultKind(row["kind"]),
        verb=row["verb"],
        reservation_id=row["reservation_id"],
        lease_name=row["lease_name"],
        host=row["host"],
        count=row["remaining"] or None,
        seconds=row["seconds"],
        until=None if row["until"] is None else datetime.fromisoformat(row["until"]),
        after_effects=row["after_effects"],
        reason=row["reason"],
    )


def _matches(fault: Fault, scope: Scope) -> bool:
    return (
        fault.verb in (None, scope.verb)
        and fault.reservation_id in (None, scope.reservation_id)
        and fault.lease_name in (None, scope.lease_name)
        and (fault.host is None or fault.host in scope.hosts)
    )
