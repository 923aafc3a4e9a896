"""Drivers for several clouds, each of which is a region."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, TypeVar

from tenure.domain.actor import Actor
from tenure.domain.reason import Reason
from tenure.domain.regions import qualified, together, trusts_in, unqualified
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import (
    BootedServer,
    CloudBusy,
    CloudDriver,
    CloudError,
    CloudNotFound,
    Drift,
    Health,
    Order,
    Preempted,
    Progress,
    ResourceMissing,
    ResourceOccupied,
    ResourceRef,
)

LOG = logging.getLogger(__name__)

T = TypeVar("T")

#: When to try again if all places of a region are taken. A place is taken for the longest duration of a call at most.
_SOON: Final = timedelta(seconds=1)


class _Places:
    """A limit for concurrent attempts of a kind in a region; no limit if ``places`` is None."""

    def __init__(self, attempts: str, places: int | None) -> None:
        self._attempts = attempts
        self._places = places
        self._free = threading.Semaphore(places or 0)

    def attempt(self, act: Callable[[], Progress]) -> Progress:
        """Run the attempt if a place is free; otherwise report it as not done, which is no failure."""
        if self._places is None:
            return act()
        if not self._free.acquire(blocking=False):
            reason = Reason(f"{self._places} {self._attempts} are under way there, as many as one region may have.")
            return Progress(False, _SOON, reason, awaited=True)
        try:
            return act()
        finally:
            self._free.release()


class RegionDriver:
    """A ``CloudDriver`` for a single region, which translates between the ids of the ledger and those of the cloud.

    The driver of the cloud knows no regions. Ids of the ``home`` region are the same in the ledger; ids of other
    regions have the name of the region as a prefix in the ledger.

    ``places`` is the maximum of concurrent attempts to hand over, and likewise to take back and to prepare. It is less
    than the number of workers, so that a region that hangs leaves workers to the others.
    """

    def __init__(self, region: str, cloud: CloudDriver, *, home: bool, places: int | None = None) -> None:
        self.region = region
        self.longest_call = cloud.longest_call
        self.kinds: frozenset[str] = getattr(cloud, "kinds", frozenset())
        self._cloud = cloud
        self._prefix = "" if home else region
        self._preparing = _Places("attempts to prepare leases", places)
        self._starting = _Places("attempts to hand over", places)
        self._ending = _Places("attempts to take back", places)

    def discover(self, resource_type: str) -> list[DiscoveredResource]:
        with self._named():
            found = [self._discovered(resource) for resource in self._cloud.discover(resource_type)]
        return sorted(found, key=lambda resource: resource.external_id)

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        with self._named():
            return self._discovered(self._cloud.look_up(resource_type, unqualified(self.region, reference)))

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        with self._named():
            return self._cloud.fetch(kind, unqualified(self.region, reference), actor)

    def ensure_registered(self, resource_type: str, resource: ResourceRef) -> None:
        with self._named():
            self._cloud.ensure_registered(resource_type, self._inside(resource))

    def ensure_unregistered(self, resource_type: str, resource: ResourceRef) -> None:
        with self._named():
            self._cloud.ensure_unregistered(resource_type, self._inside(resource))

    def ensure_prepared(self, order: Order) -> Progress:
        with self._named():
            return self._preparing.attempt(lambda: self._cloud.ensure_prepared(self._order(order)))

    def ensure_started(self, order: Order) -> Progress:
        with self._named():
            return self._starting.attempt(lambda: self._cloud.ensure_started(self._order(order)))

    def make_way(self, order: Order, *, deadline: datetime, ahead: Iterable[Order] = ()) -> Sequence[Preempted]:
        ahead = [self._order(earlier) for earlier in ahead if earlier.region == order.region]
        with self._named():
            servers = self._cloud.make_way(self._order(order), deadline=deadline, ahead=ahead)
        return [replace(server, resource=self._ref(server.resource)) for server in servers]

    def before_end(self, order: Order, action: str) -> Progress:
        with self._named():
            return self._ending.attempt(lambda: self._cloud.before_end(self._order(order), action))

    def ensure_ended(self, order: Order) -> Progress:
        with self._named():
            return self._ending.attempt(lambda: self._cloud.ensure_ended(self._order(order)))

    def remaining(self, resource_type: str, orders: Iterable[Order]) -> Mapping[str, int]:
        with self._named():
            return self._cloud.remaining(resource_type, [self._order(order) for order in orders])

    def servers(self, since: datetime) -> Iterable[BootedServer]:
        with self._named():
            return [replace(server, region=self.region) for server in self._cloud.servers(since)]

    def held(self, resource_type: str) -> Iterable[str]:
        with self._named():
            return list(self._cloud.held(resource_type))

    def check(self, resource_type: str, registered: Iterable[ResourceRef] = ()) -> Mapping[str, Health]:
        with self._named():
            found = self._cloud.check(resource_type, (self._inside(resource) for resource in registered))
        return {qualified(self._prefix, external_id): health for external_id, health in found.items()}

    def drift(self, resource_type: str, orders: Iterable[Order], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        with self._named():
            drifts = self._cloud.drift(resource_type, map(self._order, orders), list(map(self._inside, pooled)))
        return [
            drift if drift.resource is None else replace(drift, resource=self._ref(drift.resource)) for drift in drifts
        ]

    def delegate(self, actor: Actor) -> str:
        with self._named():
            return self._cloud.delegate(actor)

    def revoke(self, trust_id: str) -> None:
        with self._named():
            self._cloud.revoke(trust_id)

    def _discovered(self, resource: DiscoveredResource) -> DiscoveredResource:
        return replace(resource, region=self.region, external_id=qualified(self._prefix, resource.external_id))

    def _inside(self, resource: ResourceRef) -> ResourceRef:
        return replace(resource, region="", external_id=unqualified(self._prefix, resource.external_id))

    def _ref(self, resource: ResourceRef) -> ResourceRef:
        return replace(resource, region=self.region, external_id=qualified(self._prefix, resource.external_id))

    def _order(self, order: Order) -> Order:
        return replace(
            order,
            region="",
            resources=tuple(map(self._inside, order.resources)),
            returning=tuple(map(self._inside, order.returning)),
            units={unqualified(self._prefix, external_id): count for external_id, count in order.units.items()},
        )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the region to the reasons of errors, and translate the ids of their resources to those of the ledger."""
        try:
            yield
        except (ResourceOccupied, ResourceMissing) as error:
            reasons = {qualified(self._prefix, external_id): reason for external_id, reason in error.resources.items()}
            named = type(error)(reasons)
            named.args = (named.reason.after(f"Region {self.region}: "),)
            raise named from error
        except CloudError as error:
            error.args = (error.reason.after(f"Region {self.region}: "), *error.args[1:])
            raise


