"""What is sent again that the service refused since it was busy, how often, and what the user sees of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests
from keystoneauth1 import adapter, session

from tenureclient import Client, ReservationRequest
from tenureclient.errors import ServerError

START = datetime(2027, 3, 2, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)
OURS = {"OpenStack-API-Version": "reservation 1.4"}
LEASE = {
    "id": "x",
    "name": "bio",
    "created_at": "2027-03-01T09:30:00Z",
    "start_date": "2027-03-02T10:00:00Z",
    "end_date": "2027-03-02T11:00:00Z",
}


class BusyService(adapter.Adapter):
    """Answers with these refusals, and then as asked."""

    def __init__(self, *refusals: Mapping[str, str], status: int = 503) -> None:
        super().__init__(session.Session(), service_type="reservation", endpoint_override="http://busy/v1")
        self.refusals: Iterator[Mapping[str, str]] = iter(refusals)
        self.status = status
        self.methods: list[str] = []
        self.description: Mapping[str, Any] = {}

    def request(self, url: str, method: str, **options: Any) -> requests.Response:
        response = requests.Response()
        if url.endswith("/openapi.json"):
            response.status_code = 200
            response._content = json.dumps(self.description).encode()
            return response
        self.methods.append(method)
        response.request = requests.Request(
            method, f"http://busy/v1{url}", params=options["params"], headers=options["headers"]
        ).prepare()
        refusal = next(self.refusals, None)
        if refusal is None:
            response.status_code = 200
            response.headers.update(OURS)
            response._content = json.dumps({"leases": [], "lease": LEASE}).encode()
        else:
            response.status_code = self.status
            response.headers.update(refusal)
        return response


def create(client: Client) -> object:
    return client.leases.create("bio", start=START, end=START + HOUR, reservations=[ReservationRequest.hosts(1)])


def list_all(client: Client) -> object:
    return list(client.leases.list())


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("ask", [create, list_all])
def test_what_the_service_did_not_begin_is_sent_again(
    status: int, ask: Callable[[Client], object], caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    busy = BusyService({**OURS, "Retry-After": "1"}, {**OURS, "Retry-After": "7"}, status=status)
    ask(Client(busy, sleep=pauses.append))
    assert len(busy.methods) == 3
    assert pauses == [1, 7]
    assert [record.getMessage() for record in caplog.records if record.name == "tenureclient.repeats"] == [
        f"The reservation service is busy; trying again in {seconds} s." for seconds in (1, 7)
    ]


@pytest.mark.parametrize(
    ("refusal", "ask", "requests_sent"),
    [
        pytest.param({"Retry-After": "1"}, list_all, 2, id="a proxy, to a question"),
        pytest.param({"Retry-After": "1"}, create, 1, id="a proxy, to what may have been carried out"),
        pytest.param(OURS, list_all, 1, id="nothing says when"),
        pytest.param({**OURS, "Retry-After": "soon"}, list_all, 1, id="nothing that can be read says when"),
        pytest.param({**OURS, "Retry-After": "600"}, list_all, 1, id="too far away"),
    ],
)
def test_nothing_else_is_sent_again(
    refusal: Mapping[str, str], ask: Callable[[Client], object], requests_sent: int
) -> None:
    busy = BusyService(refusal)
    client = Client(busy, sleep=lambda _seconds: None)
    if requests_sent == 1:
        with pytest.raises(ServerError):
            ask(client)
    else:
        ask(client)
    assert len(busy.methods) == requests_sent


def test_it_is_given_up_after_some_time() -> None:
    pauses: list[float] = []
    busy = BusyService(*[{**OURS, "Retry-After": "1"}] * 100)
    with pytest.raises(ServerError):
        list_all(Client(busy, sleep=pauses.append))
    assert pauses == [1, 2, 4, 8, 16]


def test_what_has_a_key_that_the_service_knows_is_sent_again() -> None:
    busy = BusyService({"Retry-After": "1"})
    known = {"parameters": [{"name": "Idempotency-Key"}]}
    busy.description = {"paths": {"/v1/leases": {"post": known}}}
    create(Client(busy, endpoint_override="http://busy/v1", sleep=lambda _seconds: None))
    assert busy.methods == ["POST", "POST"]
