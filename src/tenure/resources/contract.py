"""What a kind of bookable thing must say of itself. Pure: no cloud, no database, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from pydantic import BaseModel

from tenure.domain.allocation import Demand
from tenure.domain.errors import Conflict, InvalidParameter, NotFound, TenureError

#: The action before the end for which nothing is done in the cloud: others are told that the end comes.
NOTIFY = "notify"
#: The action that is done at the end and not before it: an image of each server.
LAST_SNAPSHOT = "last_snapshot"
#: What a type says that has nothing to say.
NOTHING: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Wanted:
    """Something in the cloud that must be known before a request can be judged, such as ``flavor`` and its id.

    ``field`` is the parameter that names it.
    """

    kind: str
    reference: str
    field: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """How the resources of a type are spoken of, and under which policy rules they stand.

    ``noun`` is what one of them is called, ``reference`` the field of a registration that names it, ``rules`` the
    beginning of the rules. ``refusal`` is what it is when the cloud refuses a registration. ``missing`` is said of an
    ``id`` that nothing has, ``unknown`` of a ``reference`` that the cloud does not know, ``occupied`` of one that
    others use; ``error`` is what the cloud said.
    """

    name: str
    noun: str
    reference: str
    rules: str
    refusal: type[TenureError] = Conflict
    #: Whether the owner of a lease is told the names of those that serve it where something is wrong with them.
    is_named: bool = True
    #: Whether the cloud has a list of all there are, which is looked through for what has changed.
    is_listed: bool = True
    missing: str = "{Noun} {id} not found."
    unknown: str = "{error}"
    occupied: str = "{error}"

    def say(self, text: str, **facts: object) -> str:
        """One of these sentences, or another with the noun in it: ``{noun}``, or ``{Noun}`` where it begins."""
        return text.format(noun=self.noun, Noun=self.noun[:1].upper() + self.noun[1:], **facts)


class ResourceType(Protocol):
    """A kind of bookable thing, as leases name it."""

    #: The name on the wire, such as ``physical:host``.
    name: str
    #: What many of them are called in a sentence.
    noun: str
    #: The resource type whose resources serve it; its own name where it has an inventory of its own.
    inventory: str
    #: The parameters whose change may ask for more while the lease runs.
    growing: frozenset[str]

    @property
    def stock(self) -> Inventory | None:
        """How its inventory is spoken of, None where it has none of its own."""

    @property
    def additions(self) -> type[BaseModel] | None:
        """The model of what requests and changes can name from 1.2 on beside their own models; None for nothing.

        What it names is shown as well. Left out, it asks for nothing: every field has a default that says so.
        """

    def request_model(self, *, strict: bool) -> type[BaseModel]:
        """The model of a reservation to be made; with ``strict``, of microversion 1.1 and later."""

    def change_model(self, *, strict: bool) -> type[BaseModel]:
        """The model of what may change in a reservation (all optional), without its ``id`` and ``resource_type``."""

    def answer_model(self, *, strict: bool) -> type[BaseModel]:
        """The model of what is shown of a reservation beside what all have: of its parameters and its effects.

        By the names of the fields; an effect hides a parameter of the same name. A field's default stands for what is
        not known yet. Nothing is validated: parameters may be those of an earlier release.
        """

    def merge(
        self, current: Mapping[str, object], change: Mapping[str, object], *, running: bool
    ) -> Mapping[str, object]:
        """The parameters after a change.

        Raises ``InvalidParameter`` where they contradict each other, and ``InvalidState`` where a reservation that is
        ``running`` cannot be changed so.
        """

    def wanted(self, parameters: Mapping[str, object]) -> Wanted | None:
        """What must be known of the cloud first; None where that is nothing, or known already."""

    def complete(self, parameters: Mapping[str, object], fact: Mapping[str, object]) -> Mapping[str, object]:
        """The parameters, with what was wanted. Raises ``InvalidParameter`` where it cannot be had so."""

    def demand(self, parameters: Mapping[str, object]) -> Demand:
        """What the reservation asks of the ledger. Raises ``InvalidParameter``."""

    def effects(self, reservation_id: str) -> Mapping[str, object]:
        """What clients are told of the cloud's part in a new reservation."""

    def is_prepared(self, parameters: Mapping[str, object]) -> bool:
        """Whether something is made or done in the cloud as soon as the lease exists."""

    def trusted_for(self, parameters: Mapping[str, object]) -> str | None:
        """The parameter for which something is done as the owner, who has to trust us for that; None for nothing.

        ``resource_type`` where the type never does without.
        """

    def before_end(self, parameters: Mapping[str, object]) -> str | None:
        """The action to be done before the end: one of the cloud's, or ``NOTIFY``; None for none.

        ``LAST_SNAPSHOT`` is left to the end itself.
        """


class ResourceTypes:
    """The kinds that this process knows, by name."""

    def __init__(self, types: tuple[ResourceType, ...]) -> None:
        self._types = {kind.name: kind for kind in types}
        if len(self._types) != len(types):
            raise ValueError("two resource types have the same name")

    def __iter__(self) -> Iterator[ResourceType]:
        return iter(self._types.values())

    def stock(self, inventory: str) -> Inventory:
        """How an inventory is spoken of; raises ``NotFound`` where there is no such inventory."""
        for kind in self:
            if kind.stock is not None and kind.stock.name == inventory:
                return kind.stock
        raise NotFound(f"There is no inventory of {inventory}.")

    def __getitem__(self, name: str) -> ResourceType:
        """The type of that name; raises ``InvalidParameter`` when there is none."""
        try:
            return self._types[name]
        except KeyError:
            raise InvalidParameter(f"The {name} resource type is not supported", field="resource_type") from None
