"""Devices by PCI aliases: counted by what Placement shows of them, and started on the hosts that have them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.errors import InvalidParameter, NotEnoughResources
from tenure.domain.lease import LeaseStatus
from tenure.drivers.openstack.pci_aliases import read_aliases
from tests.support.world import OWNER, World, flavor_reservation, open_world

HOUR = timedelta(hours=1)
ALIASES = read_aliases(
    [
        '{"name": "gpu", "vendor_id": "10de", "product_id": "20b0", "numa_policy": "preferred"}',
        '{"name": "fast", "resource_class": "nic", "traits": "fast", "device_type": "type-VF"}',
        '{"name": "either", "vendor_id": "10de", "product_id": "20b0"}',
        '{"name": "either", "vendor_id": "10de", "product_id": "20b2"}',
        '{"name": "near", "resource_class": "nic", "numa_policy": "required"}',
        '{"name": "nothing"}',
    ]
)
GPU, NIC = "CUSTOM_PCI_10DE_20B0", "CUSTOM_NIC"
#: What the flavors of the tests ask for, and how many servers of each there can be at once.
FLAVORS = {"one": ("gpu:1", 4), "two": ("gpu:2", 2), "fast": ("fast:1", 2), "both": ("gpu:1,fast:1", 2)}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two of three hosts have devices: one has two cards with a GPU each, and the other one with two.

    Both have two network cards; those of the second host differ in a trait.
    """
    with open_world(tmp_path, hosts=3, pci_aliases=ALIASES) as world:
        for host in ("1", "2", "3"):
            sizes = {"vcpus": 64, "memory_mb": 65536, "local_gb": 1000}
            world.cloud.world.change_host(host, facts=sizes, traits=["COMPUTE_NODE"], inventory={})
        for host, name, resource_class, total, traits in (
            ("2", "gpu-1", GPU, 1, []),
            ("2", "gpu-2", GPU, 1, []),
            ("2", "nic-1", NIC, 2, ["CUSTOM_FAST"]),
            ("3", "gpu-3", GPU, 2, []),
            ("3", "nic-2", NIC, 1, []),
            ("3", "nic-3", NIC, 1, ["CUSTOM_FAST"]),
        ):
            world.cloud.world.add_provider(host, name, {resource_class: {"total": total}}, traits)
        world.service.refresh.run()
        for name, (alias, _) in FLAVORS.items():
            specs = {"pci_passthrough:alias": alias}
            world.cloud.world.instances.add_flavor(name, vcpus=1, ram=512, disk=1, extra_specs=specs)
        yield world


@pytest.mark.parametrize("flavor", sorted(FLAVORS))
def test_as_many_devices_are_promised_as_there_are_and_started_where_they_are(world: World, flavor: str):
    _, most = FLAVORS[flavor]
    with pytest.raises(NotEnoughResources):
        world.reserve(flavor_reservation(flavor, most + 1))
    lease = world.reserve(flavor_reservation(flavor, most))
    with pytest.raises(NotEnoughResources):
        world.reserve(flavor_reservation(flavor))
    world.pass_time(timedelta(minutes=1))
    for _ in range(most):
        world.boot(lease)
    hosts = {server.host for server in world.cloud.world.servers()}
    assert hosts <= ({"2"} if "fast" in flavor or flavor == "both" else {"2", "3"})


@pytest.mark.parametrize(
    ("alias", "reason"),
    [
        ("unknown:1", "[nova] pci_aliases of Tenure has no alias unknown."),
        ("either:1", "the alias either is not counted, as it stands for several kinds of devices."),
        ("near:1", "the alias near is not counted, as Placement does not know its numa_policy."),
        (
            "nothing:1",
            "the alias nothing is not counted, as it has no resource_class, and not both ids.",
        ),
        ("gpu", "gpu is no alias with a number of devices."),
    ],
)
def test_an_alias_that_cannot_be_counted_is_refused_with_the_reason(world: World, alias: str, reason: str):
    world.cloud.world.instances.add_flavor("odd", extra_specs={"pci_passthrough:alias": alias})
    with pytest.raises(InvalidParameter) as refused:
        world.reserve(flavor_reservation("odd"))
    assert refused.value.message.endswith(f"ask for with pci_passthrough:alias. pci_passthrough:alias: {reason}")
    assert refused.value.field == "reservations[0].flavor_id"


def test_devices_of_pinned_servers_are_on_hosts_with_one_numa_node(world: World):
    specs = {"pci_passthrough:alias": "gpu:1", "hw:cpu_policy": "dedicated"}
    world.cloud.world.instances.add_flavor("pinned", vcpus=1, ram=512, disk=1, extra_specs=specs)
    for host, cells in (("2", 2), ("3", 1)):
        facts = {"cpu_info": {"arch": "x86_64", "topology": {"cells": cells}}}
        world.cloud.world.change_host(host, facts=facts, inventory={"PCPU": {"total": 8}})
    world.service.refresh.run()
    lease = world.reserve(flavor_reservation("pinned", 2))
    assert [name for name, _ in world.units(lease)] == [world.cloud.world.host("3").name]
    with pytest.raises(NotEnoughResources):
        world.reserve(flavor_reservation("pinned"))


@pytest.mark.parametrize("seed", range(6))
def test_no_promise_of_a_random_history_is_without_its_devices(world: World, seed: int):
    dice = random.Random(seed)
    promised: list[str] = []
    for _ in range(12):
        flavors = [dice.choice(sorted(FLAVORS)) for _ in range(dice.randint(1, 2))]
        requested = [flavor_reservation(flavor, dice.randint(1, 2)) for flavor in flavors]
        with suppress(NotEnoughResources):
            promised.append(world.reserve(*requested, start=dice.randint(0, 4), hours=dice.randint(1, 3)).id)
        if promised and dice.random() < 0.2:
            world.leases.delete(OWNER, promised.pop(dice.randrange(len(promised))))
    world.pass_time(timedelta(minutes=1))
    booted: set[str] = set()
    for _ in range(8):
        for lease in (world.leases.get(OWNER, lease_id) for lease_id in promised if lease_id not in booted):
            if lease.status is not LeaseStatus.ACTIVE:
                continue
            booted.add(lease.id)
            for index, reservation in enumerate(lease.reservations):
                for _ in range(int(str(reservation.parameters["amount"]))):
                    world.boot(lease, index)
        world.pass_time(HOUR)
    assert promised
    assert booted == set(promised)
