"""Changing Nova's aggregates: what is so already is no error."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tenure.drivers.contract import CloudBusy, CloudError, CloudNotFound
from tenure.drivers.openstack.compute import Aggregate, Compute
from tenure.drivers.openstack.layout import Layout
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.requests import Conflict


class Aggregates:
    """The aggregates of a cloud, with the calls of one verb."""

    def __init__(self, compute: Compute, options: OpenStackOptions) -> None:
        self._compute = compute
        self._options = options

    def look(self) -> Layout:
        """How hosts are spread; the pool is made where there is none, or none any more."""
        aggregates = self._compute.aggregates()
        if all(aggregate.name != self._options.freepool_name for aggregate in aggregates):
            with suppress(Conflict):  # somebody else made it since we looked
                self._compute.make_aggregate(self._options.freepool_name)
            aggregates = self._compute.aggregates()
        return Layout(aggregates, self._options)

    def add(
        self, aggregate: Aggregate, hosts: Iterable[str], *, missing_ok: bool = False, announce: bool = True
    ) -> None:
        """Have these hosts in the aggregate."""
        wanted = list(hosts)
        if not wanted:
            return
        errors = self._compute.add_hosts(aggregate, wanted)
        if announce:
            self._compute.announce(aggregate)
        if missing_ok:
            errors = {host: error for host, error in errors.items() if not isinstance(error, CloudNotFound)}
        if not errors:
            return
        # A host that is in it already is as much of a conflict as one that Nova does not put there.
        members = {current.id: current.hosts for current in self._compute.aggregates()}.get(aggregate.id, frozenset())
        for host, error in sorted(errors.items()):
            if isinstance(error, CloudNotFound):
                raise CloudBusy(f"{host} or the aggregate {aggregate.name} was deleted meanwhile: {error}")
            if not (isinstance(error, Conflict) and host in members):
                raise error

    def remove(self, aggregate: Aggregate, hosts: Iterable[str]) -> None:
        """Have none of these hosts in the aggregate."""
        errors: dict[str, CloudError] = self._compute.remove_hosts(aggregate, hosts)
        for _, error in sorted(errors.items()):
            raise error
