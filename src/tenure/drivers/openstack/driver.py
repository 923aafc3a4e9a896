"""The driver of OpenStack clouds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from keystoneauth1.session import Session

from tenure.clock import Clock, SystemClock
from tenure.domain.actor import Actor
from tenure.domain.capacity import Capacity
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import (
    DONE,
    CloudBusy,
    CloudNotFound,
    CloudRefused,
    Drift,
    Health,
    Order,
    Progress,
    ResourceRef,
)
from tenure.drivers.openstack.compute import Compute, Hypervisor, tells_hints
from tenure.drivers.openstack.hosts import Hosts
from tenure.drivers.openstack.identity import Identity
from tenure.drivers.openstack.image import Images, of_project
from tenure.drivers.openstack.layout import Layout
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.placement import PREFIX, Placement, Stock
from tenure.drivers.openstack.session import (
    Calls,
    Forbidden,
    Http,
    OnCall,
    Unauthorized,
    open_session,
    password_of,
)

LOG = logging.getLogger(__name__)

#: The one resource type that the driver has.
HOST: Final = "physical:host"
#: The zone of hosts that are in no zone by an aggregate, where none of them is left to tell how Nova calls it.
_DEFAULT_ZONE: Final = "nova"
#: How long what Nova can do is taken for granted: it may be exchanged while we run.
_NOVA_STAYS: Final = timedelta(minutes=5)
#: How long to wait before looking again whether images are ready.
_IMAGES: Final = timedelta(seconds=5)


class OpenStackCloud:
    """A ``CloudDriver`` for the compute hosts of an OpenStack cloud.

    It keeps nothing but a token, and what Nova's version is. Threads share its connections; ``concurrency`` calls are
    made at a time, and a verb takes no longer than ``verb_timeout``: what is not done by then raises ``CloudBusy``
    and is completed by the next call.

    ``session`` replaces the session that the options describe; the trusts of owners are used with the options' account
    in any case. ``request_id`` gives the id that is sent as ``X-OpenStack-Request-ID``, asked for once a verb, in the
    thread that calls it. ``on_call`` is told of each HTTP call, in another thread, and must not raise.
    """

    def __init__(
        self,
        options: OpenStackOptions,
        *,
        session: Session | None = None,
        on_call: OnCall | None = None,
        request_id: Callable[[], str | None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self.longest_call = options.verb_timeout + timedelta(seconds=1)
        self._options = options
        self._session = session or open_session(options)
        self._http = Http(self._session, options, on_call=on_call, request_id=request_id)
        self._clock = clock or SystemClock()
        self._tells_hints = False
        self._ask_again_at = 0.0

    def close(self) -> None:
        """Stop making calls. Those that are under way come to nothing for whoever waits for them."""
        self._http.close()

    def __enter__(self) -> OpenStackCloud:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading

    def discover(self, resource_type: str) -> list[DiscoveredResource]:
        if resource_type != HOST:
            return []
        calls = self._http.begin("discover")
        compute = self._compute(calls)
        found = compute.hypervisors()
        zones = self._zones(compute)
        stocks = Placement(calls).stocks()
        described = (self._described(one, zones, stocks.get(one.name, Stock())) for one in found)
        return sorted(described, key=lambda one: one.external_id)

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        if resource_type != HOST:
            raise CloudNotFound(f"This cloud has no {resource_type}.")
        calls = self._http.begin("look_up")
        compute = self._compute(calls)
        found = compute.hypervisor(reference)
        return self._described(found, self._zones(compute), Placement(calls).stock(found.name))

    def held(self, resource_type: str) -> Iterable[str]:
        if resource_type != HOST:
            return []
        return self._layout(self._compute(self._http.begin("held"))).reservations()

    def check(self, resource_type: str) -> Mapping[str, Health]:
        if resource_type != HOST:
            return {}
        compute = self._compute(self._http.begin("check"))
        return {one.external_id: _health(one) for one in compute.hypervisors()}

    def drift(self, resource_type: str, orders: Iterable[Order], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        if resource_type != HOST:
            return []
        calls = self._http.begin("drift")
        compute = self._compute(calls)
        layout = self._layout(compute)
        hypervisors = {one.external_id: one for one in compute.hypervisors()}
        try:
            providers = Placement(calls).providers()
        except CloudBusy as error:
            LOG.warning("what is in Placement is not looked at: %s", error)
            without: frozenset[str] = frozenset()
        else:
            without = frozenset(one.name for one in hypervisors.values() if PREFIX + one.name not in providers)
        return list(layout.drift(list(orders), list(pooled), hypervisors, without))

    # Registering

    def ensure_registered(self, resource_type: str, resource: ResourceRef) -> None:
        """Put the host into the pool, and a provider for reservations under the host's."""
        _refuse_type(resource_type)
        calls = self._http.begin("ensure_registered")
        host = self._compute(calls).hypervisors_of([resource.external_id])[0]
        fresh = self._hosts(calls).pool(host)
        try:
            Placement(calls).ensure_provider(host.name)
        except CloudRefused:
            if fresh:
                self._hosts(calls).unpool(host)
            raise

    def ensure_unregistered(self, resource_type: str, resource: ResourceRef) -> None:
        """Take the host out of the pool.

        Its provider for reservations stays, empty: Nova's compute services remember what is under their own provider
        for some minutes, and builds fail on a host when that is missing. Nova deletes it with the host.
        """
        _refuse_type(resource_type)
        calls = self._http.begin("ensure_unregistered")
        compute = self._compute(calls)
        for host in compute.hypervisors_known([resource.external_id]).values():
            self._hosts(calls).unpool(host)

    # Reservations

    def ensure_prepared(self, order: Order) -> None:
        """Nothing of a host reservation is seen before its start."""
        _refuse_type(order.resource_type)

    def ensure_started(self, order: Order) -> Progress:
        _refuse_type(order.resource_type)
        calls = self._http.begin("ensure_started")
        return self._hosts(calls).hand_over(order)

    def before_end(self, order: Order, action: str) -> Progress:
        _refuse_type(order.resource_type)
        if action != "snapshot":
            raise CloudRefused(f"This cloud cannot do {action!r} before the end.")
        calls = self._http.begin("before_end")
        servers = of_project(self._hosts(calls).servers_of(order), order.project_id)
        if not servers:
            return DONE
        if order.trust_id is None:
            raise CloudRefused("Images cannot be made: the lease's owner did not trust the reservation service.")
        owner = password_of(self._options, trust_id=order.trust_id)
        try:
            calls.do(lambda: owner.get_access(self._session), "identity")
        except (Unauthorized, Forbidden, CloudNotFound) as error:
            raise CloudRefused(f"The trust of the lease's owner does not work any more: {error}") from None
        images = Images(calls, owner, self._clock.now()).ensure_of(
            servers, order.reservation_id, self._options.image_prefix
        )
        if images.waiting_for:
            return Progress(False, _IMAGES, f"Images are being saved of {', '.join(images.waiting_for[:10])}.")
        return DONE

    def ensure_ended(self, order: Order) -> Progress:
        _refuse_type(order.resource_type)
        return self._hosts(self._http.begin("ensure_ended")).take_back(order)

    # Trusts

    def delegate(self, actor: Actor) -> str:
        return self._identity("delegate").make_trust(actor)

    def revoke(self, trust_id: str) -> None:
        self._identity("revoke").delete_trust(trust_id)

    # Inside

    def _compute(self, calls: Calls) -> Compute:
        now = time.monotonic()
        if now >= self._ask_again_at:
            self._tells_hints = tells_hints(calls)
            self._ask_again_at = now + _NOVA_STAYS.total_seconds()
        return Compute(calls, self._tells_hints)

    def _hosts(self, calls: Calls) -> Hosts:
        return Hosts(self._compute(calls), Placement(calls), self._options, self._clock.now())

    def _identity(self, verb: str) -> Identity:
        return Identity(self._http.begin(verb), self._session, self._options)

    def _layout(self, compute: Compute) -> Layout:
        return Layout(compute.aggregates(), self._options)

    def _zones(self, compute: Compute) -> dict[str, str]:
        """The zone of each host, by its service. A reservation's zone is none of the host's own."""
        if not self._options.az_aware:
            return {}
        zones = compute.zones()
        layout = self._layout(compute)
        made = layout.own_zones()
        default = next((zone for zone in sorted(set(zones.values())) if zone not in made), _DEFAULT_ZONE)
        ours = self._options.zone_prefix
        return {
            host: default if layout.is_held(host) or zone.startswith(ours) else zone for host, zone in zones.items()
        }

    def _described(self, host: Hypervisor, zones: Mapping[str, str], stock: Stock) -> DiscoveredResource:
        sizes = {"VCPU": "vcpus", "MEMORY_MB": "memory_mb", "DISK_GB": "local_gb"}
        amounts = {name: amount for name, fact in sizes.items() if isinstance(amount := host.facts[fact], int)}
        return DiscoveredResource(
            resource_type=HOST,
            external_id=host.external_id,
            name=host.name,
            capacity=Capacity({**stock.amounts, **{name: amount for name, amount in amounts.items() if amount > 0}}),
            facts={**host.facts, "availability_zone": zones.get(host.service_host, "")},
            traits=frozenset(stock.traits),
            region=self._options.region or "",
        )


def _health(host: Hypervisor) -> Health:
    if not host.up:
        return Health(False, "The hypervisor is down.")
    if not host.enabled:
        why = f": {host.disabled_reason}" if host.disabled_reason else "."
        return Health(False, f"The compute service is disabled{why}", works=True)
    return Health(True)


def _refuse_type(resource_type: str) -> None:
    if resource_type != HOST:
        raise CloudRefused(f"This cloud has no {resource_type}.")
