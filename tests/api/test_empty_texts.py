"""No parameter of a query that names something may be empty: an empty text is never taken for no filter."""

from __future__ import annotations

from itertools import product

import pytest

from tenure.api.operations import Operation
from tenure.api.table import operations_of
from tenure.api.versions import OLDEST, Version
from tenure.resources.contract import load_types
from tests.api.rig import Api

OPERATIONS = [operation for operation in operations_of(tuple(load_types())) if operation.method == "GET"]


def _cases() -> list[tuple[Operation, Version, str]]:
    newer = [version for version in Version if version is not OLDEST]
    return [
        (operation, version, name)
        for operation, version in product(OPERATIONS, newer)
        if not operation.public and version >= operation.since
        for name in operation.query(version).model_fields
    ]


@pytest.mark.parametrize(
    ("operation", "version", "name"),
    _cases(),
    ids=[f"{operation.path}?{name}= {version.value}" for operation, version, name in _cases()],
)
def test_an_empty_parameter_is_refused_by_name(api: Api, operation: Operation, version: Version, name: str):
    path = operation.path
    for part in operation.parts:
        path = path.replace(f"{{{part}}}", "some-id")
    answer = api.using("admin", version=version.value).get(f"{path}?{name}=")
    assert answer.status == 400, answer.json
    assert name in answer.json["error_message"]


@pytest.mark.parametrize("version", [version.value for version in Version])
@pytest.mark.parametrize("path", ["/v1/leases/", "/v1/os-hosts/", "/v1/floatingips/"])
def test_deletion_of_an_empty_id_deletes_nothing(api: Api, path: str, version: str):
    assert api.using("admin", version=version).delete(path).status in {404, 405}
