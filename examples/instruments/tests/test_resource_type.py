"""The type keeps the contract of resource types."""

from __future__ import annotations

import pytest

from instruments.resource_type import InstrumentType
from tenure.domain.errors import InvalidState
from tenure.testing.types import TypeContract

SHARP = '["<=", "$resolution_nm", "200"]'


class TestInstruments(TypeContract):
    resource_type = InstrumentType()
    requests = (
        {"kind": "microscope", "amount": 2},
        {"kind": "spectrometer"},
        {"kind": "microscope", "resource_properties": SHARP},
    )
    refused = (
        ({}, "kind"),
        ({"kind": ""}, "kind"),
        ({"kind": "microscope", "amount": 0}, "amount"),
        ({"kind": "microscope", "amount": "2"}, "amount"),
        ({"kind": "microscope", "resource_properties": "sharp"}, "resource_properties"),
    )
    changes = ({"amount": 3}, {"kind": "spectrometer"}, {"resource_properties": SHARP})
    refused_changes = (({"amount": 0}, "amount"), ({"resource_properties": "["}, "resource_properties"))

    @pytest.mark.parametrize("change", [{"amount": 1}, {"kind": "spectrometer"}, {"resource_properties": SHARP}])
    def test_what_runs_stays_what_it_is(self, change: dict[str, object]):
        with pytest.raises(InvalidState):
            self.resource_type.merge(self.parameters(self.requests[0]), change, running=True)
