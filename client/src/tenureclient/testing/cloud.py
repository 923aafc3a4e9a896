"""The state of the fake server: hosts, addresses, leases and the time. Plain rules, no HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta

from tenureclient.testing.choice import Choice, volumes_gb
from tenureclient.testing.stock import (
    FakeEvent,
    FakeFlavor,
    FakeFloatingIP,
    FakeHost,
    FakeLease,
    FakeReservation,
    FakeVolumePool,
    Refusal,
)
from tenureclient.wire import JsonValue, rfc3339

_WARNING = timedelta(hours=1)


class FakeCloud:
    """Hosts, addresses, leases and a clock. Due starts and ends happen at the next request."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.hosts: dict[str, FakeHost] = {}
        self.floatingips: dict[str, FakeFloatingIP] = {}
        self.pools: dict[str, FakeVolumePool] = {}
        self.flavors: dict[str, FakeFlavor] = {}
        self.leases: dict[str, FakeLease] = {}
        self.private_properties: set[str] = set()
        self.deleted: set[str] = set()

    def settle(self) -> None:
        """Start and end due leases, and remove leases that were not confirmed in time."""
        for lease in [
            lease for lease in self.leases.values() if lease.hold_until and lease.hold_until <= self.now
        ]:
            self.delete(lease.id)
        for lease in self.leases.values():
            if lease.status == "PENDING" and lease.start <= self.now:
                self.move(lease, "ACTIVE", action="start", reason=None)
            if lease.status == "ACTIVE" and lease.end <= self.now:
                self.move(lease, "TERMINATED", action="end", reason=None)

    def move(self, lease: FakeLease, status: str, *, action: str, reason: str | None) -> None:
        lease.history.append(
            {
                "at": rfc3339(self.now),
                "actor": "tester" if action in ("create", "update") else "engine",
                "action": action,
                "from_status": lease.status or None,
                "to_status": status,
                "reason": reason,
                "request_id": None,
            }
        )
        lease.status = status
        lease.status_reason = reason

    def book(
        self,
        name: str,
        start: datetime,
        end: datetime,
        before_end: datetime | None,
        reservations: list[FakeReservation],
        own_events: list[FakeEvent] | None = None,
        hold_for: timedelta | None = None,
    ) -> FakeLease:
        self._check_period(start, end, before_end)
        if start < self.now.replace(second=0, microsecond=0):
            raise Refusal(
                400, "InvalidParameter", "Start date must be later than current date", field="start_date"
            )
        lease = FakeLease(
            id=str(uuid.uuid4()),
            name=name,
            start=start,
            end=end,
            before_end=before_end if before_end is not None else max(start, end - _WARNING),
            status="",
            status_reason=None,
            degraded=False,
            created_at=self.now,
            reservations=reservations,
            own_events=own_events or [],
        )
        self._allocate(lease, reservations, start, end)
        lease.hold_until = None if hold_for is None else self.now + hold_for
        self.move(lease, "PENDING" if hold_for is None else "CREATING", action="create", reason=None)
        self.leases[lease.id] = lease
        return lease

    def confirm(self, lease: FakeLease, parameters: Mapping[str, Mapping[str, JsonValue]]) -> None:
        if lease.hold_until is None:
            return
        lease.hold_until = None
        self.move(lease, "PENDING", action="confirm", reason=None)
        if parameters:
            self.change(lease, name=None, start=None, end=None, before_end=None, parameters=parameters)

    def change(
        self,
        lease: FakeLease,
        *,
        name: str | None,
        start: datetime | None,
        end: datetime | None,
        before_end: datetime | None,
        parameters: Mapping[str, Mapping[str, JsonValue]],
        own_events: list[FakeEvent] | None = None,
    ) -> None:
        if lease.status not in ("PENDING", "ACTIVE") and (start or end or before_end or parameters):
            raise Refusal(409, "InvalidState", f"A lease that is {lease.status} can only be renamed")
        if start is not None and start != lease.start and lease.status == "ACTIVE":
            raise Refusal(
                400,
                "InvalidParameter",
                "Cannot modify the start date of already started leases",
                field="start_date",
            )
        new_start, new_end = start or lease.start, end or lease.end
        if end is not None and end < max(new_start, self.now.replace(second=0, microsecond=0)):
            raise Refusal(
                400,
                "InvalidParameter",
                "End date must be later than current and start date",
                field="end_date",
            )
        changed = []
        for index, reservation in enumerate(lease.reservations):
            wanted = {**reservation.parameters, **parameters.get(reservation.id, {})}
            changed.append(FakeReservation(reservation.id, reservation.resource_type, wanted))
            changed[index].dropped = reservation.dropped
        if start is not None or end is not None or parameters:
            self._allocate(lease, changed, new_start, new_end)
            lease.reservations = changed
        lease.own_events = lease.own_events if own_events is None else own_events
        lease.name = name if name is not None else lease.name
        lease.before_end = before_end or (
            max(new_start, lease.before_end + (new_end - lease.end)) if lease.before_end else None
        )
        lease.start, lease.end = new_start, new_end
        self.move(lease, lease.status, action="update", reason=None)

    def add(self, lease: FakeLease, reservation: FakeReservation) -> None:
        """Book one more reservation in a lease."""
        if lease.status not in ("PENDING", "ACTIVE"):
            raise Refusal(
                409, "InvalidState", f"A lease that is {lease.status} takes no further reservations"
            )
        wanted = [*lease.reservations, reservation]
        self._allocate(lease, wanted, lease.start, lease.end, first=len(lease.reservations))
        lease.reservations = wanted
        self.move(lease, lease.status, action="update", reason=None)

    def drop(self, lease: FakeLease, reservation_id: str) -> None:
        for reservation in lease.reservations:
            if reservation.id == reservation_id:
                reservation.dropped = True
                return
        raise Refusal(404, "NotFound", f"Object with {{'reservation_id': '{reservation_id}'}} not found")

    def delete(self, lease_id: str) -> None:
        self.lease(lease_id)
        del self.leases[lease_id]
        self.deleted.add(lease_id)

    def lease(self, lease_id: str) -> FakeLease:
        if lease_id not in self.leases:
            raise Refusal(404, "NotFound", f"Object with {{'lease_id': '{lease_id}'}} not found")
        return self.leases[lease_id]

    def host(self, host_id: str) -> FakeHost:
        if host_id not in self.hosts:
            raise Refusal(404, "NotFound", f"Object with {{'host_id': '{host_id}'}} not found")
        return self.hosts[host_id]

    def floatingip(self, floatingip_id: str) -> FakeFloatingIP:
        if floatingip_id not in self.floatingips:
            raise Refusal(404, "NotFound", f"Floating IP {floatingip_id} not found.")
        return self.floatingips[floatingip_id]

    def pool(self, pool_id: str) -> FakeVolumePool:
        if pool_id not in self.pools:
            raise Refusal(404, "NotFound", f"Volume pool {pool_id} not found.")
        return self.pools[pool_id]

    def remove_pool(self, pool_id: str) -> None:
        self.pool(pool_id)
        if any(lease.status in ("PENDING", "ACTIVE") for lease, _ in self.allocated_to(pool_id)):
            message = f"Can't delete volume pool {pool_id}. The volume pool is reserved."
            raise Refusal(409, "Conflict", message)
        del self.pools[pool_id]

    def promised(self, pool_id: str) -> int:
        """Return how much of a pool is reserved at the instant of the highest use, in GB."""
        parts = [
            (lease, volumes_gb(reservation))
            for lease, reservation in self.allocated_to(pool_id)
            if lease.status in ("CREATING", "PENDING", "ACTIVE")
        ]
        return max(
            (
                sum(size for other, size in parts if other.start <= lease.start < other.end)
                for lease, _ in parts
            ),
            default=0,
        )

    def remove_floatingip(self, floatingip_id: str) -> None:
        self.floatingip(floatingip_id)
        if any(lease.status in ("PENDING", "ACTIVE") for lease, _ in self.allocated_to(floatingip_id)):
            message = f"Can't delete floating IP {floatingip_id}. The floating IP is reserved."
            raise Refusal(409, "Conflict", message)
        del self.floatingips[floatingip_id]

    def remove_host(self, host_id: str) -> None:
        self.host(host_id)
        if any(lease.status in ("PENDING", "ACTIVE") for lease, _ in self.allocated_to(host_id)):
            raise Refusal(409, "Conflict", f"Can't delete host {host_id}. The host is reserved.")
        del self.hosts[host_id]

    def allocated_to(self, resource_id: str) -> list[tuple[FakeLease, FakeReservation]]:
        """Return the reservations of a host, an address or a pool, with their leases."""
        return [
            (lease, reservation)
            for lease in self.leases.values()
            for reservation in lease.reservations
            if resource_id in (*reservation.host_ids, *reservation.floatingip_ids, reservation.pool_id)
            and not reservation.dropped
        ]

    def move_off(
        self, resource_id: str, lease: FakeLease, reservation: FakeReservation, *, dry_run: bool
    ) -> str | None:
        """Move a reservation from this host or address to another; return its id, None if there is none."""
        if resource_id == reservation.pool_id:
            return None  # data cannot move
        choice = self._choice(lease, lease.start, lease.end, mine=True)
        of_hosts = resource_id in reservation.host_ids
        if not of_hosts and choice.requires(reservation, resource_id):
            return None
        replacement = choice.another_host(reservation) if of_hosts else choice.another_floatingip(reservation)
        if replacement is not None and not dry_run:
            held = reservation.host_ids if of_hosts else reservation.floatingip_ids
            held[:] = [replacement if held_id == resource_id else held_id for held_id in held]
        return replacement

    def _check_period(self, start: datetime, end: datetime, before_end: datetime | None) -> None:
        if end <= start:
            raise Refusal(
                400, "InvalidParameter", "End date must be later than start date.", field="end_date"
            )
        if before_end is not None and not start < before_end < end:
            raise Refusal(400, "InvalidParameter", "Datetime is out of lease limits", field="before_end_date")

    def _allocate(
        self,
        lease: FakeLease,
        reservations: list[FakeReservation],
        start: datetime,
        end: datetime,
        *,
        first: int = 0,
    ) -> None:
        """Select resources for the reservations from index ``first`` on; the earlier ones keep theirs."""
        choice = self._choice(lease, start, end, mine=False)
        choice.chosen.extend(reservation for reservation in reservations[:first] if not reservation.dropped)
        for index, reservation in enumerate(reservations[first:], first):
            if not reservation.dropped:
                choice.choose(index, reservation)

    def _choice(self, lease: FakeLease, start: datetime, end: datetime, *, mine: bool) -> Choice:
        others = [
            other
            for other in self.leases.values()
            if (mine or other is not lease) and other.holds(start, end)
        ]
        return Choice(self.hosts, self.floatingips, self.pools, self.flavors, others)
