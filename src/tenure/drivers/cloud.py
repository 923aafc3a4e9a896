"""The contract of drivers, implemented once, in terms of the drivers of resource types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar

from tenure.domain.actor import Actor
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import (
    CloudNotFound,
    CloudRefused,
    Command,
    Drift,
    Group,
    Health,
    Preempted,
    Progress,
    ResourceRef,
    ServerPage,
)
from tenure.drivers.type_driver import TypeDriver, UnknownType

P = ParamSpec("P")
T = TypeVar("T")
#: A method of ``TypeDriver``, by which the method of the same name of a type's driver is called.
Verb: TypeAlias = Callable[Concatenate[TypeDriver, P], T]


class ByResourceType(ABC):
    """The methods of ``CloudDriver`` about a resource type, each of which goes to the driver of the type.

    ``_ask`` calls a method of the type's driver in one region, ``_ask_each`` in every region.
    """

    @abstractmethod
    def _ask(self, resource_type: str, region: str, verb: Verb[P, T], *about: P.args, **named: P.kwargs) -> T:
        """Return the answer of the type's driver in the region."""

    @abstractmethod
    def _ask_each(self, resource_type: str, verb: Verb[P, T], *about: P.args, **named: P.kwargs) -> list[T]:
        """Return the answer of each region to those of the commands and resources that are in it."""

    def missing_services(self, resource_type: str) -> Sequence[str]:
        return sorted(set(chain.from_iterable(self._ask_each(resource_type, TypeDriver.missing_services))))

    def discover(self, resource_type: str) -> list[DiscoveredResource]:
        found = chain.from_iterable(self._ask_each(resource_type, TypeDriver.discover))
        return sorted(found, key=lambda resource: resource.external_id)

    def ensure_registered(self, resource_type: str, resource: ResourceRef) -> None:
        self._ask(resource_type, resource.region, TypeDriver.ensure_registered, resource)

    def ensure_unregistered(self, resource_type: str, resource: ResourceRef) -> None:
        self._ask(resource_type, resource.region, TypeDriver.ensure_unregistered, resource)

    def ensure_prepared(self, command: Command) -> Progress:
        return self._ask(command.resource_type, command.region, TypeDriver.ensure_prepared, command)

    def ensure_started(self, command: Command) -> Progress:
        return self._ask(command.resource_type, command.region, TypeDriver.ensure_started, command)

    def make_way(self, command: Command, *, deadline: datetime, ahead: Iterable[Command] = ()) -> Sequence[Preempted]:
        verb = TypeDriver.make_way
        return self._ask(command.resource_type, command.region, verb, command, deadline=deadline, ahead=ahead)

    def before_end(self, command: Command, action: str) -> Progress:
        return self._ask(command.resource_type, command.region, TypeDriver.before_end, command, action)

    def ensure_ended(self, command: Command) -> Progress:
        return self._ask(command.resource_type, command.region, TypeDriver.ensure_ended, command)

    def remaining(self, resource_type: str, commands: Iterable[Command]) -> Mapping[str, int]:
        return _joined(self._ask_each(resource_type, TypeDriver.remaining, commands))

    def held(self, resource_type: str) -> Iterable[str]:
        return list(chain.from_iterable(self._ask_each(resource_type, TypeDriver.held)))

    def check(self, resource_type: str, registered: Iterable[ResourceRef] = ()) -> Mapping[str, Health]:
        return _joined(self._ask_each(resource_type, TypeDriver.check, registered))

    def drift(self, resource_type: str, commands: Iterable[Command], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        return list(chain.from_iterable(self._ask_each(resource_type, TypeDriver.drift, commands, pooled)))


class SingleCloud(ByResourceType):
    """A ``CloudDriver`` for one cloud, which knows no regions; ``ask`` calls the drivers of its ``type_drivers``."""

    longest_call: timedelta

    def __init__(self, type_drivers: Mapping[str, TypeDriver | type[TypeDriver]]) -> None:
        #: The resource type whose driver fetches a kind of object.
        self.fetches = {kind: name for name, driver in type_drivers.items() for kind in driver.fetches}

    @abstractmethod
    def ask(self, resource_type: str, verb: Verb[P, T], *about: P.args, **named: P.kwargs) -> T:
        """Return what the method of the type's driver answers. Every call about a resource type comes through here."""

    def _ask(self, resource_type: str, region: str, verb: Verb[P, T], *about: P.args, **named: P.kwargs) -> T:
        return self.ask(resource_type, verb, *about, **named)

    def _ask_each(self, resource_type: str, verb: Verb[P, T], *about: P.args, **named: P.kwargs) -> list[T]:
        return [self.ask(resource_type, verb, *about, **named)]

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        return self.ask(resource_type, TypeDriver.look_up, reference)

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        if kind not in self.fetches:
            raise CloudNotFound(Reason(f"This cloud has no {kind} {reference}."))
        return self.ask(self.fetches[kind], TypeDriver.fetch, kind, reference, actor)

    def servers(self, since: datetime | None, after: str | None = None) -> ServerPage:
        return ServerPage()

    def delegate(self, actor: Actor, regions: Collection[str] = ()) -> str:
        raise CloudRefused(Reason("This cloud has no trusts, by which to act in the name of a lease's owner."))

    def revoke(self, trust_id: str) -> None:
        pass

    def identify(self, group: Group, reference: str) -> Sequence[str]:
        return ()

    def by_region(self, resource_type: str) -> None:
        return None


class TypeDrivers(SingleCloud):
    """A ``CloudDriver`` of type drivers that exist already, by resource type."""

    def __init__(self, type_drivers: Mapping[str, TypeDriver]) -> None:
        super().__init__(type_drivers)
        self._type_drivers = dict(type_drivers)
        self.longest_call = max((driver.longest_call for driver in type_drivers.values()), default=timedelta(0))

    def ask(self, resource_type: str, verb: Verb[P, T], *about: P.args, **named: P.kwargs) -> T:
        return called(self._type_drivers.get(resource_type) or UnknownType(resource_type), verb, *about, **named)


def called(driver: TypeDriver, verb: Verb[P, T], *about: P.args, **named: P.kwargs) -> T:
    """Return what the driver's own method of this name answers."""
    method: Callable[P, T] = getattr(driver, verb.__name__)
    return method(*about, **named)


def _joined(answers: Iterable[Mapping[str, T]]) -> Mapping[str, T]:
    return {name: value for answer in answers for name, value in answer.items()}
