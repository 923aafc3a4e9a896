"""Booting a reservation's server at its start, as its owner.

Nova gives a server its id when it accepts the boot. Until then a random key stands for it. The key is in the metadata
of the reservation's aggregate and in the hints of the boot, by which the scheduler's filter opens the host. As soon as
the id is known, it is in the metadata, too, and the filter heeds the key no more: the owner can read it in the hints of
the server, and could boot other servers with it. If Nova's answer is lost, the server is found by the digest of the
key, which is in its metadata. The filter heeds no key for longer than a quarter of an hour.

The aggregate has both the id and the key while the server is being made. Once it is made, the key is deleted.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from tenure.domain.boot import Boot
from tenure.domain.extra_specs import DEVICE_SPECS, conditions_of_flavor
from tenure.domain.footprint import footprint_of, uncounted_specs
from tenure.domain.reason import Reason
from tenure.drivers.contract import SLOWEST_BOOT, CloudBusy, CloudRefused, Command
from tenure.drivers.openstack.compute import (
    PREEMPTIBLE,
    Aggregate,
    Compute,
    Hypervisor,
    Server,
    is_preemptible,
    newest_version,
    numbers_of,
)
from tenure.drivers.openstack.flavors import Flavors
from tenure.drivers.openstack.identity import owner_of
from tenure.drivers.openstack.requests import Calls, Forbidden, NotAcceptable, Request
from tenure.drivers.reserved_servers import (
    BOOT_KEY,
    BOOTED_WITH,
    OPEN_TO,
    RESERVATION,
    WOKEN,
    excess_of,
    is_live,
    marks_of,
    named_server,
    tags_of,
)

#: The names under which Nova accepts scheduler hints, the present one first.
_HINTS: Final = ("os:scheduler_hints", "OS-SCH-HNT:scheduler_hints")
#: The first microversion in which a server can be booted with tags.
_TAGS: Final = (2, 52)
#: The statuses of servers that are no more.
GONE: Final = frozenset({"DELETED", "SOFT_DELETED"})
#: By how much Nova's clock may be behind ours. That is much, since there is no key from before the start.
_CLOCKS_DIFFER: Final = SLOWEST_BOOT


class Boots:
    """The boots of reserved servers, for one driver call."""

    def __init__(self, calls: Calls, compute: Compute, now: datetime) -> None:
        self._calls = calls
        self._compute = compute
        self._now = now

    def find(self, command: Command, aggregate: Aggregate) -> list[Server]:
        """Return the servers that were booted for the reservation and are not deleted, the oldest first.

        There is more than one only if Nova has accepted a boot without answering it in time. The marks alone are no
        proof, because owners can write metadata: a server that differs from what was booked is returned only if it is
        on the host of the reservation, to which nothing but the key has opened the way.
        """
        made, key = aggregate.metadata.get(OPEN_TO), aggregate.metadata.get(BOOT_KEY)
        if made:
            server = self._compute.server(made)
            found = [] if server is None else [server]
        elif key and command.starts_at is not None:
            since = command.starts_at - _CLOCKS_DIFFER
            found = [
                server
                for server in self._compute.servers_in(command.project_id, since=since)
                if _was_booted_with(_digest(key), server, command, aggregate)
                and (server.member in aggregate.hosts or _describe_excess(command, server.flavor) is None)
            ]
        else:
            found = []
        left = [server for server in found if server.status not in GONE and not server.vanishing]
        return sorted(left, key=lambda server: (str(server.created_at), server.id))

    def make(self, command: Command, boot: Boot, host: Hypervisor, aggregate: Aggregate) -> None:
        """Boot the server as its owner; the scheduler puts it on the host of the aggregate.

        Raises ``CloudRefused`` for a request that Nova does not accept, and if the flavor takes more than was booked;
        and ``CloudBusy`` if Nova may accept it later, as when a quota is used up.
        """
        owner = owner_of(self._calls, command, purpose="The server")
        self._check_flavor(command, boot)
        key = self._key(aggregate)
        marks = {**marks_of(command), WOKEN: host.name, BOOT_KEY: _digest(key)}
        tags = tags_of(command) if _takes_tags(boot.microversion) else ()
        body = _marked(boot.body, key, marks, tags)
        request = Request(
            "compute", "POST", "/servers", body, microversion=boot.microversion, owner=owner, is_secret=True
        )
        try:
            answer = self._calls.send(request)
        except Forbidden as error:
            raise CloudBusy(error.reason) from None
        except NotAcceptable as error:
            if boot.microversion is not None and numbers_of(boot.microversion) > newest_version(self._calls):
                raise CloudRefused(error.reason) from None
            raise
        self._compute.set_metadata(aggregate, {OPEN_TO: str(answer["server"]["id"])})

    def _key(self, aggregate: Aggregate) -> str:
        """Return the key for a boot, after opening the host to it. A key that the owner may know is not used again."""
        failed, key = aggregate.metadata.get(OPEN_TO), aggregate.metadata.get(BOOT_KEY, "")
        if failed is None and is_live(key, self._now):
            return key
        key = f"{uuid.uuid4().hex}@{int((self._now + SLOWEST_BOOT).timestamp())}"
        self._compute.set_metadata(aggregate, {BOOT_KEY: key})
        if failed is not None:  # only now, since Nova would delete it before it changes the key
            self._compute.set_metadata(aggregate, {OPEN_TO: None})
        return key

    def _check_flavor(self, command: Command, boot: Boot) -> None:
        """Raise ``CloudRefused`` if the flavor takes more than was booked: the room beside it is promised to others."""
        flavor_id = str(command.parameters.get("flavor_id"))
        if boot.flavor_id != flavor_id:
            raise CloudRefused(Reason(f"The server is of flavor {boot.flavor_id}, and {flavor_id} is booked."))
        flavor = Flavors(self._calls).get(flavor_id)
        if flavor is None:
            raise CloudRefused(Reason(f"There is no flavor {flavor_id} any more."))
        if (excess := _describe_excess(command, asdict(flavor))) is not None:
            raise CloudRefused(Reason(f"The server cannot be made. {excess}"))


def check_made(command: Command, server: Server) -> None:
    """Raise ``CloudRefused`` if a server that ``Boots.find`` has found takes more than was booked."""
    if (excess := _describe_excess(command, server.flavor)) is not None:
        raise CloudRefused(Reason(f"The server {server.id} was changed before its lease started. {excess}"))


def made_server(aggregate: Aggregate) -> str | None:
    """Return the id of the server that was made for the aggregate's reservation, or None as long as it is not made."""
    return None if BOOT_KEY in aggregate.metadata else aggregate.metadata.get(OPEN_TO)


