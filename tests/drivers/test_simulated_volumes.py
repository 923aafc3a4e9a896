"""The simulated cloud keeps the contract of drivers for volumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.drivers.contracts.volumes import Found, VolumeContract, VolumeRig
from tests.drivers.test_simulated import SimulatedRig


class SimulatedVolumeRig(SimulatedRig):
    volume_type = "fast"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.pool = self.cloud.world.volumes.fast

    def volumes(self) -> Mapping[str, Found]:
        return {
            volume.id: Found(
                volume.project_id, volume.size_gb, volume.pool, volume.server_id is not None, volume.snapshots
            )
            for volume in self.cloud.world.volumes.all().values()
        }

    def delete(self, volume: str) -> None:
        self.cloud.world.volumes.delete_snapshot(volume)
        self.cloud.world.volumes.delete(volume)

    def attach(self, volume: str) -> None:
        self.cloud.world.volumes.attach(volume, "server-000001")

    def wipe(self, volume: str) -> None:
        self.cloud.world.volumes.change_metadata(volume, {})


class TestVolumes(VolumeContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[VolumeRig]:
        rig = SimulatedVolumeRig(tmp_path / "cloud.db")
        yield rig
        rig.cloud.close()
