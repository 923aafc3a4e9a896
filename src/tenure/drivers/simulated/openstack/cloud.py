"""All services of a cloud: a request goes to the handler of its service and path."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import entry_points
from os import PathLike
from urllib.parse import unquote

from tenure.drivers.simulated.openstack.flavors import Flavors
from tenure.drivers.simulated.openstack.keystone import Keystone
from tenure.drivers.simulated.openstack.nova import Nova
from tenure.drivers.simulated.openstack.objects import IN_MEMORY
from tenure.drivers.simulated.openstack.placement import Placement
from tenure.drivers.simulated.openstack.scheduler import Scheduler
from tenure.drivers.simulated.openstack.servers import Servers
from tenure.drivers.simulated.openstack.service import Answer, ApiRequest, Caller, Refused, Route, Service
from tenure.drivers.simulated.openstack.state import Server, State
from tenure.drivers.simulated.openstack.user_servers import UserServers
from tenure.drivers.simulated.openstack.users import Users


@cache
def _installed_services() -> Sequence[Callable[[State], Service]]:
    points = sorted(entry_points(group="tenure.simulated_services"), key=lambda point: point.name)
    return [point.load() for point in points]


class OpenStack(State):
    """The cloud: its objects, and services that answer requests about them.

    Every cloud has Keystone, Nova and Placement; the services for single resource types are found by entry points.
    """

    def __init__(
        self,
        path: str | PathLike[str] = IN_MEMORY,
        *,
        nova: str = "2.103",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(path, nova=nova, now=now)
        self.keystone = Keystone(self)
        self.scheduler = Scheduler(self)
        compute, flavors, servers = Nova(self), Flavors(self), Servers(self, self.admits, self.scheduler.move)
        services: Sequence[Service] = (
            self.keystone,
            compute,
            flavors,
            servers,
            Placement(self),
            Users(self, compute, flavors, UserServers(self, self.scheduler, flavors, servers)),
            *(make_service(self) for make_service in _installed_services()),
        )
        #: All routes, in the order in which they were added.
        self.routes: list[Route] = []
        self._handlers: dict[tuple[str, str], list[tuple[re.Pattern[str], Callable[..., Answer]]]] = defaultdict(list)
        for service in services:
            self.add_routes(service.routes)

    def add_routes(self, routes: Sequence[Route]) -> None:
        """Serve more paths."""
        self.routes += routes
        for service, method, pattern, handler in routes:
            self._handlers[service, method].append((re.compile(pattern), handler))

    def admits(self, server: Server, service_host: str) -> bool:
        """Whether a server may go to the host of a compute service."""
        return self.scheduler.admits(server, service_host)

    def answer(self, request: ApiRequest, caller: Caller) -> Answer:
        """The answer of the service; raises ``Refused``."""
        handler, parts = self._handler_of(request)
        # A request for volumes completes operations on them, so it changes something.
        reads = request.method == "GET" and request.service != "block-storage"
        with self.objects.look() if reads else self.objects.change():
            if self.pending:
                self.settle()
            return handler(request, caller, *parts)

    def _handler_of(self, request: ApiRequest) -> tuple[Callable[..., Answer], Sequence[str]]:
        for pattern, handler in self._handlers[request.service, request.method]:
            if found := pattern.fullmatch(request.path):
                return handler, [unquote(part) for part in found.groups()]
        raise self.unknown(request)

    @property
    def service_types(self) -> frozenset[str]:
        """The services that the cloud has, by their types in Keystone's catalogue."""
        return frozenset(service for service, *_ in self.routes)

    def methods_at(self, service: str, path: str) -> list[str]:
        """The methods that a service serves at a path."""
        found = {method for name, method, pattern, _ in self.routes if name == service and re.fullmatch(pattern, path)}
        return sorted(found)

    def unknown(self, request: ApiRequest) -> Refused:
        """Return the refusal of an unknown path."""
        return Refused(404, "The resource could not be found.")
