"""Servers that are made at the start of their leases, as Nova shows servers. Pure: JSON in, JSON out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from tenurenova.boot import LEASE, MARK, RESERVATION
from tenurenova.shown import ASLEEP, RESERVED

#: The microversion from which a server shows the sizes of its flavor in place of the flavor's id.
EMBEDDED_FLAVOR_SINCE = (2, 47)
#: The status of a server that is still to be made, by the status of its lease; servers of other leases are gone.
_STATUSES = {
    "CREATING": RESERVED,
    "PENDING": RESERVED,
    "STARTING": "BUILD",
    "ACTIVE": "BUILD",
    "UPDATING": "BUILD",
    "ERROR": "ERROR",
}
#: The parameters of lists that do not choose servers, and those that choose what is known of a planned server.
_FORM = frozenset({"limit", "marker", "sort_key", "sort_dir", "all_tenants", "deleted"})
_KNOWN = frozenset({"name", "status", "flavor", "user_id", "project_id", "tenant_id", "uuid"})
_TRUE = frozenset({"1", "t", "true", "on", "y", "yes"})


@dataclass(frozen=True)
class ListQuery:
    """The query of a list of servers, as far as planned servers are concerned."""

    pairs: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, query: str) -> ListQuery:
        return cls(tuple(parse_qsl(query, keep_blank_values=True)))

    def all_of(self, name: str) -> list[str]:
        return [value for key, value in self.pairs if key == name]

    @property
    def is_reserved_only(self) -> bool:
        """Whether only servers with the status RESERVED are asked for, which Nova does not know."""
        return bool(self.all_of("status")) and all(status.upper() == RESERVED for status in self.all_of("status"))

    @property
    def asks_for_reserved(self) -> bool:
        return any(status.upper() == RESERVED for status in self.all_of("status"))

    @property
    def marker(self) -> str:
        return next(iter(self.all_of("marker")), "")

    @property
    def limit(self) -> int | None:
        given = next(iter(self.all_of("limit")), "")
        return int(given) if given.isascii() and given.isdigit() and len(given) < 6 else None

    @property
    def may_have_planned(self) -> bool:
        """Whether planned servers could be in the list: nothing is asked for that only real servers have."""
        return all(name in _FORM | _KNOWN or not value for name, value in self.pairs) and not self._asks_for_deleted

    @property
    def is_of_all_projects(self) -> bool:
        return any(value.lower() in _TRUE or value == "" for value in self.all_of("all_tenants"))

    @property
    def project_id(self) -> str:
        """The project that is asked for; empty if none is."""
        return next(iter([*self.all_of("project_id"), *self.all_of("tenant_id")]), "")

    @property
    def _asks_for_deleted(self) -> bool:
        return any(value.lower() in _TRUE for value in self.all_of("deleted"))

    def admits(self, server: Mapping[str, Any]) -> bool:
        """Whether the list may have this planned server, as Nova compares."""
        statuses = {status.upper() for status in self.all_of("status")}
        if statuses and server["status"] not in statuses:
            return False
        if any(not _matches(name, server["name"]) for name in self.all_of("name")):
            return False
        return all(
            value == known
            for name, known in (
                ("flavor", server["planned"]["flavor_id"]),
                ("user_id", server["user_id"]),
                ("uuid", server["id"]),
            )
            for value in self.all_of(name)
        )

    def for_nova(self, *, limit: int | None, keep_marker: bool) -> str:
        """Return the query for Nova's part of the list: it knows sleeping servers by another status."""
        pairs = [
            (name, value)
            for name, value in self.pairs
            if not (name == "status" and value.upper() == RESERVED)
            and not (name == "limit" and limit is not None)
            and not (name == "marker" and not keep_marker)
        ]
        if self.asks_for_reserved:
            pairs += [("status", status) for status in ASLEEP]
        if limit is not None:
            pairs.append(("limit", str(limit)))
        return urlencode(pairs)

    def after(self, marker: str) -> str:
        """Return the query of the page after this server."""
        return urlencode([*((name, value) for name, value in self.pairs if name != "marker"), ("marker", marker)])

    def links_after(self, marker: str, links: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return Nova's links with this query: Nova was asked for another number of servers, or by other statuses."""
        return [
            {**link, "href": urlsplit(str(link["href"]))._replace(query=self.after(marker)).geturl()}
            if link.get("rel") == "next"
            else dict(link)
            for link in links
        ]


def _matches(pattern: str, name: str) -> bool:
    """Whether a name matches, as Nova compares names: by a regular expression, anywhere in the name."""
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return pattern in name


def as_server(planned: Mapping[str, Any], microversion: tuple[int, int], base: str) -> dict[str, Any] | None:
    """Return a planned server as Nova shows one; None if its lease is over. ``base`` is the URL of the servers.

    It has one more field, ``planned``, which is not for the wire.
    """
    status = _STATUSES.get(str(planned["lease_status"]))
    if status is None:
        return None
    server = {
        "id": planned["id"],
        "name": planned["name"],
        "status": status,
        "tenant_id": planned["project_id"],
        "user_id": planned["user_id"],
        "metadata": {
            MARK: "true",
            LEASE: planned["lease_id"],
            RESERVATION: planned["id"],
            "tenure:starts_at": planned["start_date"],
            "tenure:ends_at": planned["end_date"],
        },
        "hostId": "",
        "image": "",
        "flavor": _flavor(planned, microversion),
        "created": planned["created_at"],
        "updated": planned["created_at"],
        "addresses": {},
        "accessIPv4": "",
        "accessIPv6": "",
        "links": [{"rel": "self", "href": f"{base}/{planned['id']}"}],
        "OS-DCF:diskConfig": "MANUAL",
        "progress": 0,
        "OS-EXT-AZ:availability_zone": "",
        "config_drive": "",
        "key_name": None,
        "OS-SRV-USG:launched_at": None,
        "OS-SRV-USG:terminated_at": None,
        "security_groups": [],
        "OS-EXT-STS:task_state": None,
        "OS-EXT-STS:vm_state": "building",
        "OS-EXT-STS:power_state": 0,
        "os-extended-volumes:volumes_attached": [],
        "planned": planned,
    }
    if status == "ERROR":
        server["fault"] = {
            "code": 500,
            "created": planned["created_at"],
            "message": planned["status_reason"] or "The lease could not be started.",
        }
    return server


def _flavor(planned: Mapping[str, Any], microversion: tuple[int, int]) -> dict[str, Any]:
    flavor = planned["flavor"]
    if microversion < EMBEDDED_FLAVOR_SINCE:
        return {"id": planned["flavor_id"], "links": []}
    sizes = {name: flavor.get(name) or 0 for name in ("vcpus", "ram", "disk", "ephemeral", "swap")}
    return {
        "original_name": flavor.get("name") or planned["flavor_id"],
        **sizes,
        "extra_specs": flavor.get("extra_specs") or {},
    }


def below(server: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    """Return what Nova answers to a GET below the URL of a server without ports, volumes or history.

    None if nothing can be said, as for its console.
    """
    answers: dict[str, dict[str, Any]] = {
        "ips": {"addresses": {}},
        "metadata": {"metadata": server["metadata"]},
        "os-instance-actions": {"instanceActions": []},
        "os-interface": {"interfaceAttachments": []},
        "os-security-groups": {"security_groups": []},
        "os-volume_attachments": {"volumeAttachments": []},
        "tags": {"tags": []},
    }
    return answers.get(path)


def on_the_wire(server: Mapping[str, Any], *, is_detailed: bool) -> dict[str, Any]:
    """Return the server for an answer."""
    names = server.keys() - {"planned"} if is_detailed else ("id", "name", "links")
    return {name: server[name] for name in names}


@dataclass(frozen=True)
class Page:
    """The planned servers of a page of a list, and what Nova is to be asked for the rest.

    If ``is_full``, Nova is not asked.
    """

    servers: tuple[Mapping[str, Any], ...]
    is_full: bool
    left: int | None
    keep_marker: bool


def page_of(servers: Iterable[Mapping[str, Any]], query: ListQuery) -> Page:
    """Return the planned servers of a page: they come before those of Nova."""
    found: Sequence[Mapping[str, Any]] = [server for server in servers if query.admits(server)]
    ids = [server["id"] for server in found]
    if query.marker and query.marker not in ids:
        return Page((), is_full=False, left=query.limit, keep_marker=True)
    return _first_of(found[ids.index(query.marker) + 1 :] if query.marker else found, query)


def page_after(servers: Iterable[Mapping[str, Any]], query: ListQuery, marker: Mapping[str, Any]) -> Page:
    """Return the planned servers of a page after one that is planned no more, and then Nova's from the first one."""
    position = (marker["created_at"], marker["id"])
    found = [server for server in servers if query.admits(server)]
    return _first_of([server for server in found if (server["created"], server["id"]) < position], query)


def _first_of(rest: Sequence[Mapping[str, Any]], query: ListQuery) -> Page:
    if query.limit is None:
        return Page(tuple(rest), is_full=False, left=None, keep_marker=False)
    page = Page(tuple(rest[: query.limit]), is_full=False, left=query.limit, keep_marker=False)
    left = query.limit - len(page.servers)
    return replace(page, is_full=left == 0 and query.limit > 0, left=left)
