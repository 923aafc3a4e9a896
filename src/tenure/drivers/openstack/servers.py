"""Reserved servers: shelved until the start, and woken on the host that keeps room for them.

The room is that of a host in the pool, which is closed to everybody. An aggregate of the reservation's id names the one
server that it is open to; Nova's scheduler asks for that when it wakes the server there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from tenure.domain.footprint import footprint_of
from tenure.domain.reason import Reason
from tenure.drivers.contract import (
    DONE,
    BootedServer,
    CloudBusy,
    CloudNotFound,
    CloudRefused,
    Drift,
    Order,
    Progress,
    ResourceMissing,
    ResourceOccupied,
)
from tenure.drivers.openstack.aggregates import Aggregates
from tenure.drivers.openstack.compute import Aggregate, Compute, Hypervisor, Server
from tenure.drivers.openstack.deletions import delete_servers
from tenure.drivers.openstack.layout import Layout
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.preemption import Preemption
from tenure.drivers.openstack.requests import BadRequest, Calls, Conflict
from tenure.drivers.reserved_servers import (
    ADOPTED,
    AT_END,
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

AGGREGATE: Final = "aggregate_id"
#: In the metadata of a reservation's aggregate: on which host Nova was told last to wake the server.
WAKING: Final = "tenure:waking"
#: What stands there of one that Nova was told to wake wherever it likes.
_ANYWHERE: Final = "anywhere"
_SHELVED: Final = frozenset({"SHELVED", "SHELVED_OFFLOADED"})
#: In which a server takes what it is told.
_LISTENING: Final = frozenset({"ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED"})
#: By which order a server is brought back from a state in which it takes none of ours.
_REMEDIES: Final = {"SHELVED": "shelveOffload", "VERIFY_RESIZE": "confirmResize", "RESCUE": "unrescue"}
#: By which order a server comes nearer to being shut down.
_TO_STOP: Final = {"ACTIVE": "os-stop", "PAUSED": "unpause", "SUSPENDED": "resume"}
_GONE: Final = frozenset({"DELETED", "SOFT_DELETED"})
#: How long to wait before looking again what a server does.
_SOON: Final = timedelta(seconds=2)


class Servers:
    """Reservations of servers, with the calls of one verb."""

    def __init__(self, calls: Calls, compute: Compute, options: OpenStackOptions, now: datetime) -> None:
        self._calls = calls
        self._compute = compute
        self._options = options
        self._now = now
        self._aggregates = Aggregates(compute, options)

    # Before the start

    def prepare(self, order: Order) -> Progress:
        """Have the server bear its marks, and shelved where the start is ahead; answers as ``ensure_prepared`` does."""
        if named_server(order) is None:
            return DONE
        server = self._named(order)
        if server is None:
            raise CloudRefused(Reason(f"There is no server {named_server(order)} any more."))
        adopted = Progress(True, effects={ADOPTED: server.id})
        if server.status in _SHELVED:  # Nova lets nobody write on it now
            if server.status == "SHELVED" and server.task is None:
                self._act(server, {"shelveOffload": None})
            return adopted
        if (busy := self._busy(server)) is not None:
            return busy
        if not (self._tell(server, marks_of(order)) and self._drop_stale(order, server)):
            return _wait(server)
        is_early = order.starts_at is not None and order.starts_at > self._now
        if is_early and not is_in_place(order):
            self._shelve(server)
        return adopted

    # Starting

    def hand_over(self, order: Order) -> Progress:
        """Keep the room, and wake the server there; answers and raises as ``ensure_started`` does."""
        server = self._named(order)
        told: dict[str, object] = {} if server is None else {ADOPTED: server.id}
        if is_in_place(order):
            if server is not None and server.status in _LISTENING:
                self._tell(server, marks_of(order))
            return Progress(True, effects=told)
        known = self._compute.hypervisors_known([resource.external_id for resource in order.resources])
        missing = {
            resource.external_id: f"Nova has no host {resource.name or resource.external_id} any more."
            for resource in order.resources
            if resource.external_id not in known
        }
        hosts = {hypervisor.service_host: hypervisor for hypervisor in known.values()}
        layout = self._aggregates.look()
        for host in hosts.values():
            for holder in layout.exclusive_holders(host.service_host, but=order.reservation_id):
                raise CloudBusy(f"{host.name} is not released yet by reservation {holder}.")
        self._aggregates.add(layout.pool, sorted(hosts.keys() - layout.pool.hosts))
        aggregate = self._ensure_aggregate(order, layout.shared(order.reservation_id), hosts)
        told[AGGREGATE] = aggregate.id
        if missing:
            raise ResourceMissing(missing)
        freed = self._withdraw(order, layout.pooled, aggregate)
        if freed is not None:
            return Progress(False, freed.look_again_after, freed.reason, told)
        if server is None or not hosts:
            return Progress(True, effects=told)
        unfinished = self._wake(order, server, next(iter(hosts.values())), aggregate)
        if unfinished is None:
            return Progress(True, effects=told)
        return Progress(False, unfinished.look_again_after, unfinished.reason, told, awaited=True)

    def _ensure_aggregate(
        self, order: Order, aggregate: Aggregate | None, hosts: Mapping[str, Hypervisor]
    ) -> Aggregate:
        """The aggregate of these hosts that is open to the server, and to nothing else."""
        if aggregate is None:
            try:
                aggregate = self._compute.make_aggregate(order.reservation_id)
            except Conflict:  # somebody else made it since we looked
                aggregate = self._aggregates.look().shared(order.reservation_id)
                if aggregate is None:
                    raise
        fresh = sorted(hosts.keys() - aggregate.hosts)
        stale = sorted(aggregate.hosts - hosts.keys())
        self._aggregates.add(aggregate, fresh, announce=False)
        self._aggregates.remove(aggregate, stale)
        wanted = metadata_of(order)
        changes: dict[str, str | None] = {
            key: value for key, value in wanted.items() if aggregate.metadata.get(key) != value
        }
        if OPEN_TO in aggregate.metadata and OPEN_TO not in wanted:
            changes[OPEN_TO] = None
        if fresh or stale or changes:  # which tells schedulers of the hosts in it, too
            self._compute.set_metadata(aggregate, changes)
        return aggregate

    def _wake(self, order: Order, server: Server, host: Hypervisor, aggregate: Aggregate) -> Progress | None:
        """Have the server run on the host; None when it does.

        Where it was woken there before, it is its owner's affair where it is now. Raises ``ResourceOccupied`` where the
        host cannot take it.
        """
        if is_woken(order, host.name, server.metadata):
            if server.status in _LISTENING and server.task is None:
                self._tell(server, marks_of(order))  # the end may be another than when it was woken
            return None
        if (busy := self._busy(server)) is not None:
            return busy
        if server.status == "SHELVED":
            self._act(server, {"shelveOffload": None})
            return Progress(False, _SOON, Reason("The server is being shelved."))
        if server.status == "SHELVED_OFFLOADED":
            return self._unshelve(order, server, host, aggregate)
        if server.service_host == host.service_host:
            if not self._tell(server, {**marks_of(order), WOKEN: host.name}):
                return _wait(server)
            if WAKING in aggregate.metadata:  # should it have to be woken here again, that is another attempt
                self._compute.set_metadata(aggregate, {WAKING: None})
            return None
        if self._is_down(server.service_host):
            self._act(server, {"evacuate": {"host": host.service_host}}, "2.68")
            return Progress(
                False, _SOON, Reason("The server is being rebuilt.", f"The server is being rebuilt on {host.name}.")
            )
        if self._tell(server, marks_of(order)):
            self._shelve(server)
        return Progress(False, _SOON, Reason("The server is being shelved, to move."))

    def _unshelve(self, order: Order, server: Server, host: Hypervisor, aggregate: Aggregate) -> Progress:
        if aggregate.metadata.get(WAKING) == host.service_host:  # and it sleeps still
            self._compute.set_metadata(aggregate, {WAKING: None})
            raise ResourceOccupied({host.external_id: f"Nova could not wake the server on {host.name}."})
        vanishing = Preemption(self._calls, self._compute, self._options, self._now).clear(order)
        if vanishing:
            return Progress(False, _SOON, Reason(f"{vanishing} preemptible servers are still vanishing."))
        self._compute.set_metadata(aggregate, {WAKING: host.service_host})
        where = {"host": host.service_host, "availability_zone": None}
        self._act(server, {"unshelve": where}, "2.91")
        return Progress(
            False, _SOON, Reason("The server is being woken.", f"The server is being woken on {host.name}.")
        )

    def _withdraw(self, order: Order, pool: Collection[str], aggregate: Aggregate) -> Progress | None:
        """Have the server as it was that a change named which was refused; None when it is.

        It runs in general use again. Where there is no room it stays asleep, and is its owner's to wake.
        """
        refused = order.withdrawn.get("server_id")
        server = None if refused is None else self._compute.server(str(refused))
        if server is None or server.id == named_server(order) or server.project_id != order.project_id:
            return None
        if server.metadata.get(RESERVATION) != order.reservation_id or server.status in _GONE:
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
            return Progress(False, _SOON, Reason("The server is being woken where it may be."))
        if server.status not in _LISTENING:
            return None
        if server.service_host in pool:
            self._shelve(server)
            return Progress(False, _SOON, Reason("The server leaves its reserved host."))
        return None if self._forget(server) else _wait(server)

    def _is_down(self, service_host: str) -> bool:
        return any(
            hypervisor.service_host == service_host and not hypervisor.up for hypervisor in self._compute.hypervisors()
        )

    # Ending

    def take_back(self, order: Order) -> Progress:
        """Do with the server what was asked for the end; answers and raises as ``ensure_ended`` does."""
        layout = Layout(self._compute.aggregates(), self._options)
        own = self._all(order)
        if order.is_over:
            self._deny(order, {server.id for server in own})
        for server in own:
            unfinished = self._end(order, server, layout.pooled)
            if unfinished is not None:
                return unfinished
        aggregate = layout.shared(order.reservation_id)
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

    def _end(self, order: Order, server: Server, pool: Collection[str]) -> Progress | None:
        """Do with one server what was asked for; None when that is done."""
        fate = fate_of(order, server.id, server.created_at)
        if fate == "delete":
            if order.is_over and named_server(order) is not None and server.status == "ERROR":
                return None  # it never ran: its owner is to see why
            return delete_servers(self._compute, [server], now=self._now)
        leaves = server.service_host in pool and not is_in_place(order)
        if order.spared and not leaves:
            fate = ""  # it has nobody's room
        if fate and (unfinished := self._rouse(server)) is not None:
            return unfinished
        if fate == "stop" and (unfinished := self._stop(server, leaves=leaves)) is not None:
            return unfinished
        if server.status in _LISTENING and not self._forget(server):
            return _wait(server)
        if server.status in _LISTENING and (fate == "shelve" or (fate == "stop" and leaves)):
            self._shelve(server)
            return Progress(False, _SOON, Reason("The server is being shelved."))
        return None

    def _rouse(self, server: Server) -> Progress | None:
        """Have the server take what it is told, whatever its user has done with it; None when it does.

        Raises ``CloudBusy`` for one that is broken, which is told that it is not, and ``CloudRefused``.
        """
        if server.task is not None:
            return _wait(server)
        if server.status == "ERROR":
            self._act(server, {"os-resetState": {"state": "active"}})
            raise CloudBusy(Reason(f"The server {server.id} is in ERROR."))
        if server.status in _REMEDIES:
            self._act(server, {_REMEDIES[server.status]: None})
            return Progress(False, _SOON, Reason(f"The server is no more to be in {server.status}."))
        return self._busy(server)

    def _stop(self, server: Server, *, leaves: bool) -> Progress | None:
        """Have the server shut down, and its reserved host where it ``leaves`` that for one in general use.

        None when it is, or where Nova found no other host for it.
        """
        if server.status in _TO_STOP:
            self._act(server, {_TO_STOP[server.status]: None})
            return Progress(False, _SOON, Reason("The server is being shut down."))
        if server.status != "SHUTOFF" or not leaves or self._compute.last_action(server.id) == "migrate":
            return None
        try:
            self._act(server, {"migrate": None})
        except BadRequest:
            return None
        return Progress(False, _SOON, Reason("The server leaves its reserved host."))

    def _all(self, order: Order) -> list[Server]:
        """The reservation's servers: the one that it names, or what was booted for it before it was confirmed."""
        if named_server(order) is not None:
            named = self._named(order)
            found = [] if named is None else [named]
        else:
            found = [] if order.hold is None else self._compute.servers_in(order.project_id)
        return [
            server
            for server in found
            if server.project_id == order.project_id
            and server.status not in _GONE
            and is_its_own(order, server.id, server.metadata, server.created_at)
        ]

    def _deny(self, order: Order, own: Collection[str]) -> None:
        """Take the marks of what is over from servers that bear them and were never its own."""
        _, of_lease = tags_of(order)
        for server in self._compute.servers_tagged(of_lease):
            is_false = server.metadata.get(RESERVATION) == order.reservation_id and server.id not in own
            if is_false and server.status in _LISTENING:
                self._forget(server)

    def servers_of(self, order: Order) -> list[Server]:
        """The reservation's servers, but for those that are vanishing."""
        return [server for server in self._all(order) if not server.vanishing]

    # A server

    def _named(self, order: Order) -> Server | None:
        """The server that the order names, if its project has it."""
        named = named_server(order)
        server = None if named is None else self._compute.server(named)
        if server is None or server.project_id != order.project_id or server.status in _GONE:
            return None
        return server

    def _busy(self, server: Server) -> Progress | None:
        """What to answer while Nova does something else with the server. Raises ``CloudRefused`` for a broken one."""
        if server.task is not None or server.status == "BUILD":
            return _wait(server)
        if server.status not in _LISTENING | _SHELVED:
            raise CloudRefused(Reason(f"The server {server.id} is in {server.status}."))
        return None

    def _tell(self, server: Server, wanted: Mapping[str, str]) -> bool:
        """Have this in its metadata, and its tags with that; False where Nova is at something else with it."""
        changes = {key: value for key, value in wanted.items() if server.metadata.get(key) != value}
        try:
            if changes:
                self._compute.set_server_metadata(server.id, changes)
            tags = _tags_by(wanted)
            for tag in sorted(tag for tag in server.tags - tags if LEASE in wanted and tag.startswith(f"{LEASE}=")):
                self._compute.untag_server(server.id, tag)  # of an earlier lease
            for tag in sorted(tags - server.tags):
                with suppress(BadRequest):  # its owner has put as many there as Nova takes
                    self._compute.tag_server(server.id, tag)
        except Conflict:
            return False
        return True

    def _drop_stale(self, order: Order, server: Server) -> bool:
        """Have it not say any more where it was woken for an earlier reservation; False as ``_tell``."""
        if WOKEN not in server.metadata or is_in_place(order):
            return True
        try:
            self._compute.drop_server_metadata(server.id, WOKEN)
        except Conflict:
            return False
        return True

    def _forget(self, server: Server) -> bool:
        """Take its marks away; False where Nova is at something else with it."""
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
        """Order something of a server that nothing is done with.

        Raises ``Conflict``, which counts as an attempt, where Nova does not take the order in the server's state.
        """
        self._compute.act_on_server(server.id, body, microversion)


