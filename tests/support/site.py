"""Tenure beside the testbed's cloud, as operators run it: its processes, its entry in the catalogue, its hosts.

Everything is removed at the end, so that the cloud is as before, whatever a test has left.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from keystoneauth1.adapter import Adapter
from keystoneauth1.identity import V3Password
from keystoneauth1.session import Session
from kombu.connection import Connection
from sqlalchemy import create_engine, text

from testbed.commands import main as testbed_main
from testbed.places import LOG
from tests.support.bus import RABBITMQ_URL, amqp
from tests.support.cloud import REPOSITORY, Cloud
from tests.support.databases import MARIADB, fresh_database_on
from tests.support.deployment import Deployment, Options, deploy, keystone_options
from tests.support.waiting import COMMAND_SECONDS, SECONDS, patience, wait_for

FREE_POOL = "freepool"
HOSTS = ("compute-1", "compute-2", "compute-3", "compute-4")

#: The testbed's database server.
MARIADB_URL = "mysql+pymysql://root:secret@127.0.0.1:3306"

#: The oldest version at which servers are booted with no network and tell the host they were forced to.
_COMPUTE = "2.87"


def have_testbed(*arguments: str) -> None:
    """Run an action of the testbed: ``have_testbed("stop", "keystone")``."""
    subprocess.run([REPOSITORY / "testbed/cloud", *arguments], check=True, capture_output=True, timeout=COMMAND_SECONDS)


def moment(**later: float) -> str:
    """Return a time from now on in the format of API 1.1: ``moment(seconds=20)``."""
    return f"{datetime.now(UTC) + timedelta(**later):%Y-%m-%dT%H:%M:%S.%fZ}"


@dataclass(frozen=True)
class Server:
    """A server in Nova."""

    nova: Nova
    id: str

    def show(self) -> dict[str, Any] | None:
        """Return Nova's description of it, None if it is deleted."""
        answer = self.nova.api.get(f"/servers/{self.id}", raise_exc=False)
        return None if answer.status_code == 404 else dict(answer.json()["server"])

    def place(self) -> str:
        """Return its host once it runs; or its fault, with the scheduler's last message."""

        def settled() -> dict[str, Any] | None:
            found = self.show()
            assert found is not None, f"server {self.id} is gone"
            # Nova says what is wrong a moment after it says that something is.
            return found if found["status"] == "ACTIVE" or "fault" in found else None

        found = wait_for(f"server {self.id} to run", settled)
        if found["status"] != "ERROR":
            return str(found["OS-EXT-SRV-ATTR:host"])
        said = (LOG / "nova-scheduler.log").read_text(errors="replace").splitlines()
        return "\n".join([found["fault"]["message"], *said[-5:]])

    def delete(self) -> None:
        self.nova.api.delete(f"/servers/{self.id}", raise_exc=False)
        self.wait_until_gone()

    def wait_until_gone(self) -> None:
        wait_for(f"the end of server {self.id}", lambda: self.show() is None)


@dataclass
class Nova:
    """Nova, Placement and Glance as the administrator sees them; servers are booted by a given user."""

    cloud: Cloud
    admin: Session
    booted: list[Server] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api = self.cloud.service(self.admin, "compute", _COMPUTE)
        self.placement = self.cloud.service(self.admin, "placement", "1.29")
        (image,) = self.cloud.service(self.admin, "image").get("/v2/images?name=tiny").json()["images"]
        self.image = image["id"]
        self._flavor = self.flavor("m1.tiny")

    def aggregates(self) -> dict[str, dict[str, Any]]:
        return {aggregate["name"]: aggregate for aggregate in self.api.get("/os-aggregates").json()["aggregates"]}

    def members(self, aggregate: str) -> set[str] | None:
        """Return the hosts in an aggregate, None if it does not exist."""
        found = self.aggregates().get(aggregate)
        return None if found is None else set(found["hosts"])

    def providers(self) -> dict[str, dict[str, Any]]:
        return {
            provider["name"]: provider
            for provider in self.placement.get("/resource_providers").json()["resource_providers"]
        }

    def flavor(self, name: str) -> str:
        """Return the id of one of the cloud's own flavors."""
        return str(
            next(flavor["id"] for flavor in self.api.get("/flavors").json()["flavors"] if flavor["name"] == name)
        )

    def boot(self, by: Session, *, zone: str | None = None, flavor: str | None = None, **hints: str) -> Server:
        """Boot a server. With a zone such as ``nova:compute-1``, an administrator forces it onto that host."""
        made = self._boot(by, flavor, hints, {"availability_zone": zone} if zone else {})["server"]
        self.booted.append(Server(self, made["id"]))
        return self.booted[-1]

    def boot_many(self, by: Session, count: int, *, flavor: str) -> list[Server]:
        """Boot this number of servers at once."""
        made = self._boot(by, flavor, {}, {"min_count": count, "return_reservation_id": True})["reservation_id"]
        found = self.api.get(f"/servers?all_tenants=1&reservation_id={made}").json()["servers"]
        assert len(found) == count
        servers = [Server(self, server["id"]) for server in found]
        self.booted += servers
        return servers

    def _boot(
        self, by: Session, flavor: str | None, hints: Mapping[str, str], more: Mapping[str, object]
    ) -> dict[str, Any]:
        server = {
            "name": "of-a-test",
            "imageRef": self.image,
            "flavorRef": flavor or self._flavor,
            "networks": "none",
            **more,
        }
        body = {"server": server, "os:scheduler_hints": hints}
        return dict(self.cloud.service(by, "compute", _COMPUTE).post("/servers", json=body).json())

    def delete_booted(self) -> None:
        """Delete every server that was booted here, and wait until they are gone."""
        servers, self.booted = self.booted, []
        for server in servers:
            self.api.delete(f"/servers/{server.id}", raise_exc=False)
        for server in servers:
            server.wait_until_gone()

    def release(self, groups: Collection[str], hosts: Collection[str]) -> None:
        """Remove these hosts from all aggregates, delete their servers, and delete the aggregates with these names."""
        for name, found in self.aggregates().items():
            for host in set(found["hosts"]) & set(hosts):
                for server in self.api.get(f"/servers?all_tenants=1&host={host}").json()["servers"]:
                    Server(self, server["id"]).delete()
                self.api.post(f"/os-aggregates/{found['id']}/action", json={"remove_host": {"host": host}})
            if name in groups:
                self.api.delete(f"/os-aggregates/{found['id']}")


