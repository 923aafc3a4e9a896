"""Nova: hypervisors, aggregates and servers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from tenure.drivers.contract import CloudAmbiguous, CloudBusy, CloudError, CloudNotFound, ResourceRef
from tenure.drivers.openstack.pages import PageStarts, read_pages, starts_among
from tenure.drivers.openstack.requests import Calls, Conflict, Request
from tenure.drivers.reserved_servers import BOOT_KEY

#: The newest microversion with pages of hypervisors that shows their sizes and has numeric ids, as Blazar uses them.
_HYPERVISORS: Final = "2.33"
#: The first microversion that shows a server's scheduler hints.
_HINTS: Final = (2, 100)
#: The first microversion that shows the flavor a server was booted with.
_FLAVORS: Final = "2.47"
#: The first microversion with server tags.
_TAGS: Final = "2.26"
_PAGE: Final = "1000"
#: Nova's status of shelved servers, by their VM state.
_PUT_AWAY: Final = {"shelved": "SHELVED", "shelved_offloaded": "SHELVED_OFFLOADED"}
#: The extra spec of flavors for preemptible servers, which use reserved resources until these are needed.
PREEMPTIBLE: Final = "blazar:preemptible"
_TRUE: Final = frozenset({"1", "t", "true", "on", "y", "yes"})
#: The extra spec that limits a reservation's flavor to the hosts of its aggregate; no other flavor has it.
SCOPED_KEY: Final = "aggregate_instance_extra_specs:reservation"
#: The prefix of the names of reservations' flavors and server groups; the reservation id follows.
FLAVOR_PREFIX: Final = "reservation:"
#: The format of server ids; other texts could change the path of the request.
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: The format of hypervisor names, for the same reason.
_NAME: Final = re.compile(r"[^\s/\\?#%;]{1,255}")


#: The prefix of the metadata key by which an aggregate contains a node of Ironic; the name of the node follows.
_NODE: Final = "tenure:node:"


def is_node(name: str) -> bool:
    """Whether this is the name of a node of Ironic: Nova names nodes by their UUIDs, and no other hypervisor."""
    return _UUID.fullmatch(name) is not None


def member_name(service_host: str, name: str) -> str:
    """Return the name of a host as a member of aggregates: of its compute service, or of the node of Ironic.

    The nodes of one service of Ironic are hosts of their own. Nova's aggregates have services only; they contain nodes
    by their metadata.
    """
    return name if is_node(name) else service_host


def node_key(name: str) -> str:
    """Return the metadata key by which an aggregate contains a node of Ironic."""
    return f"{_NODE}{name}"


def nodes_in(metadata: Iterable[str]) -> frozenset[str]:
    """Return the names of the nodes of Ironic in an aggregate with these metadata."""
    return frozenset(key.removeprefix(_NODE) for key in metadata if key.startswith(_NODE))


@dataclass(frozen=True, slots=True)
class Hypervisor:
    """A compute host. Aggregates and servers know it by ``member``, Placement by ``name``."""

    external_id: str
    name: str
    service_host: str
    up: bool
    enabled: bool
    disabled_reason: str | None
    facts: Mapping[str, object]

    @property
    def member(self) -> str:
        return member_name(self.service_host, self.name)

    @property
    def ref(self) -> ResourceRef:
        return ResourceRef(self.external_id, self.name)


@dataclass(frozen=True, slots=True)
class Aggregate:
    id: int
    name: str
    zone: str | None
    #: The names of its members: of compute services, and of nodes of Ironic.
    hosts: frozenset[str]
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Server:
    id: str
    name: str
    project_id: str
    #: The name, as a member of aggregates, of the host that it is on; empty if it is on none.
    member: str
    status: str
    task: str | None
    #: The reservations in its scheduler hints; None if this Nova does not show hints.
    reservations: frozenset[str] | None = field(default=None)
    #: The key in its scheduler hints by which it was made for a reservation; None if this Nova does not show hints.
    boot_key: str | None = field(default=None, repr=False)
    #: When it was last changed.
    updated_at: datetime | None = None
    #: The reservation whose flavor it was booted with, or the name of its flavor.
    flavor_of: str | None = None
    created_at: datetime | None = None
    #: Whether it must make way for reservations: it has a preemptible flavor, and was not booted for a reservation.
    preemptible: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    user_id: str = ""
    #: Whether it was booted with the flavor of an instance reservation.
    is_of_instances: bool = False
    #: The flavor it was booted with, or resized to, as Nova shows it with the server.
    flavor: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def vanishing(self) -> bool:
        return self.task == "deleting"


class Compute:
    """Nova's API, for one driver call."""

    def __init__(self, calls: Calls, shows_hints: bool, starts: PageStarts | None = None) -> None:
        """``starts`` are the page starts of hypervisors that are remembered between driver calls."""
        self._calls = calls
        self.shows_hints = shows_hints
        self._starts = starts or PageStarts()

    # Hypervisors

    def hypervisors(self) -> list[Hypervisor]:
        """Return all hypervisors, unordered; raise ``CloudBusy`` if some pages are missing."""
        found, missing = self.hypervisors_arrived(tuple)
        if missing is not None:
            raise CloudBusy(missing)
        return found

    def hypervisors_arrived(self, known: Callable[[], Sequence[str]]) -> tuple[list[Hypervisor], str | None]:
        """Return the hypervisors that Nova has sent, unordered, and a text about missing pages or None.

        ``known`` returns ids of existing hypervisors; it is called if no page starts are remembered. Raises
        ``CloudError`` if Nova sends nothing.
        """
        found, missing = read_pages(
            self._calls,
            lambda params: Request(
                "compute", "GET", "/os-hypervisors/detail", params=params, microversion=_HYPERVISORS
            ),
            self._starts.markers or starts_among(known()),
        )
        hypervisors = list(map(_hypervisor, found.values()))
        if not missing:
            self._starts.remember(list(found))
            return hypervisors, None
        parts = ", ".join("the first hosts" if marker is None else f"the hosts after {marker}" for marker in missing)
        return hypervisors, f"Nova has not sent {parts}: {next(iter(missing.values()))}"

    def hypervisor(self, reference: str) -> Hypervisor:
        """Return the hypervisor with that id or name."""
        if _is_id(reference):
            try:
                return self.hypervisors_of([reference])[0]
            except CloudNotFound:
                pass
        if not _NAME.fullmatch(reference) or reference in {".", ".."}:
            raise CloudNotFound(f"Nova has no host {reference[:255]}.")
        try:
            found = self._get(f"/os-hypervisors/{reference}/search", {}, _HYPERVISORS)["hypervisors"]
        except CloudNotFound:
            found = []
        same = [str(hypervisor["id"]) for hypervisor in found if hypervisor["hypervisor_hostname"] == reference]
        if not same:
            raise CloudNotFound(f"Nova has no host {reference}.")
        if len(same) > 1:
            raise CloudAmbiguous(f"Several hosts of Nova are named {reference}.")
        return self.hypervisors_of(same)[0]

    def hypervisors_of(self, external_ids: Sequence[str]) -> list[Hypervisor]:
        """Return the hypervisors with these ids, in order; raise ``CloudNotFound`` if one does not exist."""
        found = self.hypervisors_known(external_ids)
        for external_id in external_ids:
            if external_id not in found:
                raise CloudNotFound(f"Nova has no host {external_id} any more.")
        return [found[external_id] for external_id in external_ids]

    def hypervisors_known(self, external_ids: Sequence[str]) -> dict[str, Hypervisor]:
        """Return those of these hypervisors that exist, by id."""
        valid_ids = [external_id for external_id in external_ids if _is_id(external_id)]
        if len(valid_ids) > 8:
            id_set = set(valid_ids)
            return {
                hypervisor.external_id: hypervisor
                for hypervisor in self.hypervisors()
                if hypervisor.external_id in id_set
            }
        answers = self._calls.send_all(
            [
                Request("compute", "GET", f"/os-hypervisors/{external_id}", microversion=_HYPERVISORS)
                for external_id in valid_ids
            ]
        )
        found: dict[str, Hypervisor] = {}
        for external_id, answer in zip(valid_ids, answers, strict=True):
            if isinstance(answer, CloudNotFound):
                continue
            if isinstance(answer, CloudError):
                raise answer
            found[external_id] = _hypervisor(answer["hypervisor"])
        return found

    def zones(self) -> dict[str, str]:
        """Return the availability zone of each host, by service host."""
        zones = self._get("/os-availability-zone/detail")["availabilityZoneInfo"]
        return {
            host: zone["zoneName"]
            for zone in zones
            for host, services in (zone.get("hosts") or {}).items()
            if "nova-compute" in services
        }

    # Aggregates

    def aggregates(self) -> list[Aggregate]:
        return [_aggregate(aggregate) for aggregate in self._get("/os-aggregates")["aggregates"]]

    def make_aggregate(self, name: str, zone: str | None = None) -> Aggregate:
        body = {"aggregate": {"name": name, "availability_zone": zone}}
        made = self._post("/os-aggregates", body)["aggregate"]
        return Aggregate(made["id"], made["name"], made["availability_zone"], frozenset(), {})

    def set_metadata(self, aggregate: Aggregate, metadata: Mapping[str, str | None]) -> None:
        """Change these metadata; raise ``CloudBusy`` if the aggregate was deleted meanwhile."""
        try:
            self._post(f"/os-aggregates/{aggregate.id}/action", {"set_metadata": {"metadata": dict(metadata)}})
        except CloudNotFound:
            raise CloudBusy(f"The aggregate {aggregate.name} was deleted meanwhile.") from None

    def announce(self, aggregate: Aggregate) -> None:
        """Send the aggregate's current state to the schedulers; nothing is changed.

        Nova notifies schedulers of each change with the state that the changing request has seen. Concurrent requests
        do not see each other's changes, so the schedulers' last state may lack some of them.
        """
        self.set_metadata(aggregate, {})

    def delete_aggregate(self, aggregate: Aggregate) -> None:
        self._calls.send(Request("compute", "DELETE", f"/os-aggregates/{aggregate.id}"))

    def add_hosts(self, aggregate: Aggregate, hosts: Iterable[str]) -> dict[str, CloudError]:
        """Add hosts concurrently; return the errors by host. A host that is already there is a ``Conflict``."""
        nodes, services = _nodes_and_services(hosts)
        return self._each(aggregate, "add_host", services) | self._mark(aggregate, nodes, "true")

    def remove_hosts(self, aggregate: Aggregate, hosts: Iterable[str]) -> dict[str, CloudError]:
        """Remove hosts concurrently; return the errors by host. A host that is not in the aggregate is ignored."""
        nodes, services = _nodes_and_services(hosts)
        errors = self._each(aggregate, "remove_host", services) | self._mark(aggregate, nodes, None)
        return {host: error for host, error in errors.items() if not isinstance(error, CloudNotFound)}

    def _mark(self, aggregate: Aggregate, nodes: Sequence[str], value: str | None) -> dict[str, CloudError]:
        """Set the metadata by which the aggregate contains these nodes; return the errors by node.

        As Nova does with services, it lets no node with servers into the zone of a reservation, nor out of it.
        """
        if not nodes:
            return {}
        servers = self.servers_on(nodes) if aggregate.zone is not None else []
        errors: dict[str, CloudError] = {
            server.member: Conflict(f"{server.member} has servers, and cannot change its availability zone.")
            for server in servers
        }
        metadata = {node_key(node): value for node in nodes if node not in errors}
        if metadata:
            try:
                self._post(f"/os-aggregates/{aggregate.id}/action", {"set_metadata": {"metadata": metadata}})
            except CloudError as error:
                errors |= {node: error for node in nodes if node not in errors}
        return errors

    def _each(self, aggregate: Aggregate, action: str, hosts: Sequence[str]) -> dict[str, CloudError]:
        answers = self._calls.send_all(
            [
                Request("compute", "POST", f"/os-aggregates/{aggregate.id}/action", {action: {"host": host}})
                for host in hosts
            ]
        )
        return {host: answer for host, answer in zip(hosts, answers, strict=True) if isinstance(answer, CloudError)}

    # Servers

    def servers_on(self, hosts: Iterable[str]) -> list[Server]:
        """Return the servers of all projects on these hosts.

        Includes servers that are being deleted, and soft-deleted servers.
        """
        nodes, services = _nodes_and_services(hosts)
        found = self._servers([*({"host": host} for host in services), *({"node": node} for node in nodes)])
        members = {*nodes, *services}
        # Those on the nodes of a service are not on the service.
        return [server for server in found if server.member in members]

    def servers_of_flavor(self, flavor_id: str) -> list[Server]:
        """Return the servers of all projects with this flavor, also those on no host.

        Empty if the flavor does not exist. If it was deleted and created again, only servers since then.
        """
        return self._servers([{"flavor": flavor_id}])

    def servers_in(self, project_id: str, *, since: datetime | None = None) -> list[Server]:
        """Return all servers of a project, or those that were created, changed or deleted since then.

        Nova lists a server among changes only once something of it was changed. One that its conductor has just created
        is in the status BUILD; those are listed before the changes, so that none is missed.
        """
        project = {"project_id": project_id}
        if since is None:
            return self._servers([project])
        building = self._servers([{**project, "status": "BUILD"}])
        changed = self._servers([{**project, "changes-since": since.isoformat()}])
        known = {server.id for server in changed}
        return [*changed, *(server for server in building if server.id not in known)]

    def servers_tagged(self, tag: str) -> list[Server]:
        """Return the servers of all projects with this tag; Nova sends no others."""
        return self._servers([{"tags": tag}])

    def page_of_servers(self, since: datetime | None, after: str | None) -> tuple[list[Server], str | None]:
        """Return a page of the servers of all projects after a marker, and the marker of the next page or None.

        With ``since`` these are the servers that were created, changed or deleted since then, otherwise those that
        exist. Raises ``BadRequest`` if Nova does not know the server of the marker.
        """
        params = {"all_tenants": "1", "limit": _PAGE}
        params |= {} if since is None else {"changes-since": since.isoformat()}
        params |= {} if after is None else {"marker": after}
        answer = self._get("/servers/detail", params, self._server_version)
        found = [_server(server, self.shows_hints) for server in answer["servers"]]
        return found, found[-1].id if _has_next(answer.get("servers_links")) else None

    def server(self, server_id: str) -> Server | None:
        """Return the server with that id, of any project, or None."""
        if not _UUID.fullmatch(server_id):
            return None
        try:
            found = self._get(f"/servers/{server_id}", None, self._server_version)["server"]
        except CloudNotFound:
            return None
        return _server(found, self.shows_hints)

    def last_action(self, server_id: str) -> str | None:
        """Return the last action on a server, by any user."""
        actions = self._get(f"/servers/{server_id}/os-instance-actions")["instanceActions"]
        return str(actions[0]["action"]) if actions else None

    def set_server_metadata(self, server_id: str, metadata: Mapping[str, str]) -> None:
        """Set these metadata. Raises ``Conflict`` while another operation on the server is in progress."""
        self._post(f"/servers/{server_id}/metadata", {"metadata": dict(metadata)})

    def drop_server_metadata(self, server_id: str, key: str) -> None:
        """Delete this key of the metadata. Raises the errors of ``set_server_metadata``."""
        with suppress(CloudNotFound):
            self._calls.send(Request("compute", "DELETE", f"/servers/{server_id}/metadata/{quote(key, safe='')}"))

    def tag_server(self, server_id: str, tag: str) -> None:
        """Add the tag.

        Raises the errors of ``set_server_metadata``, and ``BadRequest`` if the server has too many tags.
        """
        self._calls.send(Request("compute", "PUT", _tag(server_id, tag), microversion=_TAGS))

    def untag_server(self, server_id: str, tag: str) -> None:
        """Remove the tag. Raises the errors of ``set_server_metadata``."""
        with suppress(CloudNotFound):
            self._calls.send(Request("compute", "DELETE", _tag(server_id, tag), microversion=_TAGS))

    def act_on_server(self, server_id: str, body: Mapping[str, Any], microversion: str | None = None) -> None:
        """Start an action. Raises ``Conflict`` while another operation on the server is in progress."""
        self._calls.send(Request("compute", "POST", f"/servers/{server_id}/action", body, microversion=microversion))

    def _servers(self, filters: Iterable[Mapping[str, str]]) -> list[Server]:
        base = {"all_tenants": "1", "soft_deleted": "1", "limit": _PAGE}
        pending = [{**base, **own_filter} for own_filter in filters]
        found: list[Server] = []
        while pending:
            answers = self._calls.send_all(
                [
                    Request("compute", "GET", "/servers/detail", params=params, microversion=self._server_version)
                    for params in pending
                ]
            )
            following = []
            for params, answer in zip(pending, answers, strict=True):
                if isinstance(answer, CloudError):
                    raise answer
                found += [_server(server, self.shows_hints) for server in answer["servers"]]
                if _has_next(answer.get("servers_links")):
                    following.append({**params, "marker": answer["servers"][-1]["id"]})
            pending = following
        return found

    def delete_servers(self, servers: Sequence[Server]) -> None:
        """Delete servers, also those that Nova would only soft-delete. Missing servers are ignored."""
        answers = self._calls.send_all(
            [Request("compute", "POST", f"/servers/{server.id}/action", {"forceDelete": None}) for server in servers]
        )
        errors = [answer for answer in answers if isinstance(answer, CloudError)]
        for error in errors:
            if not isinstance(error, CloudNotFound):
                raise error

    def set_metadata_of_servers(self, changes: Sequence[tuple[Server, Mapping[str, str]]]) -> list[CloudError]:
        """Set these metadata on servers; return the errors. Missing and busy servers are ignored."""
        return self._act(
            [(f"/servers/{server.id}/metadata", {"metadata": dict(metadata)}) for server, metadata in changes]
        )

    def stop_servers(self, servers: Sequence[Server]) -> list[CloudError]:
        """Shut servers down by their operating systems; return the errors. Missing and busy servers are ignored."""
        return self._act([(f"/servers/{server.id}/action", {"os-stop": None}) for server in servers])

    def _act(self, bodies: Sequence[tuple[str, Mapping[str, Any]]]) -> list[CloudError]:
        answers = self._calls.send_all([Request("compute", "POST", path, body) for path, body in bodies])
        errors = [answer for answer in answers if isinstance(answer, CloudError)]
        return [error for error in errors if not isinstance(error, CloudNotFound | Conflict)]

    @property
    def _server_version(self) -> str:
        return "2.100" if self.shows_hints else _FLAVORS

    def _get(self, path: str, params: Mapping[str, str] | None = None, microversion: str | None = None) -> Any:
        return self._calls.send(Request("compute", "GET", path, params=params or {}, microversion=microversion))

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._calls.send(Request("compute", "POST", path, body))


