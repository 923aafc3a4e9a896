"""Regions: from a resource type and a region to the driver of the type there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, ParamSpec, TypeVar, cast

from tenure.domain.actor import Actor
from tenure.domain.reason import Reason
from tenure.domain.regions import qualified, together, trusts_in, unqualified
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.cloud import ByResourceType, SingleCloud, TypeDrivers, Verb
from tenure.drivers.contract import (
    BootedServer,
    CloudBusy,
    CloudDriver,
    CloudError,
    CloudNotFound,
    Command,
    Drift,
    Group,
    Health,
    Preempted,
    Progress,
    ResourceMissing,
    ResourceOccupied,
    ResourceRef,
    ServerPage,
)
from tenure.drivers.type_driver import TypeDriver

LOG = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: When to try again if all permits of a region are taken. A permit is taken for the longest duration of a call at most.
_SOON: Final = timedelta(seconds=1)


class _Region:
    """A cloud, as one of the regions in the ledger: translates ids, names the region in errors, and limits attempts.

    The cloud knows no regions. Ids of the home region are the same in the ledger; ids of other regions have the name of
    the region as a prefix in the ledger. Without a ``name`` nothing is translated.

    ``permits`` is the maximum of concurrent attempts to hand over, and likewise to take back and to prepare. It is less
    than the number of workers, so that a region that hangs leaves workers to the others.
    """

    def __init__(self, name: str, cloud: SingleCloud, *, home: bool, permits: int | None = None) -> None:
        self.name = name
        self.cloud = cloud
        self._is_home = home
        self._prefix = "" if home else name
        self._limits: dict[str, _Permits] = {}
        if permits is not None:
            taking_back = _Permits("attempts to take back", permits)
            self._limits = {
                TypeDriver.ensure_prepared.__name__: _Permits("attempts to prepare leases", permits),
                TypeDriver.ensure_started.__name__: _Permits("attempts to hand over", permits),
                TypeDriver.before_end.__name__: taking_back,
                TypeDriver.ensure_ended.__name__: taking_back,
            }

    def ask(self, resource_type: str, verb: Verb[P, T], *about: P.args, **named: P.kwargs) -> T:
        """Return the answer of a type's driver, or that it is not done without a permit for the attempt."""
        ask = cast(Callable[..., T], self.cloud.ask)
        permits = self._limits.get(verb.__name__)
        with nullcontext(True) if permits is None else permits.acquire() as is_free:
            if is_free or permits is None:
                return self.call(ask, resource_type, verb, *about, **named)
            return cast(T, Progress(False, _SOON, permits.reason, awaited=True))

    def call(self, method: Callable[P, T], *about: P.args, **named: P.kwargs) -> T:
        """Return what the cloud's method answers, in terms of the ledger; errors name the region."""
        if not self.name:
            return method(*about, **named)
        inside = [self._inward(argument) for argument in about]
        inside_named = {name: self._inward(argument) for name, argument in named.items()}
        with self._naming_region():
            return cast(T, self._outward(cast(Callable[..., T], method)(*inside, **inside_named)))

    def trust_of(self, trust_id: str) -> str | None:
        """Return the trust here among those of a lease; one without a region belongs to the home region."""
        trusts = trusts_in(trust_id)
        return trusts.get(self.name, trusts.get("") if self._is_home else None)

    def _inward(self, given: Any) -> Any:
        """Return an argument in terms of the cloud."""
        match given:
            case ResourceRef():
                return replace(given, region="", external_id=unqualified(self._prefix, given.external_id))
            case Command():
                return replace(
                    given,
                    region="",
                    resources=tuple(map(self._inward, given.resources)),
                    returning=tuple(map(self._inward, given.returning)),
                    units={unqualified(self._prefix, name): count for name, count in given.units.items()},
                    trust_id=given.trust_id and self.trust_of(given.trust_id),
                )
            case Iterable() if not isinstance(given, str):
                return map(self._inward, given)
            case _:
                return given

    def _outward(self, answer: Any) -> Any:
        """Return an answer in terms of the ledger."""
        match answer:
            case DiscoveredResource() | ResourceRef():
                return replace(answer, region=self.name, external_id=qualified(self._prefix, answer.external_id))
            case Preempted() | Drift():
                return replace(answer, resource=self._outward(answer.resource))
            case BootedServer():
                return replace(answer, region=self.name)
            case ServerPage():
                return replace(answer, servers=self._outward(answer.servers))
            case Mapping():
                return {
                    qualified(self._prefix, name) if isinstance(value, Health) else name: value
                    for name, value in answer.items()
                }
            case Iterable() if not isinstance(answer, str):
                return [self._outward(part) for part in answer]
            case _:
                return answer

    @contextmanager
    def _naming_region(self) -> Iterator[None]:
        """Add the region to the reasons of errors, and translate the ids of their resources to those of the ledger."""
        try:
            yield
        except (ResourceOccupied, ResourceMissing) as error:
            reasons = {qualified(self._prefix, external_id): reason for external_id, reason in error.resources.items()}
            named = type(error)(reasons)
            named.args = (named.reason.after(f"Region {self.name}: "),)
            raise named from error
        except CloudError as error:
            error.args = (error.reason.after(f"Region {self.name}: "), *error.args[1:])
            raise


class _Permits:
    """A limit for concurrent attempts of a kind in a region."""

    def __init__(self, attempts: str, permits: int) -> None:
        self.reason = Reason(f"{permits} {attempts} are in progress there, the maximum of a region.")
        self._free = threading.Semaphore(permits)

    @contextmanager
    def acquire(self) -> Iterator[bool]:
        """Take a permit for an attempt; yield whether there is one. Without a permit it is not done, and no failure."""
        is_free = self._free.acquire(blocking=False)
        try:
            yield is_free
        finally:
            if is_free:
                self._free.release()


