"""Changing Nova's aggregates; a change that is already made is no error."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tenure.drivers.contract import CloudBusy, CloudError, CloudNotFound
from tenure.drivers.openstack.compute import Aggregate, Compute
from tenure.drivers.openstack.layout import Layout
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.requests import Conflict


class Aggregates:
    """The aggregates of a cloud, for one driver call."""

    def __init__(self, compute: Compute, options: OpenStackOptions) -> None:
        self._compute = compute
        self._options = options

    def read_layout(self) -> Layout:
        """Return the current layout; the pool is created if it does not exist."""
        aggregates = self._compute.aggregates()
        if all(aggregate.name != self._options.freepool_name for aggregate in aggregates):
            with suppress(Conflict):  # another worker has just created it
                self._compute.make_aggregate(self._options.freepool_name)
            aggregates = self._compute.aggregates()
        return Layout(aggregates, self._options)

    def add(
        self, aggregate: Aggregate, hosts: Iterable[str], *, missing_ok: bool = False, announce: bool = True
    ) -> None:
        """Add these hosts to the aggregate."""
        all_hosts = list(hosts)
        if not all_hosts:
            return
        errors = self._compute.add_hosts(aggregate, all_hosts)
        if announce:
            self._compute.announce(aggregate)
        if missing_ok:
            errors = {host: error for host, error in errors.items() if not isinstance(error, CloudNotFound)}
        if not errors:
            return
        # Nova answers with a conflict both for a host that is in the aggregate already and for one that it refuses.
        members = {current.id: current.hosts for current in self._compute.aggregates()}.get(aggregate.id, frozenset())
        for host, error in sorted(errors.items()):
            if isinstance(error, CloudNotFound):
                raise CloudBusy(f"{host} or the aggregate {aggregate.name} was deleted meanwhile: {error}")
            if not (isinstance(error, Conflict) and host in members):
                raise error

    def remove(self, aggregate: Aggregate, hosts: Iterable[str]) -> None:
        """Remove these hosts from the aggregate."""
        errors: dict[str, CloudError] = self._compute.remove_hosts(aggregate, hosts)
        for _, error in sorted(errors.items()):
            raise error
