"""The fake server: Tenure on a simulated cloud, in this process, behind real HTTP."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from socketserver import ThreadingMixIn
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypedDict, Unpack
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from keystoneauth1 import session, token_endpoint
from tenure.api.app import create_app
from tenure.api.auth import TokenFileAuth, TokenUser, write_token_file
from tenure.drivers.simulated import fleet
from tenure.drivers.simulated.catalogue import FAST_POOL, SLOW_POOL
from tenure.drivers.simulated.openstack import state
from tenure.drivers.simulated.openstack.cloud import OpenStack
from tenure.simulation import Simulation, open_simulation

from tenureclient.client import Client
from tenureclient.models import Lease
from tenureclient.resources.floatingips import FloatingIP
from tenureclient.resources.hosts import Host
from tenureclient.resources.volumes import VolumePool
from tenureclient.testing.front import Front, SeenRequest
from tenureclient.wire import JsonObject, JsonValue

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

_USER, _PROJECT = "fake-user", "fake-project"
#: The token of the fake server's own requests.
_OWN_TOKEN = "token-of-the-fake-server"
_ADMINISTRATOR = ("admin", "member", "reader")


class HostFacts(TypedDict, total=False):
    """What the cloud tells of a host (default: 8 processors, 16 GB of memory, 100 GB of disk, the zone nova)."""

    vcpus: int
    memory_mb: int
    local_gb: int
    availability_zone: str


_USUAL: HostFacts = {"vcpus": 8, "memory_mb": 16384, "local_gb": 100, "availability_zone": "nova"}


class FakeServer:
    """A reservation service for tests. Use it with ``with``; the module has an example.

    ``now`` is the start time of its clock (default: the present); only ``advance`` moves the clock.
    ``versions`` are the microversions that it knows. ``page_size`` is the longest page of a list. ``token``
    has at least 16 characters; ``roles`` are those of its user, by default an administrator. With ``regions``
    there is a cloud for each of them; the first one is the home region, the default of the ``add_...``
    methods.
    """

    def __init__(
        self,
        *,
        now: datetime | None = None,
        versions: Sequence[str] = ("1.0", "1.1", "1.2", "1.3", "1.4"),
        page_size: int = 100,
        token: str = "token-of-the-tests",
        regions: Sequence[str] = (),
        roles: Sequence[str] = _ADMINISTRATOR,
    ) -> None:
        self.token = token
        with ExitStack() as stack:
            began = (now or datetime.now(UTC)).astimezone(UTC)
            self._simulation = stack.enter_context(open_simulation(began, regions=regions))
            self._front = Front(
                _app_of(self._simulation, {token: roles, _OWN_TOKEN: _ADMINISTRATOR}),
                versions=versions,
                page_size=page_size,
                settle=self._simulation.service.engine.settle,
                own_token=_OWN_TOKEN,
            )
            self._http = stack.enter_context(_HTTPServer(("127.0.0.1", 0), _Handler))
            self._http.set_app(self._front)
            thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._http.shutdown)
            self._stop = stack.pop_all().close
        self._own = Client(session.Session(auth=token_endpoint.Token(self.url, _OWN_TOKEN)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def url(self) -> str:
        """The address as in a service catalogue, with ``/v1``."""
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    @property
    def now(self) -> datetime:
        return self._simulation.clock.now()

    @property
    def requests(self) -> list[SeenRequest]:
        """The requests of clients so far, without those that this object sends itself."""
        return self._front.requests

    @property
    def leases(self) -> Mapping[str, Lease]:
        """The leases by id, as the library shows them."""
        return {lease.id: lease for lease in self._own.leases.list()}

    @property
    def hosts(self) -> Mapping[str, Host]:
        """The registered hosts by id."""
        return {host.id: host for host in self._own.hosts.list()}

    @property
    def floatingips(self) -> Mapping[str, FloatingIP]:
        """The registered addresses by id."""
        return {floatingip.id: floatingip for floatingip in self._own.floatingips.list()}

    @property
    def volume_pools(self) -> Mapping[str, VolumePool]:
        """The registered volume pools by id."""
        return {pool.id: pool for pool in self._own.volume_pools.list()}

    def client(self) -> Client:
        """Return a client of this server. When it waits, the server's clock moves instead of real time."""
        signed_in = session.Session(auth=token_endpoint.Token(self.url, self.token))
        return Client(signed_in, clock=lambda: self.now, sleep=lambda seconds: self.advance(timedelta(seconds=seconds)))

    def environment(self) -> dict[str, str]:
        """Return the variables with which ``tenure`` and ``openstack`` reach this server."""
        return {"OS_AUTH_TYPE": "admin_token", "OS_ENDPOINT": self.url, "OS_TOKEN": self.token}

    def advance(self, by: timedelta) -> None:
        """Move the clock; what is due meanwhile happens, each event at its time."""
        with self._front.lock:
            self._simulation.pass_time(by)

    def add_host(
        self,
        hypervisor_hostname: str,
        *,
        properties: Mapping[str, str] | None = None,
        region: str | None = None,
        **facts: Unpack[HostFacts],
    ) -> Host:
        """Add a host to the cloud, and register it."""
        self.add_hypervisor(hypervisor_hostname, region=region, **facts)
        return self._own.hosts.create(hypervisor_hostname, properties=properties, region=region)

    def add_hypervisor(
        self, hypervisor_hostname: str, *, region: str | None = None, **facts: Unpack[HostFacts]
    ) -> None:
        """Add a host to the cloud that can be registered, for example by ``client.hosts.create``."""
        if unknown := facts.keys() - _USUAL.keys():
            raise TypeError(f"A host has no {', '.join(sorted(unknown))} here.")
        fleet.add_single_host(self._cloud(region), hypervisor_hostname, facts={**_USUAL, **facts}, traits=())

    def mark_host(
        self, hypervisor_hostname: str, health: Literal["up", "down", "disabled"], *, region: str | None = None
    ) -> None:
        """Let the cloud report a host as down or disabled, or as up again; the service notices at once."""
        cloud = self._cloud(region)
        with self._front.lock:
            with cloud.objects.change():
                host = cloud.find_host(hypervisor_hostname)
                host.state = "down" if health == "down" else "up"
                host.status = "disabled" if health == "disabled" else "enabled"
                cloud.hosts.save(host.key)
            self._simulation.service.health_check.run()
            self._simulation.service.engine.settle()

    def add_floatingip(self, address: str, *, network_id: str = "public", region: str | None = None) -> FloatingIP:
        """Register an address of an external network, which is added to the cloud if needed."""
        cloud = self._cloud(region)
        with cloud.objects.look():
            networks = [subnet.network for subnet in cloud.subnets.values() if subnet.network_id == network_id]
        if not any(ip_address(address) in network for network in networks):
            self.add_network(network_id, str(ip_network(f"{address}/24", strict=False)), region=region)
        return self._own.floatingips.create(network_id, address, region=region)

    def add_network(self, network_id: str, cidr: str, *, region: str | None = None) -> None:
        """Add an external network whose addresses can be registered; none of them is in use.

        Another subnet is added to a network that is there.
        """
        cloud, subnet = self._cloud(region), state.Subnet(network_id, cidr, [], None)
        with cloud.objects.change():
            cloud.networks[network_id] = True
            cloud.subnets[subnet.id] = subnet

    def add_volume_pool(
        self, name: str, *, capacity_gb: int = 100, volume_type: str = "fast", region: str | None = None
    ) -> VolumePool:
        """Add a storage pool, and lend ``capacity_gb`` of it to reservations of volumes of this type."""
        self.add_storage_pool(name, volume_type=volume_type, region=region)
        return self._own.volume_pools.create(name, capacity_gb, region=region)

    def add_storage_pool(
        self, name: str, *, volume_type: str = "fast", total_gb: int = 100_000, region: str | None = None
    ) -> None:
        """Add a pool to the cloud that can be registered, for example by ``client.volume_pools.create``.

        The volume type leads to it, together with the other pools that were added for it.
        """
        cloud = self._cloud(region)
        with cloud.objects.change():
            cloud.volume_pools[name] = state.VolumePool(name, total_gb)
            types = (existing for existing in cloud.volume_types.values() if existing.name == volume_type)
            chosen = next(types, None) or state.VolumeType(volume_type)
            chosen.pools = [pool for pool in chosen.pools or () if pool not in (FAST_POOL, SLOW_POOL)] + [name]
            cloud.volume_types[chosen.id] = chosen

    def add_flavor(
        self,
        flavor_id: str,
        *,
        name: str = "",
        vcpus: int = 1,
        memory_mb: int = 1024,
        disk_gb: int = 10,
        region: str | None = None,
    ) -> None:
        """Add a flavor whose instances can be reserved."""
        cloud = self._cloud(region)
        with cloud.objects.change():
            cloud.flavors[flavor_id] = state.Flavor(flavor_id, name or flavor_id, vcpus, memory_mb, disk_gb)

    def boot_server(self, name: str = "server", *, flavor_id: str = "1", region: str | None = None) -> str:
        """Boot a server of the user on a host that is not registered; return its id."""
        cloud = self._cloud(region)
        with cloud.objects.change():
            if (flavor := cloud.flavors.get(flavor_id)) is None:
                raise LookupError(f"there is no flavor {flavor_id}")
            return cloud.scheduler.place(state.Server(name, "", _PROJECT, user_id=_USER, flavor=flavor)).id

    def set_status(self, lease_id: str, status: str, reason: str | None = None) -> None:
        """Put a lease into a status, for example ERROR with its reason."""
        with self._front.lock:
            self._simulation.set_status(lease_id, status, reason, user_id=_USER)

    def fail_next(self, *codes: int) -> None:
        """Answer the next requests with these HTTP statuses, one each."""
        self._front.failures.extend(codes)

    def refuse_next(self, code: int, name: str, message: str, **details: JsonValue) -> None:
        """Refuse the next request that would change data, for example with 403 ``OverQuota``."""
        refusal: JsonObject = {"error_code": code, "error_name": name, "error_message": message}
        self._front.refusals.append((code, {**refusal, "details": details} if details else refusal))

    def _cloud(self, region: str | None) -> OpenStack:
        """Return what is in the cloud of a region, or of the home region."""
        clouds = self._simulation.clouds
        return clouds[next(iter(clouds)) if region is None else region].openstack


def _app_of(simulation: Simulation, tokens: Mapping[str, Sequence[str]]) -> WSGIApplication:
    """Return the API for a user who has these roles with each token."""
    users = [
        TokenUser(
            user_id=_USER, user_name=_USER, project_id=_PROJECT, project_name=_PROJECT, roles=tuple(roles), token=token
        )
        for token, roles in tokens.items()
    ]
    for cloud in simulation.clouds.values():
        cloud.openstack.accounts = users
    with TemporaryDirectory(prefix="tenure-") as folder:
        path = Path(folder, "tokens.yaml")
        write_token_file(path, users)
        return create_app(
            simulation.service.manager,
            simulation.service.components.types,
            authenticate=lambda inner: TokenFileAuth(inner, path),
        )


class _HTTPServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    # Send each answer as one packet: two halves would wait for each other.
    wbufsize = -1
    disable_nagle_algorithm = True

    def get_environ(self) -> WSGIEnvironment:
        return {**super().get_environ(), "REQUEST_URI": self.path}

    def log_message(self, *arguments: object) -> None:
        """Stay silent; the tests look at ``requests``."""
