"""The filter: who gets an instrument, and what everybody gets."""

from __future__ import annotations

from typing import Any

import pytest
from oslo_config import cfg

from instruments.resource_type import INSTRUMENT
from instruments.training import TrainedFilter
from tenure.domain.errors import Denied


def lease(*reservations: dict[str, Any]) -> dict[str, Any]:
    return {"reservations": list(reservations)}


MICROSCOPE = {"resource_type": INSTRUMENT, "kind": "microscope"}
LASER = {"resource_type": INSTRUMENT, "kind": "laser"}
HOST = {"resource_type": "physical:host"}


@pytest.fixture
def trained() -> TrainedFilter:
    conf = cfg.ConfigOpts()
    conf([])
    found = TrainedFilter(conf)
    conf.set_override("instruments_trained", ["microscope:optics"], group="enforcement")
    return found


def test_who_was_trained_gets_it(trained: TrainedFilter):
    optics, others = {"project_id": "optics"}, {"project_id": "others"}
    trained.check_create(optics, lease(MICROSCOPE, HOST))
    trained.check_create(others, lease(HOST))
    with pytest.raises(Denied, match="trained on a microscope"):
        trained.check_create(others, lease(HOST, MICROSCOPE))
    with pytest.raises(Denied, match="trained on a laser"):
        trained.check_update(optics, lease(MICROSCOPE), lease(MICROSCOPE, LASER))
    assert trained.listens_to == frozenset()
