"""Pools and volumes of a simulated cloud, and what people do with them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from tenure.drivers.contract import CloudNotFound, CloudRefused
from tenure.drivers.simulated.state import StateFile
from tenure.drivers.simulated.volumes import volume_id


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume that a project has; ``snapshots`` is how many there are of it."""

    id: str
    name: str
    project_id: str
    size_gb: int
    volume_type: str
    pool: str
    status: str
    server_id: str | None
    metadata: Mapping[str, str]
    snapshots: int


class VolumeWorld:
    """What there is of volumes."""

    #: The pools that every simulated cloud has.
    fast = "sim-storage@fast#nvme"
    slow = "sim-storage@slow#disk"

    def __init__(self, state: StateFile) -> None:
        self._state = state

    def all(self) -> dict[str, Volume]:
        """All volumes by id."""
        with self._state.look() as tx:
            rows = tx.execute(
                "SELECT *, (SELECT count(*) FROM volume_snapshot AS s WHERE s.volume = volume.number) AS snapshots"
                " FROM volume ORDER BY number"
            ).fetchall()
        return {
            volume_id(row["number"]): Volume(
                volume_id(row["number"]),
                row["name"],
                row["project_id"],
                row["size_gb"],
                row["volume_type"],
                row["pool"],
                row["status"],
                row["server_id"],
                json.loads(row["metadata"]),
                row["snapshots"],
            )
            for row in rows
        }

    def delete(self, volume: str) -> None:
        """Somebody deletes a volume. Raises ``CloudRefused`` while there is a snapshot of it."""
        with self._state.change() as tx:
            number = _number_of(volume)
            if tx.execute("SELECT 1 FROM volume_snapshot WHERE volume = ?", (number,)).fetchone():
                raise CloudRefused(f"There is a snapshot of {volume}.")
            tx.execute("DELETE FROM volume WHERE number = ?", (number,))

    def delete_snapshot(self, volume: str) -> None:
        """Somebody deletes the snapshot of a volume."""
        with self._state.change() as tx:
            tx.execute("DELETE FROM volume_snapshot WHERE volume = ?", (_number_of(volume),))

    def attach(self, volume: str, server_id: str) -> None:
        """Somebody attaches a volume to a server."""
        with self._state.change() as tx:
            tx.execute("UPDATE volume SET server_id = ? WHERE number = ?", (server_id, _number_of(volume)))

    def change_metadata(self, volume: str, metadata: Mapping[str, str]) -> None:
        """Somebody replaces the metadata of a volume."""
        with self._state.change() as tx:
            text = json.dumps(dict(metadata))
            tx.execute("UPDATE volume SET metadata = ? WHERE number = ?", (text, _number_of(volume)))

    def add_pool(self, name: str, total_gb: int, *, volume_type: str) -> None:
        """A pool, and a type that leads to it."""
        with self._state.change() as tx:
            tx.execute("INSERT INTO pool (name, total_gb) VALUES (?, ?)", (name, total_gb))
            made = str(uuid.uuid4())
            tx.execute("INSERT INTO volume_type (id, name, pool) VALUES (?, ?, ?)", (made, volume_type, name))

    def remove_pool(self, name: str) -> None:
        """A pool is gone, with all that lies in it."""
        with self._state.change() as tx:
            tx.execute("DELETE FROM volume WHERE pool = ?", (name,))
            tx.execute("DELETE FROM pool WHERE name = ?", (name,))

    def mark_pool(self, name: str, *, up: bool) -> None:
        """A pool fails, or works again."""
        with self._state.change() as tx:
            tx.execute("UPDATE pool SET up = ? WHERE name = ?", (up, name))


def _number_of(volume: str) -> int:
    prefix, _, number = volume.partition("-")
    if prefix != "volume" or not number.isdigit():
        raise CloudNotFound(f"There is no volume {volume}.")
    return int(number)
