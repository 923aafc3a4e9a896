"""Reserved servers: shelved until the start, and then unshelved on the host with room for them, or made there.

The host is in the pool, which is closed to all servers. An aggregate with the reservation's id opens it to this one
server; Nova's scheduler checks this when it unshelves or boots the server there.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from tenure.domain.actor import Actor
from tenure.domain.boot import Boot
from tenure.domain.footprint import footprint_of
from tenure.domain.reason import Reason
from tenure.drivers.contract import (
    DONE,
    BootedServer,
    CloudBusy,
    CloudError,
    CloudNotFound,
    CloudRefused,
    Command,
    Drift,
    Preempted,
    Progress,
    ResourceMissing,
    ResourceOccupied,
    ServerPage,
)
from tenure.drivers.openstack.boots import GONE, Boots, booted_with, check_made, late_servers, made_server
from tenure.drivers.openstack.compute import Aggregate, Compute, Hypervisor, Server, is_node
from tenure.drivers.openstack.deletions import delete_servers
from tenure.drivers.openstack.devices import Devices
from tenure.drivers.openstack.layout import Layout
from tenure.drivers.openstack.preemption import Preemption
from tenure.drivers.openstack.requests import BadRequest, Conflict, Forbidden
from tenure.drivers.openstack.type_driver import DriverCall, OpenStackTypeDriver
from tenure.drivers.reserved_servers import (
    ADOPTED,
    AT_END,
    BOOT_KEY,
    BOOTED,
    BOOTED_WITH,
    IN_PLACE,
    LEASE,
    MARKS,
    OPEN_TO,
    RESERVATION,
    TAG,
    WOKEN,
    excess_of,
    fate_of,
    is_in_place,
    is_its_own,
    is_woken,
    marks_of,
    metadata_of,
    named_server,
    tags_of,
)

LOG = logging.getLogger(__name__)

AGGREGATE: Final = "aggregate_id"
#: The key in the aggregate's metadata for the host on which Nova was last asked to unshelve the server.
WAKING: Final = "tenure:waking"
#: The value for a server that may be unshelved on any host.
_ANYWHERE: Final = "anywhere"
_SHELVED: Final = frozenset({"SHELVED", "SHELVED_OFFLOADED"})
#: The statuses in which Nova accepts changes of a server.
_CHANGEABLE: Final = frozenset({"ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED"})
#: The actions that return a server from a status in which Nova refuses ours.
_REMEDIES: Final = {"SHELVED": "shelveOffload", "VERIFY_RESIZE": "confirmResize", "RESCUE": "unrescue"}
#: The actions towards a shut-down server.
_TO_STOP: Final = {"ACTIVE": "os-stop", "PAUSED": "unpause", "SUSPENDED": "resume"}
#: The interval of checking a server.
_SOON: Final = timedelta(seconds=2)


class Servers(OpenStackTypeDriver):
    """Server reservations, for one driver call."""

    fetches = frozenset({"server"})
    saves_all = True

    def __init__(self, call: DriverCall) -> None:
        super().__init__(call)
        self._devices = Devices(call.calls, call.options.pci_aliases)

    # Before the start

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        server = self._compute.server(reference)
        if server is None or server.project_id != actor.project_id:
            raise CloudNotFound(Reason(f"Server {reference[:64]} could not be found."))
        if is_node(server.member):
            raise CloudRefused(
                Reason(f"Server {server.id} is on a node of Ironic, which can neither shelve nor move it.")
            )
        flavor = _flavor_of(server)
        return {**_fact_of(server), "flavor": {**flavor, **self._devices.described(flavor["extra_specs"])}}

    def ensure_prepared(self, command: Command) -> Progress:
        """Set the server's marks, and shelve it if the start is in the future."""
        if named_server(command) is None:
            return DONE
        server = self._named(command)
        if server is None:
            raise CloudRefused(Reason(f"There is no server {named_server(command)} any more."))
        adopted = Progress(True, effects={ADOPTED: server.id})
        if server.status in _SHELVED:  # Nova refuses to change its metadata now
            if server.status == "SHELVED" and server.task is None:
                self._act(server, {"shelveOffload": None})
            return adopted
        if (busy := self._busy(server)) is not None:
            return busy
        if not (self._set_marks(server, marks_of(command)) and self._drop_stale(command, server)):
            return _wait(server)
        is_early = command.starts_at is not None and command.starts_at > self._now
        if is_early and not is_in_place(command):
            self._shelve(server)
        return adopted

    # Starting

    def make_way(self, command: Command, *, deadline: datetime, ahead: Iterable[Command] = ()) -> Sequence[Preempted]:
        return self._cleared(command, deadline, ahead, whole=False)

    def ensure_started(self, command: Command) -> Progress:
        """Keep the room, and unshelve the server there."""
        server = self._named(command)
        effects: dict[str, object] = {} if server is None else {ADOPTED: server.id}
        if is_in_place(command):
            if server is not None and server.status in _CHANGEABLE:
                self._set_marks(server, marks_of(command))
            return Progress(True, effects=effects)
        known = self._compute.hypervisors_known([resource.external_id for resource in command.resources])
        missing = {
            resource.external_id: f"Nova has no host {resource.name or resource.external_id} any more."
            for resource in command.resources
            if resource.external_id not in known
        }
        hosts = {hypervisor.member: hypervisor for hypervisor in known.values()}
        layout = self._aggregates.read_layout()
        for host in hosts.values():
            for holder in layout.exclusive_reservations(host.member, but=command.reservation_id):
                raise CloudBusy(f"{host.name} is not released yet by reservation {holder}.")
        self._aggregates.add(layout.pool, sorted(hosts.keys() - layout.pool.hosts))
        aggregate = self._ensure_aggregate(command, layout.shared(command.reservation_id), hosts)
        effects[AGGREGATE] = aggregate.id
        if missing:
            raise ResourceMissing(missing)
        self._compute.delete_servers([server for server in self._late(command, aggregate) if not server.vanishing])
        freed = self._withdraw(command, layout.pooled, aggregate)
        if freed is not None:
            return Progress(False, freed.look_again_after, freed.reason, effects)
        if command.boot is not None and ADOPTED not in command.effects and (made := made_server(aggregate)) is not None:
            # The ledger does not know it yet, as long as other servers of the lease are being made.
            effects |= {ADOPTED: made, BOOTED: made}
            command = replace(command, effects={**command.effects, **effects})
            server = self._named(command)
        if command.boot is not None and ADOPTED not in command.effects and hosts:
            return self._boot_on(command, command.boot, next(iter(hosts.values())), aggregate, effects)
        if server is None or not hosts:
            return Progress(True, effects=effects)
        unfinished = self._unshelve_on(command, server, next(iter(hosts.values())), aggregate)
        if unfinished is None:
            return Progress(True, effects=effects)
        return Progress(False, unfinished.look_again_after, unfinished.reason, effects, awaited=True)

    def _ensure_aggregate(
        self, command: Command, aggregate: Aggregate | None, hosts: Mapping[str, Hypervisor]
    ) -> Aggregate:
        """Return the aggregate of these hosts, open to the server only."""
        if aggregate is None:
            try:
                aggregate = self._compute.make_aggregate(command.reservation_id)
            except Conflict:  # another worker has just created it
                aggregate = self._aggregates.read_layout().shared(command.reservation_id)
                if aggregate is None:
                    raise
        fresh = sorted(hosts.keys() - aggregate.hosts)
        stale = sorted(aggregate.hosts - hosts.keys())
        self._aggregates.add(aggregate, fresh, announce=False)
        self._aggregates.remove(aggregate, stale)
        expected = metadata_of(command)
        changes: dict[str, str | None] = {
            key: value for key, value in expected.items() if aggregate.metadata.get(key) != value
        }
        if OPEN_TO in aggregate.metadata and OPEN_TO not in expected and command.boot is None:
            changes[OPEN_TO] = None
        if fresh or stale or changes:  # also notifies schedulers of its hosts
            self._compute.set_metadata(aggregate, changes)
        return aggregate

    def _boot_on(
        self,
        command: Command,
        boot: Boot,
        host: Hypervisor,
        aggregate: Aggregate,
        effects: Mapping[str, object],
    ) -> Progress:
        """Get the server of the reservation made on the host.

        Raises ``ResourceOccupied`` if it could not be made there, after deleting what is left of it, and
        ``CloudRefused`` if it is larger than was booked.
        """
        known = aggregate.metadata.get(OPEN_TO)
        boots = Boots(self._calls, self._compute, self._now)
        servers = boots.find(command, aggregate)
        self._compute.delete_servers(servers[1:])
        if not servers:
            if (freed := self._preempted(command)) is not None:
                return Progress(False, freed.look_again_after, freed.reason, effects)
            boots.make(command, boot, host, aggregate)
            return _being_made(host, effects)
        server = servers[0]
        if server.status == "ERROR":
            self._compute.delete_servers([server])
            raise ResourceOccupied({host.external_id: f"Nova could not make the server on {host.name}."})
        if known is None:  # its answer was lost
            self._compute.set_metadata(aggregate, {OPEN_TO: server.id})
        if server.status == "BUILD" or server.task is not None:
            return _being_made(host, effects)
        check_made(command, server)
        # Nova takes no tags at an old microversion.
        is_there = server.member == host.member
        marks = {**marks_of(command), WOKEN: host.name} if is_there else marks_of(command)
        if server.status in _CHANGEABLE and not self._set_marks(server, marks):
            return _wait(server)
        self._compute.set_metadata(aggregate, {BOOT_KEY: None, BOOTED_WITH: booted_with(aggregate)})
        made = {**effects, ADOPTED: server.id, BOOTED: server.id}
        if is_there:
            return Progress(True, effects=made)
        return Progress(False, _SOON, Reason("The server moves to its host."), made, awaited=True)

    def _unshelve_on(self, command: Command, server: Server, host: Hypervisor, aggregate: Aggregate) -> Progress | None:
        """Get the server running on the host; return None when it is.

        If it was unshelved there before, its owner may have moved it since. Raises ``ResourceOccupied`` if the host has
        no room for it.
        """
        if is_woken(command, host.name, server.metadata):
            if server.status in _CHANGEABLE and server.task is None:
                self._set_marks(server, marks_of(command))  # the end may have changed since
            return None
        if (busy := self._busy(server)) is not None:
            return busy
        if server.status == "SHELVED":
            self._act(server, {"shelveOffload": None})
            return Progress(False, _SOON, Reason("The server is being shelved."))
        if server.status == "SHELVED_OFFLOADED":
            return self._unshelve(command, server, host, aggregate)
        if server.member == host.member:
            if not self._set_marks(server, {**marks_of(command), WOKEN: host.name}):
                return _wait(server)
            if WAKING in aggregate.metadata:  # unshelving it here again would be another attempt
                self._compute.set_metadata(aggregate, {WAKING: None})
            return None
        if self._is_down(server.member):
            self._act(server, {"evacuate": {"host": host.service_host}}, "2.68")
            return Progress(
                False, _SOON, Reason("The server is being rebuilt.", f"The server is being rebuilt on {host.name}.")
            )
        if self._set_marks(server, marks_of(command)):
            self._shelve(server)
        return Progress(False, _SOON, Reason("The server is being shelved, to move."))

    def _unshelve(self, command: Command, server: Server, host: Hypervisor, aggregate: Aggregate) -> Progress:
        if aggregate.metadata.get(WAKING) == host.member:  # and it is still shelved
            self._compute.set_metadata(aggregate, {WAKING: None})
            raise ResourceOccupied({host.external_id: f"Nova could not unshelve the server on {host.name}."})
        if (freed := self._preempted(command)) is not None:
            return freed
        self._compute.set_metadata(aggregate, {WAKING: host.member})
        where = {"host": host.service_host, "availability_zone": None}
        self._act(server, {"unshelve": where}, "2.91")
        return Progress(
            False, _SOON, Reason("The server is being unshelved.", f"The server is being unshelved on {host.name}.")
        )

    def _preempted(self, command: Command) -> Progress | None:
        """Delete the preemptible servers that use the room; return None when they are gone."""
        vanishing = Preemption(self._calls, self._compute, self._options, self._now).clear(command)
        if not vanishing:
            return None
        return Progress(False, _SOON, Reason(f"{vanishing} preemptible servers are still being deleted."))

    def _withdraw(self, command: Command, pool: Collection[str], aggregate: Aggregate) -> Progress | None:
        """Restore the server that a refused change had named; return None when it is restored.

        It runs in general use again. If there is no room it stays shelved, and its owner may unshelve it.
        """
        refused = command.withdrawn.get("server_id")
        server = None if refused is None else self._compute.server(str(refused))
        if server is None or server.id == named_server(command) or server.project_id != command.project_id:
            return None
        if server.metadata.get(RESERVATION) != command.reservation_id or server.status in GONE:
            return None
        if server.task is not None:
            return _wait(server)
        if server.status == "SHELVED":
            self._act(server, {"shelveOffload": None})
            return Progress(False, _SOON, Reason("The server is being shelved."))
        if server.status == "SHELVED_OFFLOADED":
            if aggregate.metadata.get(WAKING) == _ANYWHERE:
                return None
            self._compute.set_metadata(aggregate, {WAKING: _ANYWHERE})
            self._act(server, {"unshelve": None})
            return Progress(False, _SOON, Reason("The server is being unshelved on any host."))
        if server.status not in _CHANGEABLE:
            return None
        if server.member in pool:
            self._shelve(server)
            return Progress(False, _SOON, Reason("The server leaves its reserved host."))
        return None if self._remove_marks(server) else _wait(server)

    def _is_down(self, member: str) -> bool:
        return any(hypervisor.member == member and not hypervisor.up for hypervisor in self._compute.hypervisors())

    # Ending

    def ensure_ended(self, command: Command) -> Progress:
        """Do with the server what was asked for at the end."""
        layout = Layout(self._compute.aggregates(), self._options)
        aggregate = layout.shared(command.reservation_id)
        if (vanishing := delete_servers(self._compute, self._late(command, aggregate), now=self._now)) is not None:
            return vanishing
        own = self._all(command)
        if aggregate is not None and named_server(command) is None:
            own += Boots(self._calls, self._compute, self._now).find(command, aggregate)
        if command.is_over:
            self._remove_false_marks(command, {server.id for server in own})
        for server in own:
            unfinished = self._end(command, server, layout.pooled)
            if unfinished is not None:
                return unfinished
        if aggregate is not None:
            self._aggregates.remove(aggregate, aggregate.hosts)
            try:
                self._compute.delete_aggregate(aggregate)
            except CloudNotFound:
                pass
            except BadRequest as error:  # it is not empty
                return Progress(
                    False, _SOON, error.reason.after("The aggregate of the reservation cannot be deleted: ")
                )
        return DONE

    def _end(self, command: Command, server: Server, pool: Collection[str]) -> Progress | None:
        """Do with one server what was asked for; return None when it is done."""
        action = fate_of(command, server.id, server.created_at)
        if action == "delete":
            if command.is_over and named_server(command) is not None and server.status == "ERROR":
                return None  # it never ran: it stays so that its owner sees why
            return delete_servers(self._compute, [server], now=self._now)
        leaves = server.member in pool and not is_in_place(command)
        if action == "shelve" and is_node(server.member):
            action = "stop"  # Nova would stop it again and again, since Ironic makes no snapshot
        if command.spared and not leaves:
            action = ""  # it uses no reserved room
        if action and (unfinished := self._make_changeable(server)) is not None:
            return unfinished
        if action == "stop" and (unfinished := self._stop(server, leaves=leaves)) is not None:
            return unfinished
        if server.status in _CHANGEABLE and not self._remove_marks(server):
            return _wait(server)
        if server.status in _CHANGEABLE and (action == "shelve" or (action == "stop" and leaves)):
            self._shelve(server)
            return Progress(False, _SOON, Reason("The server is being shelved."))
        return None

    def _make_changeable(self, server: Server) -> Progress | None:
        """Return the server to a status in which Nova accepts changes; return None when it is.

        Raises ``CloudBusy`` for a server in ERROR, after resetting its state, and ``CloudRefused``.
        """
        if server.task is not None:
            return _wait(server)
        if server.status == "ERROR":
            self._act(server, {"os-resetState": {"state": "active"}})
            raise CloudBusy(Reason(f"The server {server.id} is in ERROR."))
        if server.status in _REMEDIES:
            self._act(server, {_REMEDIES[server.status]: None})
            return Progress(False, _SOON, Reason(f"The server must leave the status {server.status}."))
        return self._busy(server)

    def _stop(self, server: Server, *, leaves: bool) -> Progress | None:
        """Shut the server down, and if it ``leaves`` its reserved host, migrate it to general use.

        Returns None when it is done, or if Nova found no other host or cannot migrate it, as with devices of Cyborg.
        """
        if server.status in _TO_STOP:
            self._act(server, {_TO_STOP[server.status]: None})
            return Progress(False, _SOON, Reason("The server is being shut down."))
        if server.status != "SHUTOFF" or not leaves or self._compute.last_action(server.id) == "migrate":
            return None
        try:
            self._act(server, {"migrate": None})
        except (BadRequest, Forbidden):
            return None
        return Progress(False, _SOON, Reason("The server leaves its reserved host."))

    def _late(self, command: Command, aggregate: Aggregate | None) -> list[Server]:
        """Return the servers that were booted for the reservation beside its own one."""
        if aggregate is None or BOOTED_WITH not in aggregate.metadata:
            return []
        _, of_lease = tags_of(command)
        return late_servers(command, aggregate, self._compute.servers_tagged(of_lease))

    def _all(self, command: Command) -> list[Server]:
        """Return the reservation's servers: the named one, or those booted for it before its confirmation."""
        if named_server(command) is not None:
            named = self._named(command)
            found = [] if named is None else [named]
        else:
            found = [] if command.provisional is None else self._compute.servers_in(command.project_id)
        return [
            server
            for server in found
            if server.project_id == command.project_id
            and server.status not in GONE
            and is_its_own(command, server.id, server.metadata, server.created_at)
        ]

    def _remove_false_marks(self, command: Command, own: Collection[str]) -> None:
        """Remove the marks of an ended reservation from servers that never belonged to it."""
        _, of_lease = tags_of(command)
        for server in self._compute.servers_tagged(of_lease):
            is_false = server.metadata.get(RESERVATION) == command.reservation_id and server.id not in own
            if is_false and server.status in _CHANGEABLE:
                self._remove_marks(server)

    def servers_of(self, command: Command) -> list[Server]:
        """Return the reservation's servers, without those that are being deleted."""
        return [server for server in self._all(command) if not server.vanishing]

    # A server

    def _named(self, command: Command) -> Server | None:
        """Return the command's server, if it is in the command's project."""
        named = named_server(command)
        server = None if named is None else self._compute.server(named)
        if server is None or server.project_id != command.project_id or server.status in GONE:
            return None
        return server

    def _busy(self, server: Server) -> Progress | None:
        """Return the progress while another operation on the server is in progress.

        Raises ``CloudRefused`` for a server in an unusable status.
        """
        if server.task is not None or server.status == "BUILD":
            return _wait(server)
        if server.status not in _CHANGEABLE | _SHELVED:
            raise CloudRefused(Reason(f"The server {server.id} is in {server.status}."))
        return None

    def _set_marks(self, server: Server, expected: Mapping[str, str]) -> bool:
        """Set these metadata, and the tags for them; return False while another operation is in progress."""
        changes = {key: value for key, value in expected.items() if server.metadata.get(key) != value}
        try:
            if changes:
                self._compute.set_server_metadata(server.id, changes)
            tags = _tags_by(expected)
            for tag in sorted(tag for tag in server.tags - tags if LEASE in expected and tag.startswith(f"{LEASE}=")):
                self._compute.untag_server(server.id, tag)  # of an earlier lease
            for tag in sorted(tags - server.tags):
                with suppress(BadRequest):  # the server has the maximum number of tags
                    self._compute.tag_server(server.id, tag)
        except Conflict:
            return False
        return True

    def _drop_stale(self, command: Command, server: Server) -> bool:
        """Delete the mark of an earlier reservation's host; return False as ``_set_marks``."""
        if WOKEN not in server.metadata or is_in_place(command):
            return True
        try:
            self._compute.drop_server_metadata(server.id, WOKEN)
        except Conflict:
            return False
        return True

    def _remove_marks(self, server: Server) -> bool:
        """Remove the marks; return False while another operation on the server is in progress."""
        try:
            for key in MARKS:
                if key in server.metadata:
                    self._compute.drop_server_metadata(server.id, key)
            for tag in sorted(server.tags & (_tags_by(server.metadata) | {TAG})):
                self._compute.untag_server(server.id, tag)
        except Conflict:
            return False
        return True

    def _shelve(self, server: Server) -> None:
        self._act(server, {"shelve": None})

    def _act(self, server: Server, body: Mapping[str, object], microversion: str | None = None) -> None:
        """Start an action on a server without an operation in progress.

        Raises ``Conflict``, which counts as an attempt, if Nova refuses the action in the server's status.
        """
        self._compute.act_on_server(server.id, body, microversion)


