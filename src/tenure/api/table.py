"""The table of all operations of the API."""

from __future__ import annotations

from functools import lru_cache

from tenure.api.availability import availability_operations
from tenure.api.discovery import PUBLIC
from tenure.api.inventories import inventory_operations
from tenure.api.leases import lease_operations
from tenure.api.limits import LIMITS
from tenure.api.operations import Operation
from tenure.api.schemas.leases import LeaseSchemas
from tenure.api.usage import USAGE
from tenure.api.versions import Version
from tenure.resources.contract import ResourceType


@lru_cache(maxsize=1)
def operations_of(kinds: tuple[ResourceType, ...]) -> tuple[Operation, ...]:
    """Return all operations of an API with these types, in the order of their description.

    The result is cached: building the models takes longer than the rest of the API.
    """
    schemas = {version: LeaseSchemas(kinds, version) for version in Version}
    return (
        *PUBLIC,
        *lease_operations(schemas),
        LIMITS,
        USAGE,
        *availability_operations(schemas),
        *inventory_operations(kinds),
    )
