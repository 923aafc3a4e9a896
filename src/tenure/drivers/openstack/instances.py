"""Instance reservations: a flavor that fits a fixed number of servers on each of its hosts.

All created objects have names with the reservation id, by which they are found again. The hosts stay in the pool,
closed to others, and may serve several such reservations at once. Placement limits the servers: the flavor requires one
unit of a resource class of which each host has as many units as the reservation has booked there.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from tenure.domain.actor import Actor
from tenure.domain.reason import Reason
from tenure.drivers.contract import (
    DONE,
    CloudBusy,
    CloudNotFound,
    CloudRefused,
    Command,
    Preempted,
    Progress,
    ResourceMissing,
)
from tenure.drivers.openstack.compute import Aggregate, Hypervisor, Server
from tenure.drivers.openstack.deletions import delete_servers
from tenure.drivers.openstack.devices import Devices
from tenure.drivers.openstack.flavors import AFFINITY_KEY, Flavors, flavor_for
from tenure.drivers.openstack.groups import ServerGroup, ServerGroups, policy_of
from tenure.drivers.openstack.identity import owner_of
from tenure.drivers.openstack.layout import RESERVATION_KEY, Layout
from tenure.drivers.openstack.placement import PREFIX, Placement
from tenure.drivers.openstack.preemption import Preemption
from tenure.drivers.openstack.requests import BadRequest, Conflict
from tenure.drivers.openstack.type_driver import DriverCall, OpenStackTypeDriver
from tenure.drivers.openstack.units import Units

LOG = logging.getLogger(__name__)

#: The names under which clients see the created objects.
FLAVOR: Final = "flavor_id"
AGGREGATE: Final = "aggregate_id"
SERVER_GROUP: Final = "server_group_id"

#: The metadata key by which Nova's filters limit a host to projects.
_TENANT_KEY: Final = "filter_tenant_id"
#: The interval of checking for quick operations of the cloud.
_SOON: Final = timedelta(seconds=2)
#: The interval of checking for actions of others.
_OTHERS: Final = timedelta(seconds=30)


class Instances(OpenStackTypeDriver):
    """Instance reservations, for one driver call."""

    fetches = frozenset({"flavor"})

    def __init__(self, call: DriverCall) -> None:
        super().__init__(call)
        self._placement = Placement(call.calls)
        self._flavors = Flavors(call.calls)
        self._devices = Devices(call.calls, call.options.pci_aliases)
        self._groups = ServerGroups(call.calls)

    # Before the start

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        found = self._flavors.seen_by(actor, reference)
        names = ("id", "name", "vcpus", "ram", "swap", "disk", "ephemeral")
        devices = self._devices.described(found.extra_specs)
        return {**{name: getattr(found, name) for name in names}, "extra_specs": dict(found.extra_specs), **devices}

    def ensure_prepared(self, command: Command) -> Progress:
        """Create the server group."""
        group = self._ensure_group(command)
        return Progress(True, effects={SERVER_GROUP: group.id if group is not None else None})

    def _ensure_group(self, command: Command) -> ServerGroup | None:
        """Return the reservation's group, or None if it needs none; delete other groups of that name."""
        policy = policy_of(command.parameters)
        found = self._groups.of(command.reservation_id, command.project_id)
        fitting = [group for group in found if group.policy == policy]
        recorded = command.effects.get(SERVER_GROUP)
        kept = next((group for group in fitting if group.id == recorded), fitting[0] if fitting else None)
        if kept is None and policy is not None:
            owner = owner_of(self._calls, command, purpose="The server group")
            kept = self._groups.make(command.reservation_id, policy, owner)
        for group in found:
            if kept is None or group.id != kept.id:
                self._groups.delete(group.id)
        return kept

    # Starting

    def ensure_started(self, command: Command) -> Progress:
        """Let the owner boot the booked number of servers on the command's hosts."""
        known = self._known(command)
        units = {
            known[resource.external_id].member: command.units.get(resource.external_id, 0)
            for resource in command.resources
            if resource.external_id in known
        }
        missing = {
            resource.external_id: f"Nova has no host {resource.name or resource.external_id} any more."
            for resource in command.resources
            if resource.external_id not in known
        }
        layout = self._aggregates.read_layout()
        hosts = {hypervisor.member: hypervisor for hypervisor in known.values() if units.get(hypervisor.member, 0) > 0}
        self._refuse_reserved(layout, command, hosts.values())
        flavor_for(command, None)  # raises errors before anything is changed
        aggregate = layout.shared(command.reservation_id)
        lingering = self._give_up(command, aggregate, self._surplus(command, aggregate, known, hosts, bool(missing)))
        group_id = self._group_at_start(command)
        # A host that a user has removed from the pool is closed first.
        self._aggregates.add(layout.pool, sorted(hosts.keys() - layout.pool.hosts))
        self._ensure_units(command, {hypervisor.name: units[host] for host, hypervisor in hosts.items()})
        aggregate = self._ensure_aggregate(command, aggregate, hosts, group_id)
        lingering = self._trim(command, units) or self._clear(command) or lingering
        self._flavors.ensure(flavor_for(command, group_id), command.project_id)
        if missing:
            raise ResourceMissing(missing)
        effects = {FLAVOR: command.reservation_id, AGGREGATE: aggregate.id, SERVER_GROUP: group_id}
        if lingering is None:
            return Progress(True, effects=effects)
        return Progress(False, lingering.look_again_after, lingering.reason, effects)

    def _refuse_reserved(self, layout: Layout, command: Command, hosts: Iterable[Hypervisor]) -> None:
        """Refuse hosts that other reservations have as a whole, to be retried: their end may be in progress."""
        for host in hosts:
            for holder in layout.exclusive_reservations(host.member, but=command.reservation_id):
                raise CloudBusy(f"{host.name} is not released yet by reservation {holder}.")

    def _surplus(
        self,
        command: Command,
        aggregate: Aggregate | None,
        known: Mapping[str, Hypervisor],
        hosts: Mapping[str, Hypervisor],
        incomplete: bool,
    ) -> dict[str, Hypervisor | None]:
        """Return the current and former hosts that the reservation should no longer have."""
        returning = {
            known[resource.external_id].member for resource in command.returning if resource.external_id in known
        }
        if incomplete:  # one of the others may now have another id in Nova
            return self._hypervisors_on(returning - hosts.keys(), known)
        members = aggregate.hosts if aggregate is not None else frozenset()
        surplus = self._hypervisors_on((members | returning) - hosts.keys(), known)
        names = {PREFIX + hypervisor.name for hypervisor in (*hosts.values(), *filter(None, surplus.values()))}
        strange = set(Units(self._calls, command.reservation_id).open_on()) - names
        if strange:
            surplus |= {
                hypervisor.member: hypervisor
                for hypervisor in self._compute.hypervisors()
                if PREFIX + hypervisor.name in strange
            }
        return surplus

    def _hypervisors_on(self, hosts: Collection[str], known: Mapping[str, Hypervisor]) -> dict[str, Hypervisor | None]:
        """Return the hypervisors of these services, None for services without one."""
        found = {hypervisor.member: hypervisor for hypervisor in known.values()}
        if not set(hosts) <= found.keys():
            found = {hypervisor.member: hypervisor for hypervisor in self._compute.hypervisors()}
        return {host: found.get(host) for host in sorted(hosts)}

    def _give_up(
        self, command: Command, aggregate: Aggregate | None, surplus: Mapping[str, Hypervisor | None]
    ) -> Progress | None:
        """Remove these hosts from the reservation once its servers are gone from there; return what remains, or None.

        Until then they stay in its aggregate, closed to new servers, so that the next call finds them.
        """
        if not surplus:
            return None
        units = Units(self._calls, command.reservation_id)
        providers = self._placement.own_providers(
            [hypervisor.name for hypervisor in surplus.values() if hypervisor is not None]
        )
        units.close(providers.values())
        servers = [server for server in self._servers(command, surplus) if server.member in surplus]
        unfinished = self._delete(servers) or self._in_use(units.drop(providers.values()), providers)
        if unfinished is not None or aggregate is None:
            return unfinished
        leaving = surplus.keys() & aggregate.hosts
        if leaving:
            self._aggregates.remove(aggregate, leaving)
            self._compute.announce(aggregate)
        return None

    def _group_at_start(self, command: Command) -> str | None:
        """Return the id of the server group. Without a valid trust the reservation gets none.

        The units per host spread its servers in any case.
        """
        if policy_of(command.parameters) is None and not command.effects.get(SERVER_GROUP):
            return None
        try:
            group = self._ensure_group(command)
        except CloudRefused as error:
            LOG.warning("reservation %s has no server group: %s", command.reservation_id, error)
            return None
        return group.id if group is not None else None

    def _ensure_aggregate(
        self, command: Command, aggregate: Aggregate | None, hosts: Collection[str], group_id: str | None
    ) -> Aggregate:
        if aggregate is None:
            try:
                aggregate = self._compute.make_aggregate(command.reservation_id)
            except Conflict:  # another worker has just created it
                aggregate = self._aggregates.read_layout().shared(command.reservation_id)
                if aggregate is None:
                    raise
        fresh = sorted(set(hosts) - aggregate.hosts)
        self._aggregates.add(aggregate, fresh, announce=False)
        changes = metadata_changes(command, aggregate, group_id, self._options.owner_key)
        if fresh or changes:  # also notifies schedulers of its hosts
            self._compute.set_metadata(aggregate, changes)
        return aggregate

    def _ensure_units(self, command: Command, expected: Mapping[str, int]) -> None:
        """Set the number of units on each of these hosts, by name."""
        if not expected:
            return
        providers = self._placement.own_providers(sorted(expected))
        if providers.keys() < expected.keys():
            for host in sorted(expected.keys() - providers.keys()):
                self._placement.ensure_provider(host)
            providers = self._placement.own_providers(sorted(expected))
        Units(self._calls, command.reservation_id).ensure(
            {providers[host]: expected[host] for host in sorted(providers)}
        )

    def _trim(self, command: Command, units: Mapping[str, int]) -> Progress | None:
        """Delete the newest servers on hosts that have more servers than units."""
        by_host: dict[str, list[Server]] = defaultdict(list)
        for server in self._compute.servers_of_flavor(command.reservation_id):
            by_host[server.member].append(server)
        surplus = [
            server
            for host, count in units.items()
            for server in sorted(by_host[host], key=_goes_last)[max(count, 0) :]
            if count > 0
        ]
        return self._delete(surplus)

    def make_way(self, command: Command, *, deadline: datetime, ahead: Iterable[Command] = ()) -> Sequence[Preempted]:
        return self._cleared(command, deadline, ahead, whole=False)

    def _clear(self, command: Command) -> Progress | None:
        """Delete the preemptible servers whose room the reservation needs."""
        vanishing = Preemption(self._calls, self._compute, self._options, self._now).clear(command)
        return (
            Progress(False, _SOON, Reason(f"{vanishing} preemptible servers are still being deleted."))
            if vanishing
            else None
        )

    # Ending

    def ensure_ended(self, command: Command) -> Progress:
        """Delete the reservation's servers, then its other objects; the flavor last, by which servers are found."""
        flavor = self._flavors.get(command.reservation_id)
        if flavor is not None:
            self._flavors.close(flavor)
        layout = Layout(self._compute.aggregates(), self._options)
        aggregate = layout.shared(command.reservation_id)
        known = self._known(command)
        members = aggregate.hosts if aggregate is not None else frozenset()
        hosts = self._hypervisors_on(members | {hypervisor.member for hypervisor in known.values()}, known)
        servers = self._servers(command, hosts)
        if not servers and command.project_id:
            # By the flavor, Nova does not find a server without a host if the flavor was deleted or created again.
            servers = self._booted_for(command, self._compute.servers_in(command.project_id))
        unfinished = self._delete(servers) or self._drop_units(command, hosts) or self._drop_aggregate(aggregate)
        if unfinished is not None:
            return unfinished
        for group in self._groups.of(command.reservation_id, command.project_id):
            self._groups.delete(group.id)
        if flavor is not None:
            self._flavors.delete(flavor.id)
        return DONE

    def _drop_units(self, command: Command, hosts: Mapping[str, Hypervisor | None]) -> Progress | None:
        units = Units(self._calls, command.reservation_id)
        providers = self._placement.own_providers(
            [hypervisor.name for hypervisor in hosts.values() if hypervisor is not None]
        )
        unfinished = self._in_use(units.drop(providers.values()), providers)
        if unfinished is None and not units.drop_class(self._placement):
            return Progress(False, _SOON, Reason("Placement still counts servers of the reservation on some host."))
        return unfinished

    def _drop_aggregate(self, aggregate: Aggregate | None) -> Progress | None:
        if aggregate is None:
            return None
        self._aggregates.remove(aggregate, aggregate.hosts)
        try:
            self._compute.delete_aggregate(aggregate)
        except CloudNotFound:
            pass
        except BadRequest as error:  # it is not empty
            return Progress(False, _OTHERS, error.reason.after("The aggregate of the reservation cannot be deleted: "))
        return None

    def _in_use(self, providers: Collection[str], named: Mapping[str, str]) -> Progress | None:
        hosts = sorted(name for name, uuid in named.items() if uuid in providers)
        if not hosts:
            return None
        counted = "Placement still counts servers of the reservation"
        return Progress(False, _SOON, Reason(f"{counted}.", f"{counted} on {', '.join(hosts[:5])}."))

    # Its servers

    def servers_of(self, command: Command) -> list[Server]:
        """Return the reservation's servers, without those that are being deleted."""
        aggregate = Layout(self._compute.aggregates(), self._options).shared(command.reservation_id)
        members = aggregate.hosts if aggregate is not None else frozenset()
        hosts = members | {hypervisor.member for hypervisor in self._known(command).values()}
        return [server for server in self._servers(command, hosts) if not server.vanishing]

    def _servers(self, command: Command, hosts: Iterable[str]) -> list[Server]:
        """Return all servers of the reservation: those of its flavor, and those on these hosts with an earlier one."""
        by_flavor = self._compute.servers_of_flavor(command.reservation_id)
        return _merged(by_flavor, self._booted_for(command, self._compute.servers_on(hosts)))

    def _booted_for(self, command: Command, servers: Iterable[Server]) -> list[Server]:
        return [server for server in servers if server.flavor_of == command.reservation_id]

    def _delete(self, servers: Sequence[Server]) -> Progress | None:
        return delete_servers(self._compute, servers, now=self._now)

    def _known(self, command: Command) -> dict[str, Hypervisor]:
        return self._compute.hypervisors_known(
            [resource.external_id for resource in (*command.resources, *command.returning)]
        )


def metadata_changes(
    command: Command, aggregate: Aggregate, group_id: str | None, owner_key: str
) -> dict[str, str | None]:
    """Return the changes of the metadata of the command's aggregate."""
    expected = {
        RESERVATION_KEY: command.reservation_id,
        _TENANT_KEY: command.project_id,
        owner_key: command.project_id,
        AFFINITY_KEY: group_id,
    }
    return {key: value for key, value in expected.items() if aggregate.metadata.get(key) != value}


def _goes_last(server: Server) -> tuple[bool, float, str]:
    """Sort working servers before broken ones, and old ones before new ones."""
    created = server.created_at.timestamp() if server.created_at is not None else 0.0
    return server.vanishing or server.status in {"ERROR", "SOFT_DELETED"}, created, server.id


def _merged(*lists: Iterable[Server]) -> list[Server]:
    return list({server.id: server for servers in lists for server in servers}.values())
