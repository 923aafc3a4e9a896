"""The driver of OpenStack clouds keeps the contract of drivers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenure.testing.hosts import DriverContract, Rig
from tests.drivers.rigs import FakeRig
from tests.support.openstack import FakeOpenStack


class OpenStackContract(DriverContract):
    sees_servers_without_group = False
    nova: str

    @pytest.fixture
    def rig(self) -> Iterator[Rig]:
        with FakeOpenStack(nova=self.nova) as cloud:
            rig = FakeRig(cloud)
            yield rig
            rig.close()

    def effects_of_a_start(self, resources: int) -> int:
        """The aggregate, its owner, and for each host two moves."""
        return 2 + 2 * resources


class TestOpenStackCloud(OpenStackContract):
    nova = "2.103"
    moves_occupied_hosts = False


@pytest.mark.slow
class TestOlderOpenStackCloud(OpenStackContract):
    nova = "2.96"
    tells_servers_apart = False
