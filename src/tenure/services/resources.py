"""Resources: what can be booked, of any type."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from tenure.clock import Clock
from tenure.domain.actor import Actor
from tenure.domain.allocation import Booking
from tenure.domain.capacity import Capacity
from tenure.domain.errors import Conflict, InvalidHost, InvalidParameter, NotFound, Unavailable
from tenure.domain.regions import qualified, region_of
from tenure.domain.request import BookingQuery, Page, ResourceBookings, ResourceChange, ResourceQuery
from tenure.domain.resource import (
    DiscoveredResource,
    PropertySetting,
    PropertyValues,
    Registration,
    Resource,
    ResourceHealth,
)
from tenure.drivers.contract import (
    CloudAmbiguous,
    CloudBusy,
    CloudNotFound,
    CloudRefused,
    ResourceOccupied,
    ResourceRef,
)
from tenure.resources.contract import Inventory, ResourceTypes
from tenure.services.context import Authorize, Effects, require
from tenure.services.healing import Healer, empty_all
from tenure.store.database import Database, Transaction

#: The longest name that a property may have.
MAX_PROPERTY_NAME = 64
#: How many properties of its own a resource has at most.
MAX_PROPERTIES = 500
_TOO_MANY_PROPERTIES = f"A resource has no more than {MAX_PROPERTIES} properties of its own"
MAX_PROPERTY_VALUE = 65_535


class ResourceService:
    """The use cases of inventories; one service for all types."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        types: ResourceTypes,
        authorize: Authorize,
        effects: Effects,
        healer: Healer,
        regions: Collection[str] = (),
    ) -> None:
        self._db = db
        self._clock = clock
        self._types = types
        self._authorize = authorize
        self._effects = effects
        self._healer = healer
        self._regions = regions

    def list(self, actor: Actor, query: ResourceQuery) -> Page[Resource]:
        """A page of the resources of a type.

        Raises ``InvalidParameter`` for a marker that is none of them, and for a region that there is not.
        """
        self._require(actor, query.resource_type, "get")
        if query.region is not None:
            region_of(query.region, self._regions, field="region")
        with self._db.read() as tx:
            found = tx.resources.page(query)
        items = tuple(found[: query.limit])
        return Page(items, items[-1].external_id if len(found) > query.limit else None)

    def get(self, actor: Actor, resource_type: str, external_id: str) -> Resource:
        """One resource; raises ``NotFound``."""
        self._require(actor, resource_type, "get")
        with self._db.read() as tx:
            return self._existing(tx, resource_type, external_id)

    def register(
        self,
        actor: Actor,
        resource_type: str,
        reference: str,
        properties: Mapping[str, str],
        capacity: Capacity | None = None,
        region: str = "",
    ) -> Resource:
        """Make a resource of the cloud reservable.

        ``reference`` is its name or its external id in the ``region``, or in the home region; ``capacity`` is how much
        of it is lent, all unless given. Raises ``InvalidParameter`` for more than there is, ``InvalidHost`` without
        one, ``NotFound`` where the cloud has none such, ``Conflict`` where it is registered already or in use,
        ``Unavailable`` while the cloud is. Interrupted, it is completed by asking again, with the properties of the
        last request. Of several requests at once, one succeeds.
        """
        self._require(actor, resource_type, "post")
        stock = self._types.stock(resource_type)
        if not reference:
            raise InvalidHost(f"Invalid values for {stock.noun} {dict(properties)}", field=stock.reference)
        self._check_properties(properties)
        region = region_of(region, self._regions, field="region")
        with _translated(stock, reference):
            found = self._effects.look_up(resource_type, qualified(region, reference))
        if capacity is not None:
            _check_lent(stock, found, capacity)
            found = replace(found, capacity=capacity)
        now = self._clock.now()
        own = {name: value for name, value in properties.items() if name not in {"id", *found.facts}}
        taken = Conflict(stock.say("{Noun} {name} is registered already.", name=found.name), field=stock.reference)

        def record(tx: Transaction) -> Resource:
            known = tx.resources.by_external_id(resource_type, found.external_id)
            if known is None:
                return tx.resources.add(found, own, now=now, registration=Registration.REGISTERING)
            if known.registration is not Registration.REGISTERING:
                raise taken
            if capacity is not None and known.capacity != capacity:
                tx.resources.describe(known, found, now=now)
                return self._existing(tx, resource_type, found.external_id)
            return known

        resource = self._db.write(record)
        ref = ResourceRef(resource.external_id, resource.name, resource.region)
        try:
            with _translated(stock, reference):
                self._effects.register(resource_type, ref)
        except (Conflict, InvalidParameter, NotFound):
            self._db.write(lambda tx: self._drop(tx, resource))
            raise

        def offer(tx: Transaction) -> Resource:
            begun = self._still(tx, resource)
            if begun is None or begun.version != resource.version:
                raise taken
            if begun.properties != own:
                tx.resources.set_properties(begun, own, now=now)
                begun = self._existing(tx, resource_type, resource.external_id)
            tx.resources.change(begun, now=now, registration=Registration.REGISTERED)
            return self._existing(tx, resource_type, resource.external_id)

        return self._db.write(offer)

    def update(
        self, actor: Actor, resource_type: str, external_id: str, properties: Mapping[str, str | None]
    ) -> Resource:
        """Set the resource's own properties; None removes one, what is not named stays.

        Raises ``Conflict`` where a lease that has not ended asks for a property that would change, and while the
        resource is being registered.
        """
        self._require(actor, resource_type, "put")
        self._check_properties(properties)
        now = self._clock.now()

        def change(tx: Transaction) -> Resource:
            resource = self._existing(tx, resource_type, external_id)
            if resource.registration is Registration.REGISTERING:
                text = "{Noun} {id} is not registered yet: its registration has not ended."
                raise Conflict(self._types.stock(resource_type).say(text, id=external_id))
            hidden = {"id", *resource.facts} & properties.keys()
            given = {name: value for name, value in properties.items() if name not in hidden}
            after = {**resource.properties, **given}
            wanted = {name: value for name, value in after.items() if value is not None}
            if len(wanted) > MAX_PROPERTIES:
                raise InvalidParameter(_TOO_MANY_PROPERTIES, field="properties")
            changed = {name for name in given if resource.properties.get(name) != wanted.get(name)}
            if not changed:
                return resource
            refused = changed & self._names_asked_for(tx, resource, now=now)
            if refused:
                text = "Can't add extracapabilities {names} to {Noun} {id}: leases on this {noun} ask for them."
                raise Conflict(
                    self._types.stock(resource_type).say(text, names=sorted(refused), id=external_id),
                    field=f"properties.{min(refused)}",
                )
            tx.resources.set_properties(resource, wanted, now=now)
            return self._existing(tx, resource_type, external_id)

        return self._db.write(change)

    def lend(self, actor: Actor, resource_type: str, external_id: str, capacity: Capacity) -> Resource:
        """Lend another amount of a resource to reservations, of what is promised already no less.

        Raises ``NotFound``, ``InvalidParameter`` for more than there is, ``Conflict`` where what is promised or kept at
        some instant would not fit any more and while it is being registered, ``Unavailable`` while the cloud is.
        """
        self._require(actor, resource_type, "put")
        stock = self._types.stock(resource_type)
        with self._db.read() as tx:
            known = self._existing(tx, resource_type, external_id)
        with _translated(stock, external_id):
            found = self._effects.look_up(resource_type, qualified(known.region, known.name))
        _check_lent(stock, found, capacity)
        now = self._clock.now()

        def change(tx: Transaction) -> Resource:
            resource = self._existing(tx, resource_type, external_id)
            self._check_registered(resource)
            promised = tx.allocations.promised(resource.id, now=now)
            if not capacity.fits(promised):
                most = ", ".join(f"{amount} {name}" for name, amount in promised.items())
                text = "At some time {most} of the {noun} {name} are promised or kept; no less can be lent."
                raise Conflict(stock.say(text, most=most, name=resource.name), field="capacity_gb")
            if resource.capacity != capacity:
                tx.resources.lend(resource, capacity, now=now)
            return self._existing(tx, resource_type, external_id)

        return self._db.write(change)

    def unregister(self, actor: Actor, resource_type: str, external_id: str) -> None:
        """Give a resource back to general use.

        Raises ``Conflict`` while anybody has or will have it and where the cloud refuses, ``Unavailable`` while the
        cloud is: nobody gets the resource any more then, and asking again completes it.
        """
        self._require(actor, resource_type, "delete")
        stock = self._types.stock(resource_type)
        now = self._clock.now()

        def close(tx: Transaction) -> Resource:
            resource = self._existing(tx, resource_type, external_id)
            if tx.resources.is_allocated(resource.id):
                raise Conflict(f"Can't delete {stock.noun} {external_id}. The {stock.noun} is reserved.")
            tx.resources.change(resource, now=now, registration=Registration.UNREGISTERING)
            return self._existing(tx, resource_type, external_id)

        resource = self._db.write(close)
        ref = ResourceRef(resource.external_id, resource.name, resource.region)
        try:
            with _translated(stock, external_id):
                self._effects.unregister(resource_type, ref)
        except (Conflict, InvalidParameter, NotFound):
            self._db.write(lambda tx: self._reopen(tx, resource, now=now))
            raise

        def forget(tx: Transaction) -> None:
            closed = self._still(tx, resource)
            if closed is not None and closed.registration is Registration.UNREGISTERING:
                tx.resources.retire(closed)

        self._db.write(forget)

    def disable(
        self, actor: Actor, resource_type: str, external_id: str, *, reason: str, dry_run: bool = False
    ) -> ResourceChange:
        """Let nobody else book the resource; those who have a part in it keep it, and are told of.

        Whatever the cloud says of its health, it stays so until it is enabled. Raises ``NotFound``, and ``Conflict``
        while it is being registered.
        """
        return self._set_enabled(actor, resource_type, external_id, enabled=False, reason=reason, dry_run=dry_run)

    def enable(self, actor: Actor, resource_type: str, external_id: str, *, dry_run: bool = False) -> ResourceChange:
        """Let the resource be booked again, as far as it is well. Raises what ``disable`` does."""
        return self._set_enabled(actor, resource_type, external_id, enabled=True, reason=None, dry_run=dry_run)

    def reallocate(
        self,
        actor: Actor,
        resource_type: str,
        external_id: str,
        *,
        lease_id: str | None = None,
        running: bool = False,
        dry_run: bool = False,
    ) -> ResourceChange:
        """Move what is booked on the resource elsewhere, of one lease or of all, as far as there is room.

        What runs there stays, unless ``running``; its servers there are lost then. What becomes of each part is told;
        with ``dry_run`` it is told only. Each lease is a transaction of its own: a dry run says of each what would
        become of it alone. Raises ``NotFound``, also for a lease without a part in it, and ``Conflict``.
        """
        self._require(actor, resource_type, "reallocate")
        with self._db.read() as tx:
            resource = self._existing(tx, resource_type, external_id)
            leases = tx.allocations.leases_on(resource.id)
        if lease_id is not None:
            if lease_id not in leases:
                noun = self._types.stock(resource_type).noun
                raise NotFound(f"Lease '{lease_id}' has no part in {noun} '{external_id}'.", field="lease_id")
            leases = [lease_id]
        parts = empty_all(self._db, self._healer, resource, leases, actor=actor, running=running, rehearse=dry_run)
        if not dry_run:
            self._effects.wake()
        return ResourceChange(resource, parts)

    def bookings(self, actor: Actor, query: BookingQuery) -> Page[ResourceBookings]:
        """A page of resources, each with those who have a part in it.

        Raises ``InvalidParameter`` for a marker that is none of them.
        """
        self._require(actor, query.resource_type, "get_allocations")
        now = self._clock.now()
        with self._db.read() as tx:
            resources, more = self._page_of_resources(tx, query)
            bookings = tx.allocations.bookings(
                [one.id for one in resources], now=now, lease_id=query.lease_id, reservation_id=query.reservation_id
            )
        items = _grouped(resources, bookings)
        return Page(items, items[-1].external_id if more and items else None)

    def bookings_of(
        self,
        actor: Actor,
        resource_type: str,
        external_id: str,
        *,
        lease_id: str | None = None,
        reservation_id: str | None = None,
    ) -> ResourceBookings:
        """Who has a part in one resource."""
        self._require(actor, resource_type, "get_allocations")
        now = self._clock.now()
        with self._db.read() as tx:
            resource = self._existing(tx, resource_type, external_id)
            found = tx.allocations.bookings([resource.id], now=now, lease_id=lease_id, reservation_id=reservation_id)
        return ResourceBookings(external_id, tuple(found))

    def properties(self, actor: Actor, resource_type: str, *, include_private: bool) -> tuple[PropertyValues, ...]:
        """The properties that resources of the type have; private ones for administrators who ask for them."""
        self._require(actor, resource_type, "get_resource_properties")
        target = {"project_id": actor.project_id, "user_id": actor.user_id}
        include_private = include_private and self._authorize("admin", actor, target)
        with self._db.read() as tx:
            return tuple(tx.resources.property_values(resource_type, include_private=include_private))

    def set_property(self, actor: Actor, resource_type: str, name: str, *, private: bool) -> PropertySetting:
        """Keep a property from ordinary users, or show it; raises ``NotFound``."""
        self._require(actor, resource_type, "update_resource_properties")
        now = self._clock.now()
        setting = self._db.write(lambda tx: tx.resources.set_property(resource_type, name, private=private, now=now))
        if setting is None:
            raise NotFound(f"Object with {{'resource_property': '{name}'}} not found")
        return setting

    # --- inside

    def _set_enabled(
        self, actor: Actor, resource_type: str, external_id: str, *, enabled: bool, reason: str | None, dry_run: bool
    ) -> ResourceChange:
        self._require(actor, resource_type, "disable")
        now = self._clock.now()

        def change(tx: Transaction) -> ResourceChange:
            resource = self._existing(tx, resource_type, external_id)
            self._check_registered(resource)
            keepers = () if enabled else self._healer.keepers(tx, resource)
            if dry_run:
                reservable = enabled and resource.health is ResourceHealth.WELL
                would_be = replace(resource, enabled=enabled, disabled_reason=reason, reservable=reservable)
                return ResourceChange(would_be, keepers)
            if (resource.enabled, resource.disabled_reason) != (enabled, reason):
                tx.resources.change(resource, now=now, enabled=enabled, disabled_reason=reason)
            return ResourceChange(self._existing(tx, resource_type, external_id), keepers)

        return self._db.write(change)

    def _require(self, actor: Actor, resource_type: str, verb: str) -> None:
        target = {"project_id": actor.project_id, "user_id": actor.user_id}
        require(self._authorize, f"{self._types.stock(resource_type).rules}:{verb}", actor, target)

    def _existing(self, tx: Transaction, resource_type: str, external_id: str) -> Resource:
        resource = tx.resources.by_external_id(resource_type, external_id)
        if resource is None:
            stock = self._types.stock(resource_type)
            raise NotFound(stock.say(stock.missing, id=external_id))
        return resource

    def _check_registered(self, resource: Resource) -> None:
        """Raise ``Conflict`` while its registration or its return is under way."""
        if resource.registration is not Registration.REGISTERED:
            text = "{Noun} {id} is {registration} right now."
            stock = self._types.stock(resource.resource_type)
            raise Conflict(stock.say(text, id=resource.external_id, registration=resource.registration))

    def _names_asked_for(self, tx: Transaction, resource: Resource, *, now: datetime) -> frozenset[str]:
        """The properties that leases with a part in the resource, now or later, ask for."""
        requests = tx.resources.requests_on(resource.id, now=now)
        demands = (self._types[kind].demand(parameters) for kind, parameters in requests)
        return frozenset(name for demand in demands for name in demand.expression.names)

    def _still(self, tx: Transaction, seen: Resource) -> Resource | None:
        """The same registration as it is now; None where somebody else has ended it.

        The same machine can be registered anew meanwhile, and a database may give an id a second time: versions then
        count from the beginning.
        """
        now = tx.resources.by_ids([seen.id]).get(seen.id)
        if now is None or now.version < seen.version:
            return None
        same = (now.resource_type, now.external_id) == (seen.resource_type, seen.external_id)
        return now if same else None

    def _drop(self, tx: Transaction, begun: Resource) -> None:
        """Forget a registration that the cloud refused, unless another request has completed or dropped it."""
        current = self._still(tx, begun)
        if current is not None and current.version == begun.version:
            tx.resources.remove(current)

    def _reopen(self, tx: Transaction, closed: Resource, *, now: datetime) -> None:
        """Offer a resource again that the cloud did not take back, unless another request is at it."""
        current = self._still(tx, closed)
        if current is not None and current.version == closed.version:
            tx.resources.change(current, now=now, registration=Registration.REGISTERED)

    def _page_of_resources(self, tx: Transaction, query: BookingQuery) -> tuple[Sequence[Resource], bool]:
        if not query.only_booked:
            found = tx.resources.page(
                ResourceQuery(resource_type=query.resource_type, limit=query.limit, marker=query.marker)
            )
            return found[: query.limit], len(found) > query.limit
        after = 0
        if query.marker is not None:
            after = tx.resources.marker(query.resource_type, query.marker).id
        ids = tx.allocations.booked_resource_ids(
            query.resource_type,
            lease_id=query.lease_id,
            reservation_id=query.reservation_id,
            after=after,
            limit=query.limit + 1,
        )
        resources = tx.resources.by_ids(ids[: query.limit])
        return [resources[number] for number in ids[: query.limit]], len(ids) > query.limit

    def _check_properties(self, properties: Mapping[str, str | None]) -> None:
        if len(properties) > MAX_PROPERTIES:
            raise InvalidParameter(_TOO_MANY_PROPERTIES, field="properties")
        for name, value in properties.items():
            if len(name) > MAX_PROPERTY_NAME:
                raise InvalidParameter("Extra capability key too long", field=f"properties.{name[:80]}")
            if not name:
                raise InvalidParameter("A property needs a name", field="properties")
            if value is not None and len(value) > MAX_PROPERTY_VALUE:
                raise InvalidParameter(f"The value of {name} is too long", field=f"properties.{name}")


