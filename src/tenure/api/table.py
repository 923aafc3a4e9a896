"""The table of all operations of the API."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache, lru_cache

from tenure.api.availability import availability_operations
from tenure.api.blazar.leases import LEASE_FORMS
from tenure.api.blazar.operations import with_blazar
from tenure.api.discovery import PUBLIC
from tenure.api.history import HISTORY
from tenure.api.inventories import inventory_operations
from tenure.api.leases import lease_operations
from tenure.api.limits import LIMITS
from tenure.api.operations import Operation, completed
from tenure.api.planned_servers import PLANNED_SERVERS
from tenure.api.schemas.lease_models import FORMS
from tenure.api.schemas.leases import LeaseSchemas, SchemasAt
from tenure.api.usage import USAGE
from tenure.api.versions import OLDEST, Version
from tenure.resources.contract import ResourceType


@lru_cache(maxsize=1)
def operations_of(
    resource_types: tuple[ResourceType, ...], enabled: tuple[ResourceType, ...] | None = None
) -> tuple[Operation, ...]:
    """Return all operations of an API with these types, in the order of their description.

    Only the ``enabled`` types can be booked, by default all; their inventories are served. Leases of earlier times may
    have reservations of the others.

    Their models are built when they are first needed: that takes longer than everything else (``prepare``).
    """
    bookable = resource_types if enabled is None else enabled
    inventories = {resource_type.inventory for resource_type in bookable}
    served = tuple(resource_type for resource_type in resource_types if resource_type.inventory in inventories)
    schemas = schemas_of(resource_types, {resource_type.name for resource_type in bookable})
    operations = (
        *PUBLIC,
        *lease_operations(schemas),
        *PLANNED_SERVERS,
        *HISTORY,
        LIMITS,
        USAGE,
        *availability_operations(schemas),
        *inventory_operations(served),
    )
    return tuple(with_blazar(map(completed, operations), served))


def schemas_of(resource_types: Iterable[ResourceType], enabled: Collection[str] | None = None) -> SchemasAt:
    """Return the models of leases at each version, with these types, of which only the ``enabled`` can be booked."""
    forms = {OLDEST: LEASE_FORMS, **FORMS}
    types = tuple(resource_types)
    return cache(lambda version: LeaseSchemas(types, version, forms[version], enabled))


def prepare(operations: Iterable[Operation]) -> None:
    """Build the models of all requests now, so that no request has to wait for them."""
    for operation in operations:
        for version in Version:
            if operation.since <= version:
                form = operation.at(version)
                form.query(version)
                if form.body is not None:
                    form.body(version)
