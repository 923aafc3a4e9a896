"""Keeping the registered resources in line with their description in the cloud."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from tenure.clock import Clock
from tenure.domain.request import ResourceQuery
from tenure.domain.resource import DiscoveredResource, Resource
from tenure.store.database import Database, Transaction

#: How many resources are read at a time.
PAGE = 1000


@dataclass(frozen=True, slots=True)
class Change:
    """A resource whose description in the cloud has changed, and the differences."""

    external_id: str
    name: str
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SyncReport:
    """The result of a comparison: the number of resources, the changes, and the names of resources that are gone."""

    seen: int
    changes: tuple[Change, ...]
    gone: tuple[str, ...]


class InventoryService:
    """Compares the registered resources with the cloud's. It registers and removes nothing."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def sync(
        self,
        resource_type: str,
        discovered: Iterable[DiscoveredResource],
        *,
        dry_run: bool,
        region: str | None = None,
    ) -> SyncReport:
        """Update names, sizes, facts and traits of the registered resources; with ``dry_run`` only report changes.

        Compares the resources of all regions, or those of ``region`` if only these were ``discovered``. Every change
        raises the version of the resource, so that a concurrent request is decided again.
        """
        found = {resource.external_id: resource for resource in discovered}
        seen, changes, gone = 0, [], []
        for resource in self._registered(resource_type, region):
            seen += 1
            current = found.get(resource.external_id)
            if current is None:
                gone.append(resource.name)
                continue
            differences = _differences(resource, current)
            if differences:
                changes.append(Change(resource.external_id, resource.name, differences))
                if not dry_run:
                    self._db.write(_describe, resource_type, current, now=self._clock.now())
        return SyncReport(seen, tuple(changes), tuple(gone))

    def _registered(self, resource_type: str, region: str | None) -> Iterator[Resource]:
        marker = None
        while True:
            with self._db.read() as tx:
                page = tx.resources.page(ResourceQuery(resource_type, PAGE, marker, region=region))
            yield from page[:PAGE]
            if len(page) <= PAGE:
                return
            marker = page[PAGE - 1].external_id


def _describe(tx: Transaction, resource_type: str, current: DiscoveredResource, *, now: datetime) -> None:
    resource = tx.resources.by_external_id(resource_type, current.external_id)
    if resource is not None and _differences(resource, current):
        tx.resources.describe(resource, current, now=now)


def plain(limits: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return limits in a canonical command, for comparing and showing."""
    return {name: dict(sorted(limits[name].items())) for name in sorted(limits)}


def _differences(resource: Resource, current: DiscoveredResource) -> tuple[str, ...]:
    """Return the differences as texts with the old and the new value."""
    pairs: dict[str, tuple[object, object]] = {"name": (resource.name, current.name)}
    pairs |= {
        name: (resource.facts.get(name), current.facts.get(name))
        for name in sorted(resource.facts.keys() | current.facts.keys())
    }
    pairs |= {
        name: (resource.capacity[name], current.capacity[name])
        for name in sorted({*resource.capacity, *current.capacity})
    }
    pairs["limits"] = (plain(resource.limits), plain(current.limits))
    pairs["traits"] = (sorted(resource.traits), sorted(current.traits))
    return tuple(f"{name} {old!r} -> {new!r}" for name, (old, new) in pairs.items() if old != new)
