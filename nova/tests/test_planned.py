"""Planned servers as Nova shows servers."""

from __future__ import annotations

from typing import Any

import pytest

from tenurenova.planned import as_server, below

PLANNED = {
    "id": "R",
    "name": "web",
    "flavor_id": "3",
    "flavor": {"name": "m1.small", "vcpus": 1, "ram": 2048, "disk": 20},
    "server_id": None,
    "lease_id": "L",
    "lease_status": "PENDING",
    "status_reason": None,
    "project_id": "P",
    "user_id": "U",
    "start_date": "2030-01-01T11:00:00.000000",
    "end_date": "2030-01-01T12:00:00.000000",
    "created_at": "2030-01-01T10:00:00.000000",
}


def server(**changes: Any) -> dict[str, Any]:
    shown = as_server({**PLANNED, **changes}, (2, 60), "http://nova/servers")
    assert shown is not None
    return shown


@pytest.mark.parametrize(("lease", "expected"), [("PENDING", "RESERVED"), ("STARTING", "BUILD"), ("ERROR", "ERROR")])
def test_the_status_follows_the_lease(lease: str, expected: str) -> None:
    assert server(lease_status=lease)["status"] == expected


@pytest.mark.parametrize("lease", ["TERMINATING", "TERMINATED", "DELETED"])
def test_a_server_of_a_lease_that_is_over_is_not_shown(lease: str) -> None:
    assert as_server({**PLANNED, "lease_status": lease}, (2, 60), "http://nova/servers") is None


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("os-interface", {"interfaceAttachments": []}),
        ("os-volume_attachments", {"volumeAttachments": []}),
        ("os-instance-actions", {"instanceActions": []}),
        ("diagnostics", None),
    ],
)
def test_a_planned_server_has_no_ports_no_volumes_and_no_history(path: str, answer: Any) -> None:
    assert below(server(), path) == answer


def test_the_metadata_of_a_planned_server_names_its_lease() -> None:
    found = below(server(), "metadata")
    assert found is not None
    assert (found["metadata"]["tenure:lease"], found["metadata"]["tenure:reservation"]) == ("L", "R")
