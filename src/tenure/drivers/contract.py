"""The contract between Tenure and the drivers of clouds.

Any worker may repeat any call at any time, also after a crash during the call or after a lost answer. Methods whose
names start with ``ensure`` are therefore idempotent: they establish a state, whatever the state before. A driver knows
neither the database nor the API. ``tenure.testing`` has test suites for this contract, also for third-party drivers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

from tenure.domain.actor import Actor
from tenure.domain.boot import Boot
from tenure.domain.period import Period
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource

#: How long after the end of a provisional lease a boot that began within it may still complete.
SLOWEST_BOOT: Final = timedelta(minutes=15)


class CloudError(Exception):
    """The base class of driver errors; its text is for operators.

    The owner of the lease sees the ``text`` of a ``Reason``. For any other error he sees ``unexplained`` of its class.
    """

    #: The text for the owner if the error has none.
    unexplained = "The cloud did not carry out the request."

    @property
    def reason(self) -> Reason:
        """The texts of the error for the owner of the lease and for operators."""
        given = self.args[0] if self.args else None
        if isinstance(given, Reason):
            return given
        return Reason(self.unexplained, str(self) or type(self).__name__)


class CloudBusy(CloudError):
    """A temporary failure, such as a time-out, an overload or a lost connection. The call is retried."""

    unexplained = "The cloud cannot carry out the request at the moment."


class CloudRefused(CloudError):
    """A permanent failure. The call is not retried.

    ``about`` is the wrong attribute if a reference consists of several, such as ``floating_network_id``.
    """

    unexplained = "The cloud refuses the request."

    def __init__(self, *args: object, about: str | None = None) -> None:
        super().__init__(*args)
        self.about = about


class CloudNotFound(CloudRefused):
    """The cloud has no object with the given id or name."""

    unexplained = "The cloud lacks an object that was named or is needed."


class CloudAmbiguous(CloudRefused):
    """Several objects have the given name."""


class ResourceOccupied(CloudBusy):
    """Other users' servers are on resources of the reservation, or the resources have no room for the owner's server.

    Nothing was deleted, and no resource was handed over. ``resources`` maps external ids to reasons.
    """

    unexplained = "Resources of the lease are still used by others."

    def __init__(self, resources: Mapping[str, str]) -> None:
        self.resources = dict(resources)
        super().__init__("; ".join(f"{name}: {reason}" for name, reason in sorted(self.resources.items())))


class ResourceMissing(CloudBusy):
    """The cloud does not know some resources of the reservation; all others were handed over.

    ``resources`` maps external ids to reasons.
    """

    unexplained = "The cloud lacks resources of the lease."

    def __init__(self, resources: Mapping[str, str]) -> None:
        self.resources = dict(resources)
        super().__init__("; ".join(reason for _, reason in sorted(self.resources.items())))


@dataclass(frozen=True, slots=True)
class ResourceRef:
    """A resource as the cloud knows it."""

    external_id: str
    name: str
    region: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to a driver: a reservation, and the resources that its owner should have now.

    All of it is in ``region``.

    * ``returning``: resources that the reservation had and has no longer. If a cloud cannot tell for which reservation
      a server was booted, the driver deletes servers only on these and on ``resources``.
    * ``trust_id``: the trust with which to act as the owner, or None.
    * ``units``: the number of units of each resource, by external id.
    * ``effects``: the effects that earlier calls have returned.
    * ``starts_at``: the start of the lease.
    * ``is_over``: the reservation has ended in the ledger; take back only its remains.
    * ``provisional``: the period in which the lease waited for its confirmation, if it was not confirmed or the
      confirmation failed; None for all other leases.
    * ``spared``: the start failed, or the action before the end did not save the owner's data. Do no more with the
      owner's objects than is needed to free the room.
    * ``withdrawn``: the parameters of a refused change; undo their effects.
    * ``boot``: the request of the reservation's server, which is made at the start, as the owner; None if there is no
      such request, and once the server is made.
    * ``repetition``: how often the action before the end was armed again, because the end has moved beyond it. What an
      earlier repetition has saved is kept, and does not count as saved.
    """

    reservation_id: str
    lease_id: str
    lease_name: str
    project_id: str
    user_id: str
    resource_type: str
    parameters: Mapping[str, object]
    resources: tuple[ResourceRef, ...]
    ends_at: datetime
    trust_id: str | None = None
    returning: tuple[ResourceRef, ...] = ()
    units: Mapping[str, int] = field(default_factory=dict)
    effects: Mapping[str, object] = field(default_factory=dict)
    starts_at: datetime | None = None
    is_over: bool = False
    region: str = ""
    provisional: Period | None = None
    spared: bool = False
    withdrawn: Mapping[str, object] = field(default_factory=dict)
    repetition: int = 0
    boot: Boot | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The result of a call: done, or still in progress and to be repeated after ``look_again_after``.

    ``reason`` is for operators; the owner of the lease sees only the ``text`` of a ``Reason``. ``effects`` are objects
    in the cloud that clients see, such as the id of an aggregate; effects that are not in the mapping stay as they are.
    """

    done: bool
    look_again_after: timedelta = timedelta(0)
    reason: Reason | str | None = None
    effects: Mapping[str, object] = field(default_factory=dict)
    #: Whether a start must wait for it, because the owner was promised it. Without it, the lease is active while
    #: servers are still being deleted on resources that the reservation gives up.
    awaited: bool = False

    @property
    def shown_reason(self) -> Reason | None:
        """The reason why the call is not done, for the owner of the lease and for operators."""
        if self.reason is None or isinstance(self.reason, Reason):
            return self.reason
        return Reason("The cloud has not finished yet.", self.reason)


DONE = Progress(done=True)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a resource can be used, and the reason if not.

    A resource that is not ``well`` may still be one that ``works`` for its present lease: the operator of the cloud has
    closed it to new servers. Such a resource is never taken from a running lease; a resource that is down may be.
    """

    well: bool
    reason: str | None = None
    works: bool = False
    #: Whether the cloud has reported the health. If not, the resource keeps its earlier health.
    is_known: bool = True