def page_of_servers(compute: Compute, layout: Layout, since: datetime | None, after: str | None) -> ServerPage:
    """Return a page of the servers that exist or were changed since then, without those of other reservation types."""
    found, following = compute.page_of_servers(since, after)
    servers = [
        BootedServer(
            server.id,
            server.name,
            server.project_id,
            server.user_id,
            reservation_id=server.metadata.get(RESERVATION),
            is_gone=server.status == "DELETED",
            fact=_fact_of(server),
        )
        for server in found
        if server.status == "DELETED" or _is_free(server, layout)
    ]
    return ServerPage(servers, following)


def _fact_of(server: Server) -> Mapping[str, object]:
    """Return what a request may know of the server that it names, without the groups of its devices."""
    return {"id": server.id, "name": server.name, "project_id": server.project_id, "flavor": _flavor_of(server)}


def _flavor_of(server: Server) -> dict[str, Any]:
    """Return the description of the server's own flavor."""
    flavor = server.flavor
    sizes = {name: int(flavor.get(name) or 0) for name in ("vcpus", "ram", "disk", "swap", "ephemeral")}
    name = flavor.get("original_name")
    return {"id": name, "name": name, **sizes, "extra_specs": dict(flavor.get("extra_specs") or {})}


def _is_free(server: Server, layout: Layout) -> bool:
    """Whether the server is there to be changed, and belongs to no reservation of hosts or instances."""
    return server.status in _CHANGEABLE and not (
        server.reservations or server.is_of_instances or server.vanishing or layout.is_reserved_whole(server.member)
    )


