"""One server, which exists already or is booted for the reservation: ``virtual:server``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from tenure.domain.allocation import Demand, Spread
from tenure.domain.capacity import MAX_AMOUNT, Capacity
from tenure.domain.errors import InvalidParameter, InvalidState
from tenure.domain.extra_specs import DEVICE_SPECS, conditions_of_flavor
from tenure.domain.footprint import Footprint
from tenure.domain.requirement import Expression, Term, parse_expression
from tenure.resources import blazar
from tenure.resources.additions import ClassAdditions, SpecAdditions, ZoneAdditions, expression_of, footprint_of_size
from tenure.resources.contract import LAST_SNAPSHOT, FactReference
from tenure.resources.declared import DeclaredType
from tenure.resources.fields import PropertyExpression, acts_as_owner
from tenure.resources.flavor import extra_specs_of, refuse_uncounted, requirements_of
from tenure.resources.parameters import Forms, Parameters

_Id = Annotated[StrictStr, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
_ServerId = Annotated[
    _Id, Field(description="The id of the server: one of the project's. Without it there is none yet; see `flavor_id`.")
]
_FlavorId = Annotated[
    StrictStr, Field(min_length=1, max_length=255, description="The flavor of a server that is still to be named.")
]
_Size = Annotated[StrictInt, Field(ge=1, le=MAX_AMOUNT)]
_Disk = Annotated[StrictInt, Field(ge=0, le=MAX_AMOUNT)]
AtEnd = Annotated[
    Literal["delete", "stop", "shelve", "snapshot"],
    Field(description="What becomes of the server at the end; `snapshot` is an image of it, and then its deletion."),
]
InPlace = Annotated[
    StrictBool,
    Field(description="The server stays where it is and runs on: no room is promised to it, only its end is set."),
]
#: The extra spec of flavors for preemptible servers, which use reserved resources until these are needed.
_PREEMPTIBLE = "blazar:preemptible"
_TRUE = frozenset({"1", "t", "true", "on", "y", "yes"})
_SIZES = ("vcpus", "memory_mb", "disk_gb")


class _OneSize(BaseModel):
    @model_validator(mode="after")
    def _has_one_size(self) -> Self:
        reservation: Any = self
        sizes = [getattr(reservation, name) for name in _SIZES]
        ways = [
            reservation.server_id is not None,
            reservation.flavor_id is not None,
            any(size is not None for size in sizes),
        ]
        if sum(ways) != 1 or (ways[2] and None in sizes):
            raise PydanticCustomError(
                "server_size", "Name one of these: server_id, flavor_id, or vcpus, memory_mb and disk_gb together."
            )
        if reservation.in_place and reservation.server_id is None:
            raise PydanticCustomError("server_in_place", "Only a server that is there can stay in its place: server_id")
        return self


class ServerReservation(Parameters):
    """A reservation of one server: one that is there (`server_id`), or room for one of a flavor or a size."""

    noun: ClassVar[str] = "a server"
    while_it_runs: ClassVar[str] = "that it is given its server"
    is_known_to_blazar: ClassVar[bool] = False
    request_rules: ClassVar[tuple[type[BaseModel], ...]] = (_OneSize,)

    resource_type: Literal["virtual:server"]
    server_id: _ServerId | None = None
    flavor_id: Annotated[_FlavorId | None, Forms(fixed=True)] = None
    vcpus: Annotated[_Size | None, Forms(fixed=True)] = None
    memory_mb: Annotated[_Size | None, Forms(fixed=True)] = None
    disk_gb: Annotated[_Disk | None, Forms(fixed=True)] = None
    at_end: AtEnd = "delete"
    in_place: Annotated[InPlace, Forms(fixed=True)] = False
    resource_properties: Annotated[blazar.KeptExpression, Forms(strict=PropertyExpression)] = ""
    #: Of what the cloud was asked for the sizes, and what it has said.
    sized_by: Annotated[str | None, Forms(internal=True)] = None
    source: Annotated[dict[str, Any] | None, Forms(internal=True)] = None


class BootAdditions(BaseModel):
    """A server that is made at the start."""

    server_name: Annotated[
        StrictStr,
        Field(
            max_length=255,
            description="The name of the server that is made at the start, by the `boot` of the lease; empty for none.",
        ),
    ] = ""


class SizedAdditions(ClassAdditions, SpecAdditions, BootAdditions):
    """A server that is made at the start, and what it takes beside its size."""


class _Stored(SizedAdditions, ZoneAdditions, ServerReservation):
    """A reservation of a server, with what newer requests can name."""


class ServerType(DeclaredType[_Stored]):
    """One server of the project's: shelved until the start, then woken on a host where room was kept for it.

    Without a server only the room is reserved; the reservation can be given a server until its end.
    """

    name = "virtual:server"
    noun = "servers"
    inventory = "physical:host"
    counted = "VCPU"
    declaration = ServerReservation
    stored = _Stored
    additions = ZoneAdditions
    later_additions = MappingProxyType({"1.4": SizedAdditions})

    def check_change(self, current: Mapping[str, object], after: Mapping[str, Any], *, running: bool) -> None:
        if bool(current.get("server_name")) != bool(after.get("server_name")):
            raise InvalidParameter(
                "Whether a server is made at the start is said when the lease is made.", field="server_name"
            )
        if current.get("server_name") and after["server_id"] is not None:
            raise InvalidParameter("The server of this reservation is made at the start.", field="server_id")
        if current.get("server_id") not in {None, after["server_id"]}:
            raise InvalidParameter("A reservation that has its server gets no other one.", field="server_id")
        if (after.get("resources") or {}) != (current.get("resources") or {}):
            raise InvalidParameter("What the server takes is said when the lease is made.", field="resources")
        for name in ("resource_properties", "availability_zone", "extra_specs"):
            if running and (after.get(name) or "") != (current.get(name) or ""):
                raise InvalidState(
                    f"{name} cannot be changed: the server of an active reservation stays where it is.", field=name
                )

    def required_fact(self, parameters: Mapping[str, object]) -> FactReference | None:
        for kind in ("server", "flavor"):
            reference = parameters.get(f"{kind}_id")
            if reference is not None:
                known = parameters.get("sized_by") == _sized_by(kind, str(reference))
                return None if known else FactReference(kind, str(reference), f"{kind}_id")
        return None

    def complete(self, parameters: Mapping[str, object], fact: Mapping[str, object]) -> Mapping[str, object]:
        named = self.required_fact(parameters)
        if named is None:
            return parameters
        source: Any = fact["flavor"] if named.kind == "server" else fact
        subject = f"{named.kind} {named.reference}"
        in_place = bool(parameters.get("in_place"))
        if not in_place:  # otherwise no room is promised, and nothing has to be counted
            refuse_uncounted(source, subject, field=named.field)
        footprint, _ = requirements_of(source, subject, field=named.field, in_place=in_place)
        if _is_preemptible(source) and not in_place:
            raise InvalidParameter(
                f"Servers of the {named.kind} {named.reference} give way to whoever has reserved; they cannot be "
                "reserved themselves.",
                field=named.field,
            )
        after = {**parameters, "sized_by": _sized_by(named.kind, named.reference)}
        if named.kind == "server" and parameters.get("vcpus") is not None:
            self._refuse_larger(parameters, footprint, extra_specs_of(source), named.reference)
            return after
        sizes = {"vcpus": source["vcpus"], "memory_mb": source["ram"], "disk_gb": source["disk"]}
        return {**after, **sizes, "source": dict(source)}

    def _refuse_larger(
        self, parameters: Mapping[str, object], footprint: Footprint, specs: Mapping[str, str], server_id: str
    ) -> None:
        """Refuse a server that is larger than what was booked for it, or may not run where it was booked."""
        booked = self.demand(parameters)
        larger = [name for name, amount in footprint.amounts.items() if amount > booked.amounts.get(name, 0)]
        larger += [
            f"{name} of one provider"
            for name in footprint.amounts
            if name not in larger and _most_at_once(footprint.portions, name) > _most_at_once(booked.at_once, name)
        ]
        larger += sorted((footprint.required - booked.required) | (footprint.forbidden - booked.forbidden))
        if not parameters.get("in_place"):
            terms = set(booked.expression.terms)
            if not terms.issuperset(footprint.conditions.terms):
                larger.append("traits of one provider")
            asking = [name for name, value in specs.items() if not terms.issuperset(_conditions({name: value}))]
            if not asking and not terms.issuperset(_conditions(specs)):
                asking = [name for name in DEVICE_SPECS if name in specs]  # near processors that are pinned
            larger += asking
        if larger:
            raise InvalidParameter(
                f"The server {server_id} does not fit into what was booked: it takes more of {', '.join(larger)}.",
                field="server_id",
            )

    def demand(self, parameters: Mapping[str, object]) -> Demand:
        reservation = self.read(parameters)
        is_named = reservation.server_id is not None
        footprint, conditions = None, Expression()
        if reservation.source is not None:
            subject = f"server {reservation.server_id}" if is_named else f"flavor {reservation.flavor_id}"
            field = "server_id" if is_named else "flavor_id"
            footprint, conditions = requirements_of(
                reservation.source, subject, field=field, in_place=reservation.in_place
            )
        sizes = {
            "VCPU": reservation.vcpus or 0,
            "MEMORY_MB": reservation.memory_mb or 0,
            "DISK_GB": reservation.disk_gb or 0,
        }
        expression = (
            parse_expression(reservation.resource_properties, field="resource_properties")
            & expression_of(reservation)
            & conditions
        )
        if footprint is None and (reservation.resources or reservation.extra_specs):
            footprint = footprint_of_size(sizes, reservation.resources, reservation.extra_specs)
            expression &= footprint.conditions
        elif reservation.resources:
            raise InvalidParameter(
                "The flavor says what the server takes: further classes are for vcpus, memory_mb and disk_gb.",
                field="resources",
            )
        count = 0 if reservation.in_place else 1
        return Demand(
            inventory=self.inventory,
            noun=self.noun,
            minimum=count,
            maximum=count,
            expression=expression,
            amounts=Capacity(sizes) if footprint is None else footprint.amounts,
            exclusive=False,
            spread=Spread.ANY,
            required=frozenset() if footprint is None else footprint.required,
            forbidden=frozenset() if footprint is None else footprint.forbidden,
            portions=() if footprint is None else footprint.portions,
            parameter="server_id" if is_named else "flavor_id",
            subject=f"server {reservation.server_id}" if is_named else None,
        )

    def is_prepared(self, parameters: Mapping[str, object]) -> bool:
        return parameters.get("server_id") is not None

    def trusted_for(self, parameters: Mapping[str, object]) -> str | None:
        if parameters.get("server_name"):
            return "server_name"
        return "at_end" if acts_as_owner(self.before_end(parameters)) else None

    def before_end(self, parameters: Mapping[str, object]) -> str | None:
        return LAST_SNAPSHOT if parameters.get("at_end") == "snapshot" else None


def _most_at_once(portions: Iterable[Capacity], resource_class: str) -> int:
    """Return the largest amount of a class that comes from a single provider."""
    return max((portion[resource_class] for portion in portions), default=0)


def _conditions(specs: Mapping[str, str]) -> tuple[Term, ...]:
    return conditions_of_flavor(specs).terms


def _is_preemptible(flavor: Mapping[str, Any]) -> bool:
    specs: Mapping[str, object] = flavor.get("extra_specs") or {}
    return str(specs.get(_PREEMPTIBLE, "")).strip().lower() in _TRUE


def _sized_by(kind: str, reference: str) -> str:
    return f"{kind} {reference}"
