"""What a kind of bookable thing must say of itself. Pure: no cloud, no database, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from pydantic import BaseModel

from tenure.domain.allocation import Demand
from tenure.domain.errors import InvalidParameter


class ResourceType(Protocol):
    """A kind of bookable thing, as leases name it."""

    #: The name on the wire, such as ``physical:host``.
    name: str
    #: What many of them are called in a sentence.
    noun: str
    #: The resource type whose resources serve it; its own name where it has an inventory of its own.
    inventory: str

    def request_model(self, *, strict: bool) -> type[BaseModel]:
        """The model of a reservation to be made; with ``strict``, of microversion 1.1 and later."""

    def change_model(self, *, strict: bool) -> type[BaseModel]:
        """The model of what may change in a reservation (all optional), without its ``id`` and ``resource_type``."""

    def merge(self, current: Mapping[str, object], change: Mapping[str, object]) -> Mapping[str, object]:
        """The parameters after a change. Raises ``InvalidParameter`` where they contradict each other."""

    def demand(self, parameters: Mapping[str, object]) -> Demand:
        """What the reservation asks of the ledger. Raises ``InvalidParameter``."""

    def before_end(self, parameters: Mapping[str, object]) -> str | None:
        """The action to be done before the end, None for none."""


class ResourceTypes:
    """The kinds that this process knows, by name."""

    def __init__(self, types: tuple[ResourceType, ...]) -> None:
        self._types = {kind.name: kind for kind in types}
        if len(self._types) != len(types):
            raise ValueError("two resource types have the same name")

    def __iter__(self) -> Iterator[ResourceType]:
        return iter(self._types.values())

    def __getitem__(self, name: str) -> ResourceType:
        """The type of that name; raises ``InvalidParameter`` when there is none."""
        try:
            return self._types[name]
        except KeyError:
            raise InvalidParameter(f"The {name} resource type is not supported", field="resource_type") from None
