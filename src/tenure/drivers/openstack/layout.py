"""The distribution of hosts over aggregates, at one moment."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tenure.drivers.contract import CloudBusy, Command, Drift, ResourceRef
from tenure.drivers.openstack.compute import Aggregate, Hypervisor
from tenure.drivers.openstack.options import OpenStackOptions

_RESERVATION_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: The metadata key by which the flavor of an instance reservation finds the hosts of its group.
RESERVATION_KEY: Final = "reservation"
#: The metadata key for the owner of an aggregate that was closed before its end.
FORMER_OWNER = "tenure:former_owner"
#: The prefix of the metadata key for a host's homes in the group of a host reservation; the name of the host follows.
_HOME: Final = "tenure:home:"


def home_key(host: str) -> str:
    """Return the metadata key for a host's homes."""
    return f"{_HOME}{host}"


def homes_text(homes: Iterable[int]) -> str:
    """Return the metadata value for homes: ids of aggregates, as their names may change."""
    return ",".join(str(aggregate_id) for aggregate_id in sorted(homes))


def recorded_homes(group: Aggregate) -> dict[str, frozenset[int]]:
    """Return the homes that the group records, by host; invalid ids are ignored."""
    return {
        key.removeprefix(_HOME): frozenset(int(part) for part in value.split(",") if part.isascii() and part.isdigit())
        for key, value in group.metadata.items()
        if key.startswith(_HOME)
    }


