"""What the driver of OpenStack clouds does for reservations of volumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from tenure.domain.volume import pool_id
from tenure.drivers.contract import CloudBusy, CloudNotFound, CloudRefused, ResourceRef
from tenure.testing.rig import finished
from tests.drivers.contracts.volumes import (
    VOLUME,
    Found,
    VolumeContract,
    VolumeRig,
    command_for,
    ended,
    ids_of,
    started,
)
from tests.drivers.rigs import FakeRig
from tests.support.openstack import OWNER, FakeOpenStack, VolumeType


class FakeVolumeRig(FakeRig):
    pool = "storage@fast#nvme"
    volume_type = "fast"

    def volumes(self) -> Mapping[str, Found]:
        return {
            volume.id: Found(
                volume.project_id,
                volume.size,
                volume.pool,
                bool(volume.servers),
                sum(1 for snapshot in self.cloud.volume_snapshots.values() if snapshot.volume_id == volume.id),
            )
            for volume in self.cloud.volumes.values()
        }

    def delete(self, volume: str) -> None:
        del self.cloud.volumes[volume]

    def attach(self, volume: str) -> None:
        self.cloud.volumes[volume].servers.append("a-server")
        self.cloud.volumes[volume].status = "in-use"

    def wipe(self, volume: str) -> None:
        self.cloud.volumes[volume].metadata.clear()


@pytest.fixture
def rig() -> Iterator[FakeVolumeRig]:
    with FakeOpenStack() as cloud:
        rig = FakeVolumeRig(cloud)
        yield rig
        rig.close()


@pytest.mark.slow
class TestVolumes(VolumeContract):
    @pytest.fixture
    def rig(self, transport: str) -> Iterator[VolumeRig]:
        with FakeOpenStack() as cloud:
            rig = FakeVolumeRig(cloud, transport)
            yield rig
            rig.close()


# Beyond the contract of drivers


def test_a_start_waits_until_the_volumes_are_there(rig: FakeVolumeRig):
    progress = rig.driver.ensure_started(command_for(rig))
    assert (progress.done, progress.awaited) == (False, True)
    assert str(progress.reason) == "Volume a lease-1 is creating."


def test_a_volume_in_error_is_made_again(rig: FakeVolumeRig):
    rig.cloud.volumes_that_fail = 1
    command = started(rig, command_for(rig))
    assert sorted(ids_of(command)) == sorted(rig.volumes())
    assert {volume.status for volume in rig.cloud.volumes.values()} == {"available"}


def test_a_volume_in_another_pool_is_not_handed_over(rig: FakeVolumeRig):
    rig.cloud.stray_pool = "storage@slow#disk"
    command = command_for(rig)
    reasons = [str(rig.driver.ensure_started(command).reason) for _ in range(2)]
    assert reasons[1] == (
        "Volume a lease-1 goes: Cinder put it into storage@slow#disk, and storage@fast#nvme was booked."
    )
    rig.cloud.stray_pool = None
    started(rig, command)
    assert {volume.pool for volume in rig.volumes().values()} == {"storage@fast#nvme"}


def test_a_full_quota_is_the_reason(rig: FakeVolumeRig):
    rig.cloud.gigabytes = 1
    with pytest.raises(CloudBusy, match="exceeds allowed gigabytes quota"):
        rig.driver.ensure_started(command_for(rig))
    rig.cloud.gigabytes = 2
    started(rig, command_for(rig))


def test_without_a_trust_nothing_is_made(rig: FakeVolumeRig):
    with pytest.raises(CloudRefused, match="did not trust"):
        rig.driver.ensure_started(replace(command_for(rig), trust_id=None))
    command = command_for(rig)
    assert command.trust_id is not None
    rig.cloud.trusts[command.trust_id]["broken"] = True
    with pytest.raises(CloudRefused, match="trust of the lease's owner does not work"):
        rig.driver.ensure_started(command)


def test_the_end_needs_no_trust_to_delete(rig: FakeVolumeRig):
    command = started(rig, command_for(rig))
    rig.attach(ids_of(command)[0])
    ended(rig, replace(command, trust_id=None))
    assert rig.volumes() == {}


def test_a_private_type_is_for_its_projects(rig: FakeVolumeRig):
    secret = VolumeType("secret", ["storage@fast#nvme"], projects=["somebody"])
    rig.cloud.volume_types[secret.id] = secret
    with pytest.raises(CloudNotFound):
        rig.driver.fetch("volume_type", "secret", rig.caller(OWNER))
    secret.projects = [OWNER]
    assert rig.driver.fetch("volume_type", "secret", rig.caller(OWNER))["pools"] == ["storage@fast#nvme"]


def test_a_type_may_lead_to_several_pools(rig: FakeVolumeRig):
    pools = rig.driver.fetch("volume_type", "any", rig.caller(OWNER))["pools"]
    assert pools == ["storage@fast#nvme", "storage@slow#disk"]


def test_a_pool_of_infinite_size_has_the_largest_capacity(rig: FakeVolumeRig):
    assert rig.driver.look_up(VOLUME, "storage@slow#disk").capacity["DISK_GB"] == 2**31 - 1


def test_a_pool_that_is_down_is_not_well(rig: FakeVolumeRig):
    rig.cloud.volume_pools["storage@fast#nvme"].state = "down"
    ref = ResourceRef(pool_id(rig.pool), rig.pool)
    assert rig.driver.check(VOLUME, [ref])[ref.external_id].reason == f"The volume pool {rig.pool} is down."


def test_many_volumes_come_page_by_page(rig: FakeVolumeRig):
    finished(rig, lambda: rig.driver.ensure_started(command_for(rig, 3)))
    assert list(rig.driver.held(VOLUME)) == ["r-1"]
