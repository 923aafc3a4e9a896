"""The parameters of hosts, and of parts of them, that newer requests can have beside those of their types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, StrictInt, StrictStr

from tenure.domain.capacity import MAX_AMOUNT
from tenure.domain.errors import InvalidParameter
from tenure.domain.extra_specs import conditions_of_request
from tenure.domain.footprint import Footprint, footprint_of, specs_of_size, uncounted_specs
from tenure.domain.requirement import MAX_COMPARISONS, Comparison, Expression, HasAmount, Term

#: The classes of the size of a server, and the parameters for them.
_SIZES: Final = {"VCPU": "vcpus", "MEMORY_MB": "memory_mb", "DISK_GB": "disk_gb"}
#: The classes that servers take by other extra specs than ``resources:``, and those of reservations.
_IMPLIED: Final = frozenset({"PCPU", "MEM_ENCRYPTION_CONTEXT"})
_OF_RESERVATIONS: Final = "CUSTOM_RESERVATION_"
_Word = Annotated[StrictStr, Field(min_length=1, max_length=255)]
_Class = Annotated[StrictStr, Field(pattern=r"^[A-Z0-9_]{1,255}$")]
_Amount = Annotated[StrictInt, Field(ge=1, le=MAX_AMOUNT)]
_Least = Annotated[StrictInt, Field(ge=0, le=MAX_AMOUNT)]


class ZoneAdditions(BaseModel):
    """Where in the region."""

    availability_zone: Annotated[
        StrictStr, Field(max_length=255, description="The zone of the hosts; empty for any.")
    ] = ""


class SpecAdditions(BaseModel):
    """On what kind of hosts."""

    extra_specs: Annotated[
        dict[_Word, _Word],
        Field(
            max_length=32,
            description="What hosts must be, as flavors say it: `capabilities:` and what the cloud says of a host, "
            "`trait:` and a trait, `aggregate_instance_extra_specs:` and metadata of aggregates, or a property by its "
            "name; a value is a text, or one of Nova's operators and what it is followed by.",
        ),
    ] = Field(default_factory=dict)


class PlaceAdditions(SpecAdditions, ZoneAdditions):
    """Where in the region, and on what kind of hosts."""


class ClassAdditions(BaseModel):
    """How much of resource classes, from API 1.4 on."""

    resources: Annotated[
        dict[_Class, _Amount],
        Field(
            max_length=16,
            description="How much of further resource classes of Placement, such as `VGPU` or `CUSTOM_FPGA`: what each "
            "instance or server takes, and what each of whole hosts has at least.",
        ),
    ] = Field(default_factory=dict)


class HostAdditions(PlaceAdditions):
    """The same, and how large each host is at least."""

    vcpus: Annotated[_Least, Field(description="How many processors each host has at least.")] = 0
    memory_mb: Annotated[_Least, Field(description="How much memory each host has at least, in MiB.")] = 0
    disk_gb: Annotated[_Least, Field(description="How much disk each host has at least, in GiB.")] = 0


def without_defaults(model: type[BaseModel], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters without additions at their defaults, as requests of older versions are stored."""
    return {name: value for name, value in parameters.items() if value or name not in model.model_fields}


def expression_of(additions: BaseModel) -> Expression:
    """Return the additions about place and kind of hosts as an expression.

    Raises ``InvalidParameter`` for an extra spec that is not about hosts.
    """
    specs = additions.extra_specs if isinstance(additions, SpecAdditions) else {}
    try:
        terms: list[Term] = list(conditions_of_request(specs).terms)
    except ValueError as error:
        raise InvalidParameter(str(error), field="extra_specs") from None
    if isinstance(additions, ZoneAdditions) and additions.availability_zone:
        terms.append(Comparison("==", "availability_zone", additions.availability_zone))
    if isinstance(additions, HostAdditions):
        terms += _minima(additions)
    expression = Expression(tuple(terms))
    if expression.size > MAX_COMPARISONS:
        raise InvalidParameter(
            f"More than {MAX_COMPARISONS} values are asked for; each after <or> counts as one", field="extra_specs"
        )
    return expression


def least_amounts(additions: ClassAdditions) -> Expression:
    """Return as an expression how much whole hosts have at least."""
    return Expression(tuple(HasAmount(name, amount) for name, amount in sorted(additions.resources.items())))


def footprint_of_size(
    sizes: Mapping[str, int], resources: Mapping[str, int], extra_specs: Mapping[str, str]
) -> Footprint:
    """Return the footprint of a server of a size, which is given by its classes, that takes amounts of further classes.

    Traits among the extra specs are required, or forbidden, where it takes something. Raises ``InvalidParameter`` for
    classes that are no further ones, and for those that are not counted.
    """
    specs = specs_of_size(resources, extra_specs)
    if named := sorted(resources.keys() & _SIZES.keys()):
        name = named[0]
        raise InvalidParameter(f"{name} is no further class: {_SIZES[name]} says how much of it.", field="resources")
    uncounted = {spec.removeprefix("resources:") for spec in uncounted_specs({"extra_specs": specs})}
    uncounted |= {name for name in resources if name in _IMPLIED or name.startswith(_OF_RESERVATIONS)}
    if uncounted:
        raise InvalidParameter(
            f"Reservations do not count {', '.join(sorted(uncounted))} for servers of a size.", field="resources"
        )
    flavor = {"vcpus": sizes["VCPU"], "ram": sizes["MEMORY_MB"], "disk": sizes["DISK_GB"], "extra_specs": specs}
    return footprint_of(flavor)


def _minima(additions: HostAdditions) -> Iterator[Comparison]:
    for name, least in (
        ("vcpus", additions.vcpus),
        ("memory_mb", additions.memory_mb),
        ("local_gb", additions.disk_gb),
    ):
        if least:
            yield Comparison(">=", name, str(least))
