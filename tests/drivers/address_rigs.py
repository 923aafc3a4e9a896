"""Floating IPs as the contract of all inventories wants them: on top of a rig that knows addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenure.drivers.contract import ResourceRef
from tests.drivers.contracts.addresses import FLOATING_IP, AddressRig, ref


class AddressResources:
    """A ``ResourceRig`` made of an ``AddressRig``."""

    resource_type = FLOATING_IP

    def __init__(self, rig: AddressRig) -> None:
        self._rig = rig

    def __getattr__(self, name: str) -> object:
        return getattr(self._rig, name)

    def resources(self) -> Sequence[ResourceRef]:
        found = [ref(self._rig, address) for address in self._rig.addresses]
        return sorted(found, key=lambda resource: resource.external_id)

    def references(self, resource: ResourceRef) -> Sequence[str]:
        return [f"{self._rig.network_id}/{resource.name}"]

    def parameters(self, resources: Sequence[ResourceRef]) -> Mapping[str, object]:
        return {"network_id": self._rig.network_id, "amount": len(resources), "required_floatingips": []}

    def holders(self) -> Mapping[str, str]:
        return {ref(self._rig, address).external_id: one.project_id for address, one in self._rig.holders().items()}

    def take(self, resource: ResourceRef, project_id: str) -> None:
        self._rig.take(resource.name, project_id)

    def release(self, resource: ResourceRef) -> None:
        self._rig.release(resource.name)

    def spoil(self, resource: ResourceRef) -> None:
        self._rig.take(resource.name, self._rig.neighbour)

    def absent(self) -> ResourceRef:
        return ref(self._rig, self._rig.elsewhere)
