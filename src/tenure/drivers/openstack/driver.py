"""The driver of OpenStack clouds."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final, ParamSpec, TypeVar

from tenure.clock import Clock, SystemClock
from tenure.domain.actor import Actor
from tenure.drivers.cloud import SingleCloud, Verb, called
from tenure.drivers.contract import Group, ServerPage
from tenure.drivers.openstack.compute import Compute, shows_hints
from tenure.drivers.openstack.identity import Identity
from tenure.drivers.openstack.layout import Layout
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.pages import PageStarts
from tenure.drivers.openstack.requests import Calls, Transport
from tenure.drivers.openstack.servers import page_of_servers
from tenure.drivers.openstack.type_driver import DriverCall, openstack_type_drivers
from tenure.drivers.type_driver import UnknownType

P = ParamSpec("P")
T = TypeVar("T")

#: How long Nova's version is cached: it may be upgraded while the driver runs.
_VERSION_CACHED: Final = timedelta(minutes=5)


#: The methods that read all hosts, and are called without a claim.
_LONG: Final = frozenset({"discover", "check", "drift"})


class OpenStackCloud(SingleCloud):
    """A ``CloudDriver`` for an OpenStack cloud, with the installed type drivers of such clouds.

    It remembers only Nova's version and page starts. Threads share the transport. A call takes no longer than
    ``verb_timeout``: if it is not done by then, it raises ``CloudBusy``, and the next call completes it.

    ``request_id`` returns the id under which services log the requests; it is called once for each driver call, in the
    calling thread. Closing the cloud closes ``transport``.
    """

    def __init__(
        self,
        options: OpenStackOptions,
        transport: Transport,
        *,
        request_id: Callable[[], str | None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._type_drivers = openstack_type_drivers()
        super().__init__(self._type_drivers)
        self.longest_call = options.verb_timeout + timedelta(seconds=1)
        self._options = options
        self._transport = transport
        self._request_id = request_id
        self._clock = clock or SystemClock()
        self._tells_hints = False
        self._starts = PageStarts()
        self._ask_again_at = 0.0

    def close(self) -> None:
        """Send no more requests. Calls that wait for an answer raise ``CloudBusy``."""
        self._transport.close()

    def __enter__(self) -> OpenStackCloud:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, resource_type: str, verb: Verb[P, T], *about: P.args, **named: P.kwargs) -> T:
        with self._calling(verb.__name__, *about) as calls:
            driver_class = self._type_drivers.get(resource_type)
            call = DriverCall(calls, self._options, self._clock.now(), self._compute)
            return called(
                UnknownType(resource_type) if driver_class is None else driver_class(call), verb, *about, **named
            )

    def servers(self, since: datetime | None, after: str | None = None) -> ServerPage:
        with self._calling("servers", since) as calls:
            compute = self._compute(calls)
            return page_of_servers(compute, Layout(compute.aggregates(), self._options), since, after)

    def delegate(self, actor: Actor, regions: Collection[str] = ()) -> str:
        with self._calling("delegate", actor) as calls:
            return Identity(calls).make_trust(actor)

    def revoke(self, trust_id: str) -> None:
        with self._calling("revoke", trust_id) as calls:
            Identity(calls).delete_trust(trust_id)

    def identify(self, group: Group, reference: str) -> Sequence[str]:
        with self._calling("identify", group, reference) as calls:
            return Identity(calls).find(group, reference)

    @contextmanager
    def _calling(self, verb: str, *about: object) -> Iterator[Calls]:
        """Yield the requests of a driver call. Every driver call comes through here."""
        yield Calls(self._transport, verb, self._options.verb_timeout, self._request_id(), is_long=verb in _LONG)

    def _compute(self, calls: Calls) -> Compute:
        now = time.monotonic()
        if now >= self._ask_again_at:
            self._tells_hints = shows_hints(calls)
            self._ask_again_at = now + _VERSION_CACHED.total_seconds()
        return Compute(calls, self._tells_hints, self._starts)
