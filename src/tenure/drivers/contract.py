"""What a cloud must offer so that Tenure can promise its resources.

Everything here may be called again at any time, by any worker, also after a crash in the middle of a call or after an
answer that was lost: a verb that starts with ``ensure`` makes something so, whatever was there before, and doing it
again changes nothing. A driver knows neither the database nor the API. ``tenure.testing`` has suites of tests for it,
which the drivers of others pass as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol, runtime_checkable

from tenure.domain.actor import Actor
from tenure.domain.period import Period
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource

#: How long after the end of a hold that may still come through which was begun in it.
SLOWEST_BOOT: Final = timedelta(minutes=15)


class CloudError(Exception):
    """The root of what a driver raises; the text is for operators to read.

    The owner of a lease reads it only where it is a ``Reason``, and then its ``text``; else what its class says.
    """

    #: What the owner reads of an error that has no text for him.
    unexplained = "The cloud did not do what was asked of it."

    @property
    def reason(self) -> Reason:
        """What is said of it: to the owner of the lease, and to operators."""
        given = self.args[0] if self.args else None
        if isinstance(given, Reason):
            return given
        return Reason(self.unexplained, str(self) or type(self).__name__)


class CloudBusy(CloudError):
    """It did not work now and may work later: a time-out, an overload, a lost connection. Will be tried again."""

    unexplained = "The cloud cannot do what was asked of it at the moment."


class CloudRefused(CloudError):
    """It will not work however often it is tried.

    ``about`` is the fact that is wrong where a reference is made of several, such as ``floating_network_id``.
    """

    unexplained = "The cloud refuses what was asked of it."

    def __init__(self, *args: object, about: str | None = None) -> None:
        super().__init__(*args)
        self.about = about


class CloudNotFound(CloudRefused):
    """The cloud does not know the thing that was named."""

    unexplained = "The cloud does not know something that was named or is needed."


class CloudAmbiguous(CloudRefused):
    """The name fits several things."""


class ResourceOccupied(CloudBusy):
    """Somebody else's servers are on resources that were to be handed over, or these cannot take the owner's server.

    Nothing was deleted, and nothing was handed over. ``resources`` maps external ids to what is in the way.
    """

    unexplained = "Others still use what the lease is to have."

    def __init__(self, resources: Mapping[str, str]) -> None:
        self.resources = dict(resources)
        super().__init__("; ".join(f"{name}: {reason}" for name, reason in sorted(self.resources.items())))


class ResourceMissing(CloudBusy):
    """The cloud does not know some of the resources that were to be handed over; all others were.

    ``resources`` maps external ids to what is known of each.
    """

    unexplained = "The cloud does not know all that the lease is to have."

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
class Order:
    """A reservation as a driver sees it: what should be its owner's, as of now.

    ``returning`` are resources that it had and has no more. Where a cloud cannot tell for which reservation a server
    was booted, servers are deleted there and on ``resources`` only. ``trust_id`` is the trust with which to act as the
    owner, None where there is none. ``units`` is how many units it has of each resource, by external id, and
    ``effects`` what earlier calls have answered that they made for it. ``starts_at`` is when its lease starts; one
    that ``is_over`` has ended in the ledger, and only what is left of it is taken back. ``hold`` is the time in which
    its lease waited to be confirmed, where nobody did, or nothing came of that; None for all others. What is its
    owner's is ``spared`` where the start came to nothing, or what was to be saved before the end was not: no more is
    done with it than is needed for others to have the room. ``withdrawn`` are the parameters that a change had given it
    which was refused: what was done for them is undone. All of it is in ``region``.
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
    hold: Period | None = None
    spared: bool = False
    withdrawn: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a verb got: done, or still going on, with the time after which to look again.

    ``reason`` is for operators; the owner of the lease reads it only where it is a ``Reason``, and then its ``text``.
    ``effects`` is what it made that clients are told of, such as the id of an aggregate; what is not named stays. With
    ``awaited`` a start is not over before it is done; else it goes on while servers vanish on what is given up.
    """

    done: bool
    look_again_after: timedelta = timedelta(0)
    reason: Reason | str | None = None
    effects: Mapping[str, object] = field(default_factory=dict)
    #: Whether what is not done is something that its owner was promised, so that a start waits for it.
    awaited: bool = False

    @property
    def told(self) -> Reason | None:
        """What is said of what is not done: to the owner of the lease, and to operators."""
        if self.reason is None or isinstance(self.reason, Reason):
            return self.reason
        return Reason("The cloud is not done with it yet.", self.reason)


DONE = Progress(done=True)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a resource can serve, and if not, why.

    One that is not well may still work for who has it: the cloud's operator has closed it to everything new. It is
    never taken away from a running lease, as one that is down may be.
    """

    well: bool
    reason: str | None = None
    works: bool = False
    #: Whether the cloud has told it; what it did not tell this time keeps the health that it had.
    is_known: bool = True


