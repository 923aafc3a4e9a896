"""What the fake server knows: hosts, leases and the time. Plain rules, no HTTP."""

from __future__ import annotations

import json
import operator
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tenureclient.wire import JsonObject, JsonValue, rfc3339

_COMPARISONS: Mapping[str, Callable[[float | str, float | str], bool]] = {
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_WARNING = timedelta(hours=1)


class Refusal(Exception):
    """The fake server says no, with the words of API 1.1."""

    def __init__(
        self,
        code: int,
        name: str,
        message: str,
        *,
        field: str | None = None,
        details: JsonObject | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.message = message
        self.field = field
        self.details = details


@dataclass(slots=True)
class FakeHost:
    """A compute host. A test may change its fields at any time."""

    id: str
    hypervisor_hostname: str
    vcpus: int
    memory_mb: int
    local_gb: int
    availability_zone: str
    reservable: bool
    properties: dict[str, str]
    created_at: datetime
    disabled_reason: str | None = None
    #: well, disabled, down or gone; a host that is not well should not be reservable.
    health: str = "well"
    health_reason: str | None = None

    def fact(self, key: str) -> str | None:
        own = self.properties.get(key)
        if own is not None or key not in _HOST_FACTS:
            return own
        return str(getattr(self, key))


_HOST_FACTS = frozenset(["id", "hypervisor_hostname", "vcpus", "memory_mb", "local_gb", "availability_zone"])


@dataclass(slots=True)
class FakeReservation:
    """A request inside a lease; ``host_ids`` is what was chosen for it."""

    id: str
    resource_type: str
    parameters: dict[str, JsonValue]
    host_ids: list[str] = field(default_factory=list)
    dropped: bool = False


@dataclass(slots=True)
class FakeLease:
    """A lease. A test may change its fields; ``set_status`` of the server records it as well."""

    id: str
    name: str
    start: datetime
    end: datetime
    before_end: datetime | None
    status: str
    status_reason: str | None
    degraded: bool
    created_at: datetime
    reservations: list[FakeReservation]
    history: list[JsonObject] = field(default_factory=list)


class FakeCloud:
    """Hosts, leases and a clock. Due starts and ends happen when anybody looks."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.hosts: dict[str, FakeHost] = {}
        self.leases: dict[str, FakeLease] = {}
        self.private_properties: set[str] = set()
        self.deleted: set[str] = set()

    def settle(self) -> None:
        """Start and end what is due."""
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
        )
        self._allocate(lease, reservations, start, end)
        self.move(lease, "PENDING", action="create", reason=None)
        self.leases[lease.id] = lease
        return lease

    def change(
        self,
        lease: FakeLease,
        *,
        name: str | None,
        start: datetime | None,
        end: datetime | None,
        before_end: datetime | None,
        parameters: Mapping[str, Mapping[str, JsonValue]],
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
        for number, reservation in enumerate(lease.reservations):
            wanted = {**reservation.parameters, **parameters.get(reservation.id, {})}
            changed.append(FakeReservation(reservation.id, reservation.resource_type, wanted))
            changed[number].dropped = reservation.dropped
        if start is not None or end is not None or parameters:
            self._allocate(lease, changed, new_start, new_end)
            lease.reservations = changed
        lease.name = name if name is not None else lease.name
        lease.before_end = before_end or (
            max(new_start, lease.before_end + (new_end - lease.end)) if lease.before_end else None
        )
        lease.start, lease.end = new_start, new_end
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

    def remove_host(self, host_id: str) -> None:
        self.host(host_id)
        if any(lease.status in ("PENDING", "ACTIVE") for lease, _ in self.allocated_to(host_id)):
            raise Refusal(409, "Conflict", f"Can't delete host {host_id}. The host is reserved.")
        del self.hosts[host_id]

    def allocated_to(self, host_id: str) -> list[tuple[FakeLease, FakeReservation]]:
        return [
            (lease, reservation)
            for lease in self.leases.values()
            for reservation in lease.reservations
            if host_id in reservation.host_ids and not reservation.dropped
        ]

    def move_off(
        self, host_id: str, lease: FakeLease, reservation: FakeReservation, *, dry_run: bool
    ) -> str | None:
        """Give a reservation another host for this one; the id of it, None where there is none."""
        terms = [
            term
            for key in ("hypervisor_properties", "resource_properties")
            for term in _terms(reservation.parameters.get(key), key)
        ]
        for host in self.hosts.values():
            taken = any(host.id in other.host_ids for other in lease.reservations)
            fits = host.reservable and all(_holds(term, host) for term in terms)
            if fits and not taken and self._is_free(host, lease, lease.start, lease.end):
                if not dry_run:
                    reservation.host_ids[reservation.host_ids.index(host_id)] = host.id
                return host.id
        return None

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
    ) -> None:
        """Choose hosts for every reservation of hosts; other types are taken without a check."""
        taken: set[str] = set()
        for number, reservation in enumerate(reservations):
            if reservation.resource_type == "physical:host" and not reservation.dropped:
                reservation.host_ids = self._choose(lease, number, reservation, start, end, taken)
                taken.update(reservation.host_ids)

    def _choose(
        self,
        lease: FakeLease,
        number: int,
        reservation: FakeReservation,
        start: datetime,
        end: datetime,
        taken: set[str],
    ) -> list[str]:
        place = f"reservations[{number}]"
        least, most = (_count(reservation.parameters.get(key), f"{place}.{key}") for key in ("min", "max"))
        if most < least:
            raise Refusal(
                400,
                "InvalidParameter",
                "Invalid values for min/max of hosts. Max must be equal to or larger than min.",
                field=f"{place}.max",
            )
        terms = [
            term
            for key in ("hypervisor_properties", "resource_properties")
            for term in _terms(reservation.parameters.get(key), f"{place}.{key}")
        ]
        reservable = [host for host in self.hosts.values() if host.reservable]
        matching = [host for host in reservable if all(_holds(term, host) for term in terms)]
        free = [
            host.id for host in matching if host.id not in taken and self._is_free(host, lease, start, end)
        ]
        if len(free) < least:
            known = set(_HOST_FACTS).union(*(host.properties for host in self.hosts.values()))
            raise Refusal(
                409,
                "NotEnoughResources",
                f"Not enough hosts available: {least} asked, {len(free)} free",
                field=f"{place}.min",
                details={
                    "resource_type": "physical:host",
                    "reservation": number,
                    "requested": least,
                    "stages": [
                        {"stage": "reservable", "count": len(reservable)},
                        {"stage": "matching", "count": len(matching)},
                        {"stage": "free", "count": len(free)},
                    ],
                    "unknown_properties": [key for _, key, _ in terms if key not in known],
                },
            )
        return free[:most]

    def _is_free(self, host: FakeHost, lease: FakeLease, start: datetime, end: datetime) -> bool:
        return not any(
            other is not lease
            and other.status in ("PENDING", "ACTIVE")
            and other.start < end
            and start < other.end
            for other, _ in self.allocated_to(host.id)
        )


def _count(value: JsonValue, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Refusal(400, "InvalidParameter", f"Malformed parameter {place.rpartition('.')[2]}", field=place)
    return value


def _terms(expression: JsonValue, place: str) -> list[tuple[str, str, str]]:
    if expression in (None, ""):
        return []
    try:
        document: JsonValue = json.loads(str(expression))
    except ValueError:
        document = "unreadable"
    terms = document[1:] if isinstance(document, list) and document[:1] == ["and"] else [document]
    if document == []:
        return []
    read = []
    for term in terms:
        if not (
            isinstance(term, list)
            and len(term) == 3
            and all(isinstance(part, str) for part in term)
            and term[0] in _COMPARISONS
            and str(term[1]).startswith("$")
        ):
            raise Refusal(400, "InvalidParameter", f"Malformed requirements {expression}", field=place)
        read.append((str(term[0]), str(term[1])[1:], str(term[2])))
    return read


def _holds(term: tuple[str, str, str], host: FakeHost) -> bool:
    comparison, key, wanted = term
    fact = host.fact(key)
    if fact is None:
        return False
    try:
        return _COMPARISONS[comparison](float(fact), float(wanted))
    except ValueError:
        return _COMPARISONS[comparison](fact, wanted)
