"""Several clouds side by side, each a region of its own."""

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

#: When it is seen again whether a region has a place for an attempt; nobody has one for longer than its calls may last.
_SOON: Final = timedelta(seconds=1)


class _Places:
    """For so many attempts at a time to do one thing in a region; for any number where none is said."""

    def __init__(self, what: str, places: int | None) -> None:
        self._what = what
        self._places = places
        self._free = threading.Semaphore(places or 0)

    def attempt(self, act: Callable[[], Progress]) -> Progress:
        """What comes of an attempt; without a place none is made, which is no failure."""
        if self._places is None:
            return act()
        if not self._free.acquire(blocking=False):
            reason = Reason(f"{self._places} {self._what} are under way there, as many as one region may have.")
            return Progress(False, _SOON, reason, awaited=True)
        try:
            return act()
        finally:
            self._free.release()


class RegionDriver:
    """A ``CloudDriver`` for one region: what a cloud calls something, is what the ledger calls it there.

    The cloud's driver below it knows nothing of regions, and sees the ids that its cloud gives. Those of the ``home``
    region are the same in the ledger; the others have the region's name before them.

    ``places`` is how many attempts to hand over, to take back and to prepare there may be at a time, of each so many:
    fewer than there are workers, so that a region that hangs leaves some to the others.
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
            found = [self._outside(one) for one in self._cloud.discover(resource_type)]
        return sorted(found, key=lambda one: one.external_id)

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        with self._named():
            return self._outside(self._cloud.look_up(resource_type, unqualified(self.region, reference)))

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
        beside = [self._order(one) for one in ahead if one.region == order.region]
        with self._named():
            gone = self._cloud.make_way(self._order(order), deadline=deadline, ahead=beside)
        return [replace(one, resource=self._ref(one.resource)) for one in gone]

    def before_end(self, order: Order, action: str) -> Progress:
        with self._named():
            return self._ending.attempt(lambda: self._cloud.before_end(self._order(order), action))

    def ensure_ended(self, order: Order) -> Progress:
        with self._named():
            return self._ending.attempt(lambda: self._cloud.ensure_ended(self._order(order)))

    def remaining(self, resource_type: str, orders: Iterable[Order]) -> Mapping[str, int]:
        with self._named():
            return self._cloud.remaining(resource_type, [self._order(one) for one in orders])

    def servers(self, since: datetime) -> Iterable[BootedServer]:
        with self._named():
            return [replace(one, region=self.region) for one in self._cloud.servers(since)]

    def held(self, resource_type: str) -> Iterable[str]:
        with self._named():
            return list(self._cloud.held(resource_type))

    def check(self, resource_type: str, registered: Iterable[ResourceRef] = ()) -> Mapping[str, Health]:
        with self._named():
            found = self._cloud.check(resource_type, (self._inside(one) for one in registered))
        return {qualified(self._prefix, number): health for number, health in found.items()}

    def drift(self, resource_type: str, orders: Iterable[Order], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        with self._named():
            found = self._cloud.drift(resource_type, map(self._order, orders), [self._inside(one) for one in pooled])
        return [one if one.resource is None else replace(one, resource=self._ref(one.resource)) for one in found]

    def delegate(self, actor: Actor) -> str:
        with self._named():
            return self._cloud.delegate(actor)

    def revoke(self, trust_id: str) -> None:
        with self._named():
            self._cloud.revoke(trust_id)

    def _outside(self, found: DiscoveredResource) -> DiscoveredResource:
        return replace(found, region=self.region, external_id=qualified(self._prefix, found.external_id))

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
            units={unqualified(self._prefix, number): count for number, count in order.units.items()},
        )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """What goes wrong, with the region in which it does, and resources by the ids that the ledger has."""
        try:
            yield
        except (ResourceOccupied, ResourceMissing) as error:
            found = {qualified(self._prefix, number): reason for number, reason in error.resources.items()}
            named = type(error)(found)
            named.args = (named.reason.after(f"Region {self.region}: "),)
            raise named from error
        except CloudError as error:
            error.args = (error.reason.after(f"Region {self.region}: "), *error.args[1:])
            raise


class RegionRouter:
    """A ``CloudDriver`` over one for each region; the first is the home region.

    What an order is about is in one region, and is done by that region's driver, whatever ails the others. What is
    asked of all regions at once fails where one does not answer; ``parts`` is for asking them one by one.

    ``workers`` is how many attempts of a kind are made at a time; where there are several regions, one has three
    quarters of them at most.
    """

    def __init__(self, clouds: Mapping[str, CloudDriver], *, workers: int = 0) -> None:
        self._home = next(iter(clouds))
        places = max(1, workers * 3 // 4) if workers > 1 and len(clouds) > 1 else None
        self._regions = {
            name: RegionDriver(name, one, home=name == self._home, places=places) for name, one in clouds.items()
        }
        self.longest_call: timedelta = max(one.longest_call for one in clouds.values())

    def parts(self, resource_type: str) -> Mapping[str | None, CloudDriver]:
        found: dict[str | None, CloudDriver] = {}
        found.update(self._regions)
        return found

    def discover(self, resource_type: str) -> list[DiscoveredResource]:
        found = [one for region in self._regions.values() for one in region.discover(resource_type)]
        return sorted(found, key=lambda one: one.external_id)

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
        by_region = self._sorted(orders, lambda one: one.region)
        found: dict[str, int] = {}
        for name, kept in by_region.items():
            found |= self._at(name).remaining(resource_type, kept) if kept else {}
        return found

    def servers(self, since: datetime) -> Iterable[BootedServer]:
        """Those of all regions, but for regions that do not answer."""
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
        by_region = self._sorted(registered, lambda one: one.region)
        found: dict[str, Health] = {}
        for name, region in self._regions.items():
            found |= region.check(resource_type, by_region[name])
        return found

    def drift(self, resource_type: str, orders: Iterable[Order], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        running = self._sorted(orders, lambda one: one.region)
        unheld = self._sorted(pooled, lambda one: one.region)
        return [
            one
            for name, region in self._regions.items()
            for one in region.drift(resource_type, running[name], unheld[name])
        ]

    def delegate(self, actor: Actor) -> str:
        """A trust at home."""
        return self.delegate_in(actor, (self._home,))

    def delegate_in(self, actor: Actor, regions: Collection[str]) -> str:
        """A trust in each of these regions; none where one of them does not let the caller, or does not answer."""
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
        """Forget a trust in each region. Raises what the first one does that does not, after all were asked."""
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
        """The region in which something is called so."""
        for name, region in self._regions.items():
            if unqualified(name, reference) != reference:
                return region
        raise CloudNotFound(Reason(f"{reference} is in no region that there is."))

    def _entrusted(self, order: Order) -> Order:
        """The order with the trust that its owner has given us in its region."""
        if order.trust_id is None:
            return order
        return replace(order, trust_id=self._trusts(order.trust_id).get(order.region or self._home))

    def _trusts(self, trust_id: str) -> dict[str, str]:
        """The trusts of a lease by region; what was given before there were regions was given at home."""
        return {name or self._home: trust for name, trust in trusts_in(trust_id).items()}

    def _sorted(self, things: Iterable[T], region_of: Callable[[T], str]) -> dict[str, list[T]]:
        found: dict[str, list[T]] = {name: [] for name in self._regions}
        for one in things:
            found.setdefault(region_of(one) or self._home, []).append(one)
        return found