def booted_since(compute: Compute, layout: Layout, since: datetime) -> list[BootedServer]:
    """The servers that were booted since then, but for those of reservations of other types; and those that went."""
    return [
        BootedServer(
            server.id,
            server.name,
            server.project_id,
            server.user_id,
            reservation_id=server.metadata.get(RESERVATION),
            is_gone=server.status == "DELETED",
        )
        for server in compute.servers_changed(since)
        if server.status == "DELETED" or _is_free(server, layout, since)
    ]


def _is_free(server: Server, layout: Layout, since: datetime) -> bool:
    """Whether the server was booted since then, and is of no reservation of hosts or instances."""
    is_new = server.created_at is not None and server.created_at >= since and server.status in _LISTENING
    return is_new and not (server.reservations or server.is_of_instances or layout.is_held(server.service_host))


def held(compute: Compute) -> Iterator[str]:
    """The reservations whose marks servers bear; by their tag, so that others are not even read.

    Not of those that are shelved and to be kept so: nobody can take the marks away from these. Nova tags no server that
    is booted with an old version of its API; where that came to nothing, its project is looked at after the hold.
    """
    for server in compute.servers_tagged(TAG):
        kept = server.status in _SHELVED and server.metadata.get(AT_END) in {"stop", "shelve"}
        gone = server.status in _GONE or server.vanishing
        if not kept and not gone and (reservation_id := server.metadata.get(RESERVATION)):
            yield reservation_id


