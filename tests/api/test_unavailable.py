"""The answer while the database is unavailable: 503 without internal details."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.rig import Api, open_api
from tests.support.breaker import Breaker


@pytest.fixture(params=[pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("postgresql", "mariadb")])
def api(request: pytest.FixtureRequest, fresh_database, tmp_path: Path) -> Iterator[Api]:
    """The API over a database on a server: a file has no connections to lose."""
    with fresh_database(request.param) as url, open_api(tmp_path, url=url) as opened:
        yield opened


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(("method", "statement"), [("GET", "SELECT"), ("POST", "INSERT"), ("DELETE", "UPDATE")])
def test_a_connection_lost_during_a_request_is_unavailable(api: Api, version: str, method: str, statement: str):
    """It is a 503; the request that comes next finds the service as it was before."""
    api = api.using(version=version)
    lease = api.book()
    before = api.get("/v1/leases").json
    breaker = Breaker(api.world.db)
    breaker.end_before(statement)
    path = f"/v1/leases/{lease['id']}" if method == "DELETE" else "/v1/leases"
    result = api.call(method, path, api.lease_body() if method == "POST" else None)
    assert breaker.ended == 1
    assert result.status_code == 503, result.text
    assert result.json["error_code"] == 503
    assert result.json["error_name"] == (503 if version == "1.0" else "Unavailable")
    assert result.json["error_message"] == "The database does not work right now; try again later."
    assert api.get("/v1/leases").json == before