class Router(ByResourceType):
    """A ``CloudDriver`` for several regions, each with its own cloud; the first is the home region.

    A region without a name is the only one, and its ids are those of the ledger.

    A command is in a single region and goes to the cloud of that region, whatever the state of the others. A call for
    all regions fails if a single region does not answer; ``parts`` is for asking them separately.

    ``workers`` is the number of concurrent attempts of a kind; if there are several regions, each has three quarters of
    them at most.
    """

    def __init__(self, clouds: Mapping[str, SingleCloud], *, workers: int = 0) -> None:
        self._home = next(iter(clouds))
        permits = max(1, workers * 3 // 4) if workers > 1 and len(clouds) > 1 else None
        self._regions = {
            name: _Region(name, cloud, home=name == self._home, permits=permits) for name, cloud in clouds.items()
        }
        self.longest_call = max(cloud.longest_call for cloud in clouds.values())
        self._own: Mapping[str, TypeDriver] = {}
        self._beside = _Region(self._home, TypeDrivers({}), home=True)

    def beside(self, own: Mapping[str, TypeDriver]) -> Router:
        """Return a router that has these drivers, too, by resource type; what they have belongs to the home region."""
        router, own_cloud = copy(self), TypeDrivers(own)
        router.longest_call = max(self.longest_call, own_cloud.longest_call)
        router._own, router._beside = own, _Region(self._home, own_cloud, home=True)
        return router

    def by_region(self, resource_type: str) -> Mapping[str | None, CloudDriver]:
        found: dict[str | None, CloudDriver] = {}
        for name, region in self._regions_of(resource_type).items():
            regional = copy(self)
            regional._regions = {name: region}
            found[name or None] = regional
        return found

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        region, inside = self._named_by(reference, is_own=resource_type in self._own)
        return region.ask(resource_type, TypeDriver.look_up, inside)

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        region, inside = self._named_by(reference, is_own=kind in self._beside.cloud.fetches)
        return region.call(region.cloud.fetch, kind, inside, actor)

    def make_way(self, command: Command, *, deadline: datetime, ahead: Iterable[Command] = ()) -> Sequence[Preempted]:
        own = self._own.get(command.resource_type)
        ahead = [
            earlier
            for earlier in ahead
            if earlier.region == command.region and self._own.get(earlier.resource_type) is own
        ]
        return super().make_way(command, deadline=deadline, ahead=ahead)

    def servers(self, since: datetime | None, after: str | None = None) -> ServerPage:
        [region] = self._regions.values()
        return region.call(region.cloud.servers, since, after)

    def delegate(self, actor: Actor, regions: Collection[str] = ()) -> str:
        """Create a trust in each of these regions, or in none if one of them refuses or does not answer."""
        trusts: dict[str, str] = {}
        try:
            for name in sorted(regions or (self._home,)):
                region = self._at(name, self._regions)
                trusts[name] = region.call(region.cloud.delegate, actor)
        except CloudError:
            for name, trust in trusts.items():
                self._give_up(self._regions[name], trust)
            raise
        return together(trusts)

    def identify(self, group: Group, reference: str) -> Sequence[str]:
        """Ask the home region: regions share the identity service."""
        region = self._at(self._home, self._regions)
        return region.call(region.cloud.identify, group, reference)

    def _give_up(self, region: _Region, trust_id: str) -> None:
        try:
            region.call(region.cloud.revoke, trust_id)
        except CloudError as error:
            LOG.warning("trust %s is of no use and could not be deleted: %s", trust_id, error)

    def revoke(self, trust_id: str) -> None:
        """Delete the trusts in all regions, then raise the first error, if any."""
        errors: list[CloudError] = []
        for region in self._regions.values():
            trust = region.trust_of(trust_id)
            if trust is None:
                continue
            try:
                region.call(region.cloud.revoke, trust)
            except CloudError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _ask(self, resource_type: str, region: str, verb: Verb[P, T], *about: P.args, **named: P.kwargs) -> T:
        return self._at(region, self._regions_of(resource_type)).ask(resource_type, verb, *about, **named)

    def _ask_each(self, resource_type: str, verb: Verb[P, T], *about: P.args, **named: P.kwargs) -> list[T]:
        regions = self._regions_of(resource_type)
        lists: list[Any] = [*about] if len(regions) == 1 else [list(cast(Iterable[Any], items)) for items in about]
        answers: list[T] = []
        for region in regions.values():
            ask = cast(Callable[..., T], region.ask)
            there = [filter(lambda item: self._at(item.region, regions) is region, items) for items in lists]
            answers.append(ask(resource_type, verb, *there, **named))
        return answers

    def _regions_of(self, resource_type: str) -> Mapping[str, _Region]:
        """Return the regions that may have resources of the type."""
        return {self._home: self._beside} if resource_type in self._own else self._regions

    def _at(self, name: str, regions: Mapping[str, _Region]) -> _Region:
        region = regions.get(name or self._home)
        if region is None:
            raise CloudBusy(Reason(f"There is no region {name} any more."))
        return region

    def _named_by(self, reference: str, *, is_own: bool) -> tuple[_Region, str]:
        """Return the region of a reference, and the reference there."""
        if is_own:
            return self._beside, unqualified(self._home, reference)
        for name, region in self._regions.items():
            inside = unqualified(name, reference)
            if inside != reference or not name:
                return region, inside
        raise CloudNotFound(Reason(f"{reference} is in an unknown region."))
