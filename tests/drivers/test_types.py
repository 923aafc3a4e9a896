"""Drivers that types bring along, beside those of the cloud."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import DONE, CloudAmbiguous, CloudNotFound, CloudRefused, Health, Order, Progress
from tenure.drivers.kind import KindDriver
from tenure.drivers.router import Kinds, Router
from tenure.drivers.simulated import SimulatedCloud
from tenure.factory import build
from tenure.testing.rig import order_of
from tests.support.world import HOST, OWNER, World, open_world

BENCH = "lab:bench"


class Laboratory(KindDriver):
    """Benches, two of which have the same name."""

    longest_call = timedelta(seconds=90)

    def __init__(self) -> None:
        self.given: list[str] = []

    def discover(self) -> list[DiscoveredResource]:
        names = {"1": "left", "2": "right", "3": "right", "left": "odd"}
        return [DiscoveredResource(BENCH, number, name, Capacity({WHOLE: 1})) for number, name in names.items()]

    def ensure_started(self, order: Order) -> Progress:
        self.given.append(order.reservation_id)
        return DONE

    def ensure_ended(self, order: Order) -> Progress:
        self.given.remove(order.reservation_id)
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
    order = order_of(resource_type=BENCH)
    assert laboratory.ensure_prepared(order) == DONE
    assert (*laboratory.held(), *laboratory.drift([order], [])) == ()
    with pytest.raises(CloudRefused):
        laboratory.before_end(order, "snapshot")
    with pytest.raises(CloudRefused):
        Kinds({BENCH: laboratory}).delegate(OWNER)


def test_each_type_is_driven_by_its_own_driver_and_all_else_by_the_cloud() -> None:
    laboratory = Laboratory()
    with SimulatedCloud.create(hosts=2) as cloud:
        router = Router({"": cloud}).beside({BENCH: laboratory, "lab:half-bench": laboratory})
        assert router.longest_call == timedelta(seconds=90)
        assert [one.external_id for one in router.discover("physical:host")] == ["1", "2"]
        assert len(router.discover(BENCH)) == 4
        order = order_of(resource_type="lab:half-bench")
        assert router.ensure_started(order) == DONE
        assert laboratory.given == [order.reservation_id]
        assert list(router.held("physical:host")) == []
        assert router.ensure_ended(order) == DONE
        assert router.fetch("bench", "7", OWNER) == {"kind": "bench", "id": "7"}
        assert router.fetch("flavor", "2", OWNER)["name"] == "m1.small"
        with pytest.raises(CloudNotFound):
            router.fetch("nothing", "7", OWNER)
        trust = router.delegate(OWNER)
        assert cloud.world.trusts() == {trust}
        router.revoke(trust)
        assert not cloud.world.trusts()


def test_the_engine_asks_the_driver_of_an_inventory_whatever_that_is(tmp_path: Path) -> None:
    laboratory = Laboratory()
    with open_world(tmp_path) as world:
        parts = replace(world.service.parts, type_drivers={HOST: laboratory})
        routed = World(build(parts), world.clock, world.cloud, world.db)
        lease = routed.book(1)
        routed.engine.settle()
        assert laboratory.given == [lease.reservations[0].id]
        assert not world.cloud.world.groups()
