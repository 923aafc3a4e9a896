"""The simulated cloud keeps the contract of drivers for reserved servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import pytest

from tenure.drivers.contract import ResourceRef
from tests.drivers.contracts.servers import Found, ServerContract, ServerRig
from tests.drivers.test_simulated import SimulatedRig


class SimulatedServerRig(SimulatedRig):
    def now(self) -> datetime:
        return self.clock.now()

    def found(self, server: str) -> Found | None:
        found = next((booted for booted in self.cloud.world.servers() if booted.id == server), None)
        return None if found is None else Found(found.host or None, found.stopped, found.metadata)

    def boot_small(self, project_id: str, metadata: Mapping[str, str] | None = None) -> str:
        last = self.resources()[-1]
        return self.cloud.world.instances.boot(project_id, "1", host=last.external_id, metadata=metadata)

    def small(self) -> str:
        return "1"

    def write(self, server: str, metadata: Mapping[str, str]) -> None:
        self.cloud.world.instances.write(server, metadata)

    def enlarge(self, server: str) -> None:
        self.cloud.world.instances.resize(server, "3")

    def shelve(self, server: str) -> None:
        self.cloud.world.instances.shelve(server)

    def close_to(self, resource: ResourceRef) -> None:
        self.cloud.world.change_host(resource.external_id, facts={"memory_mb": 1})


class TestServers(ServerContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[ServerRig]:
        rig = SimulatedServerRig(tmp_path / "cloud.db")
        yield rig
        rig.cloud.close()
