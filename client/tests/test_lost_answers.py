"""Requests that make something, whose answer is lost: they are repeated, and carried out once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter

from conftest import BEGINNING
from tenureclient import Client, ReservationRequest, errors
from tenureclient.testing import FakeServer

HOUR = timedelta(hours=1)


class Loss:
    """Loses the answer to the first POST request after ``begin``; ``sent`` has all of them since then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.sent: list[requests.PreparedRequest] = []

    def begin(self, *, is_described: bool = True) -> None:
        """From now on; unless it ``is_described``, the server has no description of its API."""
        send, sent = HTTPAdapter.send, self.sent

        def lose(
            adapter: HTTPAdapter, request: requests.PreparedRequest, *positional: Any, **named: Any
        ) -> requests.Response:
            answer = send(adapter, request, *positional, **named)
            if "/openapi.json" in str(request.url) and not is_described:
                answer.status_code = 404
            if request.method == "POST":
                sent.append(request)
                if len(sent) == 1:
                    raise requests.ConnectionError("the answer is lost")
            return answer

        self._monkeypatch.setattr(HTTPAdapter, "send", lose)


@pytest.fixture
def loss(monkeypatch: pytest.MonkeyPatch) -> Loss:
    return Loss(monkeypatch)


def book(client: Client) -> str:
    host = [ReservationRequest.hosts(1)]
    return client.leases.create("bio", start=BEGINNING + HOUR, end=BEGINNING + 2 * HOUR, reservations=host).id


def register_host(client: Client) -> str:
    return client.hosts.create("extra").id


def lend_pool(client: Client) -> str:
    return client.volume_pools.create("sim-storage@fast#nvme", 10).id


@pytest.mark.parametrize("make", [book, register_host, lend_pool])
def test_request_is_repeated_and_makes_one_thing(server: FakeServer, loss: Loss, make: Callable[[Client], str]) -> None:
    server.add_host("c1")
    server.add_host("c2")
    server.add_hypervisor("extra")
    loss.begin()
    made = make(server.client())
    assert len({request.headers["Idempotency-Key"] for request in loss.sent}) == 1
    assert len(loss.sent) == 2
    everything = [*server.leases, *server.hosts, *server.volume_pools]
    assert everything.count(made) == 1
    assert len(everything) == 3


def test_reservation_is_added_once(server: FakeServer, loss: Loss) -> None:
    for number in range(3):
        server.add_host(f"c{number}")
    lease = server.client().leases.get(book(server.client()))
    loss.begin()
    changed = server.client().leases.add_reservation(lease.id, ReservationRequest.hosts(1), if_match=lease.etag)
    assert len(changed.reservations) == 2
    assert len(loss.sent) == 2


def test_each_request_has_its_own_key(server: FakeServer) -> None:
    server.add_host("c1")
    server.add_host("c2")
    client = server.client()
    assert book(client) != book(client)


def test_nothing_is_repeated_with_a_server_that_does_not_know_keys(server: FakeServer, loss: Loss) -> None:
    server.add_host("c1")
    loss.begin(is_described=False)
    with pytest.raises(errors.ConnectionFailed, match="lost"):
        book(server.client())
    assert len(loss.sent) == 1


def test_server_that_is_away_is_reported_at_once() -> None:
    with FakeServer(now=BEGINNING) as server:
        client = server.client()
    with pytest.raises(errors.ConnectionFailed):
        book(client)