def shows_hints(calls: Calls) -> bool:
    """Whether this Nova shows the scheduler hints of servers."""
    return newest_version(calls) >= _HINTS


def newest_version(calls: Calls) -> tuple[int, int]:
    """Return the newest microversion of this Nova."""
    newest = calls.send(Request("compute", "GET", "/"))["version"].get("version") or "2.1"
    return numbers_of(str(newest))


def numbers_of(microversion: str) -> tuple[int, int]:
    """Return the numbers of a microversion, by which versions are compared."""
    major, _, minor = microversion.partition(".")
    return int(major), int(minor or 0)


def _nodes_and_services(hosts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return which of these members of aggregates are nodes of Ironic, and which are compute services."""
    names = sorted(set(hosts))
    return [name for name in names if is_node(name)], [name for name in names if not is_node(name)]


def _tag(server_id: str, tag: str) -> str:
    return f"/servers/{server_id}/tags/{quote(tag, safe='')}"


def _is_id(reference: str) -> bool:
    return reference.isascii() and reference.isdigit() and len(reference) < 18 and str(int(reference)) == reference


def _has_next(links: Sequence[Mapping[str, str]] | None) -> bool:
    return any(link.get("rel") == "next" for link in links or ())


def _hypervisor(found: Mapping[str, Any]) -> Hypervisor:
    cpu_info = found.get("cpu_info") or ""
    facts = {
        "vcpus": int(found.get("vcpus") or 0),
        "cpu_info": cpu_info if isinstance(cpu_info, str) else json.dumps(cpu_info, sort_keys=True),
        "hypervisor_type": found.get("hypervisor_type") or "",
        "hypervisor_version": int(found.get("hypervisor_version") or 0),
        "hypervisor_hostname": found["hypervisor_hostname"],
        "service_name": found["service"]["host"],
        "memory_mb": int(found.get("memory_mb") or 0),
        "local_gb": int(found.get("local_gb") or 0),
    }
    return Hypervisor(
        external_id=str(found["id"]),
        name=found["hypervisor_hostname"],
        service_host=found["service"]["host"],
        up=found["state"] == "up",
        enabled=found["status"] == "enabled",
        disabled_reason=found["service"].get("disabled_reason"),
        facts=facts,
    )


def _aggregate(found: Mapping[str, Any]) -> Aggregate:
    metadata = dict(found.get("metadata") or {})
    return Aggregate(
        id=found["id"],
        name=found["name"],
        zone=found.get("availability_zone"),
        hosts=frozenset(found.get("hosts") or ()) | nodes_in(metadata),
        metadata=metadata,
    )


def _server(found: Mapping[str, Any], shows_hints: bool) -> Server:
    hinted = (found.get("scheduler_hints") or {}).get("reservation") or ()
    flavor = found.get("flavor") or {}
    specs = flavor.get("extra_specs") or {}
    return Server(
        id=found["id"],
        name=found.get("name") or "",
        project_id=found["tenant_id"],
        member=member_name(
            found.get("OS-EXT-SRV-ATTR:host") or "", found.get("OS-EXT-SRV-ATTR:hypervisor_hostname") or ""
        ),
        # The reservation middleware may show a shelved server with another status.
        status=_PUT_AWAY.get(found.get("OS-EXT-STS:vm_state") or "") or found.get("status") or "",
        task=found.get("OS-EXT-STS:task_state"),
        reservations=frozenset([hinted] if isinstance(hinted, str) else hinted) if shows_hints else None,
        boot_key=_boot_key(found.get("scheduler_hints") or {}) if shows_hints else None,
        updated_at=instant(found.get("updated")),
        flavor_of=str(flavor.get("original_name") or "").removeprefix(FLAVOR_PREFIX) or None,
        created_at=instant(found.get("created")),
        preemptible=is_preemptible(specs) and not (shows_hints and hinted),
        metadata=dict(found.get("metadata") or {}),
        tags=frozenset(found.get("tags") or ()),
        user_id=found.get("user_id") or "",
        is_of_instances=SCOPED_KEY in specs,
        flavor=flavor,
    )


def _boot_key(hints: Mapping[str, Any]) -> str:
    key = hints.get(BOOT_KEY) or ""
    return str(key[0] if isinstance(key, list) else key)


def is_preemptible(extra_specs: Mapping[str, str]) -> bool:
    """Whether servers with these extra specs may be deleted for reservations.

    Servers with a reservation's flavor are not preemptible, even if the flavor was made from a preemptible one.
    """
    return SCOPED_KEY not in extra_specs and str(extra_specs.get(PREEMPTIBLE, "")).strip().lower() in _TRUE


def instant(text: str | None) -> datetime | None:
    """Parse a time as Nova and Glance write it, such as ``2026-11-21T14:50:21Z``."""
    if not text:
        return None
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
