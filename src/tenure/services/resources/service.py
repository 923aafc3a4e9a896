"""The use cases of resources of all types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from tenure.domain.actor import Actor
from tenure.domain.allocation import Booking
from tenure.domain.capacity import Capacity
from tenure.domain.errors import Conflict, InvalidHost, InvalidParameter, NotFound, Unavailable
from tenure.domain.regions import qualified, region_of
from tenure.domain.request import BookingQuery, Page, Repeatable, ResourceBookings, ResourceChange, ResourceQuery
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
from tenure.resources.contract import Inventory
from tenure.services.cloud import CloudCalls
from tenure.services.context import Context, ContextualService, require, target_of
from tenure.services.repetition import Repetition
from tenure.services.resources.healing import Healer, empty_all
from tenure.store.database import Transaction

#: The maximum length of a property name, in characters.
MAX_PROPERTY_NAME = 64
#: The maximum number of own properties of a resource.
MAX_PROPERTIES = 500
_TOO_MANY_PROPERTIES = f"A resource has no more than {MAX_PROPERTIES} properties of its own"
MAX_PROPERTY_VALUE = 65_535


class ResourceService(ContextualService):
    """The use cases of resources; one service for all types."""

    def __init__(self, context: Context, cloud: CloudCalls, healer: Healer, wake: Callable[[], None]) -> None:
        super().__init__(context)
        self._cloud = cloud
        self._healer = healer
        self._wake = wake
        self._repetition = Repetition(context)

    def list(self, actor: Actor, query: ResourceQuery) -> Page[Resource]:
        """Return a page of the resources of a type.

        Raises ``InvalidParameter`` for an unknown marker or an unknown region.
        """
        self._require(actor, query.resource_type, "get")
        if query.region is not None:
            region_of(query.region, self._rules.regions, field="region")
        with self._db.read() as tx:
            found = tx.resources.page(query)
        items = tuple(found[: query.limit])
        return Page(items, items[-1].external_id if len(found) > query.limit else None)

    def get(self, actor: Actor, resource_type: str, external_id: str) -> Resource:
        """Return a resource; raise ``NotFound`` if there is none."""
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
        *,
        repeatable: Repeatable | None = None,
    ) -> Resource:
        """Make a resource of the cloud reservable.

        ``reference`` is its name or its external id in the ``region``, or in the home region; ``capacity`` is how much
        of it is lent, by default all. Raises ``InvalidParameter`` for more than the capacity, ``InvalidHost`` without a
        reference, ``NotFound`` if the cloud does not have the resource, ``Conflict`` if it is registered already or in
        use, ``Unavailable`` if the cloud does not answer. After an interruption, the same request completes the
        registration, with the properties of the last request. Of several requests at once, one succeeds.

        A ``repeatable`` request that has succeeded before returns the resource as it is now. It raises ``Conflict`` if
        the resource was taken back since, and for the key of another request.
        """
        self._require(actor, resource_type, "post")
        registered = self._repetition.registered(actor, repeatable)
        if registered is not None:
            return registered
        try:
            return self._register(actor, resource_type, reference, properties, capacity, region, repeatable)
        except Conflict:
            registered = self._repetition.registered(actor, repeatable)
            if registered is None:
                raise
            return registered  # the same request at the same time has made it

    def _register(
        self,
        actor: Actor,
        resource_type: str,
        reference: str,
        properties: Mapping[str, str],
        capacity: Capacity | None,
        region: str,
        repeatable: Repeatable | None,
    ) -> Resource:
        inventory = self._types.inventory(resource_type)
        if not reference:
            raise InvalidHost(f"Invalid values for {inventory.noun} {dict(properties)}", field=inventory.reference)
        self._check_properties(properties)
        region = region_of(region, self._rules.regions, field="region")
        with _domain_errors(inventory, reference):
            found = self._cloud.look_up(resource_type, qualified(region, reference))
        if capacity is not None:
            _check_lent(inventory, found, capacity)
            found = replace(found, capacity=capacity)
        now = self._clock.now()
        own = {name: value for name, value in properties.items() if name not in {"id", *found.facts}}
        taken = Conflict(
            inventory.say("{Noun} {name} is registered already.", name=found.name), field=inventory.reference
        )

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
            with _domain_errors(inventory, reference):
                self._cloud.register(resource_type, ref)
        except (Conflict, InvalidParameter, NotFound):
            self._db.write(self._drop, resource)
            raise

        def offer(tx: Transaction) -> Resource:
            registering = self._current_registration(tx, resource)
            if registering is None or registering.version != resource.version:
                raise taken
            if registering.properties != own:
                tx.resources.set_properties(registering, own, now=now)
                registering = self._existing(tx, resource_type, resource.external_id)
            tx.resources.change(registering, now=now, registration=Registration.REGISTERED)
            offered = self._existing(tx, resource_type, resource.external_id)
            self._repetition.record_registered(tx, actor, repeatable, offered)
            return offered

        return self._db.write(offer)

    def update(
        self, actor: Actor, resource_type: str, external_id: str, properties: Mapping[str, str | None]
    ) -> Resource:
        """Set the resource's own properties; None removes a property, properties that are not named stay.

        Raises ``Conflict`` if a property would change that a lease which has not ended asks for, and while the resource
        is being registered.
        """
        self._require(actor, resource_type, "put")
        self._check_properties(properties)
        return self._db.write(self._update, resource_type, external_id, properties, now=self._clock.now())

    def _update(
        self,
        tx: Transaction,
        resource_type: str,
        external_id: str,
        properties: Mapping[str, str | None],
        *,
        now: datetime,
    ) -> Resource:
        resource = self._existing(tx, resource_type, external_id)
        if resource.registration is Registration.REGISTERING:
            text = "{Noun} {id} is not registered yet: its registration has not ended."
            raise Conflict(self._types.inventory(resource_type).say(text, id=external_id))
        hidden = {"id", *resource.facts} & properties.keys()
        given = {name: value for name, value in properties.items() if name not in hidden}
        after = {**resource.properties, **given}
        requested = {name: value for name, value in after.items() if value is not None}
        if len(requested) > MAX_PROPERTIES:
            raise InvalidParameter(_TOO_MANY_PROPERTIES, field="properties")
        changed = {name for name in given if resource.properties.get(name) != requested.get(name)}
        if not changed:
            return resource
        refused = changed & self._conditions_on(tx, resource, now=now)
        if refused:
            text = "Can't add extracapabilities {names} to {Noun} {id}: leases on this {noun} ask for them."
            raise Conflict(
                self._types.inventory(resource_type).say(text, names=sorted(refused), id=external_id),
                field=f"properties.{min(refused)}",
            )
        tx.resources.set_properties(resource, requested, now=now)
        return self._existing(tx, resource_type, external_id)

    def lend(self, actor: Actor, resource_type: str, external_id: str, capacity: Capacity) -> Resource:
        """Change the amount of a resource that is lent to reservations; it must cover what is promised already.

        Raises ``NotFound``, ``InvalidParameter`` for more than the resource has, ``Conflict`` if the promised or kept
        amounts would not fit at some time and while the resource is being registered, ``Unavailable`` if the cloud does
        not answer.
        """
        self._require(actor, resource_type, "put")
        inventory = self._types.inventory(resource_type)
        with self._db.read() as tx:
            known = self._existing(tx, resource_type, external_id)
        if known.capacity == capacity and known.registration is Registration.REGISTERED:
            return known  # also if the cloud has less of it by now
        with _domain_errors(inventory, external_id):
            found = self._cloud.look_up(resource_type, qualified(known.region, known.name))
        _check_lent(inventory, found, capacity)
        return self._db.write(self._lend, resource_type, external_id, capacity, now=self._clock.now())

    def _lend(
        self, tx: Transaction, resource_type: str, external_id: str, capacity: Capacity, *, now: datetime
    ) -> Resource:
        resource = self._existing(tx, resource_type, external_id)
        self._check_registered(resource)
        promised = tx.allocations.promised(resource.id, now=now)
        if not capacity.fits(promised):
            most = ", ".join(f"{amount} {name}" for name, amount in promised.items())
            text = "At some time {most} of the {noun} {name} are promised or kept; no less can be lent."
            inventory = self._types.inventory(resource_type)
            raise Conflict(inventory.say(text, most=most, name=resource.name), field="capacity_gb")
        if resource.capacity != capacity:
            tx.resources.lend(resource, capacity, now=now)
        return self._existing(tx, resource_type, external_id)

    def unregister(self, actor: Actor, resource_type: str, external_id: str) -> None:
        """Return a resource to general use.

        Raises ``Conflict`` if the resource has current or future allocations or if the cloud refuses, ``Unavailable``
        if the cloud does not answer: the resource cannot be booked any more then, and the same request completes it.
        """
        self._require(actor, resource_type, "delete")
        inventory = self._types.inventory(resource_type)
        now = self._clock.now()
        resource = self._db.write(self._close, inventory, external_id, now=now)
        ref = ResourceRef(resource.external_id, resource.name, resource.region)
        try:
            with _domain_errors(inventory, external_id):
                self._cloud.unregister(resource_type, ref)
        except (Conflict, InvalidParameter, NotFound):
            self._db.write(self._reopen, resource, now=now)
            raise
        self._db.write(self._retire, resource)

    def _close(self, tx: Transaction, inventory: Inventory, external_id: str, *, now: datetime) -> Resource:
        resource = self._existing(tx, inventory.name, external_id)
        if tx.resources.is_allocated(resource.id):
            raise Conflict(f"Can't delete {inventory.noun} {external_id}. The {inventory.noun} is reserved.")
        tx.resources.change(resource, now=now, registration=Registration.UNREGISTERING)
        return self._existing(tx, inventory.name, external_id)

    def _retire(self, tx: Transaction, resource: Resource) -> None:
        closed = self._current_registration(tx, resource)
        if closed is not None and closed.registration is Registration.UNREGISTERING:
            tx.resources.retire(closed)

    def disable(
        self, actor: Actor, resource_type: str, external_id: str, *, reason: str, dry_run: bool = False
    ) -> ResourceChange:
        """Exclude the resource from new bookings; return the allocations that keep it.

        It stays disabled until it is enabled, whatever its health is. Raises ``NotFound``, and ``Conflict`` while it is
        being registered.
        """
        return self._set_enabled(actor, resource_type, external_id, enabled=False, reason=reason, dry_run=dry_run)

    def enable(self, actor: Actor, resource_type: str, external_id: str, *, dry_run: bool = False) -> ResourceChange:
        """Allow new bookings of the resource again, if it is well. Raises the errors of ``disable``."""
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
        """Move the allocations on the resource to others, those of one lease or of all, as far as there is room.

        Allocations of running leases stay, unless ``running``: the servers on the resource are lost then. The answer
        says what happens to each allocation; with ``dry_run`` nothing is changed. Each lease is a transaction of its
        own, so a dry run considers each lease alone. Raises ``NotFound``, also for a lease without an allocation on it,
        and ``Conflict``.
        """
        self._require(actor, resource_type, "reallocate")
        with self._db.read() as tx:
            resource = self._existing(tx, resource_type, external_id)
            leases = tx.allocations.leases_on(resource.id)
        if lease_id is not None:
            if lease_id not in leases:
                noun = self._types.inventory(resource_type).noun
                raise NotFound(f"Lease '{lease_id}' has no part in {noun} '{external_id}'.", field="lease_id")
            leases = [lease_id]
        affected = empty_all(self._db, self._healer, resource, leases, actor=actor, running=running, dry_run=dry_run)
        if not dry_run:
            self._wake()
        return ResourceChange(resource, affected)

    def bookings(self, actor: Actor, query: BookingQuery) -> Page[ResourceBookings]:
        """Return a page of resources, each with its bookings; with ``only_booked`` also of unregistered resources.

        Raises ``InvalidParameter`` for an unknown marker.
        """
        self._require(actor, query.resource_type, "get_allocations")
        now = self._clock.now()
        with self._db.read() as tx:
            resources, more = self._page_of_resources(tx, query, now=now)
            bookings = tx.allocations.bookings(
                [resource_id for ids in resources.values() for resource_id in ids],
                now=now,
                lease_id=query.lease_id,
                reservation_id=query.reservation_id,
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
        """Return the bookings of a resource."""
        self._require(actor, resource_type, "get_allocations")
        now = self._clock.now()
        with self._db.read() as tx:
            resource = self._existing(tx, resource_type, external_id)
            found = tx.allocations.bookings([resource.id], now=now, lease_id=lease_id, reservation_id=reservation_id)
        return ResourceBookings(external_id, tuple(found))

    def properties(
        self, actor: Actor, resource_type: str, *, include_private: bool, for_members: bool = False
    ) -> tuple[PropertyValues, ...]:
        """Return the properties of the type's resources; private ones only to administrators who ask for them.

        With ``for_members``, those whom the policy lets see public properties need no other permission.
        """
        target = target_of(actor)
        if not (for_members and self._authorize("tenure:properties:get", actor, target)):
            self._require(actor, resource_type, "get_resource_properties")
        include_private = include_private and self._authorize("admin", actor, target)
        with self._db.read() as tx:
            return tuple(tx.resources.property_values(resource_type, include_private=include_private))

    def set_property(self, actor: Actor, resource_type: str, name: str, *, private: bool) -> PropertySetting:
        """Make a property private or public; raise ``NotFound`` if no resource has it."""
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
        return self._db.write(
            self._change_enabled,
            resource_type,
            external_id,
            enabled=enabled,
            reason=reason,
            dry_run=dry_run,
            now=self._clock.now(),
        )

    def _change_enabled(
        self,
        tx: Transaction,
        resource_type: str,
        external_id: str,
        *,
        enabled: bool,
        reason: str | None,
        dry_run: bool,
        now: datetime,
    ) -> ResourceChange:
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

    def _require(self, actor: Actor, resource_type: str, verb: str) -> None:
        target = target_of(actor)
        require(self._authorize, f"{self._types.inventory(resource_type).rules}:{verb}", actor, target)

    def _existing(self, tx: Transaction, resource_type: str, external_id: str) -> Resource:
        resource = tx.resources.by_external_id(resource_type, external_id)
        if resource is None:
            inventory = self._types.inventory(resource_type)
            raise NotFound(inventory.say(inventory.missing, id=external_id))
        return resource

    def _check_registered(self, resource: Resource) -> None:
        """Raise ``Conflict`` while the resource is being registered or unregistered."""
        if resource.registration is not Registration.REGISTERED:
            text = "{Noun} {id} is {registration} right now."
            inventory = self._types.inventory(resource.resource_type)
            raise Conflict(inventory.say(text, id=resource.external_id, registration=resource.registration))

    def _conditions_on(self, tx: Transaction, resource: Resource, *, now: datetime) -> frozenset[str]:
        """Return the properties in the conditions of current and future leases on the resource."""
        requests = tx.resources.requests_on(resource.id, now=now)
        demands = (self._types[resource_type].demand(parameters) for resource_type, parameters in requests)
        return frozenset(name for demand in demands for name in demand.expression.names)

    def _current_registration(self, tx: Transaction, seen: Resource) -> Resource | None:
        """Return the current state of the same registration, or None if another request has ended it.

        The resource may be registered again meanwhile, and a database may use an id twice: the version is lower then.
        """
        now = tx.resources.by_ids([seen.id]).get(seen.id)
        if now is None or now.version < seen.version:
            return None
        same = (now.resource_type, now.external_id) == (seen.resource_type, seen.external_id)
        return now if same else None

    def _drop(self, tx: Transaction, registering: Resource) -> None:
        """Remove a registration that the cloud has refused, unless another request has completed or removed it."""
        current = self._current_registration(tx, registering)
        if current is not None and current.version == registering.version:
            tx.resources.remove(current)

    def _reopen(self, tx: Transaction, closed: Resource, *, now: datetime) -> None:
        """Make a resource reservable again that the cloud did not take back, unless another request has changed it."""
        current = self._current_registration(tx, closed)
        if current is not None and current.version == closed.version:
            tx.resources.change(current, now=now, registration=Registration.REGISTERED)

    def _page_of_resources(
        self, tx: Transaction, query: BookingQuery, *, now: datetime
    ) -> tuple[Mapping[str, Sequence[int]], bool]:
        """Return a page of resources by external id, and whether more follow."""
        if not query.only_booked:
            found = tx.resources.page(
                ResourceQuery(resource_type=query.resource_type, limit=query.limit, marker=query.marker)
            )
            return {resource.external_id: (resource.id,) for resource in found[: query.limit]}, len(found) > query.limit
        booked = tx.allocations.booked_resources(
            query.resource_type, now=now, lease_id=query.lease_id, reservation_id=query.reservation_id
        )
        following = list(booked.items())
        if query.marker is not None:
            if query.marker in booked:
                after = booked[query.marker][0]
            else:
                after = tx.resources.marker(query.resource_type, query.marker).id
            following = [(external_id, ids) for external_id, ids in following if ids[0] > after]
        return dict(following[: query.limit]), len(following) > query.limit

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


def _check_lent(inventory: Inventory, found: DiscoveredResource, capacity: Capacity) -> None:
    """Raise ``InvalidParameter`` if more would be lent than the resource has."""
    if not found.capacity.fits(capacity):
        has = ", ".join(f"{found.capacity[name]} {name}" for name in capacity)
        text = inventory.say("The {noun} {name} has {has}; no more can be lent.", name=found.name, has=has)
        raise InvalidParameter(text, field="capacity_gb")


def _grouped(resources: Mapping[str, Sequence[int]], bookings: Iterable[Booking]) -> tuple[ResourceBookings, ...]:
    names = {resource_id: external_id for external_id, ids in resources.items() for resource_id in ids}
    by_resource: dict[str, dict[str, Booking]] = {external_id: {} for external_id in resources}
    for booking in bookings:
        by_resource[names[booking.resource_id]].setdefault(booking.reservation_id, booking)
    return tuple(ResourceBookings(external_id, tuple(found.values())) for external_id, found in by_resource.items())


@contextmanager
def _domain_errors(inventory: Inventory, reference: str) -> Iterator[None]:
    """Translate the driver's errors into those of the domain."""
    try:
        yield
    except CloudNotFound as error:
        text = inventory.say(inventory.unknown, reference=reference, error=error)
        raise NotFound(text, field=error.about or inventory.reference) from None
    except CloudAmbiguous as error:
        raise Conflict(str(error), field=inventory.reference) from None
    except ResourceOccupied as error:
        raise Conflict(
            inventory.say(inventory.occupied, reference=reference, error=error), field=inventory.reference
        ) from None
    except CloudRefused as error:
        raise inventory.refusal(str(error), field=error.about or inventory.reference) from None
    except CloudBusy as error:
        raise Unavailable(f"The cloud does not answer as it should: {error}") from None
