"""The client object: one transport, and one small interface for each type of resource."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar, Unpack

from keystoneauth1 import adapter, session

from tenureclient.allocations import Allocations
from tenureclient.availability import Availability
from tenureclient.inventory import Inventory
from tenureclient.leases import Leases
from tenureclient.offers import Offers
from tenureclient.resources.floatingips import FloatingIPs
from tenureclient.resources.hosts import HostProperties, Hosts
from tenureclient.resources.volumes import VolumePools
from tenureclient.transport import Settings, Transport
from tenureclient.usage import Limits, Usage
from tenureclient.wire import Version

Of = TypeVar("Of", bound=Inventory[Any, Any])


class Client:
    """The reservation service, seen through a keystoneauth session (or an adapter of one).

    ``endpoint_override`` replaces the look-up in the catalogue. ``clock`` and ``sleep`` are for tests of
    code that waits: pass those of a simulated clock, and no test has to sleep. ``timeout`` limits each
    call. A call that the service is too busy for is sent again some times, if that is safe.
    """

    def __init__(
        self,
        session: session.Session | adapter.Adapter,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], None] = time.sleep,
        **settings: Unpack[Settings],
    ) -> None:
        self._transport = Transport(session, sleep=sleep, **settings)
        self.leases = Leases(self._transport, clock=clock, sleep=sleep)
        self.hosts = Hosts(self._transport)
        self.floatingips = FloatingIPs(self._transport)
        self.volume_pools = VolumePools(self._transport)
        self.limits = Limits(self._transport)
        self.usage = Usage(self._transport)
        self.availability = Availability(self._transport)
        self.offers = Offers(self._transport)
        self.properties = HostProperties(self._transport)
        self.allocations = Allocations(self._transport)

    def inventory(self, of: type[Of]) -> Of:
        """Return the resources of a type, such as ``Hosts``; those of many types are attributes, too."""
        return of(self._transport)

    @property
    def version(self) -> Version | None:
        """The microversion that the server speaks; None before the first answer."""
        return self._transport.version
