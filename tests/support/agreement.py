"""Differences between a simulated cloud and a ledger, as texts."""

from __future__ import annotations

from collections import Counter

from tests.support import ledger
from tests.support.ledger import Holding
from tests.support.simulated import SimulatedCloud
from tests.support.waiting import SECONDS, wait_for

HOST, ADDRESS, VOLUME = "physical:host", "virtual:floatingip", "virtual:volume"
#: The resource types that are not on hosts.
_ELSEWHERE = frozenset({ADDRESS, VOLUME})
_POLICIES = {True: "affinity", False: "anti-affinity"}


def disagreements(url: str, cloud: SimulatedCloud) -> list[str]:
    """Return what the cloud has without a running lease, and what running leases lack in the cloud.

    For times without work in progress. A pending lease may have a server group, which clients must see at once.
    """
    holdings = ledger.holdings(url)
    running = [holding for holding in holdings if holding.running]
    hosts = {holding.reservation_id: holding for holding in running if holding.resource_type == HOST}
    addresses = {holding.reservation_id: holding for holding in running if holding.resource_type == ADDRESS}
    volumes = {holding.reservation_id: holding for holding in running if holding.resource_type == VOLUME}
    instances = {
        holding.reservation_id: holding for holding in running if holding.resource_type not in {HOST, *_ELSEWHERE}
    }
    return [
        *_of_hosts(hosts, cloud),
        *_of_instances(instances, cloud),
        *_of_groups([holding for holding in holdings if holding.resource_type not in {HOST, *_ELSEWHERE}], cloud),
        *_of_addresses(addresses, cloud),
        *_of_volumes(volumes, ledger.kept(url), cloud),
    ]


def wait_for_agreement(url: str, cloud: SimulatedCloud, *, seconds: float = SECONDS) -> None:
    """Wait until all due events are done, and the cloud matches the ledger."""
    wait_for(
        lambda: f"an end of {ledger.busy(url)} and {disagreements(url, cloud)}",
        lambda: not (ledger.busy(url) or disagreements(url, cloud)),
        seconds=seconds,
    )


def _differ(subject: str, due: object, there: object) -> list[str]:
    return [] if due == there else [f"{subject}: the ledger says {due}, the cloud {there}"]


def _of_hosts(holdings: dict[str, Holding], cloud: SimulatedCloud) -> list[str]:
    groups = {name: (set(group.hosts), group.project_id) for name, group in cloud.world.groups().items()}
    held = {reservation_id: (set(holding.units), holding.project_id) for reservation_id, holding in holdings.items()}
    taken = {host for hosts, _ in held.values() for host in hosts}
    free = {host.id for host in cloud.world.hosts()} - taken
    return _differ("groups of hosts", held, groups) + _differ("the pool", free, set(cloud.world.pool()))


def _of_instances(holdings: dict[str, Holding], cloud: SimulatedCloud) -> list[str]:
    world = cloud.world.instances
    units = {reservation_id: dict(holding.units) for reservation_id, holding in holdings.items()}
    access = {reservation_id: {holding.project_id} for reservation_id, holding in holdings.items()}
    flavors = {
        flavor.id: set(flavor.access) for flavor in world.flavors().values() if flavor.name.startswith("reservation:")
    }
    aggregates = {
        name: set(aggregate.hosts)
        for name, aggregate in world.aggregates().items()
        if aggregate.metadata.get("reservation") == name
    }
    inventories = {_reservation_of(name): dict(parts) for name, parts in world.inventories().items()}
    return [
        *_differ("units", units, inventories),
        *_differ("who sees which flavor", access, flavors),
        *_differ("aggregates", {reservation_id: set(hosts) for reservation_id, hosts in units.items()}, aggregates),
    ]


def _of_groups(holdings: list[Holding], cloud: SimulatedCloud) -> list[str]:
    """Check server groups: a running reservation has its own.

    A plan may have no group yet, or one of an earlier affinity.
    """
    there: dict[str, list[str]] = {}
    for group in cloud.world.instances.server_groups().values():
        there.setdefault(group.name.removeprefix("reservation:"), []).append(group.policy)
    found = [
        f"a server group is left of {name}" for name in there.keys() - {holding.reservation_id for holding in holdings}
    ]
    for holding in holdings:
        affinity = holding.parameters.get("affinity")
        due = [] if affinity is None else [_POLICIES[affinity]]
        if holding.running:
            found += _differ(f"server groups of {holding.reservation_id}", due, there.get(holding.reservation_id, []))
    return found


def _of_addresses(holdings: dict[str, Holding], cloud: SimulatedCloud) -> list[str]:
    held = {
        name: (holding.project_id, frozenset({"blazar", f"reservation:{reservation_id}"}))
        for reservation_id, holding in holdings.items()
        for name in holding.names.values()
    }
    there = {
        address: (floating_ip.project_id, floating_ip.tags)
        for address, floating_ip in cloud.world.addresses.floating_ips().items()
    }
    return _differ("addresses", held, there)


def _of_volumes(holdings: dict[str, Holding], kept: Counter[str], cloud: SimulatedCloud) -> list[str]:
    """Check that each volume exists once, in the booked pool, and that ended reservations keep theirs."""
    held = {
        reservation_id: Counter({(holding.names[pool], holding.project_id, holding.parameters["size_gb"]): units})
        for reservation_id, holding in holdings.items()
        for pool, units in holding.units.items()
    }
    there: dict[str, Counter[tuple[str, str, int]]] = {}
    left: Counter[str] = Counter()
    for volume in cloud.world.volumes.all().values():
        reservation_id = volume.metadata.get("tenure:reservation")
        if reservation_id is None:
            continue
        if volume.metadata.get("tenure") == "kept":
            left[reservation_id] += 1
        else:
            there.setdefault(reservation_id, Counter())[volume.pool, volume.project_id, volume.size_gb] += 1
    return _differ("volumes", held, there) + _differ("volumes that are kept", kept, left)


def _reservation_of(resource_class: str) -> str:
    return resource_class.removeprefix("CUSTOM_RESERVATION_").lower().replace("_", "-")
