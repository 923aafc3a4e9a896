"""Arrangements of plans that are outdated before they are made, since others change the same resources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.errors import NotEnoughResources
from tenure.services.planning.arrangements import Arrangements, Search
from tests.support.engines import rebuild
from tests.support.world import ADMIN, HOST, World, instance_reservation, open_world, reservation

FIRST_HOST = '["==", "$rack", "a"]'


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A cloud whose first host becomes free only if two plans move, one after the other."""
    with open_world(tmp_path, hosts=3) as world:
        world.resize(4, 4, 6)
        world.resources.update(ADMIN, HOST, "1", {"rack": "a"})
        for host, vcpus in ((1, 4), (2, 1), (3, 4)):
            world.reserve_on(host, instance_reservation(1, vcpus=vcpus), start=1)
        rebuild(world, rules=replace(world.service.parts.rules, exact_time=timedelta(minutes=1)))
        yield world


def outdate(world: World, monkeypatch: pytest.MonkeyPatch, times: int) -> list[Search]:
    """Change a resource of each of the next arrangements before it is made; return the list of all arrangements."""
    find = Arrangements.find
    found: list[Search] = []

    def find_and_change(arrangements: Arrangements, *given: Any, **named: Any) -> Search:
        search = find(arrangements, *given, **named)
        if search.arrangement is not None:
            if len(found) < times:
                world.resources.update(ADMIN, HOST, "1", {"turn": str(len(found))})
            found.append(search)
        return search

    monkeypatch.setattr(Arrangements, "find", find_and_change)
    return found


def test_request_succeeds_after_several_outdated_arrangements(world: World, monkeypatch: pytest.MonkeyPatch):
    found = outdate(world, monkeypatch, 5)
    lease = world.reserve(reservation(1, 1, resource_properties=FIRST_HOST), start=1)
    assert world.units(lease) == [("sim-host-001", 1)]
    assert len(found) == 6


def test_refusal_after_many_outdated_arrangements_is_not_proven(world: World, monkeypatch: pytest.MonkeyPatch):
    found = outdate(world, monkeypatch, 1000)
    with pytest.raises(NotEnoughResources) as refused:
        world.reserve(reservation(1, 1, resource_properties=FIRST_HOST), start=1)
    assert not refused.value.is_proven
    assert 5 < len(found) < 20
