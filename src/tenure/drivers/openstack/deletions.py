"""Deleting the servers of a reservation, as often as it takes."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from tenure.domain.reason import Reason
from tenure.drivers.contract import Progress
from tenure.drivers.openstack.compute import Compute, Server

#: How long to wait before looking again whether servers have vanished: after their deletion was ordered, and later.
_SOON: Final = timedelta(seconds=2)
_LATER: Final = timedelta(seconds=5)
#: After which time a deletion is ordered again: of a host that died, Nova deletes a server when it is told again.
_STUCK: Final = timedelta(minutes=2)


def delete_servers(compute: Compute, servers: Collection[Server], *, now: datetime) -> Progress | None:
    """Order the deletion of these; says so while they are still vanishing, and None when there are none."""
    if not servers:
        return None
    ordered = [one for one in servers if not one.vanishing or _is_stuck(one, now)]
    compute.delete_servers(ordered)
    what = "1 server is" if len(servers) == 1 else f"{len(servers)} servers are"
    return Progress(False, _SOON if ordered else _LATER, Reason(f"{what} still vanishing."))


def _is_stuck(server: Server, now: datetime) -> bool:
    return server.updated_at is not None and now - server.updated_at > _STUCK
