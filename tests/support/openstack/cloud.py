"""The small OpenStack itself: enough of Keystone, Nova, Placement, Neutron and Glance, and strict about what it takes.

It answers as Nova 2025.2 does, or, with ``nova="2.96"``, as one of before: that one tells nobody with which hints a
server was booted, and lets hosts with servers change zones.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support.openstack import shelving
from tests.support.openstack.answers import Refused, Route, Seen, expect, page_of, text, version_is
from tests.support.openstack.flavors import FakeFlavors, Flavor, ServerGroup
from tests.support.openstack.limits import FakeLimits
from tests.support.openstack.network import FakeNeutron
from tests.support.openstack.placement import FakePlacement, Provider, inventory
from tests.support.openstack.volumes import FakeCinder
from tests.support.waiting import HANG_SECONDS, patience

PASSWORD: Final = "secret"
SERVICE_USER: Final = "a11ce000000000000000000000000001"
SERVICE_PROJECT: Final = "5e41ce00000000000000000000000001"
#: The projects of owners, and the user that each has.
OWNER: Final = "b0a6f3a1c2de4c9d9a3a1f3f5f6f7a01"
NEIGHBOUR: Final = "c1b7f4b2d3ef4dae8b4b2a4a6a7a8b02"
POOL: Final = "freepool"
PREFIX: Final = "blazar_"
OWNER_KEY: Final = "blazar:owner"
#: What a list of servers is asked for beside which.
_PAGING: Final = frozenset({"all_tenants", "limit", "soft_deleted", "marker"})
#: How many metadata a server can have.
_MOST_METADATA: Final = 128
#: The bytes by which an answer is longer than need be: sent in intervals, they take ``HANG_SECONDS``.
_BLANKS: Final = 10_000
#: What servers are booted with of which it does not matter.
_SMALL: Final = Flavor("1", "m1.small")


@dataclass
class Host:
    number: int
    name: str  # of the hypervisor
    service_host: str
    state: str = "up"
    status: str = "enabled"
    reason: str | None = None
    vcpus: int = 8

    @property
    def id(self) -> str:
        return str(self.number)


@dataclass
class Server:
    name: str
    host: str  # the service's
    project_id: str
    hints: dict[str, Any] = field(default_factory=dict)
    status: str = "ACTIVE"
    task: str | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    #: What it was booted with, as that was then.
    flavor: Flavor | None = None
    group_id: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    #: The status that it goes back to when a migration is confirmed.
    before: str = "ACTIVE"
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    updated: datetime = field(default_factory=lambda: datetime.now(UTC))
    #: What was ordered for it, the last first.
    actions: list[str] = field(default_factory=list)


@dataclass
class Aggregate:
    number: int
    name: str
    metadata: dict[str, str]
    hosts: list[str] = field(default_factory=list)

    @property
    def zone(self) -> str | None:
        return self.metadata.get("availability_zone")


class FakeOpenStack(FakePlacement, FakeFlavors, FakeNeutron, FakeCinder, FakeLimits):
    """The cloud. Everything that a test does to it by its methods is done by others than Tenure."""

    def __init__(self, hosts: int = 6, *, nova: str = "2.103", pool: bool = True) -> None:
        for part in (FakePlacement, FakeFlavors, FakeNeutron, FakeCinder, FakeLimits):
            part.__init__(self)
        self.nova = nova
        self.lock = threading.RLock()
        self.hosts: dict[str, Host] = {}
        self.servers: dict[str, Server] = {}
        self.aggregates: dict[int, Aggregate] = {}
        self.images: dict[str, dict[str, Any]] = {}
        self.trusts: dict[str, dict[str, Any]] = {}
        self.tokens: dict[str, dict[str, Any]] = {}
        self.seen: list[Seen] = []
        #: What came that no OpenStack would have understood, and what took longer than anybody would have waited.
        self.surprises: list[str] = []
        self.held = False
        #: Whether shelved servers stay on their hosts until they are told to leave.
        self.keeps_shelved = False
        #: Whether there is room for servers that leave their hosts.
        self.has_room = True
        #: The hosts on which no server can be woken.
        self.closed_hosts: set[str] = set()
        #: Whether servers that are shelved and marked are shown as reserved.
        self.shows_reserved = False
        #: Whether Keystone lets no administrator delete what others made.
        self.only_trustors_delete = False
        #: How long each answer takes, in seconds.
        self.latency = 0.0
        self._answers, self._completes = threading.Event(), threading.Event()
        self._answers.set()
        self._completes.set()
        self.page = 1000
        #: Answers, given instead of what would be, until it says None.
        self.instead: Callable[[Seen], tuple[int, Any] | None] = lambda _seen: None
        #: Sees each request when it comes, before anything is done about it; several at once.
        self.observe: Callable[[Seen], None] = lambda _seen: None
        self._numbers = iter(range(1, 10**6))
        for number in range(1, hosts + 1):
            self.add_host(f"node-{number}.lab")
        if pool:
            self.add_aggregate(POOL)
        self._server = _Listener(self)
        self.port: int = self._server.server_address[1]
        self.name_address(f"http://127.0.0.1:{self.port}")

    def __enter__(self) -> FakeOpenStack:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.set()
        self._completes.set()
        self._server.stop()

    # What others do

    def name_address(self, url: str) -> None:
        """Have the catalogue say that all services are there, such as behind a proxy."""
        self.url = url
        #: Nova's endpoint, as the catalogue has it.
        self.compute_url = f"{url}/compute/v2.1"
        #: Neutron's.
        self.network_url = f"{url}/network"

    def add_host(self, name: str, **more: Any) -> Host:
        number = next(self._numbers)
        host = Host(number, name, f"compute-{number}", **more)
        self.hosts[host.service_host] = host
        if name not in {provider.name for provider in self.providers.values()}:
            self.provide(
                Provider(
                    name,
                    inventories={
                        "VCPU": inventory(host.vcpus, allocation_ratio=4.0),
                        "MEMORY_MB": inventory(16384, reserved=512),
                        "DISK_GB": inventory(200),
                    },
                    traits=["COMPUTE_NODE", "HW_CPU_X86_AVX2"],
                )
            )
        return host

    def host(self, external_id: str) -> Host:
        return next(host for host in self.hosts.values() if host.id == external_id)

    def remove_host(self, external_id: str) -> None:
        """As somebody does who deletes the compute service."""
        with self.lock:
            host = self.hosts.pop(self.host(external_id).service_host)
            self.servers = {key: one for key, one in self.servers.items() if one.host != host.service_host}
            for aggregate in self.aggregates.values():
                aggregate.hosts = [name for name in aggregate.hosts if name != host.service_host]
            roots = {one.uuid for one in self.providers.values() if one.name == host.name}
            self.providers = {
                key: one for key, one in self.providers.items() if one.uuid not in roots and one.parent not in roots
            }

    def add_aggregate(self, name: str, zone: str | None = None, hosts: tuple[str, ...] = ()) -> Aggregate:
        aggregate = Aggregate(next(self._numbers), name, {} if zone is None else {"availability_zone": zone})
        aggregate.hosts += hosts
        self.aggregates[aggregate.number] = aggregate
        return aggregate

    def aggregate(self, name: str) -> Aggregate | None:
        return next((one for one in self.aggregates.values() if one.name == name), None)

    def boot(self, service_host: str, project_id: str, reservation_id: str | None = None) -> str | None:
        """As Nova schedules it with Blazar's filter."""
        with self.lock:
            pools = [one for one in self.aggregates.values() if service_host in one.hosts and _is_pool(one)]
            if reservation_id is None:
                open_to_it = not pools
            else:
                named = [one for one in pools if one.name == reservation_id]
                open_to_it = bool(named) and named[0].metadata.get(OWNER_KEY) == project_id
            host = self.hosts.get(service_host)
            if not open_to_it or host is None or (host.state, host.status) != ("up", "enabled"):
                return None
            hints = {} if reservation_id is None else {"reservation": reservation_id}
            return self.force(service_host, project_id, **hints)

    def force(self, service_host: str, project_id: str, **hints: Any) -> str:
        server = Server("web", service_host, project_id, hints)
        self.servers[server.id] = server
        return server.id

    def boot_with(self, service_host: str, project_id: str, flavor_id: str, group_id: str | None = None) -> str | None:
        """As Nova schedules a server with a flavor, with Blazar's filter and Placement; its id."""
        with self.lock:
            flavor, host = self.flavors.get(flavor_id), self.hosts.get(service_host)
            if flavor is None or not (flavor.is_public or project_id in flavor.projects):
                return None
            if host is None or (host.state, host.status) != ("up", "enabled"):
                return None
            around = [one for one in self.aggregates.values() if service_host in one.hosts]
            asked = flavor.extra_specs.get("aggregate_instance_extra_specs:reservation")
            if asked is not None:
                if asked not in {one.metadata.get("reservation") for one in around}:
                    return None
            elif flavor.extra_specs.get("blazar:preemptible") == "true":
                if [one.name for one in around if _is_pool(one)] != [POOL]:
                    return None
            elif any(map(_is_pool, around)):
                return None
            for name, amount in flavor.extra_specs.items():
                found = re.fullmatch("resources:(CUSTOM_RESERVATION_.*)", name)
                if found and int(amount) > sum(
                    self.left(one, found[1]) for one in self.providers.values() if one.name == f"blazar_{host.name}"
                ):
                    return None
            if group_id is not None and not self._lies_well(self.groups[group_id], service_host):
                return None
            # Nova's clock has seconds: tests that ask which server is newer need not wait for the next one.
            created = datetime.now(UTC) + timedelta(seconds=len(self.servers))
            booted = replace(flavor, projects=set())
            server = Server("web", service_host, project_id, flavor=booted, group_id=group_id, created=created)
            self.servers[server.id] = server
            return server.id

    def _lies_well(self, group: ServerGroup, service_host: str) -> bool:
        others = {one.host for one in self.servers.values() if one.group_id == group.id}
        return others <= {service_host} if group.policy == "affinity" else service_host not in others

    def let_go(self) -> None:
        with self.lock:
            self.held = False
            self.servers = {key: one for key, one in self.servers.items() if one.task != "deleting"}
            for image in self.images.values():
                image["status"] = "active"
            for server in self.servers.values():
                server.task = None

    @property
    def completes(self) -> bool:
        return self._completes.is_set()

    def trickle(self) -> Iterator[bytes]:
        """Blanks, which mean nothing at the end of a JSON document, in intervals until the answer may be complete."""
        for _ in range(_BLANKS):
            if self._completes.wait(HANG_SECONDS / _BLANKS):
                return
            yield b" "
        self.surprises.append("somebody waits for the end of an answer without a limit")

    def issue(self, user: str, project: str, roles: tuple[str, ...], trust: str | None = None) -> str:
        """A token."""
        token = f"token-{uuid.uuid4().hex}"
        self.tokens[token] = {"user": user, "project": project, "roles": roles, "trust": trust}
        return token

    def hang(self) -> None:
        """Take requests and answer none, until the end of the test."""
        self._answers.clear()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Answer no request before the end of the block."""
        self.hang()
        try:
            yield
        finally:
            self._answers.set()

    @contextmanager
    def trickling(self) -> Iterator[None]:
        """Send a byte of each answer now and then, and complete none before the end of the block."""
        self._completes.clear()
        try:
            yield
        finally:
            self._completes.set()

    # Answering

    def answer(self, seen: Seen) -> tuple[int, Any, dict[str, str]]:
        if not self._answers.wait(HANG_SECONDS):
            self.surprises.append(f"somebody waits for {seen.path} without a limit")
        time.sleep(self.latency)
        self.observe(seen)
        with self.lock:
            self.seen.append(seen)
            instead = self.instead(seen)
            if instead is not None:
                return *instead, {}
            try:
                return self._route(seen)
            except Refused as refused:
                return refused.status, _error(seen.service, refused), {}

    def _route(self, seen: Seen) -> tuple[int, Any, dict[str, str]]:
        if (seen.service, seen.method, seen.path) == ("identity", "POST", "/v3/auth/tokens"):
            status, body, token = self._log_in(seen.body["auth"])
            return status, body, {"X-Subject-Token": token}
        if (seen.service, seen.method) == ("identity", "GET") and seen.path.rstrip("/") in {"", "/v3"}:
            return *self.discovery(seen.path), {}
        caller = self.tokens.get(seen.headers.get("x-auth-token", ""))
        if caller is None:
            raise Refused(401, "The request you have made requires authentication.")
        if (seen.service, seen.method, seen.path) == ("identity", "GET", "/v3/auth/tokens"):
            return *self._check_token(seen.headers.get("x-subject-token", "")), {}
        for service, method, pattern, handler in _ROUTES:
            found = re.fullmatch(pattern, seen.path)
            if (service, method) == (seen.service, seen.method) and found:
                status, body = handler(self, seen, caller, *map(unquote, found.groups()))
                return status, body, {}
        self.surprises.append(f"{seen.method} {seen.service} {seen.path}")
        raise Refused(404, "The resource could not be found.")

    def _log_in(self, auth: dict[str, Any]) -> tuple[int, Any, str]:
        user = auth["identity"]["password"]["user"]
        if (user["name"], user["password"], user["domain"]["name"]) != ("tenure", PASSWORD, "Default"):
            raise Refused(401, "The request you have made requires authentication.")
        scope = auth["scope"]
        if "OS-TRUST:trust" in scope:
            trust = self.trusts.get(scope["OS-TRUST:trust"]["id"])
            if trust is None:
                raise Refused(401, "The request you have made requires authentication.")
            if trust.get("broken"):
                raise Refused(403, "Trust is broken")
            acts_as: tuple[str, str, tuple[str, ...], str | None]
            acts_as = trust["trustor_user_id"], trust["project_id"], ("member",), trust["id"]
        else:
            assert scope["project"] == {"name": "service", "domain": {"name": "Default"}}
            acts_as = SERVICE_USER, SERVICE_PROJECT, ("admin", "service"), None
        token = self.issue(*acts_as)
        return 201, self._show_token(*acts_as[:3]), token

    def _check_token(self, token: str) -> tuple[int, Any]:
        found = self.tokens.get(token)
        if found is None:
            raise Refused(404, "Could not find token.")
        return 200, self._show_token(found["user"], found["project"], found["roles"])

    def _show_token(self, user: str, project: str, roles: tuple[str, ...]) -> Any:
        return {
            "token": {
                "methods": ["password"],
                "user": {"id": user, "name": "u", "domain": {"id": "default", "name": "Default"}},
                "project": {"id": project, "name": "p", "domain": {"id": "default", "name": "Default"}},
                "roles": [{"id": role, "name": role} for role in roles],
                "issued_at": "2026-01-01T00:00:00.000000Z",
                "expires_at": "2099-01-01T00:00:00.000000Z",
                "catalog": [
                    _catalogue_entry("identity", f"{self.url}/identity"),
                    _catalogue_entry("compute", self.compute_url),
                    _catalogue_entry("placement", f"{self.url}/placement"),
                    _catalogue_entry("image", f"{self.url}/image"),
                    _catalogue_entry("network", self.network_url),
                    _catalogue_entry("block-storage", f"{self.url}/volume/v3/{project}"),
                ],
            }
        }

    # Keystone

    def _make_trust(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        trust = dict(seen.body["trust"])
        expect(set(trust), {"trustor_user_id", "trustee_user_id", "project_id", "impersonation", "roles"})
        if token["trust"] is not None or trust["trustor_user_id"] != token["user"]:
            raise Refused(403, "The authenticated user should match the trustor")
        if not {role["name"] for role in trust["roles"]} <= set(token["roles"]):
            raise Refused(404, "Could not find role")
        trust["id"] = uuid.uuid4().hex
        self.trusts[trust["id"]] = trust
        return 201, {"trust": trust}

    def _delete_trust(self, seen: Seen, token: dict[str, Any], trust_id: str) -> tuple[int, Any]:
        trust = self.trusts.get(trust_id)
        if trust is None:
            raise Refused(404, f"Could not find trust: {trust_id}.")
        is_admin = "admin" in token["roles"] and not self.only_trustors_delete
        if token["user"] != trust["trustor_user_id"] and not is_admin:
            raise Refused(403, "You are not authorized to perform the requested action: identity:delete_trust.")
        del self.trusts[trust_id]
        return 204, None

    # Nova

    def _version(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"version": {"id": "v2.1", "version": self.nova, "min_version": "2.1", "status": "CURRENT"}}

    def _list_hypervisors(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        version_is(seen, "compute 2.33")
        found = sorted(self.hosts.values(), key=lambda host: host.number)
        marker = seen.params.get("marker")
        if marker is not None and not any(host.id == marker for host in found):
            raise Refused(400, f"Marker {marker} could not be found.")
        page, more = page_of(found, seen, lambda host: host.id, self.page)
        links = {"hypervisors_links": [{"rel": "next", "href": "next"}]} if more else {}
        return 200, {"hypervisors": [_shown_host(host) for host in page], **links}

    def _show_hypervisor(self, seen: Seen, token: dict[str, Any], number: str) -> tuple[int, Any]:
        version_is(seen, "compute 2.33")
        for host in self.hosts.values():
            if host.id == number:
                return 200, {"hypervisor": _shown_host(host)}
        raise Refused(404, f"Compute host {number} could not be found.")

    def _search_hypervisors(self, seen: Seen, token: dict[str, Any], part: str) -> tuple[int, Any]:
        version_is(seen, "compute 2.33")
        found = [host for host in self.hosts.values() if part.lower() in host.name.lower()]
        if not found:
            raise Refused(404, f"No hypervisor matching '{part}' could be found.")
        return 200, {"hypervisors": [{"id": host.number, "hypervisor_hostname": host.name} for host in found]}

    def _zones(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        zones: dict[str, dict[str, Any]] = {}
        for host in self.hosts.values():
            own = [one.zone for one in self.aggregates.values() if host.service_host in one.hosts and one.zone]
            zones.setdefault(own[0] if own else "nova", {})[host.service_host] = {"nova-compute": {"active": True}}
        zones["internal"] = {"controller": {"nova-conductor": {"active": True}}}
        return 200, {"availabilityZoneInfo": [{"zoneName": name, "hosts": hosts} for name, hosts in zones.items()]}

    def _list_aggregates(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"aggregates": [_shown_aggregate(one) for one in self.aggregates.values()]}

    def _make_aggregate(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        body = seen.body["aggregate"]
        expect(set(body), {"name", "availability_zone"})
        if self.aggregate(body["name"]) is not None:
            raise Refused(409, f"Aggregate {body['name']} already exists.")
        made = _shown_aggregate(self.add_aggregate(body["name"], body["availability_zone"]))
        del made["hosts"], made["metadata"]
        return 200, {"aggregate": made}

    def _delete_aggregate(self, seen: Seen, token: dict[str, Any], number: str) -> tuple[int, Any]:
        aggregate = self._aggregate(number)
        if aggregate.hosts:
            raise Refused(400, f"Cannot remove host from aggregate {number}. Reason: Host aggregate is not empty.")
        del self.aggregates[aggregate.number]
        return 200, None

    def _act_on_aggregate(self, seen: Seen, token: dict[str, Any], number: str) -> tuple[int, Any]:
        ((action, values),) = seen.body.items()
        actions: dict[str, Callable[..., None]] = {
            "add_host": self._add,
            "remove_host": self._remove,
            "set_metadata": self._describe,
        }
        actions[action](self._aggregate(number), **values)
        return 200, {"aggregate": _shown_aggregate(self._aggregate(number))}

    def _add(self, aggregate: Aggregate, host: str) -> None:
        if host not in self.hosts:
            raise Refused(404, f"Compute host {host} could not be found.")
        others = [one for one in self.aggregates.values() if host in one.hosts and one is not aggregate]
        zones = {one.zone for one in others if one.zone is not None}
        if aggregate.zone is not None and zones - {aggregate.zone}:
            raise Refused(409, f"Cannot add host to aggregate. Reason: already in availability zone(s) {zones}.")
        if self._is_strict and aggregate.zone is not None and not zones and self._runs(host):
            raise Refused(409, "Cannot add host to aggregate. Reason: the availability zone would change.")
        if host in aggregate.hosts:
            raise Refused(409, f"Aggregate {aggregate.number} already has host {host}.")
        aggregate.hosts.append(host)

    def _remove(self, aggregate: Aggregate, host: str) -> None:
        if host not in self.hosts or host not in aggregate.hosts:
            raise Refused(404, f"Cannot remove host {host} in aggregate {aggregate.number}")
        others = [one for one in self.aggregates.values() if host in one.hosts and one is not aggregate]
        stays = any(one.zone == aggregate.zone for one in others)
        if self._is_strict and aggregate.zone is not None and not stays and self._runs(host):
            raise Refused(409, "Cannot remove host from aggregate. Reason: the availability zone would change.")
        aggregate.hosts.remove(host)

    def _describe(self, aggregate: Aggregate, metadata: dict[str, str | None]) -> None:
        zone = metadata.get("availability_zone", aggregate.zone)
        if not zone and "availability_zone" in metadata:
            raise Refused(400, "Aggregate does not support empty named availability zone")
        if self._is_strict and zone != aggregate.zone and any(map(self._runs, aggregate.hosts)):
            raise Refused(400, "One or more hosts contain instances in this zone")
        for key, value in metadata.items():
            if value is None:
                aggregate.metadata.pop(key, None)
            else:
                aggregate.metadata[key] = value

    def _aggregate(self, number: str) -> Aggregate:
        if int(number) not in self.aggregates:
            raise Refused(404, f"Aggregate {number} could not be found.")
        return self.aggregates[int(number)]

    @property
    def _is_strict(self) -> bool:
        return self._tells_hints

    @property
    def _tells_hints(self) -> bool:
        return int(self.nova.partition(".")[2]) >= 100

    def _runs(self, host: str) -> bool:
        return any(server.host == host for server in self.servers.values())

    def _list_servers(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        expect({"all_tenants", "limit"} <= seen.params.keys(), True)
        asked = {key: value for key, value in seen.params.items() if key not in _PAGING}
        hinted = seen.headers.get("openstack-api-version") == "compute 2.100"
        if not hinted:
            version_is(seen, "compute 2.47")
        if hinted and not self._tells_hints:
            raise Refused(406, "Version 2.100 is not supported by the API.")
        found = [
            one
            for one in self.servers.values()
            if all(self._fits(one, by, value) for by, value in asked.items())
            and (one.status != "SOFT_DELETED" or "soft_deleted" in seen.params)
            and (one.status != "DELETED" or "changes-since" in seen.params)
        ]
        page, more = page_of(found, seen, lambda one: one.id, self.page)
        links = {"servers_links": [{"rel": "next", "href": "next"}]} if more else {}
        return 200, {"servers": [_shown_server(one, hinted) for one in page], **links}

    def _show_server(self, seen: Seen, token: dict[str, Any], server_id: str) -> tuple[int, Any]:
        hinted = seen.headers.get("openstack-api-version") == "compute 2.100"
        if not hinted:
            version_is(seen, "compute 2.47")
        shown = _shown_server(shelving.found(self, server_id), hinted)
        reserved = {"status": "RESERVED"} if self.shows_reserved and shown["status"].startswith("SHELVED") else {}
        return 200, {"server": {**shown, **reserved}}

    def _list_actions(self, seen: Seen, token: dict[str, Any], server_id: str) -> tuple[int, Any]:
        return 200, {"instanceActions": [{"action": one} for one in shelving.found(self, server_id).actions]}

    def _drop_metadata(self, seen: Seen, token: dict[str, Any], server_id: str, key: str) -> tuple[int, Any]:
        dropped: tuple[int, Any] = shelving.drop_metadata(self, seen, token, server_id, unquote(key))
        return dropped

    def _tag_server(self, seen: Seen, token: dict[str, Any], server_id: str, tag: str) -> tuple[int, Any]:
        return shelving.change_tags(self, seen, server_id, unquote(tag))

    def _fits(self, server: Server, by: str, value: str) -> bool:
        match by:
            case "host":
                return server.host == value
            case "project_id":
                return server.project_id == value
            case "tags":
                return set(value.split(",")) <= set(server.tags)
            case "changes-since":
                return server.updated >= datetime.fromisoformat(value)
            case "metadata":
                raise Refused(400, "Invalid filter field: metadata.")
            case "flavor":  # of one that was made anew, only what came since then
                flavor = self.flavors.get(value)
                return flavor is not None and server.flavor is not None and server.flavor.key == flavor.key
            case _:
                raise Refused(400, f"Additional properties are not allowed ('{by}' was unexpected)")

    def allocated(self, server: Server) -> dict[str, dict[str, int]]:
        """What a server has of which provider, by the provider's uuid."""
        host, flavor = self.hosts.get(server.host), server.flavor or _SMALL
        if host is None:
            return {}
        units = {
            name.removeprefix("resources:"): int(amount)
            for name, amount in flavor.extra_specs.items()
            if name.startswith("resources:CUSTOM_RESERVATION_")
        }
        sizes = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.ram, "DISK_GB": flavor.disk + flavor.ephemeral}
        parts = {host.name: sizes, f"blazar_{host.name}": units}
        return {
            one.uuid: {name: amount for name, amount in parts[one.name].items() if amount}
            for one in self.providers.values()
            if parts.get(one.name)
        }

    def used(self, provider: Provider, resource_class: str) -> int:
        return sum(
            self.allocated(server).get(provider.uuid, {}).get(resource_class, 0) for server in self.servers.values()
        )

    def _show_allocations(self, seen: Seen, token: dict[str, Any], server_id: str) -> tuple[int, Any]:
        version_is(seen, "placement 1.29")
        server = self.servers.get(server_id)
        found = self.allocated(server) if server is not None else {}
        return 200, {"allocations": {uuid: {"generation": 1, "resources": had} for uuid, had in found.items()}}

    def _tell_server(self, seen: Seen, token: dict[str, Any], server_id: str) -> tuple[int, Any]:
        expect(set(seen.body), {"metadata"})
        if server_id not in self.servers:
            raise Refused(404, f"Instance {server_id} could not be found.")
        for key, value in seen.body["metadata"].items():
            text(key)
            text(value)
        if self.servers[server_id].task == "deleting":
            raise Refused(409, f"Cannot 'update metadata' instance {server_id} while it is in task_state deleting")
        shelving.refuse_deaf(self.servers[server_id], "update metadata")
        if len(self.servers[server_id].metadata | seen.body["metadata"]) > _MOST_METADATA:
            raise Refused(403, "Maximum number of metadata items exceeds 128.")
        self.servers[server_id].metadata |= seen.body["metadata"]
        return 200, {"metadata": self.servers[server_id].metadata}

    def _act_on_server(self, seen: Seen, token: dict[str, Any], server_id: str) -> tuple[int, Any]:
        server = self.servers.get(server_id)
        if server is None or (server.project_id != token["project"] and "admin" not in token["roles"]):
            raise Refused(404, f"Instance {server_id} could not be found.")
        ((action, values),) = seen.body.items()
        if action == "forceDelete":
            expect(values, None)
            server.task, server.updated = "deleting", datetime.now(UTC)
            if not self.held:
                del self.servers[server_id]
            return 204, None
        if action == "os-stop":
            expect(values, None)
            if server.status != "ACTIVE" or server.task is not None:
                raise Refused(409, f"Cannot 'stop' instance {server_id} while it is in vm_state {server.status}")
            server.status = "SHUTOFF"
            return 202, None
        if (answer := shelving.act(self, seen, server, action, values)) is not None:
            return answer
        expect(action, "createImage")
        if server.task is not None:
            raise Refused(409, f"Cannot 'createImage' instance {server_id} while it is in task_state {server.task}")
        image = {
            "id": str(uuid.uuid4()),
            "name": values["name"],
            "owner": token["project"],
            "created_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "status": "queued" if self.held else "active",
            **values["metadata"],
        }
        self.images[image["id"]] = image
        server.task = "image_snapshot" if self.held else None
        return 202, None

    # Glance

    def _list_images(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        asked = {key: value for key, value in seen.params.items() if key not in ("limit", "marker")}
        found = [
            one for one in self.images.values() if one["owner"] == token["project"] and asked.items() <= {**one}.items()
        ]
        page, more = page_of(found, seen, lambda one: str(one["id"]), self.page)
        return 200, {"images": page, **({"next": "/v2/images?marker=x"} if more else {})}


_ROUTES: Final[tuple[Route, ...]] = (
    *FakeFlavors.FLAVORS,
    *FakePlacement.PLACEMENT,
    *FakeNeutron.NETWORK,
    *FakeCinder.VOLUMES,
    *FakeLimits.LIMITS,
    ("identity", "POST", "/v3/OS-TRUST/trusts", FakeOpenStack._make_trust),
    ("identity", "DELETE", "/v3/OS-TRUST/trusts/([^/]+)", FakeOpenStack._delete_trust),
    ("compute", "GET", "/v2.1/", FakeOpenStack._version),
    ("compute", "GET", "/v2.1/os-hypervisors/detail", FakeOpenStack._list_hypervisors),
    ("compute", "GET", "/v2.1/os-hypervisors/([0-9]+)", FakeOpenStack._show_hypervisor),
    ("compute", "GET", "/v2.1/os-hypervisors/([^/]+)/search", FakeOpenStack._search_hypervisors),
    ("compute", "GET", "/v2.1/os-availability-zone/detail", FakeOpenStack._zones),
    ("compute", "GET", "/v2.1/os-aggregates", FakeOpenStack._list_aggregates),
    ("compute", "POST", "/v2.1/os-aggregates", FakeOpenStack._make_aggregate),
    ("compute", "DELETE", "/v2.1/os-aggregates/([0-9]+)", FakeOpenStack._delete_aggregate),
    ("compute", "POST", "/v2.1/os-aggregates/([0-9]+)/action", FakeOpenStack._act_on_aggregate),
    ("compute", "GET", "/v2.1/servers/detail", FakeOpenStack._list_servers),
    ("compute", "GET", "/v2.1/servers/([^/]+)", FakeOpenStack._show_server),
    ("compute", "GET", "/v2.1/servers/([^/]+)/os-instance-actions", FakeOpenStack._list_actions),
    ("compute", "DELETE", "/v2.1/servers/([^/]+)/metadata/([^/]+)", FakeOpenStack._drop_metadata),
    ("compute", "PUT", "/v2.1/servers/([^/]+)/tags/([^/]+)", FakeOpenStack._tag_server),
    ("compute", "DELETE", "/v2.1/servers/([^/]+)/tags/([^/]+)", FakeOpenStack._tag_server),
    ("compute", "POST", "/v2.1/servers/([^/]+)/action", FakeOpenStack._act_on_server),
    ("compute", "POST", "/v2.1/servers/([^/]+)/metadata", FakeOpenStack._tell_server),
    ("placement", "GET", "/allocations/([^/]+)", FakeOpenStack._show_allocations),
    ("image", "GET", "/v2/images", FakeOpenStack._list_images),
)


class _Handling(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for an answer: in two, the second would wait for an acknowledgement
    disable_nagle_algorithm = True
    server: _Listener

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        _, service, *rest = split.path.split("/", 2)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        seen = Seen(
            service,
            self.command,
            "/" + "".join(rest),
            dict(parse_qsl(split.query)),
            json.loads(body) if body else None,
            {key.lower(): value for key, value in self.headers.items()},
            tuple(parse_qsl(split.query)),
        )
        status, answer, headers = self.server.cloud.answer(seen)
        data = b"" if answer is None else answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        blanks = 0 if self.server.cloud.completes else _BLANKS
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(data) + blanks))
        self.end_headers()
        if status == 204:
            return
        self.wfile.write(data)
        if blanks:
            sent = 0
            for blank in self.server.cloud.trickle():
                self.wfile.write(blank)
                self.wfile.flush()
                sent += 1
            self.wfile.write(b" " * (blanks - sent))

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test that fails says what was asked by itself."""


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, cloud: FakeOpenStack) -> None:
        super().__init__(("127.0.0.1", 0), _Handling)
        self.cloud = cloud
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self._thread.join(patience())
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: clients hang up as they like."""


