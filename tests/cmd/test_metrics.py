"""The port on which a process shows its metrics."""

from __future__ import annotations

import pytest

from tenure.metrics import PORTS, serve

#: An address of documentation (RFC 5737), which no machine has.
UNASSIGNED = "203.0.113.7"


def test_without_a_port_the_error_of_the_system_is_logged(caplog: pytest.LogCaptureFixture):
    assert serve(9464, UNASSIGNED) is None
    [record] = caplog.records
    assert f"9464 to {9464 + PORTS - 1} of {UNASSIGNED}" in record.getMessage()
    assert "Cannot assign requested address" in record.getMessage()
