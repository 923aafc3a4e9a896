"""Small OpenStacks as the contracts of instances and of preemptible servers want them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tenure.drivers.contract import ResourceRef
from tests.drivers.rigs import HTTP, FakeRig
from tests.support.openstack import POOL, FakeOpenStack, Flavor, inventory


class FakeInstanceRig(FakeRig):
    flavor_id = "m1 small"
    private_flavor_id = "x1.private"

    def __init__(self, cloud: FakeOpenStack, transport: str = HTTP) -> None:
        super().__init__(cloud, transport)
        specs = {"hw:mem_page_size": "large", "trait:COMPUTE_NODE": "required"}
        cloud.add_flavor(Flavor(self.flavor_id, "m1.small", 2, 1024, 2, 1, 512, extra_specs=specs))
        cloud.add_flavor(Flavor(self.private_flavor_id, "x1", is_public=False, projects={self.neighbour}))

    def take_out(self, resource: ResourceRef) -> None:
        pool = self.cloud.aggregate(POOL)
        assert pool is not None
        pool.hosts.remove(self.service(resource))

    def boot_reserved(
        self, resource: ResourceRef, project_id: str, reservation_id: str = "r-1", *, group_id: str | None = None
    ) -> str | None:
        return self.cloud.boot_with(self.service(resource), project_id, reservation_id, group_id)

    def flavor(self, reservation_id: str) -> Mapping[str, Any] | None:
        found = self.cloud.flavors.get(reservation_id)
        if found is None:
            return None
        assert not found.is_public
        names = ("id", "name", "vcpus", "ram", "disk", "ephemeral", "swap", "extra_specs")
        return {**{name: getattr(found, name) for name in names}, "access": found.projects}

    def aggregate(self, reservation_id: str) -> Mapping[str, Any] | None:
        found = self.cloud.aggregate(reservation_id)
        if found is None:
            return None
        hosts = [self.cloud.hosts[host].id for host in found.hosts]
        return {"id": found.number, "zone": found.zone, "metadata": found.metadata, "hosts": hosts}

    def units(self, reservation_id: str) -> Mapping[str, int]:
        named = {host.name: host.id for host in self.cloud.hosts.values()}
        return {named[name]: units for name, units in self.cloud.units(reservation_id).items()}

    def groups(self) -> Mapping[str, tuple[str, str, str]]:
        return {group.id: (group.name, group.project_id, group.policy) for group in self.cloud.groups.values()}

    def traces(self, reservation_id: str) -> set[str]:
        there = {
            "flavor": reservation_id in self.cloud.flavors,
            "aggregate": self.cloud.aggregate(reservation_id) is not None,
            "resource class": _class_of(reservation_id) in self.cloud.classes,
            "inventory": bool(self.cloud.units(reservation_id)),
            "server group": any(group.name == f"reservation:{reservation_id}" for group in self.cloud.groups.values()),
        }
        return {name for name, is_there in there.items() if is_there}

    def delete_flavor(self, reservation_id: str) -> None:
        del self.cloud.flavors[reservation_id]

    def change_flavor(self, reservation_id: str, name: str, value: str | None) -> None:
        _change(self.cloud.flavors[reservation_id].extra_specs, name, value)

    def give_access(self, reservation_id: str, project_id: str) -> None:
        self.cloud.flavors[reservation_id].projects.add(project_id)

    def take_access(self, reservation_id: str, project_id: str) -> None:
        self.cloud.flavors[reservation_id].projects.remove(project_id)

    def delete_aggregate(self, reservation_id: str) -> None:
        del self.cloud.aggregates[self._aggregate(reservation_id).number]

    def change_aggregate(self, reservation_id: str, name: str, value: str | None) -> None:
        _change(self._aggregate(reservation_id).metadata, name, value)

    def add_to_aggregate(self, reservation_id: str, resource: ResourceRef) -> None:
        self._aggregate(reservation_id).hosts.append(self.service(resource))

    def take_from_aggregate(self, reservation_id: str, resource: ResourceRef) -> None:
        self._aggregate(reservation_id).hosts.remove(self.service(resource))

    def set_units(self, reservation_id: str, resource: ResourceRef, units: int | None) -> None:
        provider = self.cloud.provider(f"blazar_{resource.name}")
        provider.generation += 1
        if units is None:
            del provider.inventories[_class_of(reservation_id)]
        else:
            provider.inventories[_class_of(reservation_id)] = inventory(units, max_unit=1)

    def delete_group(self, group_id: str) -> None:
        del self.cloud.groups[group_id]

    def _aggregate(self, reservation_id: str) -> Any:
        found = self.cloud.aggregate(reservation_id)
        assert found is not None
        return found


def _class_of(reservation_id: str) -> str:
    return "CUSTOM_RESERVATION_" + reservation_id.upper().replace("-", "_")


def _change(mapping: dict[str, str], name: str, value: str | None) -> None:
    if value is None:
        del mapping[name]
    else:
        mapping[name] = value


class FakePreemptionRig(FakeInstanceRig):
    def boot_preemptible(self, resource: ResourceRef, project_id: str, vcpus: int = 1) -> str | None:
        name = f"spot-{vcpus}"
        if name not in self.cloud.flavors:
            specs = {"blazar:preemptible": "true"}
            self.cloud.add_flavor(Flavor(name, name, vcpus, 256, 1, extra_specs=specs))
        return self.cloud.boot_with(self.service(resource), project_id, name)

    def deadline_of(self, server: str) -> datetime | None:
        leaves_at = self.cloud.servers[server].metadata.get("tenure:leaves_at")
        return None if leaves_at is None else datetime.fromisoformat(leaves_at)

    def is_stopped(self, server: str) -> bool:
        return self.cloud.servers[server].status == "SHUTOFF"