#: The health of a resource that the cloud may have but did not report this time.
UNKNOWN = Health(False, "The cloud has not reported it.", is_known=False)


@dataclass(frozen=True, slots=True)
class Preempted:
    """A preemptible server that must go because its room is reserved."""

    server_id: str
    project_id: str
    resource: ResourceRef


@dataclass(frozen=True, slots=True)
class BootedServer:
    """A server that a user has booted. If it ``is_gone``, only its id is certain.

    ``reservation_id`` comes from the metadata of the server, which its owner can write. ``fact`` is what ``fetch``
    returns of the server.
    """

    server_id: str
    name: str
    project_id: str
    user_id: str
    region: str = ""
    reservation_id: str | None = None
    is_gone: bool = False
    fact: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ServerPage:
    """A page of a cloud's servers; ``after`` is the marker of the next page, None after the last."""

    servers: Sequence[BootedServer] = ()
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """A difference between the cloud and the ledger.

    With a ``reservation_id``, ``ensure_started`` with the command of that reservation reconciles it; ``resource`` is
    then the affected resource, if there is a single one. With a resource only, ``ensure_registered`` reconciles it.
    ``text`` is a description for people. A difference that ``lasts`` cannot be reconciled, such as a server that its
    owner has resized beyond the booked size; the owner is notified.
    """

    reservation_id: str | None
    resource: ResourceRef | None
    text: str
    lasts: bool = False


class Group(StrEnum):
    """What ids of the identity service stand for."""

    PROJECTS = "projects"
    USERS = "users"


