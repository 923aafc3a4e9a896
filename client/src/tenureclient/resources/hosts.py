"""Compute hosts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Unpack

from tenureclient import errors
from tenureclient.conditions import CONDITION_FORMS, conditions_to_json
from tenureclient.documents import Document, LooseText, SetFlag, document
from tenureclient.inventory import Help, Inventory, Resource, ResourceQuery, ResourceType
from tenureclient.options import Option
from tenureclient.reservation_request import ReservationRequest
from tenureclient.reservation_type import (
    ReservationType,
    UnreadableReservation,
    parse_count,
    parse_extra_spec,
    parse_resource,
)
from tenureclient.sent import query_of
from tenureclient.transport import Calls
from tenureclient.wire import Fields, JsonObject, JsonValue, Version


def _texts(fields: Fields, name: str) -> Mapping[str, str]:
    """Return the properties of a host. At API 1.0 they may be of any type."""
    values = fields.value(name)
    if not isinstance(values, Mapping):
        return {}
    return {key: str(value) for key, value in values.items() if value is not None}


@document("a host", kw_only=True)
class Host(Resource):
    """A compute host that can be reserved. The operator sets its ``properties``."""

    id: LooseText
    hypervisor_hostname: LooseText
    vcpus: int
    memory_mb: int
    local_gb: int
    availability_zone: LooseText
    reservable: SetFlag
    properties: Annotated[Mapping[str, str], _texts]
    traits: tuple[str, ...]
    service_name: LooseText
    hypervisor_type: LooseText
    hypervisor_version: int
    cpu_info: LooseText

    @classmethod
    def from_wire(cls, document: JsonValue) -> Host:
        """Read a document. At API 1.0 the properties of a host stand beside its fields, with any names."""
        if isinstance(document, Mapping) and not isinstance(document.get("properties"), Mapping):
            names = {*Host.__annotations__, "created_at", "updated_at", "status", "trust_id"} - {"properties"}
            own = {name: value for name, value in document.items() if name not in names}
            document = {**{name: document[name] for name in document.keys() & names}, "properties": own}
        return cls.read(document)


@document("a host of a lease", kw_only=True)
class LeaseHost(Document):
    """A host of a lease, as its owner sees it. ``status`` is ``planned``, ``held`` or ``released``."""

    id: LooseText
    hypervisor_hostname: LooseText
    status: LooseText
    availability_zone: LooseText
    vcpus: int
    memory_mb: int
    local_gb: int
    properties: Annotated[Mapping[str, str], _texts]
    reservation_id: str
    start_date: datetime
    end_date: datetime


class HostQuery(ResourceQuery, total=False):
    """Which hosts to list."""

    hypervisor_hostname: str | None


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"'{text}' is not key=value.")
    return key, value


#: The properties of a host, as they are given on the command line.
PROPERTIES = Option(
    "--extra --property",
    metavar="<key>=<value>",
    read=_key_value,
    gather=dict,
    field="properties",
    help="A property of the host, by which users can choose it (may be repeated)",
)


class HostReservations(ReservationType):
    name = "physical:host"
    position = 10
    short = "host"
    units = ("host", "hosts")
    parameters = (
        "min=COUNT [max=COUNT] [resource_properties=EXPRESSION] [hypervisor_properties=EXPRESSION]",
        "[vcpus=COUNT] [memory_mb=MB] [disk_gb=GB]",
    )
    has_zone = True
    has_extra_specs = True
    has_resources = True
    heading = "whole hosts"
    requesting = ("hosts",)
    options = (
        Option("--hosts", "COUNT", parse_count, help="Reserve whole hosts: 2, or 2-4 for at least 2 and up to 4"),
        Option(
            "--with",
            "CONDITION",
            gather=list,
            field="conditions",
            help="A condition on each of the hosts, or on each host of instances that have a size of their own:"
            f" {CONDITION_FORMS}, or an expression of the API (may be repeated; all must hold)",
        ),
        Option(
            "--extra-spec",
            "KEY=VALUE",
            parse_extra_spec,
            gather=list,
            field="extra_specs",
            help="A condition on those hosts, written as in flavors: capabilities: and a fact of the host,"
            " trait: and a trait, aggregate_instance_extra_specs: and a key of aggregates, or one of their properties,"
            " such as 'capabilities:vcpus=>= 8' or 'gpu=<or> a100 <or> v100' (may be repeated; all must hold)",
        ),
        Option(
            "--resource",
            "CLASS=AMOUNT",
            parse_resource,
            gather=list,
            field="resources",
            help="An amount of a resource class of Placement, such as VGPU=1: what each of those hosts has at least,"
            " and what each instance of a size of its own takes (may be repeated)",
        ),
    )

    def requests(self, given: argparse.Namespace) -> Iterator[ReservationRequest]:
        conditions_to_json(given.conditions)  # report unreadable conditions before anything else
        for option in options_for_hosts(given):
            if given.hosts is None and given.instances is None:
                raise UnreadableReservation(f"{option}: say how many hosts with --hosts, or --instances.")
            if given.hosts is not None and given.instances is not None:
                raise UnreadableReservation(
                    f"{option}: it is not clear whether it is for the hosts or for the instances; write one of"
                    " them as --reservation."
                )
        if given.hosts is not None:
            request = ReservationRequest.hosts(*given.hosts, conditions=given.conditions)
            yield request.with_place(extra_specs=specs_of(given)).with_resources(resources_of(given))

    def with_amount(self, given: argparse.Namespace, amount: int) -> bool:
        given.hosts = (amount, amount)
        return True

    def takes_conditions(self, given: argparse.Namespace) -> bool:
        return True

    def complete(self, values: dict[str, JsonValue], text: str) -> None:
        if "min" not in values and "max" not in values:
            raise UnreadableReservation(f"'{text}' does not say how many hosts: min=... is missing.")
        values.setdefault("max", values.get("min"))
        values.setdefault("min", 1)


def options_for_hosts(given: argparse.Namespace) -> Sequence[str]:
    """Return the given options that restrict the kind of hosts, of host reservations or of instances."""
    values = (("--with", given.conditions), ("--extra-spec", given.extra_specs), ("--resource", given.resources))
    return [option for option, value in values if value]


def specs_of(given: argparse.Namespace) -> Mapping[str, str]:
    """Return the extra specs that the options give."""
    specs: dict[str, str] = {}
    for key, value in given.extra_specs:
        if key in specs:
            raise UnreadableReservation(f"--extra-spec: {key} is given twice.")
        specs[key] = value
    return specs


def resources_of(given: argparse.Namespace) -> Mapping[str, int]:
    """Return the amounts of resource classes that the options give."""
    amounts: dict[str, int] = {}
    for name, amount in given.resources:
        if name in amounts:
            raise UnreadableReservation(f"--resource: {name} is given twice.")
        amounts[name] = amount
    return amounts


class Hosts(Inventory[Host, LeaseHost]):
    """The hosts that are registered with the reservation service."""

    resource_type = ResourceType(
        resource=Host,
        of_lease=LeaseHost,
        path="os-hosts",
        document_key="host",
        list_key="hosts",
        name="hypervisor_hostname",
        noun="host",
        short="host",
        words="host",
        metavar="HOST",
        position=10,
        some="hosts",
        closed="failed",
        lost="servers",
        listed=("id", "hypervisor_hostname", "vcpus", "memory_mb", "local_gb"),
        listed_of_lease=("id", "hypervisor_hostname", "status", "vcpus", "memory_mb", "local_gb", "reservation_id"),
        sortable=("id", "hypervisor_hostname", "vcpus", "memory_mb", "local_gb", "availability_zone", "service_name"),
        sorted_by="hypervisor_hostname",
        query=HostQuery,
        registration=(Option(field="name", metavar="HOST", help="Host name of the hypervisor"), PROPERTIES),
        help={
            "list": Help(
                """List the hosts that can be reserved.

                With -c any field of a host can be asked for.
                """,
                (("--reservable -c hypervisor_hostname -c properties", "by what users choose them"),),
            ),
            "show": Help("Show a host with its properties.", (("compute-1", "by name"),)),
            "create": Help(
                "Make a host of Nova reservable. Nothing may run on it.",
                (("compute-1 --extra gpu=v100 --extra rack=r2", "with two properties"),),
            ),
            "delete": Help("Give hosts back to Nova. No lease may need them any more.", (("compute-1", "one host"),)),
            "disable": Help(
                """Close a host to new reservations, whatever the cloud says of it.

                Existing reservations keep it; the list shows them. You are asked before it is done.
                """,
                (
                    ("compute-1 --reason 'a broken fan'", "and be asked before it is done"),
                    ("compute-1 --dry-run", "see which reservations it has"),
                ),
            ),
            "enable": Help(
                "Open a host to reservations again. It takes them as far as the cloud reports it as well.",
                (("compute-1", "and be asked before it is done"),),
            ),
            "reallocate": Help(
                """Move the reservations of a host to other hosts, as far as there are any.

                Reservations that have started stay, unless --running is given. The list shows what happens to each
                reservation. You are asked before it is done. To keep the host empty, disable it first.
                """,
                (
                    ("compute-1 --dry-run", "see what would move, and where to"),
                    ("compute-1 --lease bio-42 --yes", "of one lease, without being asked"),
                    ("compute-1 --running", "also reservations that have started; they lose their servers there"),
                ),
            ),
            "of lease": Help(
                "List the hosts of a lease: planned, held or released.",
                (("bio-42", "its hosts"), ("bio-42 -f value -c hypervisor_hostname", "their names only")),
            ),
        },
    )

    def create(self, name: str, *, properties: Mapping[str, str] | None = None, region: str | None = None) -> Host:
        """Make an empty host of Nova reservable. The default ``region`` is the home region."""
        return self.register({"name": name, "properties": properties or None, "region": region})

    def list(self, **query: Unpack[HostQuery]) -> Iterator[Host]:
        """Yield the matching hosts; further pages are fetched as needed."""
        return self.matching(query)

    def update(self, host_id: str, *, properties: Mapping[str, str]) -> Host:
        """Set properties of a host."""
        return self.change(host_id, {"properties": properties})

    def unset(self, host_id: str, names: Iterable[str]) -> Host:
        """Remove properties from a host."""
        return self.change(host_id, {"properties": dict.fromkeys(names)})

    def _body(self, fields: Mapping[str, Any]) -> Callable[[Version], JsonObject]:
        """Return the body in each version. At API 1.0 the properties stand beside the fields of a host."""
        others = {name: value for name, value in fields.items() if name != "properties"}
        own = dict(fields.get("properties") or {})

        def body(version: Version) -> JsonObject:
            if version is Version.V1_0:
                return {**own, **others}
            return {**others, "properties": own} if "properties" in fields else others

        return body


def _property_name(fields: Fields, _name: str) -> str:
    """Return the name of a property. The answer to a change has it under another key than the list."""
    return fields.text("property" if fields.value("property") else "property_name")


@document("a property")
class HostProperty(Document):
    """A property by which hosts can be chosen. ``private`` and ``values`` are sent only in detail."""

    name: Annotated[str, _property_name]
    private: bool | None = None
    values: tuple[str, ...] | None = None


class HostProperties(Calls):
    """Names, values and visibility of the properties of hosts."""

    def list(self, *, detail: bool = False, include_private: bool = False) -> tuple[HostProperty, ...]:
        """Return the properties, with their values if ``detail``. Only administrators see private ones.

        Before API 1.3, the list is for administrators.
        """
        query = query_of(detail=detail, all=include_private)
        answer = self._transport.call("GET", "os-hosts", "properties", query=query)
        return answer.read_items(HostProperty.from_wire, "resource_properties")

    def show(self, name: str) -> HostProperty:
        """Return one property with its values; a private one too, if the caller may see it."""
        for host_property in self.list(detail=True, include_private=True):
            if host_property.name == name:
                return host_property
        raise errors.NotFound(f"No host has a property '{name}'.", code=404, name="NotFound")

    def set(self, name: str, *, private: bool) -> HostProperty:
        """Hide a property from users, or show it to them."""
        answer = self._transport.call("PATCH", "os-hosts", "properties", name, body=lambda _: {"private": private})
        return answer.read(HostProperty.from_wire, "resource_property")
