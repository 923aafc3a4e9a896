"""The driver of OpenStack clouds keeps the contract of drivers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from tenure.drivers.contract import CloudBusy, ResourceRef
from tests.drivers.contracts.hosts import DriverContract, Rig, command_for
from tests.drivers.rigs import FakeRig
from tests.support.openstack import FakeOpenStack


class OpenStackContract(DriverContract):
    sees_servers_without_group = False
    nova: str

    @pytest.fixture
    def rig(self, transport: str) -> Iterator[Rig]:
        with FakeOpenStack(nova=self.nova) as cloud:
            rig = FakeRig(cloud, transport)
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


@pytest.mark.slow
class TestOpenStackCloudOfTwoZones(OpenStackContract):
    """The first hosts are in two availability zones, by aggregates of the operator."""

    nova = "2.103"
    moves_occupied_hosts = False

    @pytest.fixture
    def rig(self, transport: str) -> Iterator[Rig]:
        with FakeOpenStack(nova=self.nova) as cloud:
            cloud.add_aggregate("rack-1", "east", ("compute-1", "compute-2"))
            cloud.add_aggregate("rack-2", "west", ("compute-3",))
            rig = FakeRig(cloud, transport)
            yield rig
            rig.close()

    @pytest.mark.parametrize("reopened", [False, True])
    @pytest.mark.parametrize("effects", range(0, 14, 2))
    def test_a_start_that_broke_off_is_completed(
        self, rig: Rig, hosts: list[ResourceRef], effects: int, reopened: bool
    ):
        """After any number of effects; a repeated message to schedulers is no further effect."""
        command = command_for(rig, *hosts)
        rig.fail("ensure_started", after_effects=effects)
        with suppress(CloudBusy):
            rig.driver.ensure_started(command)
        if reopened:
            rig.reopen()
        rig.driver.ensure_started(command)
        assert all(rig.boot(resource, rig.owner, "r-1") for resource in hosts)