class CloudDriver(Protocol):
    """A cloud.

    Every method may raise ``CloudBusy`` (the engine retries, at growing intervals) and ``CloudRefused`` (it does not).
    No call takes longer than ``longest_call``: a method starts a longer operation, reports it as not done, and is
    called again. Only ``discover``, ``check`` and ``drift``, which are called without a claim, may take that long for
    each part of the cloud.
    """

    #: An upper bound of the duration of a call; the claims of the engine last longer.
    longest_call: timedelta

    def missing_services(self, resource_type: str) -> Sequence[str]:
        """Return the names of the services that the type needs and the cloud does not have. Reads only."""

    def discover(self, resource_type: str) -> list[DiscoveredResource]:
        """Return all resources of the type, reservable or not, ordered by external id. Reads only."""

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        """Return the resource whose external id or, if there is none, whose name is ``reference``. Reads only.

        Raises ``CloudNotFound`` if no resource has it, and ``CloudAmbiguous`` if several have the name.
        """

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        """Return the attributes of an object that a request names, if the caller may see it. Reads only.

        A ``flavor`` has ``id``, ``name``, ``vcpus``, ``ram`` and ``swap`` in MiB, ``disk`` and ``ephemeral`` in GiB,
        and ``extra_specs``. If these name devices, ``device_groups`` are what the cloud requests for them, written as
        extra specs, and ``uncounted`` says by the name of an extra spec why that is not known. A ``server``, which must
        belong to the caller's project, has ``id``, ``name``, ``project_id``, and ``flavor`` with the attributes of the
        flavor that it was booted with. Raises ``CloudNotFound``.
        """

    def ensure_registered(self, resource_type: str, resource: ResourceRef) -> None:
        """Set the resource aside for reservations, and close it to all other use.

        Raises ``ResourceOccupied`` if servers that are not preemptible are on it.
        """

    def ensure_unregistered(self, resource_type: str, resource: ResourceRef) -> None:
        """Return the resource to general use. A resource that the cloud no longer has counts as returned.

        Raises ``CloudBusy`` while a reservation has it, and ``ResourceOccupied`` while it is set aside and has servers.
        """

    def ensure_prepared(self, command: Command) -> Progress:
        """Create the objects that clients must see before the start of the lease, and return them as ``effects``.

        Types without such objects need no action. A server group is created as the owner, with ``command.trust_id``. A
        server that is to be reserved is marked with its lease, and shelved if the start is in the future.
        """

    def ensure_started(self, command: Command) -> Progress:
        """Make exactly ``command.resources`` usable, by the owner only.

        With a ``boot``, the server is made there; its id is the effect ``server_id``. However often the call is
        broken off and repeated, there is one server.

        All of them are usable when this returns. It is not done while servers of the reservation are still being
        deleted on resources that are no longer in the command and return to the pool. Servers of others are never
        deleted; they raise ``ResourceOccupied``. If the cloud does not know a resource of the command, the others are
        handed over, the reservation keeps its other resources except the ``returning`` ones, and ``ResourceMissing``
        names the missing.
        """

    def make_way(self, command: Command, *, deadline: datetime, ahead: Iterable[Command] = ()) -> Sequence[Preempted]:
        """Remove preemptible servers that are in the way of a command by the deadline, which is its start.

        The engine repeats the call every few seconds from some time before the deadline. Each such server is notified
        once (its metadata contain the time of its deletion), shut down softly when half of its notice is left, and
        deleted shortly before the deadline, so that the start is not late. ``ensure_started`` deletes the remaining
        ones at once.

        On hosts that the command takes as a whole, all preemptible servers are in the way. On hosts of which it takes
        parts, only as many are as it needs the room of, beside the servers that run there and the demand of the
        commands ``ahead``, which start no later and have not started. Return all servers known to be in the way,
        notified by this call or earlier; none if the cloud has no preemptible servers.
        """

    def before_end(self, command: Command, action: str) -> Progress:
        """Perform the action before the end (``snapshot``, ``last_snapshot``); not done while images are being saved.

        No resource is taken back before the action is done or given up. A repeated call creates no second image.
        """

    def ensure_ended(self, command: Command) -> Progress:
        """Delete the servers of the reservation, then return its resources to the pool.

        Works also for a reservation that never started, started in part, or has already ended. Not done while servers
        are still being deleted; ``command.resources`` are not handed over again before it is done.
        """

    def remaining(self, resource_type: str, commands: Iterable[Command]) -> Mapping[str, int]:
        """Return the remaining kept units of each of these ended reservations, by reservation id. Reads only.

        A reservation that is missing in the answer has none. The answer is complete, or the call raises an error: units
        that no longer exist are given to other reservations. The number of requests to the cloud does not grow with the
        number of commands.
        """

    def servers(self, since: datetime | None, after: str | None = None) -> ServerPage:
        """Return a page of the servers of all projects, the first one or that ``after`` the marker. Reads only.

        With ``since`` these are the servers that were booted, changed or deleted since then; servers that were deleted
        earlier may be included. With None, they are all that exist. Only deleted servers, and those that run or are
        shut off, paused or suspended, are listed; servers on resources that are reserved as a whole, and servers of
        instance reservations, are left out. The number of requests does not grow with the number of servers. Raises
        ``CloudRefused`` for the marker of a server that the cloud has forgotten. A driver of several regions is asked
        for each region separately (``drivers_by_region``).
        """

    def held(self, resource_type: str) -> Iterable[str]:
        """Return the names of all objects in the cloud that look like effects of our reservations. Reads only.

        The caller takes back only those of reservations that the ledger knows to be over: other services may use the
        same cloud.
        """

    def check(self, resource_type: str, registered: Iterable[ResourceRef] = ()) -> Mapping[str, Health]:
        """Return the health of every resource of the type, by external id. Reads only.

        ``registered`` are the resources of the ledger, read from the database on iteration: a driver whose cloud has
        its own list need not iterate. The answer is complete, or the call raises an error: a missing resource counts as
        gone. Resources that the cloud did not report while it reported others are ``UNKNOWN``.
        """

    def drift(self, resource_type: str, commands: Iterable[Command], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        """Return the differences between the cloud and the ledger. Reads only.

        ``commands`` are the started reservations, ``pooled`` the registered resources without a reservation. The number
        of requests to the cloud does not grow with the number of commands. ``check`` reports resources that the cloud
        does not have, and ``held`` reservations that should not exist.
        """

    def delegate(self, actor: Actor, regions: Collection[str] = ()) -> str:
        """Create a trust of the caller in the service, with his roles in his project; return its id.

        A driver of several regions creates a trust in each of ``regions``, or in none, and returns them joined in a
        single text; without ``regions`` it creates one in the home region. Other drivers ignore ``regions``. Each call
        creates another trust. Raises ``CloudRefused`` if the cloud does not permit it, and for a caller without a
        token.
        """

    def revoke(self, trust_id: str) -> None:
        """Delete a trust. A missing trust is no error."""

    def identify(self, group: Group, reference: str) -> Sequence[str]:
        """Return the ids of the users or projects whose id or, if there is none, whose name is ``reference``.

        Reads only. The answer is empty if there is none.
        """

    def by_region(self, resource_type: str) -> Mapping[str | None, CloudDriver] | None:
        """Return the drivers that this one consists of, each of which may fail while the others work; None for none.

        They are those that have resources of the type, by region; a driver for all regions has the key None.
        """


def drivers_by_region(driver: CloudDriver, resource_type: str) -> Mapping[str | None, CloudDriver]:
    """Return the drivers to ask separately about all resources of a type, so that a failure affects only its region."""
    drivers = driver.by_region(resource_type)
    return {None: driver} if drivers is None else drivers
