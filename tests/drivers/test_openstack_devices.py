"""Devices of flavors: what the driver tells of them, by Nova's aliases and Cyborg's profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tenure.domain.actor import Actor
from tenure.drivers.openstack.devices import Devices
from tenure.drivers.openstack.flavors import Flavor, taken_by
from tenure.drivers.openstack.pci_aliases import PciAlias, read_aliases
from tenure.testing.rig import OWNER
from tests.support.simulated import SimulatedCloud

PROFILES: Mapping[str, list[dict[str, str]]] = {
    "fpga": [
        {"resources:FPGA": "1", "trait:CUSTOM_FAST": "required", "accel:bitstream_id": "b"},
        {"resources:PGPU": "2"},
    ],
    "mixed": [{"resources:FPGA": "1", "resources:PGPU": "1"}],
}


ALIASES = read_aliases(['{"name": "gpu", "resource_class": "gpu", "traits": "a100, HW_GPU_API_CUDA"}'])


@pytest.fixture
def cloud() -> Iterator[SimulatedCloud]:
    with SimulatedCloud.create(hosts=0, pci_aliases=ALIASES) as cloud:
        yield cloud


def described(cloud: SimulatedCloud, **specs: str) -> dict[str, Any]:
    """Return what the driver tells of the devices of a flavor with these extra specs; ``__`` stands for a colon."""
    cloud.world.instances.add_flavor(
        "f1", extra_specs={name.replace("__", ":"): value for name, value in specs.items()}
    )
    found = cloud.fetch("flavor", "f1", Actor("u", OWNER, frozenset({"member"})))
    return {name: found[name] for name in ("device_groups", "uncounted") if name in found}


def with_cyborg(cloud: SimulatedCloud) -> SimulatedCloud:
    def profiles(request: Any, caller: Any) -> tuple[int, object]:
        named = [{"name": name, "groups": groups} for name, groups in PROFILES.items()]
        return 200, {"device_profiles": [profile for profile in named if profile["name"] == request.params["name"]]}

    cloud.openstack.add_routes([("accelerator", "GET", "/device_profiles", profiles)])
    return cloud


def test_each_device_of_an_alias_is_a_group(cloud: SimulatedCloud):
    assert described(cloud, pci_passthrough__alias="gpu:2") == {
        "device_groups": {
            "resources_0:CUSTOM_GPU": "1",
            "trait_0:CUSTOM_A100": "required",
            "trait_0:HW_GPU_API_CUDA": "required",
            "resources_1:CUSTOM_GPU": "1",
            "trait_1:CUSTOM_A100": "required",
            "trait_1:HW_GPU_API_CUDA": "required",
        }
    }
    assert described(cloud, resources1__VGPU="1") == {}


def test_a_device_profile_is_its_groups(cloud: SimulatedCloud):
    with_cyborg(cloud)
    assert described(cloud, accel__device_profile="fpga") == {
        "device_groups": {"resources_0:FPGA": "1", "trait_0:CUSTOM_FAST": "required", "resources_1:PGPU": "2"}
    }
    both = described(cloud, accel__device_profile="fpga", pci_passthrough__alias="gpu:1")
    assert [name for name in both["device_groups"] if name.startswith("resources")] == [
        "resources_0:CUSTOM_GPU",
        "resources_1:FPGA",
        "resources_2:PGPU",
    ]


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        ("mixed", "the device profile mixed has a group that does not have exactly one class"),
        ("none", "Cyborg has no device profile none"),
    ],
)
def test_a_device_profile_that_cannot_be_counted_is_told_with_the_reason(
    cloud: SimulatedCloud, profile: str, reason: str
):
    found = described(with_cyborg(cloud), accel__device_profile=profile)
    assert found == {"device_groups": {}, "uncounted": {"accel:device_profile": reason}}


def test_a_cloud_without_cyborg_is_the_reason(cloud: SimulatedCloud):
    assert described(cloud, accel__device_profile="fpga")["uncounted"] == {
        "accel:device_profile": "the cloud has no Cyborg that would show the device profile"
    }


def test_servers_make_way_for_the_devices_of_a_reservation():
    devices = Devices(None, [PciAlias("gpu", "CUSTOM_GPU")])  # type: ignore[arg-type]  # no request is sent
    flavor = Flavor("f", "f", 1, 512, 1, extra_specs={"pci_passthrough:alias": "gpu:2"})
    assert taken_by(flavor, devices) == {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1, "CUSTOM_GPU": 2}


@pytest.mark.parametrize("line", ["[]", '{"name": ""}', '{"name": "a", "vendor_id": 1}', "gpu"])
def test_a_line_that_is_no_alias_is_refused(line: str):
    with pytest.raises(ValueError, match="a PCI alias"):
        read_aliases([line])


def test_classes_and_traits_are_named_as_nova_names_them():
    (alias,) = read_aliases(['{"name": "a", "vendor_id": "15b3", "product_id": "101e", "traits": "my-net,custom_x"}'])
    assert alias == PciAlias("a", "CUSTOM_PCI_15B3_101E", frozenset({"CUSTOM_MY_NET", "CUSTOM_X"}))
    (standard,) = read_aliases(['{"name": "a", "resource_class": "vgpu"}'])
    assert standard.resource_class == "VGPU"
