"""Floating IPs: the contract of types, and samples of addresses for the suites that run over all types."""

from __future__ import annotations

from dataclasses import replace

from tenure.api.versions import by_version
from tenure.drivers.simulated.catalogue import PRIVATE_NETWORK
from tenure.resources.floatingip import FloatingIPType
from tenure.testing.types import TypeContract
from tests.api.rig import ADDRESSES, NETWORK
from tests.support.samples import UNKNOWN_ID, Bad, Body, InventorySamples, ParameterSamples, TypeSamples, Unfit


class TestFloatingIPs(TypeContract):
    resource_type = FloatingIPType()
    requests = (
        {"network_id": "public", "amount": 3},
        {"network_id": "public", "amount": 2, "required_floatingips": ["203.0.113.10", "2001:db8::10"]},
        {"network_id": "public", "amount": 1, "before_end": "notify"},
    )
    refused = (
        ({"network_id": "", "amount": 1}, "network_id"),
        ({"network_id": "public", "amount": 0}, "amount"),
        ({"network_id": "public", "amount": 1, "required_floatingips": ["203.0.113.300"]}, "required_floatingips"),
        ({"network_id": "public", "amount": 1, "required_floatingips": ["203.0.113.1"] * 2}, "required_floatingips"),
        (
            {"network_id": "public", "amount": 1, "required_floatingips": ["203.0.113.1", "203.0.113.2"]},
            "required_floatingips",
        ),
        ({"network_id": "public", "amount": 1, "before_end": "snapshot"}, "before_end"),
    )
    changes = ({"amount": 4}, {"before_end": "notify"})
    refused_changes = (({"network_id": "private"}, "network_id"), ({"amount": 0}, "amount"))


def address(address: str) -> dict[str, str]:
    """Return the registration of an address of the external network."""
    return {"floating_network_id": NETWORK, "floating_ip_address": address}


FREE = address("203.0.113.20")
REGISTRATION = Body(
    good=FREE,
    fields={("floating_network_id",): "network of an address", ("floating_ip_address",): "address"},
    required=(("floating_network_id",), ("floating_ip_address",)),
    also=(
        Bad("floating_network_id", {**FREE, "floating_network_id": UNKNOWN_ID}, said=UNKNOWN_ID),
        Bad("floating_network_id", {**FREE, "floating_network_id": PRIVATE_NETWORK}, said="Failed to find network"),
        Bad("floating_ip_address", address("203.0.113.150"), said="203.0.113.150"),
        Bad("floating_ip_address", address("203.0.113.1"), said="203.0.113.1"),
        Bad("10.9.9.9", address("10.9.9.9"), status=404),
        Bad("203.0.113.10", address("203.0.113.10"), status=409),
    ),
)
SAMPLES = TypeSamples(
    reservation=ADDRESSES,
    parameters=ParameterSamples(
        # 1.0 takes a reservation of no address at all, and knows of nothing that is done before its end.
        kinds=by_version(
            {"amount": "disk", "network_id": "network", "required_floatingips": "addresses"},
            {
                "amount": "size",
                "network_id": "network",
                "required_floatingips": "addresses",
                "before_end": "before_end of an address",
            },
        ),
        required=by_version(("amount", "network_id")),
        unfit=(
            Unfit("required_floatingips", {"required_floatingips": ["203.0.113.10", "203.0.113.11"]}, "", 400, False),
            Unfit("floating IPs", {"amount": 5}),
            Unfit("floating IPs", {"network_id": UNKNOWN_ID}, changing=False),
            Unfit("floating IPs", {"required_floatingips": ["203.0.113.99"]}, changing=False),
        ),
        fixed=(
            Unfit("network_id", {"network_id": UNKNOWN_ID}, "network_id", 400),
            Unfit("required_floatingips", {"required_floatingips": ["203.0.113.11"]}, "required_floatingips", 400),
        ),
    ),
    inventory=InventorySamples(
        registered=(address("203.0.113.10"), address("203.0.113.11")),
        registration=by_version(replace(REGISTRATION, closed=()), REGISTRATION),
        bad_ids=("203.0.113.10", "1"),
        missing="Floating IP",
        unsorted="subnet_id",
        bad_names=("1.2",),
        refusals=("Failed to find network",),
    ),
    refusals=("Invalid values for required_floatingips and amount",),
)