def held(compute: Compute) -> Iterator[str]:
    """Yield the reservations in the marks of servers; only tagged servers are read.

    Shelved servers that stay so are left out: Nova refuses to remove their marks. Nova does not tag a server that is
    booted with an old microversion; if its lease failed, its project is searched after the confirmation deadline.
    """
    for server in compute.servers_tagged(TAG):
        kept = server.status in _SHELVED and server.metadata.get(AT_END) in {"stop", "shelve"}
        gone = server.status in GONE or server.vanishing
        if not kept and not gone and (reservation_id := server.metadata.get(RESERVATION)):
            yield reservation_id


def drift(commands: Sequence[Command], layout: Layout, hypervisors: Mapping[str, Hypervisor]) -> Iterator[Drift]:
    """Yield the differences of the aggregates of started commands.

    Servers are not checked: their owners may move them.
    """
    for command in commands:
        if is_in_place(command):
            continue
        name, aggregate = command.reservation_id, layout.shared(command.reservation_id)
        hosts = _members(command, hypervisors)
        if aggregate is None:
            yield Drift(name, None, f"reservation {name} has no aggregate")
        elif any(aggregate.metadata.get(key) != value for key, value in metadata_of(command).items()):
            yield Drift(name, None, f"the aggregate of reservation {name} has other metadata")
        elif hosts is not None and aggregate.hosts != hosts:
            yield Drift(
                name, next(iter(command.resources), None), f"the aggregate of reservation {name} has other hosts"
            )