def booted_with(aggregate: Aggregate) -> str | None:
    """Return what the aggregate keeps of the key in its metadata, once the server is made; None without a key."""
    key = aggregate.metadata.get(BOOT_KEY)
    return None if key is None else f"{_digest(key)}@{key.rpartition('@')[2]}"


def late_servers(command: Command, aggregate: Aggregate | None, servers: Iterable[Server]) -> list[Server]:
    """Return those of the servers that were booted for the reservation beside its own one, and are not deleted.

    Nova may handle a boot that it has not answered when a second one has made the server already.
    """
    if aggregate is None:
        return []
    digest, _, until = aggregate.metadata.get(BOOTED_WITH, "").rpartition("@")
    # The ledger does not know the server before all servers of the lease are made.
    own = named_server(command) or aggregate.metadata.get(OPEN_TO)
    if not digest or not until.isdigit() or not own:
        return []
    latest = datetime.fromtimestamp(int(until), UTC)
    return [
        server
        for server in servers
        if server.project_id == command.project_id
        and server.id != own
        and server.status not in GONE
        and _was_booted_with(digest, server, command, aggregate)
        and (server.created_at or latest) < latest
    ]


def _was_booted_with(digest: str, server: Server, command: Command, aggregate: Aggregate) -> bool:
    """Whether a server of the command's project has the marks of a boot for the reservation, and its age.

    Since owners can write metadata, there must be more: the key itself in the hints of the server, or if Nova does not
    show them, the host of the reservation, unless the server is on none.
    """
    is_marked = server.metadata.get(BOOT_KEY) == digest and server.metadata.get(RESERVATION) == command.reservation_id
    if not is_marked or server.created_at is None or command.starts_at is None:
        return False
    is_proven = (
        not server.member or server.member in aggregate.hosts
        if server.boot_key is None
        else _digest(server.boot_key) == digest
    )
    return is_proven and server.created_at >= command.starts_at - _CLOCKS_DIFFER