def _is_pool(aggregate: Aggregate) -> bool:
    return aggregate.name == POOL or (aggregate.zone or "").startswith(PREFIX)


def _catalogue_entry(kind: str, url: str) -> dict[str, Any]:
    endpoints = [
        {"id": f"{kind}-{name}", "interface": name, "region": "r1", "region_id": "r1", "url": address}
        for name, address in (("internal", url), ("public", "http://127.0.0.1:1/not-for-services"))
    ]
    return {"type": kind, "name": kind, "id": kind, "endpoints": endpoints}


def _shown_host(host: Host) -> dict[str, Any]:
    return {
        "id": host.number,
        "hypervisor_hostname": host.name,
        "state": host.state,
        "status": host.status,
        "service": {"id": host.number, "host": host.service_host, "disabled_reason": host.reason},
        "vcpus": host.vcpus,
        "memory_mb": 16384,
        "local_gb": 200,
        "cpu_info": {"arch": "x86_64", "topology": {"cores": 4}},
        "hypervisor_type": "QEMU",
        "hypervisor_version": 8002002,
        "host_ip": "10.0.0.1",
    }


def _shown_aggregate(one: Aggregate) -> dict[str, Any]:
    return {
        "id": one.number,
        "name": one.name,
        "availability_zone": one.zone,
        "hosts": list(one.hosts),
        "metadata": dict(one.metadata),
        "deleted": False,
    }


