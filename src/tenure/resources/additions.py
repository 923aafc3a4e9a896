"""The parameters of hosts, and of parts of them, that requests can have from API 1.2 on beside those of their types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictInt, StrictStr

from tenure.domain.capacity import MAX_AMOUNT
from tenure.domain.errors import InvalidParameter
from tenure.domain.extra_specs import conditions_of_request
from tenure.domain.requirement import MAX_COMPARISONS, Comparison, Expression, Term

_Word = Annotated[StrictStr, Field(min_length=1, max_length=255)]
_Least = Annotated[StrictInt, Field(ge=0, le=MAX_AMOUNT)]


class ZoneAdditions(BaseModel):
    """Where in the region."""

    availability_zone: Annotated[
        StrictStr, Field(max_length=255, description="The zone of the hosts; empty for any.")
    ] = ""


class PlaceAdditions(ZoneAdditions):
    """Where in the region, and on what kind of hosts."""

    extra_specs: Annotated[
        dict[_Word, _Word],
        Field(
            max_length=32,
            description="What hosts must be, as flavors say it: `capabilities:` and what the cloud says of a host, "
            "`trait:` and a trait, `aggregate_instance_extra_specs:` and metadata of aggregates, or a property by its "
            "name; a value is a text, or one of Nova's operators and what it is followed by.",
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


def expression_of(additions: ZoneAdditions) -> Expression:
    """Return the additions as an expression. Raises ``InvalidParameter`` for an extra spec that is not about hosts."""
    specs = additions.extra_specs if isinstance(additions, PlaceAdditions) else {}
    try:
        terms: list[Term] = list(conditions_of_request(specs).terms)
    except ValueError as error:
        raise InvalidParameter(str(error), field="extra_specs") from None
    if additions.availability_zone:
        terms.append(Comparison("==", "availability_zone", additions.availability_zone))
    if isinstance(additions, HostAdditions):
        terms += _minima(additions)
    expression = Expression(tuple(terms))
    if expression.size > MAX_COMPARISONS:
        raise InvalidParameter(
            f"More than {MAX_COMPARISONS} values are asked for; each after <or> counts as one", field="extra_specs"
        )
    return expression


def _minima(additions: HostAdditions) -> Iterator[Comparison]:
    for name, least in (
        ("vcpus", additions.vcpus),
        ("memory_mb", additions.memory_mb),
        ("local_gb", additions.disk_gb),
    ):
        if least:
            yield Comparison(">=", name, str(least))
