"""A plan that others came before: whether it can be carried out on a later snapshot as it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from tenure.domain.allocation import Allocation
from tenure.domain.changes import Changes
from tenure.planning.snapshot import Snapshot


def renewed(changes: Changes, planned_on: Snapshot, later: Snapshot) -> Changes | None:
    """Return the same changes under the versions of a later snapshot.

    None if what they change is not there any more, if there is no room left, if there are other units of the same
    reservations, which may have to be apart from these or beside them, or if any resource is described otherwise than
    when they were planned.
    """
    if later.catalogue is not planned_on.catalogue:
        return None
    before = [*changes.dropped, *(was for was, _ in changes.changed)]
    if any(allocation not in later.original_on(later.row_of(allocation.resource_id)) for allocation in before):
        return None
    concerned = {allocation.reservation_id for allocation in (*before, *changes.added)}
    for resource_id in changes.versions:
        row = later.row_of(resource_id)
        if _of(concerned, later.original_on(row)) != _of(concerned, planned_on.original_on(row)):
            return None
    after = later.without(before)
    for allocation in (*changes.added, *(new for _, new in changes.changed)):
        if not after.has_room_for(allocation):
            return None
        after = after.with_([allocation])
    versions = {resource_id: int(later.versions[later.row_of(resource_id)]) for resource_id in changes.versions}
    return replace(changes, versions=versions)


def _of(reservation_ids: Collection[str], allocations: Iterable[Allocation]) -> list[Allocation]:
    """Return the allocations of these reservations."""
    return [allocation for allocation in allocations if allocation.reservation_id in reservation_ids]
