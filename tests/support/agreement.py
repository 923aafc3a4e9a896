"""Whether a simulated cloud has what a ledger says, and nothing else: every difference, in words."""

from __future__ import annotations

from collections import Counter

from tenure.drivers.simulated import SimulatedCloud
from tests.support import ledger
from tests.support.ledger import Holding
from tests.support.waiting import SECONDS, wait_for

HOST, ADDRESS, VOLUME = "physical:host", "virtual:floatingip", "virtual:volume"
#: What is neither a host nor on one.
_ELSEWHERE = frozenset({ADDRESS, VOLUME})
_POLICIES = {True: "affinity", False: "anti-affinity"}


def disagreements(url: str, cloud: SimulatedCloud) -> list[str]:
    """What the cloud has and no running lease holds, or the other way round.

    For when nobody is at work. A reservation that waits may have a server group, which clients must see at once.
    """
    holdings = ledger.holdings(url)
    running = [one for one in holdings if one.running]
    hosts = {one.reservation_id: one for one in running if one.resource_type == HOST}
    addresses = {one.reservation_id: one for one in running if one.resource_type == ADDRESS}
    volumes = {one.reservation_id: one for one in running if one.resource_type == VOLUME}
    instances = {one.reservation_id: one for one in running if one.resource_type not in {HOST, *_ELSEWHERE}}
    return [
        *_of_hosts(hosts, cloud),
        *_of_instances(instances, cloud),
        *_of_groups([one for one in holdings if one.resource_type not in {HOST, *_ELSEWHERE}], cloud),
        *_of_addresses(addresses, cloud),
        *_of_volumes(volumes, ledger.kept(url), cloud),
    ]


def wait_for_agreement(url: str, cloud: SimulatedCloud, *, seconds: float = SECONDS) -> None:
    """Return when all that is due is done, and the cloud has what the ledger says."""
    wait_for(
        lambda: f"an end of {ledger.busy(url)} and {disagreements(url, cloud)}",
        lambda: not (ledger.busy(url) or disagreements(url, cloud)),
        seconds=seconds,
    )


def _differ(what: str, due: object, there: object) -> list[str]:
    return [] if due == there else [f"{what}: the ledger says {due}, the cloud {there}"]


def _of_hosts(holdings: dict[str, Holding], cloud: SimulatedCloud) -> list[str]:
    groups = {name: (set(one.hosts), one.project_id) for name, one in cloud.world.groups().items()}
    held = {number: (set(one.units), one.project_id) for number, one in holdings.items()}
    taken = {host for hosts, _ in held.values() for host in hosts}
    free = {host.id for host in cloud.world.hosts()} - taken
    return _differ("groups of hosts", held, groups) + _differ("the pool", free, set(cloud.world.pool()))


def _of_instances(holdings: dict[str, Holding], cloud: SimulatedCloud) -> list[str]:
    world = cloud.world.instances
    units = {number: dict(one.units) for number, one in holdings.items()}
    access = {number: {one.project_id} for number, one in holdings.items()}
    flavors = {one.id: set(one.access) for one in world.flavors().values() if one.name.startswith("reservation:")}
    aggregates = {
        name: set(one.hosts) for name, one in world.aggregates().items() if one.metadata.get("reservation") == name
    }
    inventories = {_reservation_of(name): dict(parts) for name, parts in world.inventories().items()}
    return [
        *_differ("units", units, inventories),
        *_differ("who sees which flavor", access, flavors),
        *_differ("aggregates", {number: set(one) for number, one in units.items()}, aggregates),
    ]


def _of_groups(holdings: list[Holding], cloud: SimulatedCloud) -> list[str]:
    """A plan may have its group yet to come, and one of an earlier rule; what runs has the one that it asked for."""
    there: dict[str, list[str]] = {}
    for group in cloud.world.instances.server_groups().values():
        there.setdefault(group.name.removeprefix("reservation:"), []).append(group.policy)
    found = [f"a server group is left of {one}" for one in there.keys() - {one.reservation_id for one in holdings}]
    for one in holdings:
        affinity = one.parameters.get("affinity")
        due = [] if affinity is None else [_POLICIES[affinity]]
        if one.running:
            found += _differ(f"server groups of {one.reservation_id}", due, there.get(one.reservation_id, []))
    return found


def _of_addresses(holdings: dict[str, Holding], cloud: SimulatedCloud) -> list[str]:
    held = {
        name: (one.project_id, frozenset({"blazar", f"reservation:{number}"}))
        for number, one in holdings.items()
        for name in one.names.values()
    }
    there = {address: (one.project_id, one.tags) for address, one in cloud.world.addresses.floating_ips().items()}
    return _differ("addresses", held, there)


def _of_volumes(holdings: dict[str, Holding], kept: Counter[str], cloud: SimulatedCloud) -> list[str]:
    """Whether each is there once, in the pool that was booked; and of what is over, what is kept."""
    held = {
        number: Counter({(one.names[pool], one.project_id, one.parameters["size_gb"]): units})
        for number, one in holdings.items()
        for pool, units in one.units.items()
    }
    there: dict[str, Counter[tuple[str, str, int]]] = {}
    left: Counter[str] = Counter()
    for volume in cloud.world.volumes.all().values():
        if number := volume.metadata.get("tenure:reservation"):
            there.setdefault(number, Counter())[volume.pool, volume.project_id, volume.size_gb] += 1
        elif number := volume.metadata.get("tenure:kept"):
            left[number] += 1
    return _differ("volumes", held, there) + _differ("volumes that are kept", kept, left)


def _reservation_of(resource_class: str) -> str:
    return resource_class.removeprefix("CUSTOM_RESERVATION_").lower().replace("_", "-")
