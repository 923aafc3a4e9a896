"""What all suites of drivers share: what they must be given, and the commands they are tried with."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from tenure.domain.actor import Actor
from tenure.drivers.contract import CloudDriver, Command, Progress, ResourceRef

OWNER = "b0a6f3a1c2de4c9d9a3a1f3f5f6f7a01"
NEIGHBOUR = "c1b7f4b2d3ef4dae8b4b2a4a6a7a8b02"


class BareRig(Protocol):
    """A driver and its cloud, for resources of any type."""

    driver: CloudDriver
    #: Two projects.
    owner: str
    neighbour: str
    #: How long this cloud may need for what others do at once, and how long to wait between two checks.
    patience: timedelta
    pause: timedelta

    def reopen(self) -> None:
        """Replace the driver by one that remembers nothing, as in a new process."""

    def effects(self) -> int:
        """Return how many changes the driver has made in the cloud so far."""

    def fail(self, verb: str, *, after_effects: int) -> None:
        """Let one call of the method fail with ``CloudBusy`` after so many changes."""

    def lose_reply(self, verb: str) -> None:
        """Let one call of the method do all its work, and then fail."""

    def caller(self, project_id: str) -> Actor:
        """Return a user of that project, as the API sees him."""


def command_of(
    *resources: ResourceRef, reservation_id: str = "r-1", project_id: str = OWNER, resource_type: str
) -> Command:
    return Command(
        reservation_id=reservation_id,
        lease_id=f"lease-of-{reservation_id}",
        lease_name="a lease",
        project_id=project_id,
        user_id="d2c8",
        resource_type=resource_type,
        parameters={},
        resources=resources,
        ends_at=datetime(2030, 1, 1, tzinfo=UTC),
    )


def finished(rig: BareRig, call: Callable[[], Progress]) -> Progress:
    """Repeat the call until it is done, for as long as this cloud may need; return its last answer."""
    return until(rig, call, lambda progress: progress.done)


def until(rig: BareRig, call: Callable[[], Progress], is_so: Callable[[Progress], bool]) -> Progress:
    """Repeat the call until its answer fulfils the condition; return its last answer."""
    deadline = time.monotonic() + rig.patience.total_seconds()
    while not is_so(progress := call()) and time.monotonic() < deadline:
        time.sleep(rig.pause.total_seconds())
    return progress
