"""The simulated cloud keeps the contract of drivers for preemptible servers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tenure.drivers.contract import CloudRefused, ResourceRef
from tests.drivers.contracts.preemption import PreemptionContract, PreemptionRig
from tests.drivers.test_simulated_instances import SimulatedInstanceRig


class SimulatedPreemptionRig(SimulatedInstanceRig):
    def boot_preemptible(self, resource: ResourceRef, project_id: str, vcpus: int = 1) -> str | None:
        world, name = self.cloud.world.instances, f"preemptible-{vcpus}"
        if name not in world.flavors():
            world.add_flavor(name, vcpus=vcpus, extra_specs={"blazar:preemptible": "true"})
        now, number = self.clock.now(), len(self.servers())
        self.clock.set(now + timedelta(seconds=number))  # so that each is newer than those before
        try:
            return world.boot(project_id, name, host=resource.external_id)
        except CloudRefused:
            return None
        finally:
            self.clock.set(now)

    def deadline_of(self, server: str) -> datetime | None:
        leaves_at = self._metadata(server).get("tenure:leaves_at")
        return None if leaves_at is None else datetime.fromisoformat(leaves_at)

    def is_stopped(self, server: str) -> bool:
        return {booted.id: booted.stopped for booted in self.cloud.world.servers()}[server]

    def _metadata(self, server: str) -> dict[str, str]:
        return {booted.id: dict(booted.metadata) for booted in self.cloud.world.servers()}[server]


class TestPreemption(PreemptionContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[PreemptionRig]:
        rig = SimulatedPreemptionRig(tmp_path / "cloud.db")
        yield rig
        rig.cloud.close()
