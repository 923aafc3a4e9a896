"""The reservations of each resource; for administrators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tenureclient.models import Allocation
from tenureclient.transport import Transport, parsed

_PAGE = 500
#: The path in the API for each type of resource.
_PATHS: Mapping[str, str] = {"host": "os-hosts", "floatingip": "floatingips"}


class Allocations:
    """The allocations of hosts, or of floating IPs: ``resource_type`` is ``host`` or ``floatingip``."""

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
        filtered = lease_id is not None or reservation_id is not None
        pages = self._transport.pages(
            _PATHS[resource_type],
            "allocations",
            items="allocations",
            query=query,
            read=Allocation.from_wire,
            feature=_feature(resource_type),
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
        answer = self._transport.call(
            "GET",
            _PATHS[resource_type],
            resource_id,
            "allocation",
            query=_filter(lease_id, reservation_id),
            feature=_feature(resource_type),
        )
        return parsed(Allocation.from_wire, answer.body.get("allocation"))


def _filter(lease_id: str | None, reservation_id: str | None) -> dict[str, str]:
    named = {"lease_id": lease_id, "reservation_id": reservation_id}
    return {key: value for key, value in named.items() if value is not None}


def _feature(resource_type: str) -> str | None:
    """Return the feature that API 1.0 lacks, in words for the user."""
    return "who has which floating IP" if resource_type == "floatingip" else None
