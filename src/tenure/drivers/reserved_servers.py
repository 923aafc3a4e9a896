"""How reserved servers are marked, in whatever cloud, and what becomes of them at the end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from tenure.domain.capacity import Capacity
from tenure.domain.footprint import footprint_of
from tenure.drivers.contract import SLOWEST_BOOT, Order

#: The type of reservations of one server that is there already, or is named later.
SERVER: Final = "virtual:server"
#: In a server's metadata: whose it is while it is reserved, what becomes of it when, and where it was woken.
LEASE: Final = "tenure:lease"
RESERVATION: Final = "tenure:reservation"
RESERVED: Final = "tenure:reserved"
AT_END: Final = "tenure:at_end"
ENDS_AT: Final = "tenure:ends_at"
WOKEN: Final = "tenure:woken"
MARKS: Final = (LEASE, RESERVATION, RESERVED, AT_END, ENDS_AT, WOKEN)
#: The tag that all reserved servers bear, by which they are found among all servers of a cloud.
TAG: Final = RESERVED
#: Where a server was woken that stays in its place.
IN_PLACE: Final = "in place"
#: In the metadata of a reservation's aggregate: which server its hosts are open to.
OPEN_TO: Final = "tenure:server"
#: How far the clocks of a cloud and ours may be apart.
CLOCKS_DIFFER: Final = timedelta(seconds=10)
#: Under which name it is kept that the server of the reservation bears its marks.
ADOPTED: Final = "adopted_server_id"


def marks_of(order: Order) -> dict[str, str]:
    """What the metadata of the order's server say."""
    return {
        LEASE: order.lease_id,
        RESERVATION: order.reservation_id,
        RESERVED: "true",
        AT_END: str(order.parameters.get("at_end", "delete")),
        ENDS_AT: f"{order.ends_at:%Y-%m-%dT%H:%M:%SZ}",
        **({WOKEN: IN_PLACE} if is_in_place(order) else {}),
    }


def tags_of(order: Order) -> tuple[str, str]:
    """The tags of the order's server, but for one in its place, which is not looked for among all."""
    return TAG, f"{LEASE}={order.lease_id}"


def metadata_of(order: Order) -> dict[str, str]:
    """What the metadata of the order's aggregate say."""
    named = named_server(order)
    return {RESERVATION: order.reservation_id, LEASE: order.lease_id} | ({} if named is None else {OPEN_TO: named})


def named_server(order: Order) -> str | None:
    """The id of the server that the order is about, None where that is not named yet."""
    named = order.parameters.get("server_id")
    return None if named is None else str(named)


def is_its_own(order: Order, server_id: str, metadata: Mapping[str, str], created_at: datetime | None) -> bool:
    """Whether a server of the order's project is the reservation's, and not one that only says so.

    Everybody can write metadata. So of what the marks say only as much counts as cannot be done by them alone: a server
    that is named is the one of that id, and where none is named it is one that was booted while the lease was held.
    What is over has no server that it never had.
    """
    named, is_marked = named_server(order), metadata.get(RESERVATION) == order.reservation_id
    if named is not None:
        return server_id == named and (is_marked or not order.is_over or order.effects.get(ADOPTED) == server_id)
    return is_marked and was_booted_for(order, created_at)


def was_booted_for(order: Order, created_at: datetime | None) -> bool:
    """Whether a server was booted while the order's lease was held, and that came to nothing."""
    if order.hold is None or created_at is None:
        return False
    return order.hold.start - CLOCKS_DIFFER <= created_at <= order.hold.end + SLOWEST_BOOT


def is_in_place(order: Order) -> bool:
    """Whether the server stays where it is."""
    return bool(order.parameters.get("in_place"))


def is_woken(order: Order, host: str, metadata: Mapping[str, str]) -> bool:
    """Whether the server was woken there for this reservation: an earlier one may have left its marks."""
    return metadata.get(WOKEN) == host and metadata.get(RESERVATION) == order.reservation_id


def fate_of(order: Order, server_id: str, created_at: datetime | None) -> str:
    """What becomes of a server when its reservation is taken back; an empty text where nothing does.

    One that was booted for a reservation which was never confirmed, or not to the end, goes. One that was to be
    reserved and never was stays as it is, and so does one that is to be kept, as soon as the reservation is over. One
    that is spared leaves its room, and that is all.
    """
    if named_server(order) is None:
        return "delete"
    if order.is_over and order.effects.get(ADOPTED) != server_id:
        return "delete" if was_booted_for(order, created_at) else ""
    fate = str(order.parameters.get("at_end", "delete"))
    if order.spared:
        fate = "" if is_in_place(order) else "shelve"
    if fate in {"delete", "snapshot"}:
        return "delete"
    return "" if order.is_over else fate


def excess_of(order: Order, taken: Capacity) -> str | None:
    """What a server that takes so much takes more than was booked for it, in words; None where it takes no more."""
    booked = size_of(order.parameters)
    larger = [
        f"{amount} {name} instead of {booked.get(name, 0)}"
        for name, amount in sorted(taken.items())
        if amount > booked.get(name, 0)
    ]
    return f"The server takes more than was booked for it: {', '.join(larger)}." if larger else None


def size_of(parameters: Mapping[str, object]) -> Capacity:
    """What the server of a reservation takes of its host."""
    source = parameters.get("source")
    if isinstance(source, Mapping):
        return footprint_of(source).amounts
    sizes = {"VCPU": "vcpus", "MEMORY_MB": "memory_mb", "DISK_GB": "disk_gb"}
    return Capacity({name: int(str(parameters.get(parameter) or 0)) for name, parameter in sizes.items()})