class Layout:
    """The aggregates of a cloud: the pool, the groups of reservations, and others.

    A reservation's group is the aggregate with its id as name, which Nova allows only once. The group of a host
    reservation has its own zone. The group of an instance reservation has no zone; its hosts are also in the pool, and
    may be in other groups of that kind. Hosts are named by their compute services, nodes of Ironic by their own names.
    """

    def __init__(self, aggregates: Sequence[Aggregate], options: OpenStackOptions) -> None:
        self._options = options
        self._by_name = {aggregate.name: aggregate for aggregate in aggregates}
        self._by_id = {aggregate.id: aggregate for aggregate in aggregates}
        self._pool = self._by_name.get(options.freepool_name)
        self._groups = {aggregate.name: aggregate for aggregate in aggregates if self._is_group(aggregate)}
        self._shared = {aggregate.name: aggregate for aggregate in aggregates if self._is_shared(aggregate)}
        self._others = [
            aggregate for aggregate in aggregates if aggregate.zone is not None and aggregate.name not in self._groups
        ]
        #: The aggregates of each host that are neither the pool nor a reservation's.
        self._lasting: dict[str, list[Aggregate]] = defaultdict(list)
        for aggregate in filter(self._may_be_home, aggregates):
            for host in aggregate.hosts:
                self._lasting[host].append(aggregate)
        self._recorded: dict[str, list[tuple[Aggregate, frozenset[int]]]] = defaultdict(list)
        for aggregate in aggregates:
            for host, homes in recorded_homes(aggregate).items():
                self._recorded[host].append((aggregate, homes))

    @property
    def pooled(self) -> frozenset[str]:
        """Return the hosts of the pool, empty if there is no pool."""
        return frozenset() if self._pool is None else self._pool.hosts

    @property
    def pool(self) -> Aggregate:
        """Return the pool; raise ``CloudBusy`` if there is none."""
        if self._pool is None:
            raise CloudBusy(f"Nova has no aggregate {self._options.freepool_name}, which holds the free hosts.")
        return self._pool

    def zone_of(self, reservation_id: str) -> str:
        return f"{self._options.zone_prefix}{reservation_id}"

    def reservations(self) -> list[str]:
        """Return the names of all groups, of hosts and of instances."""
        return sorted({*self._groups, *self._shared})

    def group(self, reservation_id: str) -> Aggregate | None:
        """Return the reservation's group, also if a user has changed its zone or owner.

        Without both it is recognized by its name: other aggregates are not named by a UUID.
        """
        named = self._by_name.get(reservation_id)
        if named is None or named.name == self._options.freepool_name:
            return None
        is_ours = named.name in self._groups or self._has_owner(named) or _RESERVATION_ID.fullmatch(named.name)
        return named if is_ours else None

    def shared(self, reservation_id: str) -> Aggregate | None:
        """Return the group of an instance reservation, also without metadata: other aggregates are not named so."""
        named = self._by_name.get(reservation_id)
        if named is None or named.name == self._options.freepool_name or named.name in self._groups:
            return None
        return named

    def owner_of(self, group: Aggregate) -> str:
        """Return the owner of the group, or the one before it was closed."""
        return group.metadata.get(self._options.owner_key) or group.metadata.get(FORMER_OWNER) or ""

    def reservations_on(self, host: str, but: str) -> list[str]:
        """Return the other reservations that have the host, or instances on it, or have not returned it to its zone."""
        names = (group.name for group in self.not_returned_by(host))
        return sorted({*self.exclusive_reservations(host, but), *self.sharers(host), *names} - {but})

    def exclusive_reservations(self, host: str, but: str) -> list[str]:
        """Return the other reservations that have the host as a whole."""
        return sorted(name for name, group in self._groups.items() if host in group.hosts and name != but)

    def sharers(self, host: str) -> list[str]:
        """Return the instance reservations on the host."""
        return sorted(name for name, group in self._shared.items() if host in group.hosts)

    def is_reserved_whole(self, host: str) -> bool:
        """Whether a reservation has the host as a whole."""
        return any(host in group.hosts for group in self._groups.values())

    def foreign_zone(self, host: str) -> str | None:
        """Return the zone of the host by an aggregate that belongs to no reservation."""
        return next((aggregate.zone for aggregate in self._others if host in aggregate.hosts), None)

    def stranger_zone(self, host: str) -> str | None:
        """Return the zone of the host by the pool, or by an aggregate that only looks like a reservation's."""
        return next(
            (
                aggregate.zone
                for aggregate in self._others
                if host in aggregate.hosts and not self._may_be_home(aggregate)
            ),
            None,
        )

    def metadata_of(self, host: str) -> list[Mapping[str, str]]:
        """Return the metadata of the operator's aggregates of a host, also of those that it has left for a reservation.

        Flavors choose hosts by them. The pool and the aggregates of reservations, in which it is for a time, are left
        out.
        """
        recorded = frozenset(aggregate_id for _, homes in self._recorded.get(host, ()) for aggregate_id in homes)
        left = self.aggregates_of(self.homes_to_keep(host, recorded))
        found = {aggregate.id: aggregate for aggregate in (*self._lasting.get(host, ()), *left)}
        return [found[aggregate_id].metadata for aggregate_id in sorted(found)]

    # The zones of hosts

    def aggregates_of(self, aggregate_ids: Iterable[int]) -> list[Aggregate]:
        """Return the operator's aggregates with these ids."""
        found = (self._by_id[key] for key in sorted(aggregate_ids) if key in self._by_id)
        return [aggregate for aggregate in found if self._may_be_home(aggregate)]

    def homes_to_keep(self, host: str, recorded: frozenset[int]) -> frozenset[int]:
        """Return the homes that a group records before the host leaves them; ``recorded`` are those it has recorded.

        If the host has another zone now, the recorded homes are outdated.
        """
        present = self._present_homes(host)
        if not present:
            return recorded
        zones = {home.zone for home in present}
        return frozenset(home.id for home in (*present, *self.aggregates_of(recorded)) if home.zone in zones)

    def home_zone(self, host: str) -> str | None:
        """Return the host's own zone, also while it is reserved; None if it has none."""
        recorded = {aggregate_id for _, homes in self._recorded.get(host, ()) for aggregate_id in homes}
        homes = self._present_homes(host) or self.aggregates_of(recorded)
        return next((home.zone for home in homes if home.zone is not None), None)

    def not_returned_by(self, host: str) -> list[Aggregate]:
        """Return the groups that have released the host and not returned it to its homes yet."""
        if self.is_reserved_whole(host):
            return []
        zone = self.foreign_zone(host)
        return [
            group
            for group, homes in self._recorded.get(host, ())
            if any(
                host not in home.hosts and (zone is None or home.zone in (None, zone))
                for home in self.aggregates_of(homes)
            )
        ]

    def _present_homes(self, host: str) -> list[Aggregate]:
        """Return the operator's aggregates that give the host its current zone."""
        return [aggregate for aggregate in self._others if host in aggregate.hosts and self._may_be_home(aggregate)]

    def _may_be_home(self, aggregate: Aggregate) -> bool:
        return aggregate.name != self._options.freepool_name and self.group(aggregate.name) is None

    def own_zones(self) -> frozenset[str]:
        """Return the zones of all aggregates."""
        return frozenset(aggregate.zone for aggregate in self._by_name.values() if aggregate.zone is not None)

    def expected_metadata(self, command: Command, group: Aggregate | None) -> dict[str, str | None]:
        """Return the changes of the group's metadata that open it to the command's owner only."""
        found = {} if group is None else group.metadata
        changes: dict[str, str | None] = {}
        if found.get(self._options.owner_key) != command.project_id:
            changes[self._options.owner_key] = command.project_id
        if FORMER_OWNER in found:
            changes[FORMER_OWNER] = None
        if group is not None and group.zone != self.zone_of(command.reservation_id):
            changes["availability_zone"] = self.zone_of(command.reservation_id)
        return changes

    # What is not as it should be

    def drift(
        self,
        commands: Sequence[Command],
        pooled: Sequence[ResourceRef],
        hypervisors: Mapping[str, Hypervisor],
        without_provider: frozenset[str],
    ) -> Iterator[Drift]:
        names = {hypervisor.member: hypervisor.ref for hypervisor in hypervisors.values()}
        for command in commands:
            yield from self._drift_of_group(command)
            yield from self._drift_of_hosts(command, hypervisors, names)
        for resource in (*pooled, *(resource for command in commands for resource in command.resources)):
            found = hypervisors.get(resource.external_id)
            if found is not None and found.name in without_provider:
                yield Drift(None, resource, f"{resource.name} has no provider for reservations in Placement")
        for resource in pooled:
            found = hypervisors.get(resource.external_id)
            if found is None or self.is_reserved_whole(found.member):
                continue
            if self._pool is None or found.member not in self._pool.hosts:
                yield Drift(None, resource, f"{resource.name} is not in the pool")
            elif self.not_returned_by(found.member):
                zone = self.home_zone(found.member)
                yield Drift(None, resource, f"{resource.name} is not in its availability zone {zone}")

    def _drift_of_group(self, command: Command) -> Iterator[Drift]:
        group = self.group(command.reservation_id)
        if group is None:
            yield Drift(command.reservation_id, None, f"reservation {command.reservation_id} has no aggregate")
        elif changes := self.expected_metadata(command, group):
            wrong = ", ".join(sorted(changes))
            yield Drift(
                command.reservation_id,
                None,
                f"the aggregate of reservation {command.reservation_id} has another {wrong}",
            )

    def _drift_of_hosts(
        self, command: Command, hypervisors: Mapping[str, Hypervisor], names: Mapping[str, ResourceRef]
    ) -> Iterator[Drift]:
        group = self.group(command.reservation_id)
        members = frozenset() if group is None else group.hosts
        expected: set[str] = set()
        complete = True
        for resource in command.resources:
            found = hypervisors.get(resource.external_id)
            if found is None:
                complete = False
                continue
            expected.add(found.member)
            if found.member not in members:
                yield Drift(command.reservation_id, resource, f"{resource.name} is {self._location(found.member)}")
            elif self._pool is not None and found.member in self._pool.hosts:
                yield Drift(command.reservation_id, resource, f"{resource.name} is in the pool as well")
        # A host with a new id in Nova would look like an unknown one.
        for host in sorted(members - expected if complete else ()):
            strange = names.get(host)
            yield Drift(
                command.reservation_id, strange, f"{host} is in the aggregate of reservation {command.reservation_id}"
            )

    def _location(self, host: str) -> str:
        if names := self.exclusive_reservations(host, but=""):
            return f"in the aggregate of reservation {names[0]}"
        return "in the pool" if self._pool is not None and host in self._pool.hosts else "in general use"

    def _is_group(self, aggregate: Aggregate) -> bool:
        if aggregate.zone is None or aggregate.name == self._options.freepool_name:
            return False
        is_named_so = aggregate.zone == self.zone_of(aggregate.name)
        return is_named_so or (aggregate.zone.startswith(self._options.zone_prefix) and self._has_owner(aggregate))

    def _is_shared(self, aggregate: Aggregate) -> bool:
        if aggregate.zone is not None or aggregate.name == self._options.freepool_name:
            return False
        is_named_so = _RESERVATION_ID.fullmatch(aggregate.name) is not None
        return is_named_so or (aggregate.metadata.get(RESERVATION_KEY) == aggregate.name and self._has_owner(aggregate))

    def _has_owner(self, aggregate: Aggregate) -> bool:
        return self._options.owner_key in aggregate.metadata or FORMER_OWNER in aggregate.metadata
