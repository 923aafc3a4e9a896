from __future__ import annotations

from tenure.domain.errors import LeaseBusy, MissingParameter, NotEnoughResources
from tenure.domain.shortfall import Shortfall, Stage

STAGES = (Stage("reservable", 10), Stage("matching", 4), Stage("free", 1))


def test_names_the_number_of_resources_of_each_stage():
    shortfall = Shortfall("physical:host", "hosts", 3, STAGES)
    assert shortfall.message == (
        "Not enough hosts available: 3 asked for, 10 can be reserved, 4 match the properties asked for,"
        " 1 is free for the whole period."
    )


def test_message_uses_the_singular_for_one_resource():
    stages = tuple(Stage(name, 1) for name in ("reservable", "matching", "roomy", "fitting", "of another type"))
    assert Shortfall("virtual:instance", "instances", 2, stages).message == (
        "Not enough instances available: 2 asked for, 1 can be reserved, 1 matches the properties asked for,"
        " 1 has room for the whole period, 1 fits there, 1 of another type."
    )


def test_message_names_kept_hosts_and_unknown_properties():
    shortfall = Shortfall("physical:host", "hosts", 3, STAGES, unknown_properties=("gqu", "rak"), retained=2)
    assert "keeps the hosts it holds (2)" in shortfall.message
    assert shortfall.message.endswith("No resource has the property gqu, rak.")


def test_an_error_carries_its_facts():
    error = NotEnoughResources(Shortfall("physical:host", "hosts", 3, STAGES, reservation=1), field="min")
    assert str(error) == error.message == error.shortfall.message
    assert error.field == "min"
    assert error.details == {
        "resource_type": "physical:host",
        "reservation": 1,
        "requested": 3,
        "stages": [
            {"stage": "reservable", "count": 10},
            {"stage": "matching", "count": 4},
            {"stage": "free", "count": 1},
        ],
        "unknown_properties": [],
    }
    assert MissingParameter("name").field == "name"
    assert MissingParameter("name", "min").field is None
    assert str(MissingParameter("name", "min")) == "Missing parameter name, min"
    assert LeaseBusy("STARTING").status == "STARTING"