def drift(orders: Sequence[Order], layout: Layout, hypervisors: Mapping[str, Hypervisor]) -> Iterator[Drift]:
    """What is not as it should be of the aggregates of started orders; where servers are is their owners' affair."""
    for order in orders:
        if is_in_place(order):
            continue
        name, aggregate = order.reservation_id, layout.shared(order.reservation_id)
        hosts = _service_hosts(order, hypervisors)
        if aggregate is None:
            yield Drift(name, None, f"reservation {name} has no aggregate")
        elif any(aggregate.metadata.get(key) != value for key, value in metadata_of(order).items()):
            yield Drift(name, None, f"the aggregate of reservation {name} has other metadata")
        elif hosts is not None and aggregate.hosts != hosts:
            yield Drift(name, next(iter(order.resources), None), f"the aggregate of reservation {name} has other hosts")


def grown(compute: Compute, orders: Sequence[Order], hypervisors: Mapping[str, Hypervisor]) -> Iterator[Drift]:
    """The servers that take more of their reserved hosts than was booked, as their owners have resized them."""
    named = [order for order in orders if named_server(order) is not None and not is_in_place(order)]
    found = {server.id: server for server in compute.servers_tagged(TAG)} if named else {}
    for order in named:
        server = found.get(named_server(order) or "")
        if server is None or server.service_host not in (_service_hosts(order, hypervisors) or ()):
            continue
        try:
            taken = footprint_of(server.flavor).amounts
        except (ValueError, KeyError):  # a flavor that asks for what nobody can book
            continue
        if excess := excess_of(order, taken):
            yield Drift(order.reservation_id, next(iter(order.resources), None), excess, lasts=True)


def _service_hosts(order: Order, hypervisors: Mapping[str, Hypervisor]) -> set[str] | None:
    """The hosts that the aggregate is to have; None where Nova does not know all of them."""
    known: Iterable[Hypervisor | None] = [hypervisors.get(resource.external_id) for resource in order.resources]
    found = [hypervisor.service_host for hypervisor in known if hypervisor is not None]
    return set(found) if len(found) == len(order.resources) else None


def _tags_by(metadata: Mapping[str, str]) -> set[str]:
    """The tags that go with the marks in metadata; by the common one no server is found that stays in its place."""
    lease_id = metadata.get(LEASE)
    common = set() if metadata.get(WOKEN) == IN_PLACE else {TAG}
    return common | (set() if lease_id is None else {f"{LEASE}={lease_id}"})


def _wait(server: Server) -> Progress:
    return Progress(
        False, _SOON, f"Nova is at something else with the server: {server.task or server.status}.", awaited=True
    )