def _describe_excess(command: Command, flavor: Mapping[str, Any]) -> str | None:
    """Describe what a server of the flavor takes or demands that was not booked; None if there is nothing."""
    if uncounted := set(uncounted_specs(flavor)) - set(DEVICE_SPECS):
        return f"What its flavor asks for is not counted: {', '.join(sorted(uncounted))}."
    if is_preemptible(flavor.get("extra_specs") or {}):
        return f"Servers of its flavor give way to reservations ({PREEMPTIBLE})."
    try:
        return (
            _describe_other_devices(command, flavor)
            or excess_of(command, footprint_of(flavor).amounts)
            or _describe_other_hosts(command, flavor)
        )
    except ValueError as error:
        return str(error)


def _marked(body: Mapping[str, Any], key: str, marks: Mapping[str, str], tags: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the request with the hint, the metadata and the tags of the reservation."""
    server = dict(body["server"])
    server["metadata"] = {**(server.get("metadata") or {}), **marks}
    if tags:
        server["tags"] = [*(server.get("tags") or []), *tags]
    hints: dict[str, Any] = {}
    for place in (server, body):
        for name in _HINTS:
            hints |= place.get(name) or {}
    for name in _HINTS:
        server.pop(name, None)
    others = {name: value for name, value in body.items() if name not in _HINTS}
    return {**others, "server": server, _HINTS[0]: {**hints, BOOT_KEY: key}}


def _describe_other_hosts(command: Command, flavor: Mapping[str, Any]) -> str | None:
    """Describe what the flavor demands of hosts that was not booked; None if there is nothing."""
    booked = _booked_specs(command)
    others = [
        name
        for name, value in (flavor.get("extra_specs") or {}).items()
        if booked.get(name) != value and _chooses_hosts(flavor, name, value)
    ]
    return f"Its flavor demands of hosts what was not booked: {', '.join(sorted(others))}." if others else None


def _chooses_hosts(flavor: Mapping[str, Any], name: str, value: str) -> bool:
    """Whether an extra spec of the flavor requires or forbids traits, or is a condition on hosts."""
    alone = footprint_of({**flavor, "extra_specs": {name: value}})
    return bool(alone.required or alone.forbidden or conditions_of_flavor({name: value}).terms)


def _describe_other_devices(command: Command, flavor: Mapping[str, Any]) -> str | None:
    """Describe which devices the flavor names that were not booked; None if there are none."""
    specs, booked = flavor.get("extra_specs") or {}, _booked_specs(command)
    others = [name for name in DEVICE_SPECS if specs.get(name) not in (None, booked.get(name))]
    return f"Its flavor has other devices than were booked: {', '.join(others)}." if others else None


def _booked_specs(command: Command) -> Mapping[str, Any]:
    """Return the extra specs of the flavor as it was booked."""
    source = command.parameters.get("source")
    return dict(source.get("extra_specs") or {}) if isinstance(source, Mapping) else {}


def _digest(key: str) -> str:
    """Return what shows that a server was booted with the key, without giving it away."""
    return sha256(key.encode()).hexdigest()


def _takes_tags(microversion: str | None) -> bool:
    return microversion is not None and numbers_of(microversion) >= _TAGS