@dataclass
class Site:
    """A deployment beside the cloud, with its endpoint in the catalogue."""

    cloud: Cloud
    nova: Nova
    deployment: Deployment
    #: The topic of its notifications.
    topic: str
    #: The URL of its database.
    database: str

    def api(self, session: Session, version: str | None = "1.1", *, number: int = 0) -> Adapter:
        """Return a client of the reservation service for an account, by one of its APIs.

        Refusals are answers like others: nothing is raised for them.
        """
        return Adapter(
            session,
            service_type="reservation",
            endpoint_override=self.deployment.url(number),
            default_microversion=version,
            raise_exc=False,
        )

    @property
    def admin(self) -> Adapter:
        return self.api(self.nova.admin)

    def register(self, *names: str) -> dict[str, str]:
        """Make hosts reservable; return their ids by name."""
        return {name: answered(self.admin.post("/os-hosts", json={"name": name}), 201)["host"]["id"] for name in names}

    def book(
        self,
        by: Session,
        hosts: int = 1,
        *,
        on: str | None = None,
        start: str = "now",
        seconds: float = 3600,
        **more: object,
    ) -> Lease:
        """Book a lease of this number of hosts, or of the named one.

        It lasts from ``start`` until this number of seconds from now.
        """
        reservation = {
            "resource_type": "physical:host",
            "min": hosts,
            "max": hosts,
            "hypervisor_properties": f'["==", "$hypervisor_hostname", "{on}"]' if on else "",
        }
        return self.reserve(by, reservation, start=start, seconds=seconds, **more)

    def reserve(
        self,
        by: Session,
        *reservations: Mapping[str, object],
        start: str = "now",
        seconds: float = 3600,
        **more: object,
    ) -> Lease:
        """Book a lease of these reservations, from ``start`` until this number of seconds from now."""
        body = {
            "name": "of-a-test",
            "start_date": start,
            "end_date": moment(seconds=seconds),
            "reservations": list(reservations),
            **more,
        }
        api = self.api(by)
        lease = answered(api.post("/leases", json=body), 201)["lease"]
        return Lease(api, lease["id"], next((reservation["id"] for reservation in lease["reservations"]), ""))

    def delete_leases(self) -> None:
        """Delete all leases, and wait until nothing of them is left."""
        groups = [reservation["id"] for lease in self.leases() for reservation in lease["reservations"]]
        for lease in self.leases():
            answered(self.admin.delete(f"/leases/{lease['id']}"), 204)
        wait_for("leases to go", lambda: not self.leases())
        wait_for("their aggregates to go", lambda: not set(groups) & self.nova.aggregates().keys())

    def clear(self) -> None:
        """Delete all leases and then all hosts; wait until the cloud has returned them."""
        self.delete_leases()
        for path, name in (("/os-hosts", "hosts"), ("/floatingips", "floatingips")):
            for item in answered(self.admin.get(path), 200)[name]:
                answered(self.admin.delete(f"{path}/{item['id']}"), 204)

    def end(self) -> None:
        """Remove everything; if the service does not, remove it directly in the cloud, and raise its error."""
        try:
            self.nova.delete_booted()
            self.clear()
        except Exception:
            self.nova.release(self._ledger("SELECT id FROM reservations"), self._ledger("SELECT name FROM resources"))
            raise

    def _ledger(self, statement: str) -> list[str]:
        engine = create_engine(self.database)
        with engine.connect() as connection:
            found = [str(value) for value in connection.execute(text(statement)).scalars()]
        engine.dispose()
        return found

    def leases(self) -> list[dict[str, Any]]:
        """Return the leases of all projects."""
        return list(answered(self.admin.get("/leases"), 200)["leases"])


