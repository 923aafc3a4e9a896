"""Compute hosts that can be reserved; for administrators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tenureclient.inventory import Inventory, Kind
from tenureclient.models import Host
from tenureclient.transport import Transport
from tenureclient.wire import JsonObject, Version

SORT_KEYS = ("id", "hypervisor_hostname")
_KIND = Kind(
    path="os-hosts",
    document_key="host",
    list_key="hosts",
    noun="host",
    name="hypervisor_hostname",
    read=Host.from_wire,
)


class Hosts(Inventory[Host]):
    """The hosts that are registered with the reservation service."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport, _KIND)

    def create(self, name: str, *, properties: Mapping[str, str] | None = None, region: str | None = None) -> Host:
        """Make an empty host of Nova reservable. The default ``region`` is the home region."""
        own = dict(properties or {})

        def body(version: Version) -> JsonObject:
            if version is Version.V1_0:
                return {**own, "name": name}
            return {"name": name, **({"properties": own} if own else {})}

        return self._register(body, region)

    def list(
        self,
        *,
        hypervisor_hostname: str | None = None,
        region: str | None = None,
        reservable: bool | None = None,
        sort_key: str = "id",
        descending: bool = False,
    ) -> Iterator[Host]:
        """Yield the matching hosts; further pages are fetched as needed."""
        return self._list(
            {"hypervisor_hostname": hypervisor_hostname, "region": region},
            reservable=reservable,
            sort_key=sort_key,
            descending=descending,
        )

    def update(self, host_id: str, *, properties: Mapping[str, str]) -> Host:
        """Set properties of a host."""
        return self._put(host_id, dict(properties))

    def unset(self, host_id: str, names: Iterable[str]) -> Host:
        """Remove properties from a host."""
        return self._put(host_id, dict.fromkeys(names))

    def _put(self, host_id: str, values: Mapping[str, str | None]) -> Host:
        def body(version: Version) -> JsonObject:
            return values if version is Version.V1_0 else {"properties": values}

        return self._read_resource(self._transport.call("PUT", "os-hosts", host_id, body=body))
