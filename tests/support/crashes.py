"""Checks after a service was killed: its database, its simulated cloud, and its leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenure.drivers.simulated import EffectKind
from tests.support import ledger
from tests.support.agreement import ADDRESS, HOST, VOLUME, disagreements
from tests.support.simulated import SimulatedCloud
from tests.support.standalone import Caller
from tests.support.waiting import wait_for

#: What a driver may do again without harm: it writes metadata and inventories as they are to be then.
REPEATED = frozenset({EffectKind.INVENTORY_SET, EffectKind.GROUP_CHANGED, EffectKind.AGGREGATE_CHANGED})

#: The effects on the zone of a host, which are those without a reservation: the host leaves it at the start of each
#: reservation and returns at its end.
ZONE_CHANGES: dict[str, int] = {EffectKind.HOST_ADDED: 1, EffectKind.HOST_DROPPED: -1}


@dataclass(frozen=True)
class Traces:
    """The database and the simulated cloud of a service, with this number of hosts."""

    database: str
    cloud: Path
    hosts: int

    @contextmanager
    def opened(self) -> Iterator[SimulatedCloud]:
        with SimulatedCloud(self.cloud) as cloud:
            yield cloud

    def boot(self, lease: dict[str, Any]) -> None:
        """Boot a server of the lease on its own host, and one of each instance reservation."""
        with self.opened() as cloud:
            for reservation in lease["reservations"]:
                if reservation["resource_type"] == HOST:
                    cloud.world.boot_server(lease["project_id"], reservation_id=reservation["id"])
                elif reservation["resource_type"] not in {ADDRESS, VOLUME}:
                    cloud.world.instances.boot(lease["project_id"], reservation["id"])

    def counts(self, lease: dict[str, Any], resource_type: str = HOST) -> dict[str, int]:
        """Return how often each effect was caused for the lease's reservations of a type, but for repeated ones."""
        with self.opened() as cloud:
            ids = [
                reservation["id"]
                for reservation in lease["reservations"]
                if reservation["resource_type"] == resource_type
            ]
            effects = (effect for reservation_id in ids for effect in cloud.world.journal(reservation_id))
            return Counter(effect.kind for effect in effects if effect.kind not in REPEATED)

    def has(self, lease: dict[str, Any]) -> tuple[str, ...]:
        """Return the hosts of the lease in the cloud."""
        with self.opened() as cloud:
            group = cloud.world.groups().get(lease["reservations"][0]["id"])
            return group.hosts if group else ()

    def assert_sound(self, *, idle: bool) -> None:
        """Check that ledger and cloud agree, and that nothing was done twice; with ``idle``, that nothing is in use."""
        assert ledger.faults(self.database) == []
        with self.opened() as cloud:
            groups, addresses = cloud.world.groups(), cloud.world.addresses.floating_ips()
            assert idle <= (groups == addresses == {} and len(cloud.world.pool()) == self.hosts)
            assert idle <= (cloud.world.servers() == [])
            assert disagreements(self.database, cloud) == []
            holders: dict[str | None, str | None] = {}
            done: Counter[tuple[str, str | None, str | None, str | None]] = Counter()
            in_zone: Counter[str | None] = Counter()
            for effect in cloud.world.journal():
                if effect.kind == EffectKind.HOST_TAKEN:
                    assert holders.get(effect.host) is None, f"{effect} while {holders[effect.host]} has it"
                    holders[effect.host] = effect.reservation_id
                elif effect.kind == EffectKind.HOST_RETURNED:
                    assert holders.pop(effect.host) == effect.reservation_id
                if effect.kind in ZONE_CHANGES and effect.reservation_id is None:
                    in_zone[effect.host] += ZONE_CHANGES[effect.kind]
                elif effect.kind not in REPEATED:
                    done[effect.kind, effect.reservation_id, effect.host, effect.subject] += 1
        assert {effect: times for effect, times in done.items() if times > 1} == {}
        assert idle <= (not any(in_zone.values())), in_zone


def wait_for_event(caller: Caller, lease: dict[str, Any], event_type: str) -> None:
    """Wait until that event of the lease is done."""

    def status() -> str:
        events = caller.lease(lease["id"])["events"]
        return str(next(event for event in events if event["event_type"] == event_type)["status"])

    wait_for(lambda: f"{event_type} after {status()}", lambda: status() == "DONE")


def delete(caller: Caller, lease: dict[str, Any]) -> None:
    status, answer = caller.call("DELETE", f"/leases/{lease['id']}")
    assert status == 204, answer
    wait_until_gone(caller, lease)


def wait_until_gone(caller: Caller, lease: dict[str, Any]) -> None:
    wait_for(f"lease {lease['id']} to go", lambda: caller.call("GET", f"/leases/{lease['id']}")[0] == 404)