@dataclass(frozen=True)
class Lease:
    """A lease of one reservation, as its owner sees it."""

    api: Adapter
    id: str
    reservation: str

    def seen_by(self, api: Adapter) -> Lease:
        """Return the same lease for another user."""
        return replace(self, api=api)

    def show(self) -> dict[str, Any]:
        return dict(answered(self.api.get(f"/leases/{self.id}"), 200)["lease"])

    def show_reservation(self) -> dict[str, Any]:
        """Return its first reservation."""
        return dict(self.show()["reservations"][0])

    def hosts(self, status: str = "held") -> set[str]:
        hosts = answered(self.api.get(f"/leases/{self.id}/hosts"), 200)["hosts"]
        return {host["hypervisor_hostname"] for host in hosts if host["status"] == status}

    def change(self, status: int = 200, **body: object) -> dict[str, Any]:
        """Change it, as soon as no other work on it is under way, such as a repair."""

        def tried() -> tuple[Any] | None:
            answer = self.api.put(f"/leases/{self.id}", json=body)
            return None if "LeaseBusy" in answer.text else (answer,)  # the answer itself is false if it is an error

        (answer,) = wait_for(f"lease {self.id} not to be busy", tried)
        return dict(answered(answer, status))

    def delete(self) -> None:
        answered(self.api.delete(f"/leases/{self.id}"), 204)

    def wait_until_gone(self) -> None:
        """Wait until it is deleted, with everything in the cloud."""
        wait_for(f"lease {self.id} to go", lambda: self.api.get(f"/leases/{self.id}").status_code == 404)

    def wait(self, status: str, *, seconds: float = SECONDS) -> dict[str, Any]:
        """Wait until it has that status, and return the lease."""
        found: dict[str, Any] = {}

        def settled() -> bool:
            found.update(self.show())
            return bool(found["status"] == status)

        def standing() -> str:
            return f"lease {self.id} to be {status}: {found['status']}, {found['status_reason']}"

        wait_for(standing, settled, seconds=seconds)
        return found


def answered(answer: Any, status: int) -> Any:
    """Return the document of an answer with this status."""
    assert answer.status_code == status, f"{answer.status_code} {answer.text}"
    return answer.json() if answer.content else None


@contextmanager
def open_site(
    folder: Path,
    cloud: Cloud,
    *,
    managers: int = 1,
    apis: int = 1,
    options: Options | None = None,
    database: str | None = None,
) -> Iterator[Site]:
    """Start managers and APIs on the database at the URL, or on a new one of the testbed's own server.

    ``options`` are added to those that a deployment beside the testbed needs, or replace them.
    """
    nova = Nova(cloud, cloud.session("admin"))
    topic = f"tenure_{folder.name}_{uuid4().hex[:8]}"
    settings = {group: dict(values) for group, values in keystone_options(cloud.openrc).items()}
    settings["oslo_messaging_notifications"]["topics"] = topic
    settings["manager"] = {"rpc_topic": f"{topic}_rpc"}
    for group, values in (options or {}).items():
        settings.setdefault(group, {}).update(values)
    with ExitStack() as stack:
        servers = [f"{topic}_rpc.{folder.name}-{number}" for number in range(managers)]
        stack.callback(delete_queues, [f"{topic}.info", f"{topic}_rpc", *servers])
        if database is None:
            database = stack.enter_context(fresh_database_on(MARIADB, MARIADB_URL))
        deployment = stack.enter_context(deploy(folder, database, settings, managers=managers, apis=apis))
        stack.callback(name_in_catalogue, named_in_catalogue(cloud))
        name_in_catalogue(deployment.url())
        site = Site(cloud, nova, deployment, topic, database)
        stack.callback(site.end)
        yield site


def named_in_catalogue(cloud: Cloud) -> str | None:
    """Return the address of the reservation service in the catalogue, or None."""
    session = cloud.session("admin")
    assert isinstance(session.auth, V3Password)
    catalogue = session.auth.get_access(session).service_catalog
    return next(iter(catalogue.get_urls(service_type="reservation", interface="public")), None)


def name_in_catalogue(url: str | None) -> None:
    """Set or remove the address of the reservation service in the catalogue."""
    if testbed_main(["endpoint", *([url] if url else [])]):
        raise AssertionError("the catalogue could not be changed")


def delete_queues(names: Iterable[str], bus_url: str = RABBITMQ_URL) -> None:
    """Delete queues of a message bus with their messages; missing queues are ignored."""
    with Connection(amqp(bus_url), connect_timeout=patience()) as bus:
        for name in names:
            bus.default_channel.queue_delete(name)
