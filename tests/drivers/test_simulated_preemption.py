"""The simulated cloud keeps the contract of drivers for preemptible servers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tenure.drivers.contract import CloudRefused, ResourceRef
from tests.drivers.contract import drift_of
from tests.drivers.preemption_contract import PreemptionContract, PreemptionRig, parts, quarter
from tests.drivers.test_simulated_instances import SimulatedInstanceRig


class SimulatedPreemptionRig(SimulatedInstanceRig):
    def boot_preemptible(self, resource: ResourceRef, project_id: str, vcpus: int = 1) -> str | None:
        world, name = self.cloud.world.instances, f"preemptible-{vcpus}"
        if name not in world.flavors():
            world.add_flavor(name, vcpus=vcpus, extra_specs={"blazar:preemptible": "true"})
        try:
            return world.boot(project_id, name, host=resource.external_id)
        except CloudRefused:
            return None

    def told(self, server: str) -> datetime | None:
        leaves_at = self._metadata(server).get("tenure:leaves_at")
        return None if leaves_at is None else datetime.fromisoformat(leaves_at)

    def is_stopped(self, server: str) -> bool:
        return {one.id: one.stopped for one in self.cloud.world.servers()}[server]

    def _metadata(self, server: str) -> dict[str, str]:
        return {one.id: dict(one.metadata) for one in self.cloud.world.servers()}[server]


class TestPreemption(PreemptionContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[PreemptionRig]:
        rig = SimulatedPreemptionRig(tmp_path / "cloud.db")
        yield rig
        rig.cloud.close()

    def test_sees_who_takes_the_room_of_what_runs_and_a_start_mends_it(
        self, rig: PreemptionRig, hosts: list[ResourceRef]
    ):
        """The hosts of instances stay in the pool, where preemptible servers may come at any time."""
        order = parts(rig, hosts[0], 3)
        self.started(rig, order)
        share = quarter(rig, hosts[0])
        tolerated, in_the_way = (rig.boot_preemptible(hosts[0], rig.neighbour, share) for _ in range(2))
        assert in_the_way is not None
        (drift,) = drift_of(rig, [order], hosts[1:])
        assert (drift.reservation_id, drift.resource) == ("r-1", hosts[0])
        assert in_the_way in drift.what
        self.started(rig, order)
        assert drift_of(rig, [order], hosts[1:]) == []
        assert rig.servers() == {tolerated}
        assert sum(rig.boot_reserved(hosts[0], rig.owner) is not None for _ in range(4)) == 3
