"""Who may see which lease, and how much of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tenure.domain.actor import Actor
from tenure.domain.errors import NotFound, PreconditionFailed
from tenure.domain.lease import Lease
from tenure.services.context import Authorize, require
from tenure.store.database import Transaction


class LeaseAccess:
    """Finds leases for actors, under the policy."""

    def __init__(self, authorize: Authorize) -> None:
        self._authorize = authorize

    def sees(self, actor: Actor, lease: Lease) -> bool:
        """Whether the actor sees private properties and the details of reasons."""
        return self._authorize("admin", actor, {"project_id": lease.project_id, "user_id": lease.user_id})

    def redacted(self, actor: Actor, lease: Lease) -> Lease:
        """Return the lease as the actor may see it: only administrators see the detail of its reason."""
        if lease.status_detail is None or self.sees(actor, lease):
            return lease
        return replace(lease, status_detail=None)

    def get_for(
        self,
        tx: Transaction,
        actor: Actor,
        lease_id: str,
        rule: str,
        *,
        deleted: bool = False,
        lock: bool = False,
        if_version: Collection[int] | None = None,
    ) -> Lease:
        """Return a lease that the actor may see and to which ``rule`` allows access.

        Raises ``NotFound``, ``Forbidden``, and ``PreconditionFailed`` if the lease has none of the versions
        ``if_version``, unless this very request has changed it: a message may be delivered twice.
        """
        lease = tx.leases.get(lease_id, deleted=deleted, lock=lock)
        missing = NotFound(f"Object with {{'lease_id': '{lease_id}'}} not found")
        if lease is None:
            raise missing
        target = {"project_id": lease.project_id, "user_id": lease.user_id}
        if lease.project_id != actor.project_id and not self._authorize("blazar:leases:get", actor, target):
            raise missing
        require(self._authorize, rule, actor, target)
        if if_version is None or lease.version in if_version:
            return lease
        if actor.request_id is not None and tx.leases.was_changed_by(lease.id, actor.request_id):
            return lease
        raise PreconditionFailed(
            "The lease has changed since it was read: read it again, and decide again.", field="If-Match"
        )
