"""A resource that the cloud does not report this time keeps its health: it is neither gone nor well."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tenure.drivers.contract import UNKNOWN, Health
from tests.support.world import ADMIN, World


def health_of_first(world: World) -> object:
    return world.resources.get(ADMIN, "physical:host", "1").health


@pytest.mark.parametrize("before", [Health(True), Health(False, "The hypervisor is down.")], ids=["well", "down"])
def test_health_stays_while_the_answer_is_unknown(world: World, monkeypatch: pytest.MonkeyPatch, before: Health):
    everything = world.cloud.check("physical:host", [])
    answers: list[Mapping[str, Health]] = [{**everything, "1": before}, {**everything, "1": UNKNOWN}]

    def check(resource_type: str, registered: object = ()) -> Mapping[str, Health]:
        return answers.pop(0) if resource_type == "physical:host" else {}

    monkeypatch.setattr(world.cloud, "check", check)
    world.service.health_check.run()
    known = health_of_first(world)
    world.service.health_check.run()
    assert health_of_first(world) == known
    assert answers == []
