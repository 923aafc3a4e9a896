"""The client object: one transport, and one small interface for each type of resource."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from keystoneauth1 import adapter, session

from tenureclient.allocations import Allocations
from tenureclient.availability import Availability
from tenureclient.inventory import Inventory
from tenureclient.leases import Leases
from tenureclient.offers import Offers
from tenureclient.planned_servers import PlannedServers
from tenureclient.resources.floatingips import FloatingIPs
from tenureclient.resources.hosts import HostProperties, Hosts
from tenureclient.resources.volumes import VolumePools
from tenureclient.transport import DEFAULT_TIMEOUT, Transport
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
        endpoint_override: str | None = None,
        interface: str | None = None,
        region_name: str | None = None,
        timeout: timedelta | None = DEFAULT_TIMEOUT,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._transport = Transport(
            session,
            endpoint_override=endpoint_override,
            interface=interface,
            region_name=region_name,
            timeout=timeout,
            sleep=sleep,
        )
        self.leases = Leases(self._transport, clock=clock, sleep=sleep)
        self.hosts = Hosts(self._transport)
        self.floatingips = FloatingIPs(self._transport)
        self.volume_pools = VolumePools(self._transport)
        self.limits = Limits(self._transport)
        self.usage = Usage(self._transport)
        self.availability = Availability(self._transport)
        self.offers = Offers(self._transport)
        self.planned_servers = PlannedServers(self._transport)
        self.properties = HostProperties(self._transport)
        self.allocations = Allocations(self._transport)

    def inventory(self, of: type[Of]) -> Of:
        """Return the resources of a type, such as ``Hosts``; those of many types are attributes, too."""
        return of(self._transport)

    @property
    def version(self) -> Version | None:
        """The microversion that the server speaks; None before the first answer."""
        return self._transport.version