def tagged_servers(compute: Compute, commands: Sequence[Command]) -> list[Server]:
    """Return the tagged servers of the cloud; none if no server of the commands could be among them."""
    return compute.servers_tagged(TAG) if any(map(_is_tagged, commands)) else []


def late(commands: Sequence[Command], layout: Layout, tagged: Iterable[Server]) -> Iterator[Drift]:
    """Yield the servers that were booted for the commands beside their own ones."""
    by_reservation = defaultdict(list)
    for server in tagged:
        by_reservation[server.metadata.get(RESERVATION)].append(server)
    for command in filter(_is_tagged, commands):
        name = command.reservation_id
        for server in late_servers(command, layout.shared(name), by_reservation[name]):
            if not server.vanishing:
                yield Drift(name, None, f"server {server.id} was booted a second time for reservation {name}")


def oversized(
    devices: Devices, commands: Sequence[Command], tagged: Iterable[Server], hypervisors: Mapping[str, Hypervisor]
) -> Iterator[Drift]:
    """Yield the servers that use more of their reserved hosts than was booked, after a resize by their owners.

    Servers whose devices are not known now, since Cyborg does not answer, are left out.
    """
    found = {server.id: server for server in tagged}
    for command in filter(_is_tagged, commands):
        server = found.get(named_server(command) or "")
        if server is None or server.member not in (_members(command, hypervisors) or ()):
            continue
        try:
            described = devices.described(dict(server.flavor.get("extra_specs") or {}))
            taken = footprint_of({**server.flavor, **described}).amounts
        except (ValueError, KeyError):  # a flavor whose demands cannot be booked
            continue
        except CloudError as error:
            LOG.warning("server %s is not compared with what was booked: %s", server.id, error)
            continue
        if excess := excess_of(command, taken):
            yield Drift(command.reservation_id, next(iter(command.resources), None), excess, lasts=True)


