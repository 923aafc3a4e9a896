"""The hosts of a simulated cloud: the same number always gives the same hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tenure.drivers.openstack.compute import is_node
from tenure.drivers.simulated.catalogue import GPU_CLASS, GPUS
from tenure.drivers.simulated.openstack.nova import POOL
from tenure.drivers.simulated.openstack.state import OWN_PROVIDER, Host, Provider, State, inventory

#: Sizes of hosts: virtual CPUs, memory, local disk; sockets, cores and threads per core.
_SIZES: Final = (
    (32, 131_072, 960, (1, 16, 2)),
    (64, 262_144, 1_920, (2, 16, 2)),
    (64, 524_288, 3_840, (2, 16, 2)),
    (128, 1_048_576, 7_680, (2, 32, 2)),
)
_ZONES: Final = ("az-1", "az-2", "az-3")
_TRAITS: Final = ("COMPUTE_NODE", "HW_CPU_X86_AVX2")
#: The facts of a host that are its size, by the resource class of its provider.
SIZES: Final = {"VCPU": "vcpus", "MEMORY_MB": "memory_mb", "DISK_GB": "local_gb"}


def host_facts(number: int) -> dict[str, Any]:
    """Return the facts of the host with this number, from 1: four sizes and three zones in turn."""
    vcpus, memory_mb, local_gb, (sockets, cores, threads) = _SIZES[(number - 1) // 2 % len(_SIZES)]
    return {
        "vcpus": vcpus,
        "memory_mb": memory_mb,
        "local_gb": local_gb,
        "cpu_info": {
            "arch": "x86_64",
            "model": "EPYC-Milan",
            "vendor": "AMD",
            "topology": {"cells": sockets, "sockets": sockets, "cores": cores, "threads": threads},
            "features": ["avx2", "sse4.2", "svm"],
        },
        "hypervisor_type": "QEMU",
        "hypervisor_version": 8_002_002,
        "availability_zone": _ZONES[(number - 1) % len(_ZONES)],
    }


def host_traits(number: int) -> list[str]:
    """Return the traits: every fourth host has GPUs (``CUSTOM_GPU_A100``), every tenth fast disks (``CUSTOM_NVME``)."""
    gpu = ["CUSTOM_GPU_A100"] if number % 4 == 0 else []
    return [*_TRAITS, *gpu, *(["CUSTOM_NVME"] if number % 10 == 0 else [])]


def add_fleet(state: State, count: int, *, pooled: bool = False) -> None:
    """Extend the fleet to ``count`` hosts. The hosts are the same each time; removed hosts are not added again.

    New hosts are in general use; with ``pooled`` they are in the pool, like registered hosts.
    """
    with state.objects.change():
        pool = state.aggregate(POOL) or state.add_aggregate(POOL)
        for number in range(state.fleet_size + 1, count + 1):
            # Nova has separate names for the service and the hypervisor; they differ if one of them has a domain name.
            host = add_host(state, f"sim-host-{number:03d}", f"sim-compute-{number:03d}", host_facts(number))
            if pooled and (provider := state.provider_named(host.name)) is not None:
                own = Provider(f"{OWN_PROVIDER}{host.name}", provider.uuid)
                state.providers[own.uuid] = own
                pool.hosts.append(host.service_host)
        state.aggregates.save(pool.number)
        state.fleet_size = max(state.fleet_size, count)


def add_host(
    state: State,
    name: str,
    service_host: str,
    facts: Mapping[str, Any],
    traits: Iterable[str] | None = None,
    inventories: Mapping[str, Mapping[str, float]] | None = None,
) -> Host:
    """Add a host with its provider to the aggregate of its zone, which is created if it does not exist."""
    number = state.next_number("host")
    host = Host(number, name, service_host)
    state.hosts[host.key] = host
    place_in_zone(state, host, facts["availability_zone"])
    known = host_traits(number) if traits is None else sorted(traits)
    provider = Provider(name, traits=list(known))
    if is_node(name):
        provider.uuid = name
    # A host with the name of an existing provider reports to that provider.
    if state.provider_named(name) is None:
        state.providers[provider.uuid] = provider
    describe(state, host, {fact: value for fact, value in facts.items() if fact != "availability_zone"}, inventories)
    return host


def add_single_host(
    state: State,
    name: str | None = None,
    *,
    facts: Mapping[str, Any] | None = None,
    traits: Iterable[str] | None = None,
    inventory: Mapping[str, Mapping[str, float]] | None = None,
) -> str:
    """Add a host besides the fleet; return its id. Values that are not given are like those of the fleet.

    ``inventory`` extends the inventory that follows from the facts, by resource class: ``total``, ``reserved``,
    ``allocation_ratio``, ``min_unit``, ``max_unit``, ``step_size``, all of them optional.
    """
    with state.objects.change():
        number = max((host.number for host in state.hosts.values()), default=0) + 1
        name = name or f"sim-extra-{number:03d}"
        own = {**host_facts(number), **(facts or {})}
        service_host = str(own.pop("service_name", name))
        own.pop("hypervisor_hostname", None)
        if service_host in state.hosts and not is_node(name):
            service_host = f"{service_host}-{number}"
        return add_host(state, name, service_host, own, traits, inventory).id


def pooled_hosts(state: State) -> frozenset[str]:
    """Return the ids of the hosts that are set aside for reservations, and in none now."""
    with state.objects.look():
        pool = state.aggregate(POOL)
        names = pool.members if pool is not None else ()
        return frozenset(state.hosts[name].id for name in names if name in state.hosts)


def describe(
    state: State, host: Host, facts: Mapping[str, Any], inventories: Mapping[str, Mapping[str, float]] | None = None
) -> None:
    """Set facts of the host; ``inventories`` extends the inventories of its provider, by resource class."""
    for name, value in facts.items():
        setattr(host, name, value)
    state.hosts.save(host.key)
    provider = state.provider_named(host.name)
    if provider is None:
        return
    if inventories is None:
        inventories = {GPU_CLASS: {"total": GPUS}} if "CUSTOM_GPU_A100" in provider.traits else {}
    sizes = {resource_class: {"total": getattr(host, fact)} for resource_class, fact in SIZES.items()}
    amounts = {name: {**sizes.get(name, {}), **inventories.get(name, {})} for name in {**sizes, **inventories}}
    provider.inventories = {
        name: inventory(**{key: value if key == "allocation_ratio" else int(value) for key, value in record.items()})
        for name, record in amounts.items()
        if record.get("total")
    }
    for name in provider.inventories.keys() - SIZES.keys():
        state.classes[name] = True
    provider.generation += 1
    state.providers.save(provider.uuid)


def place_in_zone(state: State, host: Host, zone: str) -> None:
    """Add the host to the aggregate of the zone, which is created if it does not exist."""
    home = state.aggregate(zone) or state.add_aggregate(zone, zone)
    if host.service_host not in home.hosts:  # as another node of its service may have been
        home.hosts.append(host.service_host)
    state.aggregates.save(home.number)
