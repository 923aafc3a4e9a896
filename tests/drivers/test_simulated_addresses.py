"""The simulated cloud keeps the contract of drivers for floating IP addresses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest

from tenure.testing.resources import ResourceContract, ResourceRig
from tests.drivers.address_rigs import AddressResources
from tests.drivers.contracts.addresses import AddressContract, AddressRig, Held
from tests.drivers.test_simulated import SimulatedRig


class SimulatedAddressRig(SimulatedRig):
    addresses = ("203.0.113.10", "203.0.113.11", "203.0.113.250", "203.0.113.20")
    gateway = "203.0.113.1"
    pooled = "203.0.113.150"
    elsewhere = "198.51.100.7"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.network_id = self.cloud.world.addresses.public
        self.private_network_id = self.cloud.world.addresses.private

    def holders(self) -> Mapping[str, Held]:
        found = self.cloud.world.addresses.floating_ips()
        return {
            address_held.address: Held(address_held.project_id, address_held.tags, address_held.port_id is not None)
            for address_held in found.values()
        }

    def take(self, address: str, project_id: str) -> None:
        self.cloud.world.addresses.take(address, project_id)

    def release(self, address: str) -> None:
        self.cloud.world.addresses.release(address)

    def associate(self, address: str) -> None:
        self.cloud.world.addresses.associate(address)

    def change_tags(self, address: str, tags: Iterable[str]) -> None:
        self.cloud.world.addresses.change_tags(address, tags)


class TestAddresses(AddressContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[AddressRig]:
        rig = SimulatedAddressRig(tmp_path / "cloud.db")
        yield rig
        rig.cloud.close()


class TestAddressesAsResources(ResourceContract):
    is_listed = False

    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[ResourceRig]:
        rig = SimulatedAddressRig(tmp_path / "cloud.db")
        yield cast(ResourceRig, AddressResources(rig))
        rig.cloud.close()
