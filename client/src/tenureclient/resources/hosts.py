"""Compute hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Unpack

from tenureclient.documents import Document, LooseText, SetFlag, document
from tenureclient.inventory import Help, Inventory, Resource, ResourceQuery, ResourceType
from tenureclient.options import Option
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
    help="A property of the host, by which users can choose it (may be repeated)",
)


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
        listed_of_lease=(
            "id",
            "hypervisor_hostname",
            "status",
            "vcpus",
            "memory_mb",
            "local_gb",
            "reservation_id",
        ),
        sortable=(
            "id",
            "hypervisor_hostname",
            "vcpus",
            "memory_mb",
            "local_gb",
            "availability_zone",
            "service_name",
        ),
        sorted_by="hypervisor_hostname",
        query=HostQuery,
        registration={"name": Option(metavar="HOST", help="Host name of the hypervisor"), "properties": PROPERTIES},
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
