"""Requests to the server: reservations and events to create and to change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime

from tenureclient.conditions import conditions_to_json
from tenureclient.sent import fields_of
from tenureclient.wire import NEWEST, JsonObject, JsonValue, Version

#: The actions that are possible before the end of a lease.
BEFORE_END_ACTIONS = ("none", "snapshot", "notify", "default")
#: The actions that are possible for a reserved server at the end of its lease.
AT_END_ACTIONS = ("delete", "stop", "shelve", "snapshot")
#: The actions that are possible for volumes at the end of their lease.
VOLUMES_AT_END = ("delete", "snapshot", "keep")

# Blazar requires these keys, whatever their values.
_KEYS_OF_1_0: Mapping[str, JsonObject] = {
    "physical:host": {"hypervisor_properties": "", "resource_properties": ""},
    "virtual:instance": {"affinity": None, "resource_properties": ""},
    "flavor:instance": {"affinity": None},
}

#: The parameters that API 1.2 added: for all types that have them, and for a single type.
_SINCE_1_2 = frozenset({"region", "availability_zone", "extra_specs"})
_SINCE_1_2_OF: Mapping[str, frozenset[str]] = {"physical:host": frozenset({"vcpus", "memory_mb", "disk_gb"})}


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """A reservation to create: a resource type and the parameters of that type."""

    resource_type: str
    parameters: JsonObject = field(default_factory=dict)

    @classmethod
    def hosts(cls, minimum: int, maximum: int | None = None, *, conditions: Iterable[str] = ()) -> ReservationRequest:
        """Ask for whole hosts; each condition, such as ``vcpus>=8`` or ``gpu=v100``, must hold."""
        return cls(
            "physical:host",
            {
                "min": minimum,
                "max": minimum if maximum is None else maximum,
                "resource_properties": conditions_to_json(conditions),
            },
        )

    @classmethod
    def instances(
        cls,
        amount: int,
        *,
        vcpus: int,
        memory_mb: int,
        disk_gb: int = 0,
        affinity: bool | None = None,
        conditions: Iterable[str] = (),
    ) -> ReservationRequest:
        """Ask for instances of a size, on hosts that are shared with other reservations.

        ``affinity``: True puts all instances on one host, False each on a host of its own, None sets no
        rule. Each condition must hold for every host of these instances.
        """
        return cls(
            "virtual:instance",
            {
                "amount": amount,
                "vcpus": vcpus,
                "memory_mb": memory_mb,
                "disk_gb": disk_gb,
                "affinity": affinity,
                "resource_properties": conditions_to_json(conditions),
            },
        )

    @classmethod
    def flavor(cls, flavor_id: str, amount: int, *, affinity: bool | None = None) -> ReservationRequest:
        """Ask for instances of a flavor of the cloud; ``affinity`` as for ``instances``."""
        return cls("flavor:instance", {"flavor_id": flavor_id, "amount": amount, "affinity": affinity})

    @classmethod
    def server(
        cls,
        server_id: str | None = None,
        *,
        flavor_id: str | None = None,
        server_name: str | None = None,
        at_end: str | None = None,
        in_place: bool = False,
        conditions: Iterable[str] = (),
    ) -> ReservationRequest:
        """Ask for an existing server, or for room for a server of a flavor. The server is added later.

        With a ``server_name``, the server is made at the start, by the ``boot`` of the lease; this needs API 1.4.
        ``at_end`` is one of ``AT_END_ACTIONS``. With ``in_place`` the server stays where it is until the end.
        """
        named: JsonObject = {"flavor_id": flavor_id} if server_id is None else {"server_id": server_id}
        expression = conditions_to_json(conditions) or None
        more = fields_of(
            {"server_name": server_name, "at_end": at_end, "in_place": in_place, "resource_properties": expression}
        )
        return cls("virtual:server", {**named, **more})

    @classmethod
    def floatingips(
        cls, network_id: str, amount: int | None = None, *, addresses: Iterable[str] = ()
    ) -> ReservationRequest:
        """Ask for these addresses of an external network, and for others to make up ``amount``."""
        required: list[JsonValue] = list(addresses)
        return cls(
            "virtual:floatingip",
            {
                "network_id": network_id,
                "amount": max(1, len(required)) if amount is None else amount,
                "required_floatingips": required,
            },
        )

    @classmethod
    def volumes(cls, amount: int, *, size_gb: int, volume_type: str = "", at_end: str = "delete") -> ReservationRequest:
        """Ask for volumes of a size and a volume type (default: the cloud's default type).

        ``at_end`` is the action when the lease ends: one of ``VOLUMES_AT_END``.
        """
        return cls(
            "virtual:volume", {"amount": amount, "size_gb": size_gb, "volume_type": volume_type, "at_end": at_end}
        )

    def with_before_end(self, action: str | None) -> ReservationRequest:
        """Return the request with an action before the end: one of ``BEFORE_END_ACTIONS``. None keeps it."""
        return self._with(before_end=action)

    def in_region(self, region: str | None) -> ReservationRequest:
        """Return the request in a region of the service. None keeps it."""
        return self._with(region=region)

    def with_place(
        self, availability_zone: str | None = None, extra_specs: Mapping[str, str] | None = None
    ) -> ReservationRequest:
        """Return the request in an availability zone and with extra specs. None or empty keeps it.

        A zone fits everything that Nova runs. Extra specs fit only hosts, and instances with a size of
        their own; from API 1.4 on they also fit servers.
        """
        return self._with(availability_zone=availability_zone, extra_specs=extra_specs or None)

    def with_resources(self, resources: Mapping[str, int] | None) -> ReservationRequest:
        """Return the request with amounts of resource classes of Placement, such as ``{"VGPU": 1}``. None keeps it.

        These are what each instance or server of a given size takes besides, and what each of whole hosts has at
        least. This needs API 1.4.
        """
        return self._with(resources=resources or None)

    def _with(self, **parameters: object) -> ReservationRequest:
        return ReservationRequest(self.resource_type, {**self.parameters, **fields_of(parameters)})

    def to_wire(self, version: Version) -> JsonObject:
        keys = _KEYS_OF_1_0.get(self.resource_type, {}) if version is Version.V1_0 else {}
        return {"resource_type": self.resource_type, **keys, **self.parameters}


@dataclass(frozen=True, slots=True)
class OwnEvent:
    """A moment of a lease at which the service sends this message as a notification.

    ``id`` identifies an existing event of the lease; None creates another.
    """

    time: datetime
    message: str
    id: str | None = None

    def to_wire(self, version: Version) -> JsonObject:
        return fields_of(asdict(self), version)


@dataclass(frozen=True, slots=True)
class BootRequest:
    """How the servers of a lease are made at its start: the body of a request to Nova to boot a server.

    ``microversion`` is Nova's microversion of the request. ``flavor`` is the flavor as Nova shows it with its extra
    specs; without it, the service asks Nova when the lease is made.
    """

    request: JsonObject = field(repr=False)  # it may have passwords
    microversion: str = "2.1"
    flavor: JsonObject | None = None

    def to_wire(self, _version: Version = NEWEST) -> JsonObject:
        flavor: JsonObject = {} if self.flavor is None else {"flavor": self.flavor}
        return {"request": self.request, "microversion": self.microversion, **flavor}


@dataclass(frozen=True, slots=True)
class ReservationChange:
    """The change of one reservation, identified by its id."""

    id: str
    parameters: Mapping[str, JsonValue]

    def to_wire(self, _version: Version = NEWEST) -> JsonObject:
        return {"id": self.id, **self.parameters}


def names_classes(requests: Iterable[ReservationRequest | ReservationChange]) -> bool:
    """Whether any of the requests names resource classes, or extra specs of a server, which need API 1.4."""
    return any(
        "resources" in request.parameters
        or (
            isinstance(request, ReservationRequest)
            and request.resource_type == "virtual:server"
            and "extra_specs" in request.parameters
        )
        for request in requests
    )


def restricts_hosts(requests: Iterable[ReservationRequest | ReservationChange]) -> bool:
    """Whether any of the requests restricts place or kind of hosts in a way that needs API 1.2."""
    for request in requests:
        own = _SINCE_1_2_OF.get(request.resource_type) if isinstance(request, ReservationRequest) else None
        if not (_SINCE_1_2 | (own or frozenset())).isdisjoint(request.parameters):
            return True
    return False
