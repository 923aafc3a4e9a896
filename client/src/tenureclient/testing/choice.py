"""The selection of hosts and addresses in the fake server; it counts how far it came."""

from __future__ import annotations

import ipaddress
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tenureclient.testing.stock import (
    HOST_FACTS,
    FakeFlavor,
    FakeFloatingIP,
    FakeHost,
    FakeLease,
    FakeReservation,
    FakeVolumePool,
    Refusal,
)
from tenureclient.wire import JsonValue

_COMPARISONS: Mapping[str, Callable[[float | str, float | str], bool]] = {
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class Term:
    """A condition on hosts: the properties that it uses, and a predicate."""

    names: frozenset[str]
    holds: Callable[[FakeHost], bool]


@dataclass(frozen=True, slots=True)
class Size:
    """The resources that one instance needs of its host."""

    vcpus: int
    memory_mb: int
    disk_gb: int

    def __mul__(self, count: int) -> Size:
        return Size(self.vcpus * count, self.memory_mb * count, self.disk_gb * count)

    def __add__(self, other: Size) -> Size:
        return Size(self.vcpus + other.vcpus, self.memory_mb + other.memory_mb, self.disk_gb + other.disk_gb)


NOTHING = Size(0, 0, 0)


@dataclass(slots=True)
class Choice:
    """Selects resources for a lease, reservation by reservation; reservations share no resource."""

    hosts: Mapping[str, FakeHost]
    floatingips: Mapping[str, FakeFloatingIP]
    pools: Mapping[str, FakeVolumePool]
    flavors: Mapping[str, FakeFlavor]
    #: The leases that use resources during the period.
    others: Sequence[FakeLease]
    chosen: list[FakeReservation] = field(default_factory=list)

    def choose(self, index: int, reservation: FakeReservation) -> None:
        """Give the reservation its resources. Raises ``Refusal`` if they are not free."""
        match reservation.resource_type:
            case "physical:host":
                reservation.host_ids = self._hosts(index, reservation)
            case "virtual:instance" | "flavor:instance":
                reservation.host_ids = self._instances(index, reservation)
            case "virtual:floatingip":
                reservation.floatingip_ids = self._floatingips(index, reservation)
            case "virtual:volume":
                reservation.pool_id = self._pool(index, reservation)
        self.chosen.append(reservation)

    def another_host(self, reservation: FakeReservation) -> str | None:
        """Return a host that can replace one of the reservation's hosts."""
        terms = _terms_of(reservation, "")
        return next(
            (
                host.id
                for host in self.hosts.values()
                if host.reservable and all(term.holds(host) for term in terms) and self._is_free(host)
            ),
            None,
        )

    def another_floatingip(self, reservation: FakeReservation) -> str | None:
        """Return an address that can replace one of the reservation's addresses."""
        return next((floatingip.id for floatingip in self._free_floatingips(reservation)), None)

    def requires(self, reservation: FakeReservation, floatingip_id: str) -> bool:
        """Whether the reservation asks for this very address."""
        return self.floatingips[floatingip_id].floating_ip_address in _required(reservation, "")

    def _hosts(self, index: int, reservation: FakeReservation) -> list[str]:
        place = f"reservations[{index}]"
        least, most = (_count(reservation.parameters.get(key), f"{place}.{key}") for key in ("min", "max"))
        if most < least:
            raise Refusal(
                400,
                "InvalidParameter",
                "Invalid values for min/max of hosts. Max must be equal to or larger than min.",
                field=f"{place}.max",
            )
        terms = _terms_of(reservation, place)
        reservable = [host for host in self.hosts.values() if host.reservable]
        matching = [host for host in reservable if all(term.holds(host) for term in terms)]
        free = [host.id for host in matching if self._is_free(host)]
        if len(free) < least:
            counts = {"reservable": len(reservable), "matching": len(matching), "free": len(free)}
            raise self._shortfall("hosts", "min", least, index, reservation, counts, terms)
        return free[:most]

    def _instances(self, index: int, reservation: FakeReservation) -> list[str]:
        place = f"reservations[{index}]"
        amount = _count(reservation.parameters.get("amount"), f"{place}.amount")
        size = self.size_of(reservation, place)
        affinity = reservation.parameters.get("affinity")
        terms = _terms_of(reservation, place)
        reservable = [host for host in self.hosts.values() if host.reservable]
        matching = [
            host
            for host in reservable
            if all(term.holds(host) for term in terms) and _fitting_units(_capacity_of(host), size)
        ]
        rooms = {host.id: self._room(host, size) for host in matching}
        if affinity is False:
            rooms = {host_id: min(1, room) for host_id, room in rooms.items()}
        fitting = max(rooms.values(), default=0) if affinity is True else sum(rooms.values())
        if fitting < amount:
            counts = {
                "reservable": len(reservable),
                "matching": len(matching),
                "roomy": sum(room > 0 for room in rooms.values()),
                "fitting": fitting,
            }
            raise self._shortfall("instances", "amount", amount, index, reservation, counts, terms)
        if affinity is True:
            rooms = {host_id: room for host_id, room in rooms.items() if room >= amount}
        return [host_id for host_id, room in rooms.items() for _ in range(room)][:amount]

    def _floatingips(self, index: int, reservation: FakeReservation) -> list[str]:
        place = f"reservations[{index}]"
        amount = _count(reservation.parameters.get("amount"), f"{place}.amount")
        named = _required(reservation, place)
        free = self._free_floatingips(reservation)
        wanted = [floatingip for floatingip in free if floatingip.floating_ip_address in named]
        others = [floatingip for floatingip in free if floatingip.floating_ip_address not in named]
        if len(wanted) < len(named) or len(free) < amount:
            reservable = [floatingip for floatingip in self.floatingips.values() if floatingip.reservable]
            matching = [floatingip for floatingip in reservable if _in_network(floatingip, reservation)]
            counts = {"reservable": len(reservable), "matching": len(matching), "free": len(free)}
            raise self._shortfall("floating IPs", "amount", amount, index, reservation, counts, [])
        return [floatingip.id for floatingip in (*wanted, *others)][:amount]

    def _free_floatingips(self, reservation: FakeReservation) -> list[FakeFloatingIP]:
        taken = {floatingip_id for other in self._in_use() for floatingip_id in other.floatingip_ids}
        return [
            floatingip
            for floatingip in self.floatingips.values()
            if floatingip.reservable and _in_network(floatingip, reservation) and floatingip.id not in taken
        ]

    def _pool(self, index: int, reservation: FakeReservation) -> str:
        """Return the pool of the volume type, if all the volumes fit into it."""
        place = f"reservations[{index}]"
        amount, _ = (
            _count(reservation.parameters.get(key), f"{place}.{key}") for key in ("amount", "size_gb")
        )
        wanted = reservation.parameters.get("volume_type") or None
        pools = [pool for pool in self.pools.values() if wanted in (None, pool.volume_type)]
        if not pools:
            raise Refusal(
                400, "InvalidParameter", f"There is no volume type {wanted}.", field=f"{place}.volume_type"
            )
        pool = pools[0]
        used = sum(
            volumes_gb(reservation) for reservation in self._in_use() if reservation.pool_id == pool.id
        )
        gb_per_volume = volumes_gb(reservation) // amount
        fitting = max(0, pool.capacity_gb - used) // gb_per_volume if pool.reservable else 0
        if fitting < amount:
            reservable = sum(1 for pool in self.pools.values() if pool.reservable)
            roomy = int(fitting > 0)
            counts = {"reservable": reservable, "matching": 1, "roomy": roomy, "fitting": fitting}
            raise self._shortfall("volumes", "amount", amount, index, reservation, counts, [])
        return pool.id

    def size_of(self, reservation: FakeReservation, place: str) -> Size:
        """Return the size of one instance. Raises ``Refusal`` if the flavor is unknown."""
        parameters = reservation.parameters
        if reservation.resource_type == "virtual:instance":
            vcpus, memory_mb = (
                _count(parameters.get(key), f"{place}.{key}") for key in ("vcpus", "memory_mb")
            )
            disk_gb = parameters.get("disk_gb")
            return Size(vcpus, memory_mb, disk_gb if isinstance(disk_gb, int) else 0)
        flavor = self.flavors.get(str(parameters.get("flavor_id")))
        if flavor is None:
            raise Refusal(
                400,
                "InvalidParameter",
                f"Flavor {parameters.get('flavor_id')} could not be found.",
                field=f"{place}.flavor_id",
            )
        return Size(flavor.vcpus, flavor.memory_mb, flavor.disk_gb)

    def _in_use(self) -> Iterable[FakeReservation]:
        """Yield the reservations of the period: those selected so far in this lease, and other leases'."""
        yield from self.chosen
        for lease in self.others:
            yield from (reservation for reservation in lease.reservations if not reservation.dropped)

    def _is_free(self, host: FakeHost) -> bool:
        return not any(host.id in reservation.host_ids for reservation in self._in_use())

    def _room(self, host: FakeHost, size: Size) -> int:
        """Return how many instances of a size still fit on a host."""
        used = NOTHING
        for reservation in self._in_use():
            parts = reservation.host_ids.count(host.id)
            if parts and reservation.resource_type == "physical:host":
                return 0
            if parts:
                used += self.size_of(reservation, "") * parts
        return _fitting_units(_capacity_of(host) + used * -1, size)

    def _shortfall(
        self,
        noun: str,
        counted: str,
        requested: int,
        index: int,
        reservation: FakeReservation,
        counts: Mapping[str, int],
        terms: Sequence[Term],
    ) -> Refusal:
        known = set(HOST_FACTS).union(*(host.properties for host in self.hosts.values()))
        left = list(counts.values())[-1]
        return Refusal(
            409,
            "NotEnoughResources",
            f"Not enough {noun} available: {requested} asked, {left} free",
            field=f"reservations[{index}].{counted}",
            details={
                "resource_type": reservation.resource_type,
                "reservation": index,
                "requested": requested,
                "stages": [{"stage": stage, "count": count} for stage, count in counts.items()],
                "unknown_properties": [*sorted({name for term in terms for name in term.names} - known)],
            },
        )


def volumes_gb(reservation: FakeReservation) -> int:
    """Return the capacity that the volumes of a reservation use. Snapshots use as much as their volumes."""
    amount, size = (reservation.parameters.get(key) for key in ("amount", "size_gb"))
    count = amount * size if isinstance(amount, int) and isinstance(size, int) else 0
    return count * (2 if reservation.parameters.get("at_end") == "snapshot" else 1)


def _in_network(floatingip: FakeFloatingIP, reservation: FakeReservation) -> bool:
    """Whether the address belongs to the requested network."""
    return floatingip.floating_network_id == reservation.parameters.get("network_id")


def _capacity_of(host: FakeHost) -> Size:
    return Size(host.vcpus, host.memory_mb, host.local_gb)


def _fitting_units(room: Size, size: Size) -> int:
    """Return how many instances of a size fit into the room."""
    counts = [room.vcpus // size.vcpus, room.memory_mb // size.memory_mb]
    if size.disk_gb:
        counts.append(room.disk_gb // size.disk_gb)
    return max(0, min(counts))


def _required(reservation: FakeReservation, place: str) -> list[str]:
    required = reservation.parameters.get("required_floatingips") or []
    return [_address(address, place) for address in required] if isinstance(required, list) else []


def _address(text: JsonValue, place: str) -> str:
    try:
        return str(ipaddress.ip_address(str(text)))
    except ValueError:
        raise Refusal(
            400,
            "InvalidParameter",
            f"IP address {text} is invalid form.",
            field=f"{place}.required_floatingips",
        ) from None


def _terms_of(reservation: FakeReservation, place: str) -> list[Term]:
    return [
        term
        for key in ("hypervisor_properties", "resource_properties")
        for term in _terms(reservation.parameters.get(key), f"{place}.{key}")
    ]


def _count(value: JsonValue, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Refusal(400, "InvalidParameter", f"Malformed parameter {place.rpartition('.')[2]}", field=place)
    return value


def _terms(expression: JsonValue, place: str) -> list[Term]:
    if expression in (None, ""):
        return []
    try:
        document: JsonValue = json.loads(str(expression))
        return [] if document == [] else [_term(document)]
    except ValueError:
        raise Refusal(400, "InvalidParameter", f"Malformed requirements {expression}", field=place) from None


def _term(document: JsonValue) -> Term:
    """Read one part of an expression. Raises ``ValueError`` if it is not valid."""
    if not isinstance(document, list) or len(document) < 2:
        raise ValueError(document)
    op, *parts = document
    if op in ("and", "or"):
        inner = [_term(part) for part in parts]
        decide = all if op == "and" else any
        names = frozenset(name for term in inner for name in term.names)
        return Term(names, lambda host: decide(term.holds(host) for term in inner))
    if op == "not" and len(parts) == 1:
        negated = _term(parts[0])
        return Term(negated.names, lambda host: not negated.holds(host))
    name, *values = (part for part in parts if isinstance(part, str))
    if op not in (*_COMPARISONS, "in") or len(values) != len(parts) - 1 or not values or name[:1] != "$":
        raise ValueError(document)
    if op != "in" and len(values) > 1:
        raise ValueError(document)
    compares = _COMPARISONS["==" if op == "in" else str(op)]
    return Term(
        frozenset([name[1:]]),
        lambda host: any(map(partial(_compares, compares, host.fact(name[1:])), values)),
    )


def _compares(compares: Callable[[float | str, float | str], bool], fact: str | None, wanted: str) -> bool:
    if fact is None:
        return False
    try:
        return compares(float(fact), float(wanted))
    except ValueError:
        return compares(fact, wanted)