#: Of a resource that the cloud may have and has not told of this time.
UNKNOWN = Health(False, "The cloud has not told.", is_known=False)


@dataclass(frozen=True, slots=True)
class Preempted:
    """A server that has to go because its place is reserved for somebody else."""

    server_id: str
    project_id: str
    resource: ResourceRef


@dataclass(frozen=True, slots=True)
class BootedServer:
    """A server that somebody has booted, and whose it is; of one that ``is_gone`` only the id is known for sure.

    ``reservation_id`` is what the server says itself of the reservation that it is of, which its owner can write.
    """

    server_id: str
    name: str
    project_id: str
    user_id: str
    region: str = ""
    reservation_id: str | None = None
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class Drift:
    """Something in the cloud that is not as the ledger says.

    With a ``reservation_id``, ``ensure_started`` with its order mends it; ``resource`` then says which resource it is
    about, if it is about one. With a resource only, ``ensure_registered`` does. ``what`` is for people. Nothing mends
    what ``lasts``, such as a server of the reservation that its owner has made larger than was booked: he is told.
    """

    reservation_id: str | None
    resource: ResourceRef | None
    what: str
    lasts: bool = False


class CloudDriver(Protocol):
    """A cloud.

    Every method may raise ``CloudBusy`` (the engine tries again, later and later) and ``CloudRefused`` (it does not).
    No method takes longer than the driver's ``longest_call``: what takes longer in the cloud is begun, reported as not
    done, and asked for again. Only ``discover``, ``check`` and ``drift``, which are called under no claim, may take
    that long for each part of what they look at.
    """

    #: An upper bound of how long one call takes; the engine's claims outlive it.
    longest_call: timedelta

    def discover(self, resource_type: str) -> list[DiscoveredResource]:
        """Everything of that type that the cloud has, reservable or not, ordered by external id. Reads only."""

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        """The one thing whose external id, or else whose name, is ``reference``. Reads only.

        Raises ``CloudNotFound`` where there is none and ``CloudAmbiguous`` where the name fits several.
        """

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        """What the cloud says of something that a request names, as far as the caller may know of it. Reads only.

        Of kind ``flavor``: ``id``, ``name``, ``vcpus``, ``ram`` and ``swap`` in MiB, ``disk`` and ``ephemeral`` in GiB,
        ``extra_specs``. Of kind ``server``, which must be of the caller's project: ``id``, ``name``, ``project_id``,
        and as ``flavor`` the same of what it was booted with. Raises ``CloudNotFound``.
        """

    def ensure_registered(self, resource_type: str, resource: ResourceRef) -> None:
        """Set the resource aside for reservations, closed to everybody else.

        Raises ``ResourceOccupied`` when servers are on it that are not preemptible.
        """

    def ensure_unregistered(self, resource_type: str, resource: ResourceRef) -> None:
        """Give the resource back to general use. A resource that the cloud no longer has counts as given back.

        Raises ``CloudBusy`` while a reservation has it, ``ResourceOccupied`` while it is set aside with servers on it.
        """

    def ensure_prepared(self, order: Order) -> Progress:
        """Make what clients must see as soon as the lease exists, and tell it as ``effects``.

        Nothing for types that need nothing early. A server group is made as the owner, by ``order.trust_id``. A server
        that is to be reserved is marked with its lease, and shelved where the start is ahead.
        """

    def ensure_started(self, order: Order) -> Progress:
        """Make exactly ``order.resources`` usable by the owner, and by nobody else.

        All of them are when this returns; it is not done while servers of the reservation still vanish on what goes
        back to the pool: what it held and what is not in the order any more. Foreign servers are never deleted:
        ``ResourceOccupied``. Where the cloud does not know some resource of the order, the others are handed over, the
        reservation keeps whatever else it has but for what is ``returning``, and ``ResourceMissing`` says which.
        """

    def make_way(self, order: Order, *, deadline: datetime, ahead: Iterable[Order] = ()) -> Sequence[Preempted]:
        """Have preemptible servers that are in the way of an order gone by the deadline, when it starts.

        Asked for again every few seconds from some time before: each such server is told once (its metadata say by when
        it goes), shut down softly when half of that time is left, and deleted shortly before the deadline, so that the
        start is not late. In the way are those on hosts that the order takes as a whole, and of those on hosts that it
        takes parts of only as many as it needs the room of, beside what runs there and what is wanted there by the
        orders ``ahead`` of it, which start no later and have not started. ``ensure_started`` deletes at once what is
        left. All that it knows to be in the way, told by this call or before. Nothing where the cloud has no such
        servers.
        """

    def before_end(self, order: Order, action: str) -> Progress:
        """Do what was asked for before the end (``snapshot``, ``last_snapshot``); not done while images are saved.

        Nothing of the reservation is taken back before it is done or given up. Doing it again makes no second image.
        """

    def ensure_ended(self, order: Order) -> Progress:
        """Take everything back: delete the lease's servers, then return the resources to the pool.

        Works for a reservation that never started, that started in part, and that is already ended. Not done while
        servers are still vanishing; ``order.resources`` are not handed to anybody before it is done.
        """

    def remaining(self, resource_type: str, orders: Iterable[Order]) -> Mapping[str, int]:
        """How many units there still are of what is kept of each of these reservations, which are over. Reads only.

        By reservation; none of what is missing here. Complete or an error: what is not there any more is given to
        others. The number of calls does not grow with the number of orders.
        """

    def servers(self, since: datetime) -> Iterable[BootedServer]:
        """The servers of all projects that were booted since then, and those of any age that went since. Reads only.

        But for those on what is reserved as a whole, and those of reservations of instances. Some may be told that have
        gone before.
        """

    def held(self, resource_type: str) -> Iterable[str]:
        """The names of everything in the cloud that looks like the effect of a reservation of ours. Reads only.

        Of what is named so, take back only what the ledger knows to be over: others may use the same cloud.
        """

    def check(self, resource_type: str, registered: Iterable[ResourceRef] = ()) -> Mapping[str, Health]:
        """The health of every resource of the type, by external id. Reads only.

        ``registered`` are those of the ledger, read when they are looked at: a driver whose cloud has a list of its own
        need not look. Complete or an error: a resource that is missing here counts as gone. ``UNKNOWN`` are those that
        did not arrive while others did.
        """

    def drift(self, resource_type: str, orders: Iterable[Order], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        """What in the cloud is not as the ledger says. Reads only.

        ``orders`` are the started reservations, ``pooled`` the registered resources that nobody holds. The number of
        calls does not grow with the number of orders. What the cloud does not have at all is the business of
        ``check``, reservations that nobody should have that of ``held``.
        """

    def delegate(self, actor: Actor) -> str:
        """Have the caller trust us, with the roles he has in his project; the id of the trust.

        Each call makes another one. Raises ``CloudRefused`` where the cloud does not let the caller, and for a caller
        without a token.
        """

    def revoke(self, trust_id: str) -> None:
        """Forget a trust. One that is gone is no error."""


@runtime_checkable
class Federation(Protocol):
    """A driver that is made of several, each of which may fail while the others work."""

    def parts(self, resource_type: str) -> Mapping[str | None, CloudDriver]:
        """Who has resources of that type, by region; None where one has those of all regions."""

    def delegate_in(self, actor: Actor, regions: Collection[str]) -> str:
        """``delegate`` in each of these regions, or in none: the trusts are one text."""


def trust_in(driver: CloudDriver, actor: Actor, regions: Collection[str]) -> str:
    """A new trust of the caller in these regions, where there are any. Raises what ``CloudDriver.delegate`` does."""
    return driver.delegate_in(actor, regions) if isinstance(driver, Federation) else driver.delegate(actor)


def parts_of(driver: CloudDriver, resource_type: str) -> Mapping[str | None, CloudDriver]:
    """Whom to ask one by one about all resources of a type, so that what fails is only what does not answer."""
    return driver.parts(resource_type) if isinstance(driver, Federation) else {None: driver}
