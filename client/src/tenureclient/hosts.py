"""Compute hosts that can be reserved; for administrators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tenureclient import errors
from tenureclient.models import Host, HostChange
from tenureclient.transport import Answer, Transport, parsed
from tenureclient.wire import JsonObject, Version

SORT_KEYS = ("id", "hypervisor_hostname")
_PAGE = 500


class Hosts:
    """The hosts that were given to the reservation service."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, name: str, *, properties: Mapping[str, str] | None = None) -> Host:
        """Make a host of Nova reservable. It must be empty."""
        own = dict(properties or {})

        def body(version: Version) -> JsonObject:
            if version is Version.V1_0:
                return {**own, "name": name}
            return {"name": name, "properties": own} if own else {"name": name}

        return _host(self._transport.call("POST", "os-hosts", body=body))

    def get(self, host_id: str) -> Host:
        return _host(self._transport.call("GET", "os-hosts", host_id, newest=True))

    def find(self, name_or_id: str) -> Host:
        """Return the host with this host name, or else with this id."""
        named = list(self.list(hypervisor_hostname=name_or_id))
        if len(named) > 1:
            ids = ", ".join(host.id for host in named)
            raise errors.NotUnique(f"Several hosts are named '{name_or_id}': {ids}. Give the id.")
        if named:
            return named[0]
        try:
            return self.get(name_or_id)
        except errors.NotFound as error:
            raise errors.NotFound(
                f"There is no host '{name_or_id}'.",
                code=error.code,
                name=error.name,
                request_id=error.request_id,
            ) from error

    def list(
        self,
        *,
        hypervisor_hostname: str | None = None,
        reservable: bool | None = None,
        sort_key: str = "id",
        descending: bool = False,
    ) -> Iterator[Host]:
        """Yield the hosts that fit; further pages are fetched as they are needed."""
        if sort_key not in SORT_KEYS:
            raise ValueError(f"Hosts can be sorted by {', '.join(SORT_KEYS)}, not by {sort_key}.")
        query = {"limit": str(_PAGE), "sort_key": sort_key, "sort_dir": "desc" if descending else "asc"}
        if hypervisor_hostname is not None:
            query["hypervisor_hostname"] = hypervisor_hostname
        if reservable is not None:
            query["reservable"] = "true" if reservable else "false"
        pages = self._transport.pages(
            "os-hosts", items="hosts", query=query, read=Host.from_wire, newest=True
        )
        first = next(pages, None)
        if first is None:
            return
        if self._transport.version is Version.V1_0:  # which lists everything
            fitting = [
                host
                for host in (first, *pages)
                if hypervisor_hostname in (None, host.hypervisor_hostname)
                and reservable in (None, host.reservable)
            ]
            yield from sorted(fitting, key=lambda host: str(getattr(host, sort_key)), reverse=descending)
            return
        yield first
        yield from pages

    def update(self, host_id: str, *, properties: Mapping[str, str]) -> Host:
        """Give properties to a host, or change their values."""
        return self._put(host_id, dict(properties))

    def unset(self, host_id: str, names: Iterable[str]) -> Host:
        """Take properties away from a host."""
        return self._put(host_id, dict.fromkeys(names))

    def delete(self, host_id: str) -> None:
        """Give the host back to Nova. No lease may need it any more."""
        self._transport.call("DELETE", "os-hosts", host_id)

    def disable(self, host_id: str, *, reason: str = "", dry_run: bool = False) -> HostChange:
        """Close a host to new reservations; who has a part in it keeps it. With ``dry_run`` only tell."""
        return self._change(host_id, "disable", {"reason": reason, "dry_run": dry_run})

    def enable(self, host_id: str, *, dry_run: bool = False) -> HostChange:
        """Open a host to reservations again, as far as it is well. With ``dry_run`` only tell."""
        return self._change(host_id, "enable", {"dry_run": dry_run})

    def reallocate(
        self, host_id: str, *, lease_id: str | None = None, running: bool = False, dry_run: bool = False
    ) -> HostChange:
        """Move what is booked on a host to others: of one lease, or of all. With ``dry_run`` only tell.

        What runs there stays, unless ``running``: its servers there are lost then.
        """
        return self._change(
            host_id, "reallocate", {"lease_id": lease_id, "running": running, "dry_run": dry_run}
        )

    def _change(self, host_id: str, action: str, body: JsonObject) -> HostChange:
        answer = self._transport.call(
            "POST",
            "os-hosts",
            host_id,
            action,
            body=lambda _version: body,
            feature="closing and emptying hosts",
            since=Version.V1_2,
        )
        return parsed(HostChange.from_wire, answer.body)

    def _put(self, host_id: str, values: Mapping[str, str | None]) -> Host:
        def body(version: Version) -> JsonObject:
            return values if version is Version.V1_0 else {"properties": values}

        return _host(self._transport.call("PUT", "os-hosts", host_id, body=body))


def _host(answer: Answer) -> Host:
    return parsed(Host.from_wire, answer.body.get("host"))
