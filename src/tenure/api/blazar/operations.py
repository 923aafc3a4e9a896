"""The operations in their forms at 1.0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from tenure.api.answers import Pages
from tenure.api.blazar.inventories import BlazarInventoryOperations
from tenure.api.blazar.lists import LeaseList, WholeList, ignoring_others
from tenure.api.operations import Operation
from tenure.api.schemas.queries import Query
from tenure.api.schemas.resources import served_inventories
from tenure.api.versions import OLDEST, Version, by_version
from tenure.resources.contract import ResourceType


def with_blazar(operations: Iterable[Operation], resource_types: Iterable[ResourceType]) -> Iterator[Operation]:
    """Return the operations of these types; those that 1.0 serves have their forms at 1.0."""
    forms: Mapping[tuple[str, str], Operation] = {
        (operation.method, operation.path): operation
        for wire, inventory in served_inventories(resource_types)
        for operation in BlazarInventoryOperations(wire, inventory).table()
    }
    for operation in operations:
        if operation.public or operation.since > OLDEST:
            yield operation
        else:
            form = forms.get((operation.method, operation.path)) or _of_leases(operation)
            yield replace(operation, blazar=replace(form, query=partial(_query_of, form)))


def _query_of(operation: Operation, version: Version) -> type[Query]:
    return ignoring_others(operation.query(version))


def _of_leases(operation: Operation) -> Operation:
    """Return the form of an operation of leases: their list is whole. The models of leases are by version already."""
    answer = operation.answer
    if not isinstance(answer, Pages):
        return operation
    return replace(operation, query=by_version(LeaseList), answer=WholeList(answer.key, answer.model))
