"""How reserved servers are marked, and their fate at the end, in any cloud."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from tenure.domain.capacity import Capacity
from tenure.domain.footprint import footprint_of
from tenure.drivers.contract import SLOWEST_BOOT, Command

#: The type of reservations for a single server, which exists already or is named later.
SERVER: Final = "virtual:server"
#: Metadata keys of a reserved server: its lease and reservation, its fate at the end, and the host of its wake-up.
LEASE: Final = "tenure:lease"
RESERVATION: Final = "tenure:reservation"
RESERVED: Final = "tenure:reserved"
AT_END: Final = "tenure:at_end"
ENDS_AT: Final = "tenure:ends_at"
WOKEN: Final = "tenure:woken"
#: The tag by which reserved servers are found among all servers of a cloud.
TAG: Final = RESERVED
#: The value of ``WOKEN`` for a server that stays in its place.
IN_PLACE: Final = "in place"
#: Metadata key of a reservation's aggregate: the server that may use its hosts.
OPEN_TO: Final = "tenure:server"
#: Metadata key of a reservation's aggregate, and the hint, by which the server is booted there; the server has a digest
#: of the value.
BOOT_KEY: Final = "tenure:boot"
#: Metadata key of a reservation's aggregate, once its server is made: the digest of the key, and until when it counted.
BOOTED_WITH: Final = "tenure:booted_with"
#: The largest expected difference between the clocks of the cloud and of this service.
CLOCKS_DIFFER: Final = timedelta(seconds=10)
#: The effect of a reservation whose server has its marks: the id of the server.
ADOPTED: Final = "adopted_server_id"
#: The effect of a reservation whose server was made at the start: the id of the server.
BOOTED: Final = "server_id"
MARKS: Final = (LEASE, RESERVATION, RESERVED, AT_END, ENDS_AT, WOKEN, BOOT_KEY)


def marks_of(command: Command) -> dict[str, str]:
    """Return the metadata of the command's server."""
    return {
        LEASE: command.lease_id,
        RESERVATION: command.reservation_id,
        RESERVED: "true",
        AT_END: str(command.parameters.get("at_end", "delete")),
        ENDS_AT: f"{command.ends_at:%Y-%m-%dT%H:%M:%SZ}",
        **({WOKEN: IN_PLACE} if is_in_place(command) else {}),
    }


def tags_of(command: Command) -> tuple[str, str]:
    """Return the tags of the command's server. A server that stays in its place gets none, as no search needs them."""
    return TAG, f"{LEASE}={command.lease_id}"


def metadata_of(command: Command) -> dict[str, str]:
    """Return the metadata of the command's aggregate."""
    named = named_server(command)
    return {RESERVATION: command.reservation_id, LEASE: command.lease_id} | ({} if named is None else {OPEN_TO: named})


def named_server(command: Command) -> str | None:
    """Return the id of the command's server, or None if it is not named or not made yet."""
    named = command.parameters.get("server_id") or command.effects.get(BOOTED)
    return None if named is None else str(named)


def is_its_own(command: Command, server_id: str, metadata: Mapping[str, str], created_at: datetime | None) -> bool:
    """Whether a server of the command's project belongs to the reservation.

    The marks alone are no proof, because users can write metadata. If the command names a server, only the server with
    that id belongs to it. If it names none, a marked server belongs to it if it was booted while the lease was held. An
    ended reservation has only the server that it had before.
    """
    named, is_marked = named_server(command), metadata.get(RESERVATION) == command.reservation_id
    if named is not None:
        return server_id == named and (is_marked or not command.is_over or command.effects.get(ADOPTED) == server_id)
    return is_marked and was_booted_for(command, created_at)


def was_booted_for(command: Command, created_at: datetime | None) -> bool:
    """Whether a server was booted while the command's lease was held, and the lease was not confirmed."""
    if command.provisional is None or created_at is None:
        return False
    return command.provisional.start - CLOCKS_DIFFER <= created_at <= command.provisional.end + SLOWEST_BOOT


def is_in_place(command: Command) -> bool:
    """Whether the server stays where it is."""
    return bool(command.parameters.get("in_place"))


def is_woken(command: Command, host: str, metadata: Mapping[str, str]) -> bool:
    """Whether the server was woken on the host for this reservation, and not for an earlier one that left its marks."""
    return metadata.get(WOKEN) == host and metadata.get(RESERVATION) == command.reservation_id


def is_live(boot_key: str, now: datetime) -> bool:
    """Whether the key of a boot still opens the host of its aggregate; it says until when."""
    until = boot_key.rpartition("@")[2]
    return until.isdigit() and now.timestamp() < int(until)


def fate_of(command: Command, server_id: str, created_at: datetime | None) -> str:
    """Return the action for a server when its reservation is taken back, or an empty text if it stays as it is.

    A server that was booted for a reservation whose confirmation never came, or failed, is deleted. A server that was
    named but never reserved stays as it is; so does a server that is to be kept, once the reservation is over. A spared
    server only leaves its room.
    """
    if named_server(command) is None:
        return "delete"
    if command.is_over and command.effects.get(ADOPTED) != server_id:
        return "delete" if was_booted_for(command, created_at) else ""
    fate = str(command.parameters.get("at_end", "delete"))
    if command.spared:
        fate = "" if is_in_place(command) else "shelve"
    if fate in {"delete", "snapshot"}:
        return "delete"
    return "" if command.is_over else fate


def excess_of(command: Command, taken: Capacity) -> str | None:
    """Describe by how much a server that uses ``taken`` exceeds the booked size; None if it does not."""
    booked = size_of(command.parameters)
    larger = [
        f"{amount} {name} instead of {booked.get(name, 0)}"
        for name, amount in sorted(taken.items())
        if amount > booked.get(name, 0)
    ]
    return f"The server takes more than was booked for it: {', '.join(larger)}." if larger else None


def size_of(parameters: Mapping[str, object]) -> Capacity:
    """Return the amounts that the server of a reservation uses of its host."""
    source = parameters.get("source")
    if isinstance(source, Mapping):
        return footprint_of(source).amounts
    sizes = {"VCPU": "vcpus", "MEMORY_MB": "memory_mb", "DISK_GB": "disk_gb"}
    own = Capacity({name: int(str(parameters.get(parameter) or 0)) for name, parameter in sizes.items()})
    resources = parameters.get("resources")
    return own + Capacity(resources if isinstance(resources, Mapping) else {})
