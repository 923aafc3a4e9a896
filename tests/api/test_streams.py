"""Long lists are sent page by page; logs and metrics count them when they end."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from wsgiref.util import setup_testing_defaults

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import event

from tenure.tracing import REQUEST_ID, TraceFilter
from tests.api.rig import USERS, Api


@pytest.fixture
def long_list(api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """Two leases, which are two pages."""
    monkeypatch.setattr("tenure.api.blazar.lists.PAGE", 1)
    api.book()
    api.book(start=3)
    return api


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log, with the ids that the processes write into it."""
    tracing = TraceFilter()
    caplog.set_level(logging.INFO, logger="tenure.api.edge")
    caplog.handler.addFilter(tracing)
    yield caplog
    caplog.handler.removeFilter(tracing)


class Server:
    """A WSGI server that sends as many pieces of the list of leases as a test takes."""

    def __init__(self, api: Api, method: str = "GET") -> None:
        environ = {"PATH_INFO": "/v1/leases", "HTTP_X_AUTH_TOKEN": USERS["demo"].token, "REQUEST_METHOD": method}
        setup_testing_defaults(environ)
        self.headers: dict[str, str] = {}
        self.before = counts()
        self.body = api.app(environ, lambda status, headers: self.headers.update(headers))
        self.pieces = iter(self.body)

    @property
    def request_id(self) -> str:
        return self.headers["x-openstack-request-id"]

    @property
    def counted(self) -> dict[str, float]:
        """What was counted since, by status."""
        since = {status: count - self.before[status] for status, count in counts().items()}
        return {status: count for status, count in since.items() if count}


def counts() -> dict[str, float]:
    return {
        status: sum(
            REGISTRY.get_sample_value(
                "tenure_request_seconds_count", {"method": method, "route": "/v1/leases", "status": status}
            )
            or 0
            for method in ("GET", "HEAD")
        )
        for status in ("200", "broken", "aborted")
    }


def logged(log: pytest.LogCaptureFixture) -> list[tuple[str | None, str]]:
    """The lines about requests, and the id that each bears."""
    return [
        (getattr(record, "request_id", None), record.getMessage().rpartition(" -> ")[2])
        for record in log.records
        if " -> " in record.getMessage()
    ]


def test_a_list_is_logged_after_its_last_piece(long_list: Api, log: pytest.LogCaptureFixture) -> None:
    log.clear()
    server = Server(long_list)
    assert next(server.pieces)
    assert (server.counted, logged(log)) == ({}, [])
    assert len(list(server.pieces)) == 3
    server.body.close()
    assert server.counted == {"200": 1}
    assert logged(log) == [(server.request_id, "200")]


def test_a_list_that_breaks_off_is_no_success(long_list: Api, log: pytest.LogCaptureFixture) -> None:
    log.clear()
    server = Server(long_list)
    next(server.pieces)
    with closing(sqlite3.connect(long_list.database)) as connection:
        connection.execute("ALTER TABLE leases RENAME TO elsewhere")
    with pytest.raises(Exception, match="leases"):
        list(server.pieces)
    server.body.close()
    assert server.counted == {"broken": 1}
    assert logged(log) == [(server.request_id, "200, broken")]
    [trace] = [record for record in log.records if record.exc_info]
    assert vars(trace)["request_id"] == server.request_id


def test_a_disconnected_client_is_counted_as_aborted(long_list: Api, log: pytest.LogCaptureFixture) -> None:
    log.clear()
    server = Server(long_list)
    next(server.pieces)
    server.body.close()
    server.body.close()
    assert server.counted == {"aborted": 1}
    assert logged(log) == [(server.request_id, "200, aborted")]


def test_later_pages_belong_to_the_request(long_list: Api) -> None:
    asked: list[str | None] = []
    server = Server(long_list)
    event.listen(long_list.world.db.engine, "before_cursor_execute", lambda *_: asked.append(REQUEST_ID.get()))
    assert len(list(server.pieces)) == 4
    assert len(asked) > 0
    assert set(asked) == {server.request_id}
    assert REQUEST_ID.get() is None


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_line_of_a_request_bears_its_id(api: Api, log: pytest.LogCaptureFixture, method: str) -> None:
    server = Server(api, method)
    list(server.pieces)
    assert server.counted == {"200": 1}
    assert logged(log) == [(server.request_id, "200")]


def test_head_of_a_long_list_is_complete(long_list: Api) -> None:
    server = Server(long_list, "HEAD")
    assert list(server.pieces) == []
    assert server.counted == {"200": 1}
