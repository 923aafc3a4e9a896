"""The commands that the crash tests and the processes they kill agree on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from tenure.domain.actor import Actor
from tenure.drivers.contract import Command, ResourceRef
from tests.support.simulated import SimulatedCloud


def command_for(reservation_id: str, hosts: str, resource_type: str = "physical:host") -> Command:
    """A command for the hosts of those ids, parted by commas, or for two instances on each."""
    return Command(
        reservation_id=reservation_id,
        lease_id=f"lease-of-{reservation_id}",
        lease_name=f"lease of {reservation_id}",
        project_id=f"project-of-{reservation_id}",
        user_id="d2c8",
        resource_type=resource_type,
        parameters={"vcpus": 1, "memory_mb": 64, "disk_gb": 1, "affinity": None},
        resources=tuple(ResourceRef(host, f"sim-host-{host:0>3}") for host in hosts.split(",")),
        ends_at=datetime(2030, 1, 1, tzinfo=UTC),
        units=dict.fromkeys(hosts.split(","), 2),
    )


def trusting(cloud: SimulatedCloud, command: Command) -> Command:
    """The same command of an owner who trusts us."""
    return replace(command, trust_id=cloud.delegate(Actor(command.user_id, command.project_id, frozenset({"member"}))))
