"""The table of all operations of the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from tenure.api.availability import availability_operations
from tenure.api.blazar.lease_models import LEASE_FORMS
from tenure.api.blazar.operations import with_blazar
from tenure.api.discovery import PUBLIC
from tenure.api.inventories import inventory_operations
from tenure.api.leases import lease_operations
from tenure.api.limits import LIMITS
from tenure.api.operations import Operation
from tenure.api.schemas.lease_models import FORMS
from tenure.api.schemas.leases import LeaseSchemas
from tenure.api.usage import USAGE
from tenure.api.versions import OLDEST, Version
from tenure.resources.contract import ResourceType


@lru_cache(maxsize=1)
def operations_of(kinds: tuple[ResourceType, ...]) -> tuple[Operation, ...]:
    """Return all operations of an API with these types, in the order of their description.

    The result is cached: building the models takes longer than the rest of the API.
    """
    schemas = schemas_of(kinds)
    operations = (
        *PUBLIC,
        *lease_operations(schemas),
        LIMITS,
        USAGE,
        *availability_operations(schemas),
        *inventory_operations(kinds),
    )
    return tuple(with_blazar(operations, kinds))


def schemas_of(kinds: Iterable[ResourceType]) -> Mapping[Version, LeaseSchemas]:
    """Return the models of leases at each version, with these types."""
    by_version = {OLDEST: LEASE_FORMS, **FORMS}
    return {version: LeaseSchemas(kinds, version, forms) for version, forms in by_version.items()}
