"""The changes that requests make in the cloud, each once, with its reservation and host."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class EffectKind(StrEnum):
    """The kinds of changes in the services that every cloud has; other services have their own kinds."""

    HOST_POOLED = "host pooled"  # from general use to the pool
    HOST_UNPOOLED = "host unpooled"  # from the pool to general use
    GROUP_MADE = "group made"
    GROUP_CHANGED = "group changed"  # its metadata
    HOST_TAKEN = "host taken"  # to a reservation's group
    HOST_RETURNED = "host returned"  # from a reservation's group to the pool
    GROUP_REMOVED = "group removed"
    SERVER_BOOTED = "server booted"
    SERVER_DELETED = "server deleted"  # the deletion was requested, and may take time
    IMAGE_MADE = "image made"
    TRUST_MADE = "trust made"
    TRUST_REVOKED = "trust revoked"
    SERVER_GROUP_MADE = "server group made"
    SERVER_GROUP_REMOVED = "server group removed"
    FLAVOR_MADE = "flavor made"
    FLAVOR_CHANGED = "flavor changed"  # its extra specs
    FLAVOR_REMOVED = "flavor removed"
    ACCESS_GIVEN = "access given"  # to a flavor, to a project
    ACCESS_TAKEN = "access taken"
    AGGREGATE_MADE = "aggregate made"
    AGGREGATE_CHANGED = "aggregate changed"  # its metadata
    AGGREGATE_REMOVED = "aggregate removed"
    HOST_ADDED = "host added"  # to an aggregate of instances, of a server, or of a zone
    HOST_DROPPED = "host dropped"  # from such an aggregate
    CLASS_MADE = "class made"
    CLASS_REMOVED = "class removed"
    PROVIDER_MADE = "provider made"
    INVENTORY_SET = "inventory set"
    INVENTORY_REMOVED = "inventory removed"
    SERVER_TOLD = "server told"  # that it must be deleted, and when
    SERVER_STOPPED = "server stopped"
    SERVER_MOVED = "server moved"
    SERVER_MARKED = "server marked"  # with its lease, or no longer
    SERVER_SHELVED = "server shelved"
    SERVER_WOKEN = "server woken"


@dataclass(frozen=True, slots=True)
class Effect:
    """An entry of the journal: one change.

    ``kind`` is the service's text for the change, such as an ``EffectKind``; ``host`` is the id of the hypervisor.
    """

    sequence: int
    at: datetime
    verb: str
    kind: str
    reservation_id: str | None
    host: str | None
    subject: str | None