def _check_lent(stock: Inventory, found: DiscoveredResource, capacity: Capacity) -> None:
    """Raise ``InvalidParameter`` where more would be lent than there is."""
    if not found.capacity.fits(capacity):
        has = ", ".join(f"{found.capacity[name]} {name}" for name in capacity)
        text = stock.say("The {noun} {name} has {has}; no more can be lent.", name=found.name, has=has)
        raise InvalidParameter(text, field="capacity_gb")


def _grouped(resources: Sequence[Resource], bookings: Iterable[Booking]) -> tuple[ResourceBookings, ...]:
    parts: dict[int, list[Booking]] = {one.id: [] for one in resources}
    for booking in bookings:
        parts[booking.resource_id].append(booking)
    return tuple(ResourceBookings(one.external_id, tuple(parts[one.id])) for one in resources)


@contextmanager
def _translated(stock: Inventory, reference: str) -> Iterator[None]:
    """Say a cloud's refusal in our own errors."""
    try:
        yield
    except CloudNotFound as error:
        text = stock.say(stock.unknown, reference=reference, error=error)
        raise NotFound(text, field=error.about or stock.reference) from None
    except CloudAmbiguous as error:
        raise Conflict(str(error), field=stock.reference) from None
    except ResourceOccupied as error:
        raise Conflict(stock.say(stock.occupied, reference=reference, error=error), field=stock.reference) from None
    except CloudRefused as error:
        raise stock.refusal(str(error), field=error.about or stock.reference) from None
    except CloudBusy as error:
        raise Unavailable(f"The cloud does not answer as it should: {error}") from None
