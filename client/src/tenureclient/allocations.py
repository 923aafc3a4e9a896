"""The reservations of each resource; for administrators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tenureclient.models import Allocation
from tenureclient.transport import Transport, parsed
from tenureclient.wire import Version

_PAGE = 500
#: The path in the API for each type of resource.
_PATHS: Mapping[str, str] = {"host": "os-hosts", "floatingip": "floatingips", "volumepool": "volume-pools"}
#: What older servers lack, in words for the user, and the version that has it.
_FEATURES: Mapping[str, tuple[str, Version]] = {
    "floatingip": ("who has which floating IP", Version.V1_1),
    "volumepool": ("volumes", Version.V1_2),
}


class Allocations:
    """The allocations of resources: ``resource_type`` is ``host``, ``floatingip`` or ``volumepool``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        resource_type: str = "host",
        lease_id: str | None = None,
        reservation_id: str | None = None,
    ) -> Iterator[Allocation]:
        """Yield the allocations of each host; with a filter, only of hosts with matching reservations."""
        query = {"limit": str(_PAGE), **_filter(lease_id, reservation_id)}
        feature, since = _FEATURES.get(resource_type, (None, Version.V1_1))
        filtered = lease_id is not None or reservation_id is not None
        pages = self._transport.pages(
            _PATHS[resource_type],
            "allocations",
            items="allocations",
            query=query,
            read=Allocation.from_wire,
            feature=feature,
            since=since,
        )
        for allocation in pages:
            # A server of API 1.0 also lists the other hosts, without reservations.
            if allocation.reservations or not filtered:
                yield allocation

    def get(
        self,
        resource_id: str,
        *,
        resource_type: str = "host",
        lease_id: str | None = None,
        reservation_id: str | None = None,
    ) -> Allocation:
        feature, since = _FEATURES.get(resource_type, (None, Version.V1_1))
        answer = self._transport.call(
            "GET",
            _PATHS[resource_type],
            resource_id,
            "allocation",
            query=_filter(lease_id, reservation_id),
            feature=feature,
            since=since,
        )
        return parsed(Allocation.from_wire, answer.body.get("allocation"))


def _filter(lease_id: str | None, reservation_id: str | None) -> dict[str, str]:
    named = {"lease_id": lease_id, "reservation_id": reservation_id}
    return {key: value for key, value in named.items() if value is not None}
