"""How many requests of a project are served at a time, to the last piece of their answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from tenure.api.app import create_app
from tenure.api.auth import TokenFileAuth, write_token_file
from tenure.api.table import operations_of
from tenure.api.versions import LATEST, OLDEST, Version
from tenure.domain.actor import Actor
from tenure.domain.lease import Lease
from tenure.domain.request import LeaseQuery, Page
from tenure.resources.contract import load_types
from tenure.services.manager import Manager
from tests.api.rig import USERS
from tests.support.samples import NEEDED_QUERIES, UNKNOWN_ID, sampled_inventories
from tests.support.world import open_world

MOST = 2
#: What the path parameters stand for.
PATH_PARAMETERS = {"property_name": "rack", **{wire.path_parameter: "1" for wire, _ in sampled_inventories()}}


@dataclass
class LongLists:
    """Leases, of which a list has two pages: it is sent while it is read."""

    leases: Any
    lease: Lease

    def list(self, _actor: Actor, query: LeaseQuery) -> Page[Lease]:
        return Page((self.lease,), None if query.marker else self.lease.id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.leases, name)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Any]:
    tokens = tmp_path / "tokens.yaml"
    write_token_file(tokens, USERS.values())
    with open_world(tmp_path) as world:
        manager = world.service.manager
        long = LongLists(manager.leases, world.book(actor=Actor("demo-user", "demo-project", frozenset({"member"}))))
        yield create_app(
            Manager.of(lambda name: long if name == "leases" else getattr(manager, name), manager.health),
            world.service.components.types,
            authenticate=lambda app: TokenFileAuth(app, tokens),
            requests_of_project=MOST,
        )


def begin(
    app: Any, user: str, path: str = "/v1/leases", query: str = "", version: Version = OLDEST
) -> tuple[int, dict[str, str], Iterable[bytes]]:
    """Ask for a list; return the status, the headers and the body, of which nothing has been read."""
    environ: dict[str, Any] = {
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "HTTP_X_AUTH_TOKEN": USERS[user].token,
        "HTTP_OPENSTACK_API_VERSION": f"reservation {version.value}",
    }
    setup_testing_defaults(environ)
    started: list[Any] = []
    body = app(environ, lambda status, headers, _exc_info=None: started.extend((status, headers)))
    status, headers = started
    return int(status.split()[0]), {name.lower(): value for name, value in headers}, body


def test_clients_that_read_slowly_do_not_take_the_threads_of_other_projects(app: Any):
    slow = [begin(app, "demo") for _ in range(MOST)]
    assert [status for status, _, _ in slow] == [200] * MOST
    status, headers, body = begin(app, "demo")
    assert (status, headers["retry-after"]) == (503, "1")
    assert b"try again" in b"".join(body)
    status, _, other = begin(app, "other")
    assert status == 200
    assert b"".join(other)
    b"".join(slow[0][2])
    assert begin(app, "demo")[0] == 200
    assert begin(app, "demo")[0] == 503


def test_a_client_that_disconnects_lets_another_in(app: Any):
    (_, _, body), *_ = [begin(app, "demo") for _ in range(MOST)]
    body.close()  # type: ignore[attr-defined]  # as servers do
    assert begin(app, "demo")[0] == 200


def test_refusals_of_all_kinds_leave(app: Any):
    for _ in range(2 * MOST):
        assert begin(app, "demo", "/v1/leases/unknown")[0] == 404
        assert begin(app, "demo", "/v1/nothing")[0] == 404
        assert begin(app, "demo", "/v1/leases/unknown/nothing")[0] == 404
    assert begin(app, "demo")[0] == 200


@pytest.mark.parametrize("version", [OLDEST, LATEST])
def test_each_answer_is_complete_or_counts_until_it_is_read(app: Any, version: Version):
    """A client that reads slowly has a complete answer, or keeps a place of its project."""
    paths = {
        operation.path: operation.path.format(lease_id=UNKNOWN_ID, reservation_id=UNKNOWN_ID, **PATH_PARAMETERS)
        for operation in operations_of(tuple(load_types()))
        if operation.method == "GET" and not operation.public
    }
    sent_while_read = set()
    for name, path in paths.items():
        slow = [begin(app, "admin", path, NEEDED_QUERIES.get(name, ""), version) for _ in range(MOST)]
        assert slow[-1][0] in {200, 404}, path
        is_complete = isinstance(slow[-1][2], list)
        next_status, _, _ = begin(app, "admin", path, NEEDED_QUERIES.get(name, ""), version)
        assert next_status == (slow[-1][0] if is_complete else 503), path
        assert begin(app, "demo", f"/v1/leases/{UNKNOWN_ID}")[0] == 404
        if not is_complete:
            sent_while_read.add(name)
            for _, _, body in slow:
                body.close()  # type: ignore[attr-defined]  # as servers do
    assert ("/v1/leases" in sent_while_read) is (version is OLDEST)  # later versions have pages
