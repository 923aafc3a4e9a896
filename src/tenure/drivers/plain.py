"""A base class for drivers, with default answers for most methods of the contract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from tenure.domain.actor import Actor
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import (
    DONE,
    BootedServer,
    CloudAmbiguous,
    CloudNotFound,
    CloudRefused,
    Drift,
    Health,
    Order,
    Preempted,
    Progress,
    ResourceRef,
)


class PlainDriver(ABC):
    """A ``CloudDriver`` that lacks only ``discover``, ``ensure_started`` and ``ensure_ended``.

    Every other method answers like a cloud that needs no action. A driver for a few types inherits from it and
    overrides what its types need: at least ``held``, if an end can be interrupted, so that remains in the cloud are
    found.
    """

    longest_call = timedelta(seconds=30)
    #: The kinds of objects that ``fetch`` knows.
    kinds: frozenset[str] = frozenset()

    @abstractmethod
    def discover(self, resource_type: str) -> list[DiscoveredResource]:
        """As ``CloudDriver.discover``."""

    @abstractmethod
    def ensure_started(self, order: Order) -> Progress:
        """As ``CloudDriver.ensure_started``."""

    @abstractmethod
    def ensure_ended(self, order: Order) -> Progress:
        """As ``CloudDriver.ensure_ended``."""

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        """Return the discovered resource whose external id or, if there is none, whose name is ``reference``."""
        known = self.discover(resource_type)
        found = [resource for resource in known if resource.external_id == reference] or [
            resource for resource in known if resource.name == reference
        ]
        if not found:
            raise CloudNotFound(Reason(f"There is no {reference}."))
        if len(found) > 1:
            raise CloudAmbiguous(Reason(f"There are {len(found)} that are called {reference}."))
        return found[0]

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        raise CloudNotFound(Reason(f"There is no {kind} {reference}."))

    def ensure_registered(self, resource_type: str, resource: ResourceRef) -> None:  # noqa: B027  # no action is the default
        pass

    def ensure_unregistered(self, resource_type: str, resource: ResourceRef) -> None:  # noqa: B027  # no action is the default
        pass

    def ensure_prepared(self, order: Order) -> Progress:
        return DONE

    def make_way(self, order: Order, *, deadline: datetime, ahead: Iterable[Order] = ()) -> Sequence[Preempted]:
        return ()

    def before_end(self, order: Order, action: str) -> Progress:
        raise CloudRefused(Reason(f"{action!r} cannot be done before the end of {order.resource_type}."))

    def remaining(self, resource_type: str, orders: Iterable[Order]) -> Mapping[str, int]:
        return {}

    def servers(self, since: datetime) -> Iterable[BootedServer]:
        return ()

    def held(self, resource_type: str) -> Iterable[str]:
        return ()

    def check(self, resource_type: str, registered: Iterable[ResourceRef] = ()) -> Mapping[str, Health]:
        """Report every discovered resource as well."""
        return {resource.external_id: Health(well=True) for resource in self.discover(resource_type)}

    def drift(self, resource_type: str, orders: Iterable[Order], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        return ()

    def delegate(self, actor: Actor) -> str:
        raise CloudRefused(Reason("Nothing can be done in somebody's name here."))

    def revoke(self, trust_id: str) -> None:  # noqa: B027  # no action is the default
        pass
