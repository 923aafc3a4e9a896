"""Volume reservations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

from tenure.domain.actor import Actor
from tenure.domain.capacity import Capacity
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource
from tenure.domain.volume import pool_id
from tenure.drivers.contract import (
    DONE,
    CloudBusy,
    CloudNotFound,
    Command,
    Drift,
    Health,
    Progress,
    ResourceRef,
)
from tenure.drivers.openstack.block_storage import BlockStorage, Volume
from tenure.drivers.openstack.identity import owner_of
from tenure.drivers.openstack.type_driver import DriverCall, OpenStackTypeDriver

VOLUME: Final = "virtual:volume"
#: The metadata keys of a volume: its state, its reservation, and its number in the reservation.
STATE: Final = "tenure"
RESERVATION: Final = "tenure:reservation"
NUMBER: Final = "tenure:number"
RESERVED: Final = "reserved"
KEPT: Final = "kept"

_LOOK_AGAIN: Final = timedelta(seconds=2)
#: How many volumes that seem to be missing are checked one by one in a drift pass.
_UNLISTED: Final = 200
_FREE: Final = frozenset({"available", "error", "error_deleting", "error_restoring", "error_extending"})


class Volumes(OpenStackTypeDriver):
    """Creates volumes in the owner's project, as the owner, and deletes or keeps them at the end.

    Cinder cannot set a part of a pool aside. A reservation's volume is recognized by its recorded id, or by its
    metadata before the id is recorded, since the owner can change the metadata.
    """

    fetches = frozenset({"volume_type"})
    services = ("block-storage",)

    def __init__(self, call: DriverCall) -> None:
        super().__init__(call)
        self._cinder = BlockStorage(call.calls)

    # Pools

    def look_up(self, reference: str) -> DiscoveredResource:
        for pool in self._cinder.pools():
            if reference in {pool.name, pool_id(pool.name)}:
                return DiscoveredResource(
                    resource_type=VOLUME,
                    external_id=pool_id(pool.name),
                    name=pool.name,
                    capacity=Capacity({"DISK_GB": pool.total_gb}),
                    facts={"pool": pool.name},
                )
        raise CloudNotFound(f"There is no volume pool {reference}.")

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        """Return a volume type by name or id, with its pools."""
        found = self._cinder.volume_type(reference)
        if not found.is_public and actor.project_id not in self._cinder.projects_of(found):
            raise CloudNotFound(Reason(f"There is no volume type {reference}."))
        return {"id": found.id, "name": found.name, "pools": [pool.name for pool in self._cinder.pools(found.id)]}

    def ensure_registered(self, resource: ResourceRef) -> None:
        self.look_up(resource.name)

    def check(self, registered: Iterable[ResourceRef] = ()) -> dict[str, Health]:
        resources = list(registered)
        pools = {pool.name: pool for pool in self._cinder.pools()} if resources else {}
        healths: dict[str, Health] = {}
        for resource in resources:
            pool = pools.get(resource.name)
            if pool is None:
                healths[resource.external_id] = Health(False, f"There is no volume pool {resource.name} any more.")
            elif not pool.is_up:
                healths[resource.external_id] = Health(False, f"The volume pool {resource.name} is down.")
            else:
                healths[resource.external_id] = Health(True)
        return healths

    def held(self) -> list[str]:
        found = self._cinder.with_metadata(**{STATE: RESERVED})
        return sorted({volume.metadata[RESERVATION] for volume in found if RESERVATION in volume.metadata})

    def drift(self, commands: Iterable[Command], pooled: Iterable[ResourceRef]) -> list[Drift]:
        return list(self._drift(list(commands)))

    def _drift(self, commands: Sequence[Command]) -> Iterator[Drift]:
        existing = {volume.id for volume in self._cinder.with_metadata(**{STATE: RESERVED})} if commands else set()
        unlisted = [volume_id for command in commands for volume_id in ids_of(command) if volume_id not in existing][
            :_UNLISTED
        ]
        gone = set(unlisted) - {volume.id for volume in self._cinder.existing(unlisted)}
        for command in commands:
            known, expected = ids_of(command), sum(command.units.values())
            for volume_id in known:
                if volume_id in gone:
                    yield Drift(
                        command.reservation_id, None, f"volume {volume_id} of {command.reservation_id} is not there"
                    )
            if len(known) < expected:
                text = f"reservation {command.reservation_id} has {len(known)} volumes of {expected}"
                yield Drift(command.reservation_id, None, text)

    def remaining(self, commands: Iterable[Command]) -> dict[str, int]:
        known_commands = list(commands)
        existing = {volume.id for volume in self._cinder.with_metadata(**{STATE: KEPT})}
        hidden = [volume_id for command in known_commands for volume_id in ids_of(command) if volume_id not in existing]
        existing |= {volume.id for volume in self._cinder.existing(hidden)}
        return {
            command.reservation_id: sum(1 for volume_id in ids_of(command) if volume_id in existing)
            for command in known_commands
        }

    # Reservations

    def ensure_started(self, command: Command) -> Progress:
        """Create the command's number of volumes in the owner's project, in the booked pool."""
        expected = sum(command.units.values())
        own = self._volumes_of(command)
        found = {
            _number(volume, command): volume for volume in reversed(own)
        }  # of two with the same number, the recorded one
        unusable = [
            volume for volume in own if _number(volume, command) > expected or self._is_unusable(command, volume)
        ]
        unusable += [volume for volume in own if volume not in (*found.values(), *unusable)]
        if unusable:
            self._cinder.detach(unusable)
            self._cinder.delete_all(volume for volume in unusable if volume.status in _FREE)
            return Progress(
                False, _LOOK_AGAIN, f"Volume {unusable[0].name} goes: {_why(command, unusable[0])}.", awaited=True
            )
        missing = [number for number in range(1, expected + 1) if number not in found]
        if missing:
            owner = owner_of(self._calls, command, purpose="Volumes")
            made = self._cinder.make_all([_body(command, number) for number in missing], owner)
            found |= dict(zip(missing, made, strict=True))
        waiting = [
            volume
            for volume in found.values()
            if volume.status not in {"available", "in-use"} and not volume.attachments
        ]
        if waiting:
            return Progress(
                False, _LOOK_AGAIN, Reason(f"Volume {waiting[0].name} is {waiting[0].status}."), awaited=True
            )
        return Progress(True, effects={"volume_ids": [found[number].id for number in sorted(found)]})

    def ensure_ended(self, command: Command) -> Progress:
        """Delete or keep the volumes, as requested; volumes that are not recorded are deleted."""
        at_end = command.parameters.get("at_end", "delete")
        found = self._volumes_of(command)
        kept = [volume for volume in found if volume.id in ids_of(command)] if at_end != "delete" else []
        gone = [volume for volume in found if volume not in kept]
        if at_end == "keep":
            self._cinder.mark(kept, {STATE: KEPT, RESERVATION: command.reservation_id})
        attached = [volume for volume in (found if at_end == "snapshot" else gone) if volume.attachments]
        if attached:
            self._cinder.detach(attached)
        self._cinder.delete_all(volume for volume in gone if volume.status in _FREE and not volume.attachments)
        progress = self._snapshot(command, kept) if at_end == "snapshot" else DONE
        return Progress(False, _LOOK_AGAIN, Reason(f"Volume {gone[0].name} is being deleted.")) if gone else progress

    def _snapshot(self, command: Command, found: Sequence[Volume]) -> Progress:
        """Create a snapshot of each volume, then mark the volume as kept."""
        marks = {RESERVATION: command.reservation_id}
        taken = self._cinder.snapshots(marks)
        failed = [snapshot for snapshot in taken.values() if snapshot.status.startswith("error")]
        self._cinder.delete_snapshots(failed)
        missing = [volume for volume in found if volume.id not in taken and not volume.attachments]
        if missing:
            owner = owner_of(self._calls, command, purpose="Snapshots")
            self._cinder.take_snapshots(missing, marks, self._options.image_prefix, owner)
        done = [volume for volume in found if volume.id in taken and taken[volume.id].status == "available"]
        self._cinder.mark(done, {STATE: KEPT, RESERVATION: command.reservation_id})
        if len(done) < len(found):
            return Progress(False, _LOOK_AGAIN, Reason("Snapshots of volumes are being made."))
        return DONE

    def _volumes_of(self, command: Command) -> list[Volume]:
        """Return the reservation's volumes, without those that are kept."""
        found = {volume.id: volume for volume in self._cinder.with_metadata(**{RESERVATION: command.reservation_id})}
        hidden = [volume_id for volume_id in ids_of(command) if volume_id not in found]
        found |= {volume.id: volume for volume in self._cinder.existing(hidden)}
        own = [
            volume
            for volume in found.values()
            if volume.metadata.get(STATE) != KEPT and volume.project_id == command.project_id
        ]
        return sorted(own, key=lambda volume: (_number(volume, command), volume.id not in ids_of(command), volume.id))

    def _is_unusable(self, command: Command, volume: Volume) -> bool:
        """Whether it failed, or is in another pool than booked; never for a recorded volume, which may have data."""
        if volume.id in ids_of(command):
            return False
        elsewhere = bool(volume.pool) and volume.pool != command.parameters.get("pool")
        return volume.status in {"error", "deleting", "error_deleting"} or elsewhere


def ids_of(command: Command) -> list[str]:
    """Return the recorded volume ids of a reservation."""
    found = command.effects.get("volume_ids")
    return [str(volume_id) for volume_id in found] if isinstance(found, list | tuple) else []


def _body(command: Command, number: int) -> dict[str, object]:
    if not command.parameters.get("pool"):
        raise CloudBusy(f"Reservation {command.reservation_id} does not say in which pool its volumes are.")
    return {
        "size": command.parameters["size_gb"],
        "name": f"{command.lease_name}-{number}",
        "volume_type": command.parameters["volume_type_id"],
        "metadata": {STATE: RESERVED, RESERVATION: command.reservation_id, NUMBER: str(number)},
    }


def _number(volume: Volume, command: Command) -> int:
    """Return the number of a volume in its reservation: by its recorded position, or by its metadata."""
    known = ids_of(command)
    if volume.id in known:
        return known.index(volume.id) + 1
    text = volume.metadata.get(NUMBER, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _why(command: Command, volume: Volume) -> str:
    if volume.status == "error":
        return "Cinder could not make it"
    if volume.pool and volume.pool != command.parameters.get("pool"):
        return f"Cinder put it into {volume.pool}, and {command.parameters.get('pool')} was booked"
    return "it is surplus"
