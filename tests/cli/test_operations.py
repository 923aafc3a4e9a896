"""Each operation of the API has its command."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tenure.api.table import operations_of
from tenure.resources.contract import load_types

CLIENT = Path(__file__).parents[2] / "client" / "pyproject.toml"

#: The command of each operation.
COMMANDS = {
    "GET /v1/leases": "lease list",
    "POST /v1/leases": "lease create",
    "GET /v1/leases/{lease_id}": "lease show",
    "PUT /v1/leases/{lease_id}": "lease set",
    "DELETE /v1/leases/{lease_id}": "lease delete",
    "POST /v1/leases/{lease_id}/confirm": "lease confirm",
    "GET /v1/leases/{lease_id}/history": "lease history",
    "POST /v1/leases/{lease_id}/reservations": "lease reservation add",
    "DELETE /v1/leases/{lease_id}/reservations/{reservation_id}": "lease reservation drop",
    "GET /v1/leases/{lease_id}/floatingips": "lease floatingips",
    "GET /v1/leases/{lease_id}/hosts": "lease hosts",
    "GET /v1/leases/{lease_id}/volume_pools": "lease volume pools",
    "GET /v1/limits": "limits show",
    "GET /v1/usage": "usage",
    "GET /v1/availability": "availability",
    "POST /v1/offers": "find",
    "POST /v1/offers/longest": "find longest",
    "POST /v1/offers/largest": "find most",
    "GET /v1/floatingips": "floatingip list",
    "POST /v1/floatingips": "floatingip create",
    "GET /v1/floatingips/{floatingip_id}": "floatingip show",
    "DELETE /v1/floatingips/{floatingip_id}": "floatingip delete",
    "GET /v1/floatingips/allocations": "allocation list floatingip",
    "GET /v1/floatingips/{floatingip_id}/allocation": "allocation show floatingip",
    "POST /v1/floatingips/{floatingip_id}/disable": "floatingip disable",
    "POST /v1/floatingips/{floatingip_id}/enable": "floatingip enable",
    "POST /v1/floatingips/{floatingip_id}/reallocate": "floatingip reallocate",
    "GET /v1/os-hosts": "host list",
    "POST /v1/os-hosts": "host create",
    "GET /v1/os-hosts/{host_id}": "host show",
    "DELETE /v1/os-hosts/{host_id}": "host delete",
    "PUT /v1/os-hosts/{host_id}": "host set",
    "GET /v1/os-hosts/properties": "host property list",
    "PATCH /v1/os-hosts/properties/{property_name}": "host property set",
    "GET /v1/os-hosts/allocations": "allocation list host",
    "GET /v1/os-hosts/{host_id}/allocation": "allocation show host",
    "POST /v1/os-hosts/{host_id}/disable": "host disable",
    "POST /v1/os-hosts/{host_id}/enable": "host enable",
    "POST /v1/os-hosts/{host_id}/reallocate": "host reallocate",
    "GET /v1/volume-pools": "volume pool list",
    "POST /v1/volume-pools": "volume pool create",
    "GET /v1/volume-pools/{volume_pool_id}": "volume pool show",
    "DELETE /v1/volume-pools/{volume_pool_id}": "volume pool delete",
    "PUT /v1/volume-pools/{volume_pool_id}": "volume pool set",
    "GET /v1/volume-pools/allocations": "allocation list volumepool",
    "GET /v1/volume-pools/{volume_pool_id}/allocation": "allocation show volumepool",
    "POST /v1/volume-pools/{volume_pool_id}/disable": "volume pool disable",
    "POST /v1/volume-pools/{volume_pool_id}/enable": "volume pool enable",
    "POST /v1/volume-pools/{volume_pool_id}/reallocate": "volume pool reallocate",
}
#: The operations without a command, with the reason.
WITHOUT = {
    "GET /": "clients negotiate the version",
    "GET /versions": "clients negotiate the version",
    "GET /v1": "clients negotiate the version",
    "GET /v1/": "clients negotiate the version",
    "GET /healthcheck": "for load balancers and monitoring",
    "GET /v1/offers": "the form of POST /v1/offers for a link",
}
#: The types of the first argument of commands for several types of resources.
TYPES = ("floatingip", "host", "volumepool")


def test_each_operation_has_its_command() -> None:
    served = [f"{operation.method} {operation.path}" for operation in operations_of(tuple(load_types()))]
    assert sorted(served) == sorted([*COMMANDS, *WITHOUT])


@pytest.mark.parametrize(("group", "prefix"), [("tenure.commands", ""), ("openstack.tenure.v1", "reservation_")])
def test_each_command_exists(group: str, prefix: str) -> None:
    known = tomllib.loads(CLIENT.read_text())["project"]["entry-points"][group]
    missing = []
    for command in COMMANDS.values():
        words = [word for word in command.split() if word not in TYPES or not command.startswith("allocation ")]
        if f"{prefix}{'_'.join(words)}" not in known:
            missing.append(command)
    assert missing == []