class RegionRouter:
    """A ``CloudDriver`` for several regions, each with its own driver; the first is the home region.

    An order is in a single region and goes to the driver of that region, whatever the state of the others. A call for
    all regions fails if a single region does not answer; ``parts`` is for asking them separately.

    ``workers`` is the number of concurrent attempts of a kind; if there are several regions, each has three quarters of
    them at most.
    """

    def __init__(self, clouds: Mapping[str, CloudDriver], *, workers: int = 0) -> None:
        self._home = next(iter(clouds))
        places = max(1, workers * 3 // 4) if workers > 1 and len(clouds) > 1 else None
        self._regions = {
            name: RegionDriver(name, cloud, home=name == self._home, places=places) for name, cloud in clouds.items()
        }
        self.longest_call: timedelta = max(cloud.longest_call for cloud in clouds.values())

    def parts(self, resource_type: str) -> Mapping[str | None, CloudDriver]:
        found: dict[str | None, CloudDriver] = {}
        found.update(self._regions)
        return found

    def discover(self, resource_type: str) -> list[DiscoveredResource]:
        found = [resource for region in self._regions.values() for resource in region.discover(resource_type)]
        return sorted(found, key=lambda resource: resource.external_id)

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        return self._named_by(reference).look_up(resource_type, reference)

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        return self._named_by(reference).fetch(kind, reference, actor)

    def ensure_registered(self, resource_type: str, resource: ResourceRef) -> None:
        self._at(resource.region).ensure_registered(resource_type, resource)

    def ensure_unregistered(self, resource_type: str, resource: ResourceRef) -> None:
        self._at(resource.region).ensure_unregistered(resource_type, resource)

    def ensure_prepared(self, order: Order) -> Progress:
        return self._at(order.region).ensure_prepared(self._entrusted(order))

    def ensure_started(self, order: Order) -> Progress:
        return self._at(order.region).ensure_started(self._entrusted(order))

    def make_way(self, order: Order, *, deadline: datetime, ahead: Iterable[Order] = ()) -> Sequence[Preempted]:
        return self._at(order.region).make_way(self._entrusted(order), deadline=deadline, ahead=ahead)

    def before_end(self, order: Order, action: str) -> Progress:
        return self._at(order.region).before_end(self._entrusted(order), action)

    def ensure_ended(self, order: Order) -> Progress:
        return self._at(order.region).ensure_ended(self._entrusted(order))

    def remaining(self, resource_type: str, orders: Iterable[Order]) -> Mapping[str, int]:
        by_region = self._sorted(orders, lambda order: order.region)
        units: dict[str, int] = {}
        for name, ended in by_region.items():
            units |= self._at(name).remaining(resource_type, ended) if ended else {}
        return units

    def servers(self, since: datetime) -> Iterable[BootedServer]:
        """Return the servers of all regions that answer."""
        found: list[BootedServer] = []
        for region in self._regions.values():
            try:
                found += region.servers(since)
            except CloudError as error:
                LOG.warning("servers that were booted there will be looked for again: %s", error)
        return found

    def held(self, resource_type: str) -> Iterable[str]:
        return [name for region in self._regions.values() for name in region.held(resource_type)]

    def check(self, resource_type: str, registered: Iterable[ResourceRef] = ()) -> Mapping[str, Health]:
        by_region = self._sorted(registered, lambda resource: resource.region)
        found: dict[str, Health] = {}
        for name, region in self._regions.items():
            found |= region.check(resource_type, by_region[name])
        return found

    def drift(self, resource_type: str, orders: Iterable[Order], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        orders_in = self._sorted(orders, lambda order: order.region)
        pooled_in = self._sorted(pooled, lambda resource: resource.region)
        return [
            drift
            for name, region in self._regions.items()
            for drift in region.drift(resource_type, orders_in[name], pooled_in[name])
        ]

    def delegate(self, actor: Actor) -> str:
        """Create a trust in the home region."""
        return self.delegate_in(actor, (self._home,))

    def delegate_in(self, actor: Actor, regions: Collection[str]) -> str:
        """Create a trust in each of these regions, or in none if one of them refuses or does not answer."""
        trusts: dict[str, str] = {}
        try:
            for name in sorted(regions):
                trusts[name] = self._at(name).delegate(actor)
        except CloudError:
            for name, trust in trusts.items():
                self._give_up(name, trust)
            raise
        return together(trusts)

    def _give_up(self, region: str, trust_id: str) -> None:
        try:
            self._at(region).revoke(trust_id)
        except CloudError as error:
            LOG.warning("trust %s is of no use and could not be deleted: %s", trust_id, error)

    def revoke(self, trust_id: str) -> None:
        """Delete the trusts in all regions, then raise the first error, if any."""
        errors: list[CloudError] = []
        for name, trust in self._trusts(trust_id).items():
            if name not in self._regions:
                continue
            try:
                self._regions[name].revoke(trust)
            except CloudError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _at(self, region: str) -> RegionDriver:
        name = region or self._home
        if name not in self._regions:
            raise CloudBusy(Reason(f"There is no region {name} any more."))
        return self._regions[name]

    def _named_by(self, reference: str) -> RegionDriver:
        """Return the region of a reference."""
        for name, region in self._regions.items():
            if unqualified(name, reference) != reference:
                return region
        raise CloudNotFound(Reason(f"{reference} is in no region that there is."))

    def _entrusted(self, order: Order) -> Order:
        """Return the order with the trust of its owner in its region."""
        if order.trust_id is None:
            return order
        return replace(order, trust_id=self._trusts(order.trust_id).get(order.region or self._home))

    def _trusts(self, trust_id: str) -> dict[str, str]:
        """Return the trusts of a lease by region; a trust without a region belongs to the home region."""
        return {name or self._home: trust for name, trust in trusts_in(trust_id).items()}

    def _sorted(self, items: Iterable[T], region_of: Callable[[T], str]) -> dict[str, list[T]]:
        by_region: dict[str, list[T]] = {name: [] for name in self._regions}
        for item in items:
            by_region.setdefault(region_of(item) or self._home, []).append(item)
        return by_region
