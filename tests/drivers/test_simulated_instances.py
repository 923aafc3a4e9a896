"""The simulated cloud keeps the contract of drivers for instances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.drivers.contract import CloudRefused, ResourceRef
from tenure.drivers.simulated.fleet import add_fleet
from tenure.drivers.simulated.openstack.service import ApiRequest, Refused
from tenure.drivers.simulated.openstack.transport import SERVICE
from tests.drivers.contracts.instances import InstanceContract, InstanceRig
from tests.drivers.test_simulated import SimulatedRig
from tests.support.simulated import SimulatedCloud


class SimulatedInstanceRig(SimulatedRig):
    flavor_id = "small-with-specs"
    private_flavor_id = "6"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        specs = {"hw:mem_page_size": "large", "trait:COMPUTE_NODE": "required"}
        self.cloud.world.instances.add_flavor(
            self.flavor_id, ram=1024, disk=2, ephemeral=1, swap=512, extra_specs=specs
        )
        self.cloud.world.instances.give_access(self.private_flavor_id, self.neighbour)

    def boot_reserved(
        self, resource: ResourceRef, project_id: str, reservation_id: str = "r-1", *, group_id: str | None = None
    ) -> str | None:
        self.clock.advance(timedelta(seconds=1))
        try:
            return self.cloud.world.instances.boot(
                project_id, reservation_id, group=group_id, host=resource.external_id
            )
        except CloudRefused:
            return None

    def flavor(self, reservation_id: str) -> Mapping[str, Any] | None:
        flavor = self.cloud.world.instances.flavors().get(reservation_id)
        if flavor is None:
            return None
        document = asdict(flavor)
        assert not document.pop("is_public")
        return document

    def aggregate(self, reservation_id: str) -> Mapping[str, Any] | None:
        aggregate = self.cloud.world.instances.aggregates().get(reservation_id)
        return None if aggregate is None else {**asdict(aggregate), "zone": None}

    def units(self, reservation_id: str) -> Mapping[str, int]:
        return self.cloud.world.instances.units(reservation_id)

    def groups(self) -> Mapping[str, tuple[str, str, str]]:
        found = self.cloud.world.instances.server_groups()
        return {group.id: (group.name, group.project_id, group.policy) for group in found.values()}

    def traces(self, reservation_id: str) -> set[str]:
        return set(self.cloud.world.instances.traces(reservation_id))

    def delete_flavor(self, reservation_id: str) -> None:
        self.cloud.world.instances.delete_flavor(reservation_id)

    def change_flavor(self, reservation_id: str, name: str, value: str | None) -> None:
        self.cloud.world.instances.change_extra_specs(reservation_id, **{name: value})

    def give_access(self, reservation_id: str, project_id: str) -> None:
        self.cloud.world.instances.give_access(reservation_id, project_id)

    def take_access(self, reservation_id: str, project_id: str) -> None:
        self.cloud.world.instances.take_access(reservation_id, project_id)

    def delete_aggregate(self, reservation_id: str) -> None:
        self.cloud.world.instances.delete_aggregate(reservation_id)

    def change_aggregate(self, reservation_id: str, name: str, value: str | None) -> None:
        self.cloud.world.instances.change_metadata(reservation_id, **{name: value})

    def add_to_aggregate(self, reservation_id: str, resource: ResourceRef) -> None:
        self.cloud.world.instances.add_to_aggregate(reservation_id, resource.external_id)

    def take_from_aggregate(self, reservation_id: str, resource: ResourceRef) -> None:
        self.cloud.world.instances.take_from_aggregate(reservation_id, resource.external_id)

    def set_units(self, reservation_id: str, resource: ResourceRef, units: int | None) -> None:
        self.cloud.world.instances.set_units(reservation_id, resource.external_id, units)

    def delete_group(self, group_id: str) -> None:
        self.cloud.world.instances.delete_group(group_id)


class TestInstances(InstanceContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[InstanceRig]:
        rig = SimulatedInstanceRig(tmp_path / "cloud.db")
        yield rig
        rig.cloud.close()


def test_placement_compares_generations_before_it_looks_up_classes(tmp_path: Path):
    """As the real one does: a class that was deleted since the read is a conflict, not a wrong request."""
    with SimulatedCloud(tmp_path / "cloud.db") as cloud:
        add_fleet(cloud.openstack, 1)
        (provider,) = cloud.openstack.providers.values()
        path = f"/resource_providers/{provider.uuid}/inventories"

        def status_of_write(generation: int) -> int:
            body = {"resource_provider_generation": generation, "inventories": {"CUSTOM_DELETED": {"total": 1}}}
            with pytest.raises(Refused) as refused:
                cloud.openstack.answer(ApiRequest("placement", "PUT", path, body=body, microversion="1.29"), SERVICE)
            return refused.value.status

        assert status_of_write(provider.generation - 1) == 409
        assert status_of_write(provider.generation) == 400
