"""Changes of leases over HTTP: they are refused only after the exact search, and say what that has found."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from tests.api.rig import HOSTS, USERS, Api, api_over, open_api, rfc3339
from tests.support.chains import CASES, Case, Chain, crowd, search_for
from tests.support.engines import MINUTE
from tests.support.world import ADMIN, HOST

cases = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


class Quiet(WSGIRequestHandler):
    def log_message(self, *_given: object) -> None:
        pass


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as api:
        search_for(api.world, MINUTE)
        yield api


def served(api: Api) -> Api:
    """Return the API of the service as it is built now."""
    return api_over(api.world, Path(mkdtemp(dir=api.database.parent)))


def asked(case: Case, chain: Chain) -> tuple[str, str, dict[str, Any]]:
    """Return the method, path and body of the request of a case."""
    path = f"/v1/leases/{chain.lease.id}"
    if case.adds:
        return "POST", f"{path}/reservations", {**HOSTS, "resource_properties": case.adds}
    body: dict[str, Any] = {}
    if case.dates is not None:
        body = {"end_date": rfc3339(chain.date(case.dates[1]))}
        body |= {} if case.runs else {"start_date": rfc3339(chain.date(case.dates[0]))}
    if case.parameters:
        body["reservations"] = [{"id": chain.lease.reservations[0].id, **case.parameters}]
    return "PUT", path, body


def send(api: Api, method: str, path: str, body: dict[str, Any], version: str = "1.3") -> tuple[int, dict[str, Any]]:
    """Send a request over HTTP; return the status and the body of the answer."""
    with make_server("127.0.0.1", 0, api.app, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        try:
            request = Request(  # this test's own server
                f"http://127.0.0.1:{server.server_port}{path}",
                method=method,
                data=json.dumps(body).encode(),
                headers={
                    "Content-Type": "application/json",
                    "X-Auth-Token": USERS["demo"].token,
                    "OpenStack-API-Version": f"reservation {version}",
                },
            )
            with urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            return error.code, json.load(error)
        finally:
            thread.join()


@cases
def test_a_change_is_refused_only_without_the_search(api: Api, case: Case):
    chain = crowd(api.world, case)
    search_for(api.world, timedelta(0))
    status, refusal = send(served(api), *asked(case, chain))
    assert (status, refusal["error_name"], refusal["details"]["proven"]) == (409, "NotEnoughResources", False)
    search_for(api.world, MINUTE)
    method, path, body = asked(case, chain)
    status, previewed = send(served(api), method, f"{path}?dry_run=true", body)
    assert status == 200, previewed
    status, changed = send(served(api), method, path, body)
    assert status in {200, 201}, changed
    assert api.world.hosts_of(chain.first.id) == [api.world.resources.get(ADMIN, HOST, "2").name]


@cases
def test_a_refused_change_says_that_it_is_proven(api: Api, case: Case):
    chain = crowd(api.world, case)
    for host in ("3", "4"):
        api.world.resources.disable(ADMIN, HOST, host, reason="out of order")
    method, path, body = asked(case, chain)
    for url in (path, f"{path}?dry_run=true"):
        status, refusal = send(served(api), method, url, body)
        assert (status, refusal["details"]["proven"]) == (409, True)
    status, refusal = send(served(api), method, path, body, version="1.2")
    assert status == 409
    assert "proven" not in refusal["details"]
