"""The port on which a process shows its metrics."""

from __future__ import annotations

import pytest

from tenure.metrics import PORTS, serve

#: An address of documentation (RFC 5737), which no machine has.
NOBODYS = "203.0.113.7"


def test_why_there_are_no_metrics_is_what_the_system_says(caplog: pytest.LogCaptureFixture):
    assert serve(9464, NOBODYS) is None
    [record] = caplog.records
    assert f"9464 to {9464 + PORTS - 1} of {NOBODYS}" in record.getMessage()
    assert "Cannot assign requested address" in record.getMessage()
