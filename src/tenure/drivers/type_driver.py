"""The seam of resource types on the side of the cloud: a driver for each resource type, found by entry points."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from importlib.metadata import entry_points
from typing import Any, ClassVar

from tenure.domain.actor import Actor
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import (
    DONE,
    CloudAmbiguous,
    CloudNotFound,
    CloudRefused,
    Command,
    Drift,
    Health,
    Preempted,
    Progress,
    ResourceRef,
)


class TypeDriver(ABC):
    """What a cloud does for a resource type, or for several types that share everything.

    Its methods behave as those of the same name of ``CloudDriver``, without the resource type. Only ``ensure_started``
    and ``ensure_ended`` have no default; every other method answers like a cloud that needs no action. A type with
    resources of its own overrides ``discover`` or ``look_up``, and ``held`` if an end can be interrupted, so that
    remains in the cloud are found.

    An entry point in ``tenure.type_drivers`` has the name of the resource type, or of the inventory whose types it is
    for. It is called with ``(settings, folder=folder)``: what the operator has set of ``SETTINGS``, and the folder for
    its files, or None to keep its data in memory. It must also work without settings.
    """

    #: The names of the settings, with descriptions for operators.
    SETTINGS: ClassVar[Mapping[str, str]] = {}
    longest_call: timedelta = timedelta(seconds=30)
    #: The kinds of objects that ``fetch`` knows.
    fetches: ClassVar[frozenset[str]] = frozenset()

    def missing_services(self) -> Sequence[str]:
        """Return the services that the type needs and the cloud does not have."""
        return ()

    # Resources; those of a type without an inventory of its own are the concern of the inventory's type

    def discover(self) -> list[DiscoveredResource]:
        return []

    def look_up(self, reference: str) -> DiscoveredResource:
        """Return the discovered resource whose external id or, if there is none, whose name is ``reference``."""
        known = self.discover()
        found = [resource for resource in known if resource.external_id == reference] or [
            resource for resource in known if resource.name == reference
        ]
        if not found:
            raise CloudNotFound(Reason(f"There is no {reference}."))
        if len(found) > 1:
            raise CloudAmbiguous(Reason(f"There are {len(found)} that are called {reference}."))
        return found[0]

    def ensure_registered(self, resource: ResourceRef) -> None:  # noqa: B027  # no action is the default
        pass

    def ensure_unregistered(self, resource: ResourceRef) -> None:  # noqa: B027  # no action is the default
        pass

    def check(self, registered: Iterable[ResourceRef] = ()) -> Mapping[str, Health]:
        """Report every discovered resource as well."""
        return {resource.external_id: Health(well=True) for resource in self.discover()}

    def held(self) -> Sequence[str]:
        return ()

    def drift(self, commands: Iterable[Command], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        return ()

    # Reservations

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        raise CloudNotFound(Reason(f"There is no {kind} {reference}."))

    def ensure_prepared(self, command: Command) -> Progress:
        return DONE

    @abstractmethod
    def ensure_started(self, command: Command) -> Progress:
        """As ``CloudDriver.ensure_started``."""

    def make_way(self, command: Command, *, deadline: datetime, ahead: Iterable[Command] = ()) -> Sequence[Preempted]:
        """Overridden by types whose resources preemptible servers can be on."""
        return ()

    def before_end(self, command: Command, action: str) -> Progress:
        raise CloudRefused(Reason(f"{action!r} cannot be done before the end of {command.resource_type}."))

    @abstractmethod
    def ensure_ended(self, command: Command) -> Progress:
        """As ``CloudDriver.ensure_ended``."""

    def remaining(self, commands: Iterable[Command]) -> Mapping[str, int]:
        return {}


class UnknownType(TypeDriver):
    """A resource type that the cloud does not have."""

    def __init__(self, resource_type: str) -> None:
        self._resource_type = resource_type

    def look_up(self, reference: str) -> DiscoveredResource:
        raise CloudNotFound(Reason(f"This cloud has no {self._resource_type}."))

    def _refuse(self, *_about: Any, **_named: Any) -> Any:
        raise CloudRefused(Reason(f"This cloud has no {self._resource_type}."))

    ensure_registered = ensure_unregistered = _refuse
    ensure_prepared = ensure_started = before_end = ensure_ended = _refuse


def installed_type_drivers() -> Mapping[str, Any]:
    """Return what the entry points of type drivers load, ours and third-party ones, by resource type or inventory."""
    found = sorted(entry_points(group="tenure.type_drivers"), key=lambda entry_point: entry_point.name)
    return {entry_point.name: entry_point.load() for entry_point in found}