def _shown_server(one: Server, hinted: bool) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "tenant_id": one.project_id,
        "user_id": f"user-of-{one.project_id}",
        "status": one.status,
        "OS-EXT-STS:task_state": one.task,
        "OS-EXT-STS:vm_state": "stopped" if one.status == "SHUTOFF" else one.status.lower(),
        "OS-EXT-SRV-ATTR:host": one.host,
        "updated": one.updated.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "created": one.created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "flavor": _shown_flavor(one.flavor or _SMALL),
        "metadata": dict(one.metadata),
        "tags": list(one.tags),
    } | ({"scheduler_hints": one.hints} if hinted else {})


def _shown_flavor(one: Flavor) -> dict[str, Any]:
    return {
        "original_name": one.name,
        "vcpus": one.vcpus,
        "ram": one.ram,
        "disk": one.disk,
        "ephemeral": one.ephemeral,
        "swap": one.swap,
        "extra_specs": dict(one.extra_specs),
    }


def _error(service: str, refused: Refused) -> Any:
    message = str(refused)
    match service:
        case "compute":
            return {"conflictingRequest": {"code": refused.status, "message": message}}
        case "placement":
            return {"errors": [{"status": refused.status, "title": "x", "detail": message, "code": refused.code}]}
        case "network":
            return {"NeutronError": {"type": "x", "message": message, "detail": ""}}
        case "volume":
            return {"itemNotFound" if refused.status == 404 else "badRequest": {"message": message}}
        case "identity":
            return {"error": {"code": refused.status, "message": message, "title": "x"}}
        case _:
            return f"<html>{message}</html>".encode()


def paths(cloud: FakeOpenStack, method: str = "GET") -> Iterator[str]:
    """What was asked for so."""
    return (seen.path for seen in cloud.seen if seen.method == method)
