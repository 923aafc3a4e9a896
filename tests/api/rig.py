"""The API over a whole service, called in process."""

from __future__ import annotations

import json
import sqlite3
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from falcon import testing

from tenure.api.app import create_app
from tenure.api.auth import TokenFileAuth, TokenUser, write_token_file
from tenure.api.schemas.resources import WireInventory
from tenure.api.versions import LATEST
from tenure.drivers.openstack.pci_aliases import PciAlias
from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tenure.enforcement.contract import EnforcementFilter
from tenure.services.manager import Manager
from tests.support.samples import InventorySamples
from tests.support.world import World, open_world

USERS = {
    name: TokenUser(f"{name}-user", name, f"{project}-project", project, roles, f"token-of-{name}-0123456789")
    for name, project, roles in (
        ("admin", "admin", ("admin", "member", "reader")),
        ("demo", "demo", ("member", "reader")),
        ("reader", "demo", ("reader",)),
        ("other", "other", ("member", "reader")),
        ("nobody", "demo", ("guest",)),
    )
}
#: Reservations of each type, in the form of every version.
HOSTS = {"resource_type": "physical:host", "min": 1, "max": 1, "hypervisor_properties": "", "resource_properties": ""}
INSTANCES = {
    "resource_type": "virtual:instance",
    "vcpus": 1,
    "memory_mb": 512,
    "disk_gb": 10,
    "amount": 1,
    "affinity": None,
    "resource_properties": "",
}
FLAVORS = {"resource_type": "flavor:instance", "flavor_id": "2", "amount": 1, "affinity": None}
NETWORK = PUBLIC_NETWORK
#: An address in a subnet of the network, outside its allocation pools.
ADDRESS = "203.0.113.10"
ADDRESSES = {"resource_type": "virtual:floatingip", "network_id": NETWORK, "amount": 1, "required_floatingips": []}


def minutes(moment: datetime) -> str:
    """Return a date in the form of 1.0."""
    return moment.strftime("%Y-%m-%d %H:%M")


def rfc3339(moment: datetime) -> str:
    """Return a date in the form of 1.1 and later versions."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Api:
    """Calls the API as a user, at a version."""

    world: World
    app: Any
    database: Path
    user: str = "demo"
    version: str | None = None
    base: Mapping[str, Any] = field(default_factory=dict)
    #: The last dump of the database, with the version of its data.
    _dumped: tuple[int, str] | None = field(default=None, init=False, repr=False, compare=False)

    def using(self, user: str | None = None, version: str | None = "") -> Api:
        return Api(
            self.world,
            self.app,
            self.database,
            self.user if user is None else user,
            self.version if version == "" else version,
            self.base,
        )

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> testing.Result:
        sent = {"Accept": "application/json"}
        if self.user in USERS:
            sent["X-Auth-Token"] = USERS[self.user].token
        if self.version is not None:
            sent["OpenStack-API-Version"] = f"reservation {self.version}"
        if raw is None and body is not None:
            raw = json.dumps(body)
        if raw is not None:
            sent["Content-Type"] = "application/json"
        sent |= headers or {}
        path, _, query = path.partition("?")
        return testing.simulate_request(
            self.app, method, path, query_string=query, body=raw, headers=sent, **(dict(self.base) | more)
        )

    def get(self, path: str, **more: Any) -> testing.Result:
        return self.call("GET", path, **more)

    def post(self, path: str, body: object = None, **more: Any) -> testing.Result:
        return self.call("POST", path, body, **more)

    def put(self, path: str, body: object = None, **more: Any) -> testing.Result:
        return self.call("PUT", path, body, **more)

    def patch(self, path: str, body: object = None, **more: Any) -> testing.Result:
        return self.call("PATCH", path, body, **more)

    def delete(self, path: str, **more: Any) -> testing.Result:
        return self.call("DELETE", path, **more)

    @property
    def now(self) -> datetime:
        return self.world.clock.now()

    def lease_body(self, *, start: float = 1, hours: float = 1, **fields: Any) -> dict[str, Any]:
        """Return the body of a lease of a host, ``start`` hours from now, in the form of this version."""
        show = minutes if self.version in {None, "1.0"} else rfc3339
        begin = self.now + timedelta(hours=start)
        return {
            "name": "lease",
            "start_date": show(begin),
            "end_date": show(begin + timedelta(hours=hours)),
            "reservations": [HOSTS],
            **fields,
        }

    def book(self, **fields: Any) -> dict[str, Any]:
        """Book a lease, and return it as the API shows it."""
        result = self.post("/v1/leases", self.lease_body(**fields))
        assert result.status_code == 201, result.text
        lease: dict[str, Any] = result.json["lease"]
        return lease

    def register_address(self, address: str = ADDRESS) -> dict[str, Any]:
        """Make an address of the external network reservable, and return it as the API shows it."""
        body = {"floating_network_id": NETWORK, "floating_ip_address": address}
        result = self.using("admin").post("/v1/floatingips", body)
        assert result.status_code == 201, result.text
        floatingip: dict[str, Any] = result.json["floatingip"]
        return floatingip

    def register_samples(
        self, wire: WireInventory, samples: InventorySamples, region: str = ""
    ) -> list[dict[str, Any]]:
        """Register what the suites need of an inventory, as an administrator, and return its resources."""
        admin, region_field = self.using("admin", LATEST.value), {"region": region} if region else {}
        for body in samples.registered:
            made = admin.post(wire.path, {**body, **region_field})
            assert made.status_code == 201, made.text
        answer = admin.get(f"{wire.path}?region={region}" if region else wire.path)
        resources: list[dict[str, Any]] = answer.json[wire.many]
        return resources

    def dump(self) -> str:
        """Return the contents of the database. They are read again only after another connection has written."""
        [version] = self._reader.execute("PRAGMA data_version").fetchone()
        if self._dumped is None or self._dumped[0] != version:
            self._dumped = version, "\n".join(self._reader.iterdump())
        return self._dumped[1]

    @cached_property
    def _reader(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.database, check_same_thread=False)
        weakref.finalize(self, connection.close)
        return connection


@contextmanager
def open_api(
    directory: Path,
    *,
    hosts: int = 4,
    public_url: str | None = None,
    url: str | None = None,
    filters: Mapping[str, EnforcementFilter] = MappingProxyType({}),
    reach: Callable[[Manager], AbstractContextManager[Manager]] = nullcontext,
    pci_aliases: Sequence[PciAlias] = (),
) -> Iterator[Api]:
    """Serve the API of a new service; ``reach`` gives the manager that the API calls, by default the service itself."""
    database = directory / "tenure.db"
    with (
        open_world(url or f"sqlite:///{database}", hosts=hosts, filters=filters, pci_aliases=pci_aliases) as world,
        reach(world.service.manager) as manager,
    ):
        yield api_over(world, directory, manager, public_url=public_url)


def api_over(world: World, directory: Path, manager: Manager | None = None, *, public_url: str | None = None) -> Api:
    """Return the API of a service whose database is in this directory."""
    for cloud in world.clouds.values():
        cloud.openstack.accounts = USERS.values()
    tokens = directory / "tokens.yaml"
    write_token_file(tokens, USERS.values())
    app = create_app(
        manager or world.service.manager,
        world.service.components.types,
        lambda inner: TokenFileAuth(inner, tokens),
        public_url=public_url,
    )
    return Api(world, app, directory / "tenure.db")
