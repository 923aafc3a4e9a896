"""How hosts are spread over aggregates, seen at one moment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tenure.drivers.contract import CloudBusy, Drift, Order, ResourceRef
from tenure.drivers.openstack.compute import Aggregate, Hypervisor
from tenure.drivers.openstack.options import OpenStackOptions

_RESERVATION_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Where the group of a reservation of instances says whose it is; its flavor asks for hosts with that.
RESERVATION_KEY: Final = "reservation"
#: Where an aggregate that was closed before its end keeps whose it was.
FORMER_OWNER = "tenure:former_owner"


class Layout:
    """The aggregates of a cloud: the pool, the groups of reservations, and those of others.

    A reservation's group is the aggregate that has its id for a name, which Nova lets exist once. That of a reservation
    of whole hosts has the zone that belongs to it; that of a reservation of instances has none, and its hosts are in
    the pool besides, and in other groups of that kind. The names of hosts are those of their compute services.
    """

    def __init__(self, aggregates: Sequence[Aggregate], options: OpenStackOptions) -> None:
        self._options = options
        self._by_name = {one.name: one for one in aggregates}
        self._pool = self._by_name.get(options.freepool_name)
        self._groups = {one.name: one for one in aggregates if self._is_group(one)}
        self._shared = {one.name: one for one in aggregates if self._is_shared(one)}
        self._others = [one for one in aggregates if one.zone is not None and one.name not in self._groups]

    @property
    def pooled(self) -> frozenset[str]:
        """The hosts of the pool; none where there is no pool."""
        return frozenset() if self._pool is None else self._pool.hosts

    @property
    def pool(self) -> Aggregate:
        """The pool; raises ``CloudBusy`` where there is none."""
        if self._pool is None:
            raise CloudBusy(f"Nova has no aggregate {self._options.freepool_name}, which holds the free hosts.")
        return self._pool

    def zone_of(self, reservation_id: str) -> str:
        return f"{self._options.zone_prefix}{reservation_id}"

    def reservations(self) -> list[str]:
        """The names of all groups, of hosts and of instances."""
        return sorted({*self._groups, *self._shared})

    def group(self, reservation_id: str) -> Aggregate | None:
        """The reservation's group, also when somebody changed its zone or its owner; not what merely has such a name.

        With neither left its name tells it: nobody else calls an aggregate so.
        """
        named = self._by_name.get(reservation_id)
        if named is None or named.name == self._options.freepool_name:
            return None
        is_ours = named.name in self._groups or self._has_owner(named) or _RESERVATION_ID.fullmatch(named.name)
        return named if is_ours else None

    def shared(self, reservation_id: str) -> Aggregate | None:
        """The group of a reservation of instances; nobody else calls an aggregate so, also one without metadata."""
        named = self._by_name.get(reservation_id)
        if named is None or named.name == self._options.freepool_name or named.name in self._groups:
            return None
        return named

    def owner_of(self, group: Aggregate) -> str:
        """Whose group it is, or was before it was closed."""
        return group.metadata.get(self._options.owner_key) or group.metadata.get(FORMER_OWNER) or ""

    def holders(self, host: str, but: str) -> list[str]:
        """The other reservations that have the host, or instances on it."""
        return sorted({*self.exclusive_holders(host, but), *self.sharers(host)} - {but})

    def exclusive_holders(self, host: str, but: str) -> list[str]:
        """The other reservations that have the host for themselves."""
        return sorted(name for name, group in self._groups.items() if host in group.hosts and name != but)

    def sharers(self, host: str) -> list[str]:
        """The reservations of instances that the host serves."""
        return sorted(name for name, group in self._shared.items() if host in group.hosts)

    def is_held(self, host: str) -> bool:
        """Whether a reservation has the host for itself."""
        return any(host in group.hosts for group in self._groups.values())

    def foreign_zone(self, host: str) -> str | None:
        """The zone that the host is in by an aggregate that is no reservation's."""
        return next((one.zone for one in self._others if host in one.hosts), None)

    def own_zones(self) -> frozenset[str]:
        """The zones that exist by aggregates, of whatever kind."""
        return frozenset(one.zone for one in self._by_name.values() if one.zone is not None)

    def wanted_metadata(self, order: Order, group: Aggregate | None) -> dict[str, str | None]:
        """What must be changed in the metadata of the order's group so that it is open to the owner alone."""
        found = {} if group is None else group.metadata
        changes: dict[str, str | None] = {}
        if found.get(self._options.owner_key) != order.project_id:
            changes[self._options.owner_key] = order.project_id
        if FORMER_OWNER in found:
            changes[FORMER_OWNER] = None
        if group is not None and group.zone != self.zone_of(order.reservation_id):
            changes["availability_zone"] = self.zone_of(order.reservation_id)
        return changes

    # What is not as it should be

    def drift(
        self,
        orders: Sequence[Order],
        pooled: Sequence[ResourceRef],
        hypervisors: Mapping[str, Hypervisor],
        without_provider: frozenset[str],
    ) -> Iterator[Drift]:
        names = {one.service_host: one.ref for one in hypervisors.values()}
        for order in orders:
            yield from self._drift_of_group(order)
            yield from self._drift_of_hosts(order, hypervisors, names)
        for resource in (*pooled, *(one for order in orders for one in order.resources)):
            found = hypervisors.get(resource.external_id)
            if found is not None and found.name in without_provider:
                yield Drift(None, resource, f"{resource.name} has no provider for reservations in Placement")
        for resource in pooled:
            found = hypervisors.get(resource.external_id)
            if found is None or self.is_held(found.service_host):
                continue
            if self._pool is None or found.service_host not in self._pool.hosts:
                yield Drift(None, resource, f"{resource.name} is not in the pool")

    def _drift_of_group(self, order: Order) -> Iterator[Drift]:
        group = self.group(order.reservation_id)
        if group is None:
            yield Drift(order.reservation_id, None, f"reservation {order.reservation_id} has no aggregate")
        elif changes := self.wanted_metadata(order, group):
            wrong = ", ".join(sorted(changes))
            yield Drift(
                order.reservation_id, None, f"the aggregate of reservation {order.reservation_id} has another {wrong}"
            )

    def _drift_of_hosts(
        self, order: Order, hypervisors: Mapping[str, Hypervisor], names: Mapping[str, ResourceRef]
    ) -> Iterator[Drift]:
        group = self.group(order.reservation_id)
        members = frozenset() if group is None else group.hosts
        wanted: set[str] = set()
        complete = True
        for resource in order.resources:
            found = hypervisors.get(resource.external_id)
            if found is None:
                complete = False
                continue
            wanted.add(found.service_host)
            if found.service_host not in members:
                yield Drift(order.reservation_id, resource, f"{resource.name} is {self._place(found.service_host)}")
            elif self._pool is not None and found.service_host in self._pool.hosts:
                yield Drift(order.reservation_id, resource, f"{resource.name} is in the pool as well")
        # What Nova lists by another id now may be among those that look strange.
        for host in sorted(members - wanted if complete else ()):
            strange = names.get(host)
            yield Drift(
                order.reservation_id, strange, f"{host} is in the aggregate of reservation {order.reservation_id}"
            )

    def _place(self, host: str) -> str:
        if holders := self.exclusive_holders(host, but=""):
            return f"in the aggregate of reservation {holders[0]}"
        return "in the pool" if self._pool is not None and host in self._pool.hosts else "in general use"

    def _is_group(self, one: Aggregate) -> bool:
        if one.zone is None or one.name == self._options.freepool_name:
            return False
        is_named_so = one.zone == self.zone_of(one.name)
        return is_named_so or (one.zone.startswith(self._options.zone_prefix) and self._has_owner(one))

    def _is_shared(self, one: Aggregate) -> bool:
        if one.zone is not None or one.name == self._options.freepool_name:
            return False
        is_named_so = _RESERVATION_ID.fullmatch(one.name) is not None
        return is_named_so or (one.metadata.get(RESERVATION_KEY) == one.name and self._has_owner(one))

    def _has_owner(self, one: Aggregate) -> bool:
        return self._options.owner_key in one.metadata or FORMER_OWNER in one.metadata
