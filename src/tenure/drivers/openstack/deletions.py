"""Deleting the servers of a reservation, as often as it takes."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from tenure.domain.reason import Reason
from tenure.drivers.contract import Progress
from tenure.drivers.openstack.compute import Compute, Server

#: How long to wait before looking again whether servers have vanished: a share of the time that it takes already.
_SHARE: Final = 4
_SOONEST: Final = timedelta(seconds=2)
_LATEST: Final = timedelta(seconds=30)
#: After which time a deletion is requested again: of a host that died, Nova deletes a server at the second request.
_STUCK: Final = timedelta(minutes=2)


def delete_servers(compute: Compute, servers: Collection[Server], *, now: datetime) -> Progress | None:
    """Request the deletion of these servers; None when they are gone, else that they are vanishing."""
    return progress_of(request_deletion(compute, servers, now=now), now=now)


def request_deletion(compute: Compute, servers: Collection[Server], *, now: datetime) -> Collection[Server]:
    """Request the deletion of these servers; return those that are still vanishing."""
    due = [server for server in servers if not server.vanishing or _is_stuck(server, now)]
    if not due:
        return servers
    compute.delete_servers(due)
    return _still_there(compute, servers)  # a fast cloud has deleted them by now


def progress_of(servers: Collection[Server], *, now: datetime) -> Progress | None:
    """Return that these servers are vanishing, and when to look again; None without servers."""
    if not servers:
        return None
    took = max(now - (server.updated_at or now) if server.vanishing else timedelta(0) for server in servers)
    wait = min(max(took / _SHARE, _SOONEST), _LATEST)
    servers_text = "1 server is" if len(servers) == 1 else f"{len(servers)} servers are"
    return Progress(False, wait, Reason(f"{servers_text} still being deleted."))


def _still_there(compute: Compute, servers: Collection[Server]) -> list[Server]:
    ids = {server.id for server in servers}
    found = compute.servers_on(server.member for server in servers if server.member)
    on_no_host = (compute.server(server.id) for server in servers if not server.member)
    return [server for server in (*found, *on_no_host) if server is not None and server.id in ids]


def _is_stuck(server: Server, now: datetime) -> bool:
    return server.updated_at is not None and now - server.updated_at > _STUCK
