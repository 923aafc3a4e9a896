"""The services that a deployment needs and the tests do not start: on ports of the loopback."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from sqlalchemy import make_url

from tests.conftest import FreshDatabase
from tests.support.databases import POSTGRESQL
from tests.support.deployment import Options, free_port
from tests.support.forwarding import forwarding
from tests.support.openstack import OWNER, PASSWORD, FakeOpenStack
from tests.support.site import delete_queues
from tests.support.standalone import Caller
from tests.support.waiting import patience


@dataclass(frozen=True)
class Surroundings:
    """A small OpenStack, and the options of a deployment beside it, with a database and a message bus."""

    cloud: FakeOpenStack
    #: Where the API is to listen.
    port: int
    options: Options

    def caller(self, *roles: str) -> Caller:
        """Return a user of the project ``OWNER`` with these roles."""
        return Caller(self.port, self.cloud.issue(f"user-of-{OWNER}", OWNER, roles))

    def is_well(self) -> bool:
        """Whether the API answers, and says that everything is well."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthcheck", timeout=patience()) as answer:
                return int(answer.status) == 200
        except OSError:
            return False


@contextmanager
def open_surroundings(bus: str, fresh_database: FreshDatabase) -> Iterator[Surroundings]:
    """Open the surroundings of one manager and one API, on PostgreSQL; the database has no schema yet."""
    topic, port = f"tenure_{uuid4().hex[:8]}", free_port()
    with ExitStack() as stack:
        url = make_url(stack.enter_context(fresh_database(POSTGRESQL)))
        if "host" in url.query:  # a socket in a folder that only the tests see
            server = Path(str(url.query["host"])) / f".s.PGSQL.{url.query.get('port') or url.port or 5432}"
            database = stack.enter_context(forwarding(server))
            url = url.set(host="127.0.0.1", port=database.port, query={})
        cloud = stack.enter_context(FakeOpenStack(hosts=3))
        stack.callback(delete_queues, [topic, f"{topic}.single"], bus)
        account = {
            "auth_url": f"{cloud.url}/identity/v3",
            "username": "tenure",
            "password": PASSWORD,
            "user_domain_name": "Default",
            "project_name": "service",
            "project_domain_name": "Default",
        }
        options: Options = {
            "DEFAULT": {"host": "127.0.0.1", "port": port, "transport_url": bus},
            "api": {"public_url": f"http://127.0.0.1:{port}"},
            "database": {"connection": url.render_as_string(hide_password=False)},
            "manager": {"rpc_topic": topic, "name": "single"},
            "keystone_authtoken": {**account, "auth_type": "password", "www_authenticate_uri": account["auth_url"]},
            "service_auth": account,
        }
        yield Surroundings(cloud, port, options)
