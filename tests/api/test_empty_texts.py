"""No parameter of a query that names something may be empty: an empty text is never taken for no filter."""

from __future__ import annotations

from itertools import product
from urllib.parse import parse_qsl, urlencode

import pytest

from tenure.api.operations import Operation
from tenure.api.table import operations_of
from tenure.api.versions import OLDEST, Version
from tenure.resources.contract import load_types
from tests.api.rig import Api
from tests.support.samples import NEEDED_QUERIES

OPERATIONS = [operation for operation in operations_of(tuple(load_types())) if operation.method == "GET"]
#: A text with the conditions of a reservation, which may have none.
_CONDITIONS = "resource_properties"


def _cases() -> list[tuple[Operation, Version, str]]:
    newer = [version for version in Version if version is not OLDEST]
    return [
        (operation, version, name)
        for operation, version in product(OPERATIONS, newer)
        if not operation.public and version >= operation.since
        for name in operation.query(version).model_fields
        if name != _CONDITIONS
    ]


@pytest.mark.parametrize(
    ("operation", "version", "name"),
    _cases(),
    ids=[f"{operation.path}?{name}= {version.value}" for operation, version, name in _cases()],
)
def test_an_empty_parameter_is_refused_by_name(api: Api, operation: Operation, version: Version, name: str):
    path = operation.path
    for parameter in operation.path_parameters:
        path = path.replace(f"{{{parameter}}}", "some-id")
    query = urlencode(dict(parse_qsl(NEEDED_QUERIES.get(operation.path, ""))) | {name: ""})
    answer = api.using("admin", version=version.value).get(f"{path}?{query}")
    assert answer.status_code == 400, answer.json
    assert name in answer.text


@pytest.mark.parametrize("version", [version.value for version in Version])
@pytest.mark.parametrize("path", ["/v1/leases/", "/v1/os-hosts/", "/v1/floatingips/"])
def test_deletion_of_an_empty_id_deletes_nothing(api: Api, path: str, version: str):
    assert api.using("admin", version=version).delete(path).status_code in {404, 405}
