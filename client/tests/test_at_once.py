"""Two clients that change a lease at the same time, over HTTP: the changes of both are made."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter

from conftest import BEGINNING
from tenureclient import ReservationRequest, errors
from tenureclient.cli.command import Surroundings
from tenureclient.cli.shell import TenureShell
from tenureclient.reservation_request import OwnEvent
from tenureclient.testing import FakeServer

HOUR = timedelta(hours=1)


@pytest.fixture
def lease_id(server: FakeServer) -> str:
    server.add_host("c1")
    return (
        server.client()
        .leases.create(
            "bio",
            start=BEGINNING + HOUR,
            end=BEGINNING + 9 * HOUR,
            reservations=[ReservationRequest.hosts(1)],
        )
        .id
    )


@pytest.fixture
def together(
    server: FakeServer, clean_environment: None, plain_logging: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Run commands at the same time: all have read the lease before the first one changes it."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)

    def run(*commands: list[str]) -> None:
        meet, met, send = threading.Barrier(len(commands)), threading.local(), HTTPAdapter.send

        def send_together(
            self: HTTPAdapter, request: requests.PreparedRequest, *positional: Any, **named: Any
        ) -> requests.Response:
            if request.method == "PUT" and not hasattr(met, "others"):
                met.others = meet.wait(timeout=60)
            return send(self, request, *positional, **named)

        monkeypatch.setattr(HTTPAdapter, "send", send_together)

        def carry_out(command: list[str]) -> int:
            surroundings = Surroundings(now=lambda: server.now, sleep=lambda _seconds: None)
            shell = TenureShell(surroundings=surroundings, stdout=io.StringIO(), stderr=io.StringIO())
            return int(shell.run(command))

        with ThreadPoolExecutor(len(commands)) as pool:
            assert list(pool.map(carry_out, commands)) == [0] * len(commands)

    return run


def test_two_prolongations_at_once_add_up(server: FakeServer, lease_id: str, together: Callable[..., None]) -> None:
    together(*[["lease", "prolong", "bio", "--by", "1h"]] * 2)
    assert server.leases[lease_id].end_date == BEGINNING + 11 * HOUR


def test_two_relative_changes_at_once_add_up(server: FakeServer, lease_id: str, together: Callable[..., None]) -> None:
    together(["lease", "set", "bio", "--prolong-for", "1h"], ["lease", "set", "bio", "--reduce-by", "2h"])
    assert server.leases[lease_id].end_date == BEGINNING + 8 * HOUR


def test_two_notifications_at_once_are_both_sent(
    server: FakeServer, lease_id: str, together: Callable[..., None]
) -> None:
    together(*(["lease", "set", "bio", "--notify", "+2h", text] for text in ("save", "leave")))
    messages = [event.message for event in server.leases[lease_id].events if event.message is not None]
    assert sorted(messages) == ["leave", "save"]


def test_library_refuses_a_change_of_a_lease_that_has_changed(server: FakeServer, lease_id: str) -> None:
    leases = server.client().leases
    seen = leases.get(lease_id)
    changed = leases.update(lease_id, name="bio-2", if_match=seen.etag)
    event = OwnEvent(BEGINNING + 2 * HOUR, "save")
    with pytest.raises(errors.PreconditionFailed, match="has changed"):
        leases.update(lease_id, events=[event], if_match=seen.etag)
    with pytest.raises(errors.PreconditionFailed):
        leases.delete(lease_id, if_match=seen.etag)
    assert leases.update(lease_id, events=[event], if_match=changed.etag).etag not in (None, changed.etag)
    leases.delete(lease_id, if_match=leases.get(lease_id).etag)


def test_blazar_is_asked_without_a_condition(blazar: FakeServer) -> None:
    blazar.add_host("c1")
    leases = blazar.client().leases
    lease = leases.create(
        "bio",
        start=BEGINNING + HOUR,
        end=BEGINNING + 2 * HOUR,
        reservations=[ReservationRequest.hosts(1)],
    )
    seen = leases.get(lease.id)
    assert leases.update(lease.id, end=BEGINNING + 3 * HOUR, if_match=seen.etag).end_date == BEGINNING + 3 * HOUR
