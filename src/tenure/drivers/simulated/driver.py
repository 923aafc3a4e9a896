"""The simulated cloud: the OpenStack driver on a small OpenStack in the same process, stored in one file.

``tenure-standalone`` and the scenario tests use it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from os import PathLike
from typing import Any, Self

from tenure.clock import Clock, SystemClock
from tenure.domain.actor import Actor
from tenure.drivers.contract import Command, ResourceRef
from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.pci_aliases import PciAlias
from tenure.drivers.openstack.requests import Calls, Circumstances, Request
from tenure.drivers.simulated.catalogue import populate
from tenure.drivers.simulated.faults import Fault, Faults, Scope
from tenure.drivers.simulated.openstack.cloud import OpenStack
from tenure.drivers.simulated.openstack.objects import IN_MEMORY
from tenure.drivers.simulated.openstack.service import Caller
from tenure.drivers.simulated.openstack.state import Server
from tenure.drivers.simulated.openstack.transport import InProcess


class SimulatedCloud(OpenStackCloud):
    """A ``CloudDriver`` with a cloud of its own, ``openstack``.

    Each request to it is a transaction: a verb that is killed in the middle leaves some of its effects, and the next
    call completes them. Safe for any number of threads; any number of processes may open the same file.
    """

    def __init__(
        self,
        path: str | PathLike[str] = IN_MEMORY,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        longest_call: timedelta = timedelta(seconds=30),
        pci_aliases: Sequence[PciAlias] = (),
    ) -> None:
        clock = clock or SystemClock()
        cloud = OpenStack(path, now=clock.now)
        cloud.pci_aliases = {alias.name: alias for alias in pci_aliases}
        self._faults = Faults(cloud.objects, clock, sleep)
        populate(cloud)
        self._cloud = cloud
        self._callers: dict[str, Caller] = {}
        transport = _Faulty(cloud, self._callers.get, self._faults)
        options = OpenStackOptions(verb_timeout=longest_call - timedelta(seconds=1), pci_aliases=tuple(pci_aliases))
        super().__init__(options, transport, clock=clock)
        cloud.slowed_by = self._slowed_by
        cloud.is_over = self._faults.is_over

    @property
    def openstack(self) -> OpenStack:
        """The cloud without the driver."""
        return self._cloud

    def ailment(self) -> str | None:
        """Return why changes would be lost; None if they are stored."""
        return self._cloud.objects.ailment()

    def close(self) -> None:
        super().close()
        self._cloud.objects.close()

    def __enter__(self) -> Self:
        return self

    # Faults

    def inject(self, fault: Fault) -> int:
        """Set a fault; return its id, with which it can be cleared."""
        return self._faults.inject(fault)

    def clear_faults(self, fault_id: int | None = None) -> None:
        """Clear this fault, or all faults; blocked calls continue."""
        self._faults.clear(fault_id)

    def faults(self) -> dict[int, Fault]:
        return self._faults.all()

    def wait_until_blocked(self, calls: int = 1, *, timeout_seconds: float = 10.0) -> bool:
        """Wait until faults block this many calls of this process; return False after the timeout."""
        return self._faults.wait_until_blocked(calls, timeout_seconds)

    @contextmanager
    def _calling(self, verb: str, *about: object) -> Iterator[Calls]:
        """Carry out a driver call with the faults that match it."""
        with self._faults.call(_scope_of(verb, about)), super()._calling(verb, *about) as calls:
            if verb == "ensure_ended":
                self._slow_down(next(command for command in about if isinstance(command, Command)))
            yield calls

    def _slowed_by(self) -> int | None:
        call = self._faults.current
        return call.slowed_by() if call is not None else None

    def _slow_down(self, command: Command) -> None:
        """If a fault slows the end of the reservation, add a server of the reservation whose deletion takes time."""
        if self._slowed_by() is None:
            return
        cloud, reservation_id = self._cloud, command.reservation_id
        with cloud.objects.change():
            aggregate = cloud.aggregate(reservation_id)
            if aggregate is None or not aggregate.members:
                return
            if any(cloud.reservation_of(server) == reservation_id for server in cloud.servers.values()):
                return
            if command.resource_type.endswith(":instance") and reservation_id not in cloud.flavors:
                return  # without their flavor no server of these instances exists
            lingering = Server("lingering", aggregate.members[0], command.project_id, task="deleting")
            lingering.hints["reservation"] = reservation_id
            lingering.flavor = cloud.flavors.get(reservation_id)
            lingering.created = lingering.updated = cloud.now()
            cloud.servers[lingering.id] = lingering
            cloud.finish("delete server", lingering.id)

    # Callers: the cloud knows the calling user while a verb acts in the user's name

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        # The caller sees the flavors of the own project only.
        with self._known(actor, actor.roles - {"admin"}) as caller:
            return super().fetch(kind, reference, caller)

    def delegate(self, actor: Actor, regions: Collection[str] = ()) -> str:
        with self._known(actor, actor.roles) as caller:
            return super().delegate(caller)

    @contextmanager
    def _known(self, actor: Actor, roles: frozenset[str]) -> Iterator[Actor]:
        """Yield the actor with a token that the cloud accepts: Tenure has checked the original token."""
        token = secrets.token_hex(16)
        self._callers[token] = Caller(actor.user_id, actor.project_id, roles)
        try:
            yield replace(actor, token=token)
        finally:
            del self._callers[token]


class _Faulty(InProcess):
    """The transport to the cloud, which applies faults."""

    def __init__(self, cloud: OpenStack, caller_of: Callable[[str], Caller | None], faults: Faults) -> None:
        super().__init__(cloud, caller_of)
        self._faults = faults

    def send(self, request: Request, circumstances: Circumstances) -> Any:
        call = self._faults.current
        if call is None:
            return super().send(request, circumstances)
        call.refuse_if_broken()
        before = self._cloud.recorded
        try:
            return super().send(request, circumstances)
        finally:
            call.effects_happened(self._cloud.recorded - before)


def _scope_of(verb: str, arguments: Iterable[object]) -> Scope:
    """Return the scope of a verb's call: its command, its resource, or its references."""
    command = next((argument for argument in arguments if isinstance(argument, Command)), None)
    if command is not None:
        hosts = frozenset(name for resource in command.resources for name in (resource.external_id, resource.name))
        return Scope(verb, command.reservation_id, command.lease_name, hosts)
    references = [argument for argument in arguments if isinstance(argument, str)]
    for resource in arguments:
        references += [resource.external_id, resource.name] if isinstance(resource, ResourceRef) else []
    return Scope(verb, hosts=frozenset(references))
