"""Drivers of third-party types, beside the drivers of the cloud."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.cloud import TypeDrivers
from tenure.drivers.contract import (
    DONE,
    CloudAmbiguous,
    CloudBusy,
    CloudNotFound,
    CloudRefused,
    Command,
    Health,
    Progress,
    ResourceRef,
)
from tenure.drivers.openstack.type_driver import openstack_type_drivers
from tenure.drivers.router import Router
from tenure.drivers.simulated import Fault, FaultKind
from tenure.drivers.type_driver import TypeDriver
from tenure.factory import build
from tenure.resources.contract import load_types
from tenure.testing.rig import command_of
from tests.support.simulated import SimulatedCloud
from tests.support.world import HOST, OWNER, World, open_world

BENCH = "lab:bench"


class Laboratory(TypeDriver):
    """Benches, two of which have the same name."""

    longest_call = timedelta(seconds=90)

    def __init__(self) -> None:
        self.given: list[str] = []

    def discover(self) -> list[DiscoveredResource]:
        names = {"1": "left", "2": "right", "3": "right", "left": "odd"}
        return [DiscoveredResource(BENCH, number, name, Capacity({WHOLE: 1})) for number, name in names.items()]

    def ensure_started(self, command: Command) -> Progress:
        self.given.append(command.reservation_id)
        return DONE

    def ensure_ended(self, command: Command) -> Progress:
        self.given.remove(command.reservation_id)
        return DONE

    def fetch(self, kind: str, reference: str, actor: object) -> dict[str, object]:
        return {"kind": kind, "id": reference}

    fetches = frozenset({"bench"})


def test_a_driver_has_default_answers() -> None:
    laboratory = Laboratory()
    assert laboratory.look_up("left").external_id == "left"  # an id goes before a name
    assert laboratory.look_up("odd").external_id == "left"
    with pytest.raises(CloudAmbiguous):
        laboratory.look_up("right")
    with pytest.raises(CloudNotFound):
        laboratory.look_up("nowhere")
    assert laboratory.check()["2"] == Health(well=True)
    command = command_of(resource_type=BENCH)
    assert laboratory.ensure_prepared(command) == DONE
    assert (*laboratory.held(), *laboratory.drift([command], [])) == ()
    with pytest.raises(CloudRefused):
        laboratory.before_end(command, "snapshot")
    with pytest.raises(CloudRefused):
        TypeDrivers({BENCH: laboratory}).delegate(OWNER)


def test_each_type_is_driven_by_its_own_driver_and_all_else_by_the_cloud() -> None:
    laboratory = Laboratory()
    with SimulatedCloud.create(hosts=2) as cloud:
        router = Router({"": cloud}).beside({BENCH: laboratory, "lab:half-bench": laboratory})
        assert router.longest_call == timedelta(seconds=90)
        assert [host.external_id for host in router.discover("physical:host")] == ["1", "2"]
        assert len(router.discover(BENCH)) == 4
        command = command_of(resource_type="lab:half-bench")
        assert router.ensure_started(command) == DONE
        assert laboratory.given == [command.reservation_id]
        assert list(router.held("physical:host")) == []
        assert router.ensure_ended(command) == DONE
        assert router.fetch("bench", "7", OWNER) == {"kind": "bench", "id": "7"}
        assert router.fetch("flavor", "2", OWNER)["name"] == "m1.small"
        with pytest.raises(CloudNotFound):
            router.fetch("nothing", "7", OWNER)
        trust = router.delegate(OWNER)
        assert cloud.world.trusts() == {trust}
        router.revoke(trust)
        assert not cloud.world.trusts()
        cloud.inject(Fault(FaultKind.BUSY, "servers"))
        with pytest.raises(CloudBusy):
            router.servers(command.ends_at)


def test_reservations_of_an_inventory_use_the_driver_of_its_type(tmp_path: Path) -> None:
    laboratory = Laboratory()
    with open_world(tmp_path) as world:
        parts = replace(world.service.components, type_drivers={HOST: laboratory})
        routed = World(build(parts), world.clock, world.clouds, world.db)
        lease = routed.book(1)
        routed.engine.settle()
        assert laboratory.given == [lease.reservations[0].id]
        assert not world.cloud.world.groups()


def test_drivers_of_types_name_the_home_region_and_have_its_trusts() -> None:
    class Watching(Laboratory):
        trusts: ClassVar[list[str | None]] = []

        def ensure_ended(self, command: Command) -> Progress:
            self.trusts.append(command.trust_id)
            raise CloudRefused(Reason("The door is locked."))

    command = replace(command_of(resource_type=BENCH), trust_id="north=n south=s")
    with SimulatedCloud.create(hosts=1) as north, SimulatedCloud.create(hosts=1) as south:
        router = Router({"north": north, "south": south}).beside({BENCH: Watching()})
        assert list(router.by_region(BENCH)) == ["north"]
        assert list(router.by_region(HOST)) == ["north", "south"]
        assert {bench.region for bench in router.discover(BENCH)} == {"north"}
        assert router.look_up(BENCH, "north:odd").external_id == "left"
        with pytest.raises(CloudRefused, match=r"^Region north: The door is locked\.$"):
            router.ensure_ended(replace(command, region="north"))
        with pytest.raises(CloudRefused, match=r"^The door is locked\.$"):
            Router({"": north}).beside({BENCH: Watching()}).ensure_ended(command)
    assert Watching.trusts == ["n", "north=n south=s"]


def test_a_cloud_has_nothing_of_a_type_without_a_driver() -> None:
    command = command_of(resource_type=BENCH)
    with SimulatedCloud.create(hosts=1) as cloud:
        assert list(cloud.discover(BENCH)) == list(cloud.held(BENCH)) == list(cloud.drift(BENCH, [command], [])) == []
        assert cloud.check(BENCH) == cloud.remaining(BENCH, [command]) == {}
        assert cloud.make_way(command, deadline=command.ends_at) == ()
        for refused in (
            lambda: cloud.look_up(BENCH, "left"),
            lambda: cloud.ensure_registered(BENCH, ResourceRef("1", "left")),
            lambda: cloud.ensure_unregistered(BENCH, ResourceRef("1", "left")),
            lambda: cloud.ensure_prepared(command),
            lambda: cloud.ensure_started(command),
            lambda: cloud.before_end(command, "snapshot"),
            lambda: cloud.ensure_ended(command),
        ):
            with pytest.raises(CloudRefused, match="This cloud has no lab:bench"):
                refused()


def test_every_installed_type_has_a_driver() -> None:
    assert {resource_type.name for resource_type in load_types()} == set(openstack_type_drivers())
