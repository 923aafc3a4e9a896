"""Reconciliation: reading what should be true of the cloud, and recording what the reconciler has found different."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from tenure.domain.actor import ENGINE
from tenure.domain.lease import LeaseStatus
from tenure.domain.reason import Reason
from tenure.domain.resource import Registration
from tenure.drivers.contract import Command, ResourceRef
from tenure.resources.contract import ResourceTypes
from tenure.services.events.commands import commands_of, kept_commands, leftover_commands
from tenure.services.notifications.records import columns_of, write_history
from tenure.services.resources.healing import request_reconciliation
from tenure.store.database import Database, Transaction

#: How many leases are read at a time when all are read.
_AT_ONCE = 500


class ReconciliationService:
    """Queries and use cases of the reconciliation pass, which compares the cloud with the ledger."""

    def __init__(self, db: Database, types: ResourceTypes) -> None:
        self._db = db
        self._types = types

    def running(self, inventory: str, *, region: str | None = None) -> Iterator[Command]:
        """Yield the commands of all running reservations that have resources of that type, in one region or in all.

        They are read in batches; leases without such resources are not read.
        """
        resource_types = {resource_type.name for resource_type in self._types if resource_type.inventory == inventory}
        with self._db.read() as tx:
            ids = tx.leases.holding_ids(resource_types)
        for first in range(0, len(ids), _AT_ONCE):
            with self._db.read() as tx:
                found = tx.leases.by_ids(ids[first : first + _AT_ONCE])
                active = [lease for lease in found if lease.status is LeaseStatus.ACTIVE]
                commands = list(commands_of(tx, active, pinned_only=False))
            yield from (
                command
                for command in commands
                if command.resource_type in resource_types and region in {None, command.region}
            )

    def unheld(self, inventory: str, *, region: str | None = None) -> list[ResourceRef]:
        """Return the registered resources of that type without a pinned allocation, in one region or in all."""
        with self._db.read() as tx:
            return [ResourceRef(*found) for found in tx.resources.unheld(inventory, region=region)]

    def is_registered(self, inventory: str, resource: ResourceRef) -> bool:
        with self._db.read() as tx:
            found = tx.resources.by_external_id(inventory, resource.external_id)
        return found is not None and found.registration is Registration.REGISTERED

    def over(self, reservation_ids: Collection[str]) -> set[str]:
        """Return the reservations that are known, have ended, and have no pinned allocation."""
        with self._db.read() as tx:
            return tx.leases.over(reservation_ids) - tx.allocations.holding(reservation_ids)

    def known(self, reservation_ids: Collection[str]) -> set[str]:
        """Return the reservations that the ledger knows."""
        with self._db.read() as tx:
            return set(tx.leases.reservations_by_ids(reservation_ids))

    def leftovers(self, reservation_ids: Collection[str]) -> list[Command]:
        """Return the commands to take back ended reservations; unknown reservations are left out."""
        with self._db.read() as tx:
            return list(leftover_commands(tx, reservation_ids))

    def reconcile(self, reservation_ids: Collection[str]) -> set[str]:
        """Request that the cloud is made to match the running leases of these reservations again.

        Returns the reservations for which this will be done: not those of leases that do not run any more, or that are
        being reconciled already.
        """
        leases: dict[str, list[str]] = {}
        if reservation_ids:
            with self._db.read() as tx:
                for reservation in tx.leases.reservations_by_ids(reservation_ids).values():
                    leases.setdefault(reservation.lease_id, []).append(reservation.id)
        reconciling: set[str] = set()
        for lease_id, ids in leases.items():
            if self._db.write(_request_reconciliation, lease_id, ids):
                reconciling.update(ids)
        return reconciling

    def show_drift(self, reservation_id: str, text: str) -> bool:
        """Show a difference that cannot be reconciled on a running lease; return False if it is shown already."""
        return self._db.write(_show_drift, reservation_id, text)

    def kept(self, inventory: str) -> list[Command]:
        """Return the commands of ended reservations that still keep something on resources of that type."""
        with self._db.read() as tx:
            return list(kept_commands(tx, {allocation.reservation_id for allocation in tx.allocations.kept(inventory)}))

    def release_deleted(self, inventory: str, remaining: Mapping[str, int], *, of: Collection[str]) -> int:
        """Release the room of kept units that have been deleted, of these reservations; return the number of units.

        ``remaining`` maps reservation ids to the number of units that still exist.
        """
        return self._db.write(_release_deleted, inventory, remaining, of)


def _request_reconciliation(tx: Transaction, lease_id: str, reservation_ids: Sequence[str]) -> bool:
    lease = tx.leases.get(lease_id, lock=True)
    return lease is not None and request_reconciliation(tx, lease, now=tx.now(), drifted=reservation_ids)


def _show_drift(tx: Transaction, reservation_id: str, text: str) -> bool:
    now = tx.now()
    found = tx.leases.reservations_by_ids([reservation_id]).get(reservation_id)
    lease = tx.leases.get(found.lease_id, lock=True) if found else None
    if lease is None or lease.status is not LeaseStatus.ACTIVE or lease.status_reason == text:
        return False
    tx.leases.change(lease, now=now, **columns_of(Reason(text)))
    write_history(tx, lease.id, "drift", lease.status, lease.status, actor=ENGINE, now=now, reason=text)
    return True


def _release_deleted(tx: Transaction, inventory: str, remaining: Mapping[str, int], of: Collection[str]) -> int:
    allocations = [allocation for allocation in tx.allocations.kept(inventory) if allocation.reservation_id in of]
    left = {reservation_id: remaining.get(reservation_id, 0) for reservation_id in of}
    gone = {}
    for allocation in allocations:
        there = min(allocation.units, left[allocation.reservation_id])
        left[allocation.reservation_id] -= there
        if there < allocation.units:
            gone[allocation] = there
    resources = tx.resources.by_ids({allocation.resource_id for allocation in gone})
    tx.resources.raise_versions({resource_id: resource.version for resource_id, resource in resources.items()})
    now = tx.now()
    for allocation, there in gone.items():
        tx.allocations.reduce_kept(allocation, there, now=now)
    return sum(allocation.units - there for allocation, there in gone.items())