def _is_tagged(command: Command) -> bool:
    return named_server(command) is not None and not is_in_place(command)


def _members(command: Command, hypervisors: Mapping[str, Hypervisor]) -> set[str] | None:
    """Return the hosts that the aggregate should have, or None if Nova does not know all of them."""
    known: Iterable[Hypervisor | None] = [hypervisors.get(resource.external_id) for resource in command.resources]
    found = [hypervisor.member for hypervisor in known if hypervisor is not None]
    return set(found) if len(found) == len(command.resources) else None


def _tags_by(metadata: Mapping[str, str]) -> set[str]:
    """Return the tags for these marks. A server that stays in its place has no common tag, so it is not found by it."""
    lease_id = metadata.get(LEASE)
    common = set() if metadata.get(WOKEN) == IN_PLACE else {TAG}
    return common | (set() if lease_id is None else {f"{LEASE}={lease_id}"})


def _being_made(host: Hypervisor, effects: Mapping[str, object]) -> Progress:
    reason = Reason("The server is being made.", f"The server is being made on {host.name}.")
    return Progress(False, _SOON, reason, effects, awaited=True)


def _wait(server: Server) -> Progress:
    return Progress(
        False,
        _SOON,
        f"Another operation on the server is in progress in Nova: {server.task or server.status}.",
        awaited=True,
    )
