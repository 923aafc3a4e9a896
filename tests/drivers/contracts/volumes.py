"""The contract of ``tenure.drivers.contract`` for volumes, as tests that every driver passes.

A driver's own test module has a class that inherits ``VolumeContract``, and a fixture ``rig`` that fits ``VolumeRig``:
a fresh cloud with a pool and a type that leads to it, and no volumes in its two projects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import pytest

from tenure.domain.volume import pool_id
from tenure.drivers.contract import CloudBusy, CloudNotFound, CloudRefused, Command, ResourceRef
from tenure.testing.rig import BareRig, command_of, finished, until

VOLUME = "virtual:volume"
#: How many things a start, and an end, of these tests changes at most: it is broken off after each.
LONGEST_START = 2
LONGEST_END = 6


@dataclass(frozen=True, slots=True)
class Found:
    """A volume as it is in the cloud."""

    project_id: str
    size_gb: int
    pool: str
    is_attached: bool
    snapshots: int


class VolumeRig(BareRig, Protocol):
    """A driver, and the cloud behind it: to look at, and to meddle with."""

    #: A pool, and the name of a type that leads to it alone.
    pool: str
    volume_type: str

    def volumes(self) -> Mapping[str, Found]:
        """The volumes of the two projects, by id."""

    # Changes by others

    def delete(self, volume: str) -> None:
        """Delete a volume, with its snapshots."""

    def attach(self, volume: str) -> None:
        """Attach a volume to a server."""

    def wipe(self, volume: str) -> None:
        """Remove all metadata of a volume."""


def command_for(rig: VolumeRig, amount: int = 2, *, reservation_id: str = "r-1", at_end: str = "delete") -> Command:
    """A reservation of so many volumes, whose owner trusts the driver."""
    caller = rig.caller(rig.owner)
    kind = rig.driver.fetch("volume_type", rig.volume_type, caller)
    ref = ResourceRef(pool_id(rig.pool), rig.pool)
    parameters = {"amount": amount, "size_gb": 1, "volume_type": kind["name"], "volume_type_id": kind["id"]}
    return replace(
        command_of(ref, reservation_id=reservation_id, project_id=rig.owner, resource_type=VOLUME),
        parameters={**parameters, "pool": rig.pool, "at_end": at_end},
        units={ref.external_id: amount},
        trust_id=rig.driver.delegate(caller),
    )


def started(rig: VolumeRig, command: Command) -> Command:
    """The command after its start, with the effects of the start."""
    progress = finished(rig, lambda: rig.driver.ensure_started(command))
    assert progress.done, progress
    return replace(command, effects=progress.effects)


def ids_of(command: Command) -> list[str]:
    found = command.effects["volume_ids"]
    assert isinstance(found, list)
    return found


def ended(rig: VolumeRig, command: Command) -> None:
    assert finished(rig, lambda: rig.driver.ensure_ended(command)).done


class VolumeContract:
    """Inherit it, with a fixture ``rig``."""

    # Pools and types

    def test_a_pool_is_known_by_its_name_and_its_id(self, rig: VolumeRig):
        found = rig.driver.look_up(VOLUME, rig.pool)
        assert (found.name, found.external_id) == (rig.pool, pool_id(rig.pool))
        assert found.capacity["DISK_GB"] > 0
        assert rig.driver.look_up(VOLUME, found.external_id) == found
        with pytest.raises(CloudNotFound):
            rig.driver.look_up(VOLUME, "elsewhere@lvm#lvm")

    def test_a_volume_type_names_its_pools(self, rig: VolumeRig):
        caller = rig.caller(rig.owner)
        facts = rig.driver.fetch("volume_type", rig.volume_type, caller)
        assert facts["name"] == rig.volume_type
        assert facts["pools"] == [rig.pool]
        assert rig.driver.fetch("volume_type", str(facts["id"]), caller) == facts
        assert rig.driver.fetch("volume_type", "", caller)["name"]
        with pytest.raises(CloudNotFound):
            rig.driver.fetch("volume_type", "unknown", caller)

    def test_an_existing_pool_is_healthy(self, rig: VolumeRig):
        there, gone = ResourceRef(pool_id(rig.pool), rig.pool), ResourceRef(pool_id("a@b#c"), "a@b#c")
        healths = rig.driver.check(VOLUME, [there, gone])
        assert healths[there.external_id].well
        assert not healths[gone.external_id].well
        assert healths[gone.external_id].reason

    # The start

    def test_volumes_are_made_in_the_owners_project(self, rig: VolumeRig):
        command = started(rig, command_for(rig))
        assert sorted(ids_of(command)) == sorted(rig.volumes())
        assert set(rig.volumes().values()) == {Found(rig.owner, 1, rig.pool, False, 0)}
        assert set(rig.driver.held(VOLUME)) == {"r-1"}
        assert ids_of(started(rig, command)) == ids_of(command)
        assert len(rig.volumes()) == 2

    def test_volumes_need_a_working_trust_of_the_owner(self, rig: VolumeRig):
        command = command_for(rig)
        assert command.trust_id is not None
        with pytest.raises(CloudRefused, match="trust"):
            rig.driver.ensure_started(replace(command, trust_id=None))
        rig.driver.revoke(command.trust_id)
        with pytest.raises(CloudRefused, match="trust"):
            rig.driver.ensure_started(command)
        assert rig.volumes() == {}

    @pytest.mark.parametrize("effects", range(LONGEST_START))
    def test_a_start_that_is_broken_off_is_completed(self, rig: VolumeRig, effects: int):
        command = command_for(rig)
        rig.fail("ensure_started", after_effects=effects)
        with pytest.raises(CloudBusy):
            rig.driver.ensure_started(command)
        rig.reopen()
        started(rig, command)
        assert len(rig.volumes()) == 2

    def test_a_start_whose_answer_is_lost_makes_nothing_twice(self, rig: VolumeRig):
        command = command_for(rig)
        rig.lose_reply("ensure_started")
        with pytest.raises(CloudBusy):
            rig.driver.ensure_started(command)
        started(rig, command)
        assert len(rig.volumes()) == 2

    def test_a_reservation_grows_and_shrinks(self, rig: VolumeRig):
        command = started(rig, command_for(rig))
        [number] = command.units
        more = started(rig, replace(command, units={number: 3}))
        assert ids_of(more)[:2] == ids_of(command)
        fewer = started(rig, replace(more, units={number: 2}))
        assert sorted(ids_of(fewer)) == sorted(rig.volumes()) == sorted(ids_of(command))

    # While it runs

    def test_a_repeated_start_changes_no_volume(self, rig: VolumeRig):
        command = started(rig, command_for(rig))
        rig.wipe(ids_of(command)[1])
        assert list(rig.driver.drift(VOLUME, [command], [])) == []
        before = rig.effects()
        assert ids_of(started(rig, command)) == ids_of(command)
        assert rig.effects() == before

    def test_a_deleted_volume_is_drift_and_made_again(self, rig: VolumeRig):
        command = started(rig, command_for(rig))
        first, second = ids_of(command)
        rig.delete(first)
        [drift] = rig.driver.drift(VOLUME, [command], [])
        assert drift.reservation_id == "r-1"
        again = started(rig, command)
        assert ids_of(again)[1] == second
        assert sorted(ids_of(again)) == sorted(rig.volumes())

    # The end

    @pytest.mark.parametrize("effects", range(LONGEST_END))
    @pytest.mark.parametrize("at_end", ["delete", "snapshot"])
    def test_an_end_that_is_broken_off_is_completed(self, rig: VolumeRig, at_end: str, effects: int):
        command = started(rig, command_for(rig, at_end=at_end))
        rig.attach(ids_of(command)[0])
        rig.fail("ensure_ended", after_effects=effects)

        def end() -> bool:
            try:
                return rig.driver.ensure_ended(command).done
            except CloudBusy:
                rig.reopen()
                return False

        assert any(end() for _ in range(50))
        ended(rig, command)
        kept = {"delete": 0, "snapshot": 2}[at_end]
        assert [volume.snapshots for volume in rig.volumes().values()] == [1] * kept
        assert list(rig.driver.held(VOLUME)) == []

    def test_an_end_deletes_only_its_own_volumes(self, rig: VolumeRig):
        command, other = started(rig, command_for(rig)), started(rig, command_for(rig, 1, reservation_id="r-2"))
        rig.wipe(ids_of(command)[0])
        ended(rig, command)
        assert sorted(rig.volumes()) == ids_of(other)
        assert set(rig.driver.held(VOLUME)) == {"r-2"}

    def test_an_end_without_recorded_start_keeps_no_volumes(self, rig: VolumeRig):
        command = command_for(rig, at_end="keep")
        ended(rig, command)
        until(rig, lambda: rig.driver.ensure_started(command), lambda progress: bool(rig.volumes()))
        ended(rig, command)
        assert rig.volumes() == {}
        assert rig.driver.remaining(VOLUME, [command]).get("r-1", 0) == 0

    @pytest.mark.parametrize("at_end", ["keep", "snapshot"])
    def test_unrecorded_volumes_are_not_kept(self, rig: VolumeRig, at_end: str):
        """Volumes of a growth whose answer was lost would not be counted."""
        command = started(rig, command_for(rig, at_end=at_end))
        [number] = command.units
        started(rig, replace(command, units={number: 3}))
        assert len(rig.volumes()) == 3
        ended(rig, command)
        assert sorted(rig.volumes()) == sorted(ids_of(command))
        assert rig.driver.remaining(VOLUME, [command]) == {"r-1": 2}

    @pytest.mark.parametrize("at_end", ["keep", "snapshot"])
    def test_kept_volumes_are_counted_until_deleted(self, rig: VolumeRig, at_end: str):
        command = started(rig, command_for(rig, at_end=at_end))
        first, second = ids_of(command)
        rig.attach(first)
        ended(rig, command)
        assert list(rig.driver.held(VOLUME)) == []
        assert [volume.is_attached for volume in rig.volumes().values()].count(True) == int(at_end == "keep")
        assert rig.driver.remaining(VOLUME, [command]) == {"r-1": 2}
        rig.wipe(first)
        assert rig.driver.remaining(VOLUME, [command]) == {"r-1": 2}
        rig.delete(second)
        assert rig.driver.remaining(VOLUME, [command]) == {"r-1": 1}
        rig.delete(first)
        assert rig.driver.remaining(VOLUME, [command]).get("r-1", 0) == 0
