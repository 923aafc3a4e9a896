"""Instances of flavors: the contract of types, and samples for the suites that run over all types."""

from __future__ import annotations

from tenure.api.versions import by_version
from tenure.resources.contract import FactReference
from tenure.resources.flavor import FlavorType
from tenure.testing.types import TypeContract
from tests.api.rig import FLAVORS
from tests.support.samples import M1_SMALL, ParameterSamples, TypeSamples, Unfit


class TestFlavors(TypeContract):
    resource_type = FlavorType()
    requests = (
        {"flavor_id": "m1.small", "amount": 3},
        {"flavor_id": "m1.small", "amount": 1, "affinity": True, "before_end": "notify"},
    )
    refused = (
        ({"flavor_id": "", "amount": 1}, "flavor_id"),
        ({"flavor_id": 3, "amount": 1}, "flavor_id"),
        ({"flavor_id": "m1.small", "amount": 0}, "amount"),
        ({"amount": 1}, "flavor_id"),
    )
    changes = ({"amount": 4}, {"affinity": False}, {"flavor_id": "m1.large"})
    additional = ({"availability_zone": "az1"},)
    refused_changes = (({"amount": 0}, "amount"), ({"flavor_id": ""}, "flavor_id"))
    fact = M1_SMALL

    def test_only_another_flavor_is_looked_up_again(self):
        current = self.parameters(self.requests[0])
        grown = self.resource_type.merge(current, self.change({"amount": 4}), running=False)
        assert self.resource_type.required_fact(grown) is None
        other = self.resource_type.merge(current, self.change({"flavor_id": "m1.large"}), running=False)
        assert self.resource_type.required_fact(other) == FactReference("flavor", "m1.large", "flavor_id")


SAMPLES = TypeSamples(
    reservation=FLAVORS,
    parameters=ParameterSamples(
        kinds=by_version({"amount": "size", "flavor_id": "flavor", "affinity": "affinity", "before_end": "before_end"}),
        required=by_version(("amount", "flavor_id", "affinity"), ("amount", "flavor_id")),
        unfit=(
            Unfit("nope", {"flavor_id": "nope"}, "flavor_id", 400),
            Unfit("instances", {"amount": 5000}),
        ),
    ),
    refusals=(r"Flavor (.|\n)* could not be found",),
)
