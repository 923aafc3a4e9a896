"""Resource types that are made from a declaration of their parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from tenure.domain.errors import InvalidParameter, InvalidState
from tenure.resources.additions import without_defaults
from tenure.resources.contract import NOTHING, FactReference, Inventory
from tenure.resources.fields import action_of
from tenure.resources.parameters import Parameters, answer_form, change_form, request_form

Stored = TypeVar("Stored", bound=Parameters)


class DeclaredType(Generic[Stored]):
    """A resource type, as ``ResourceType`` describes it: what follows from the declaration, and what most types do.

    A type gives its ``name``, ``noun`` and ``inventory``, its ``declaration``, and ``stored``: the declaration with the
    ``additions``, or the declaration itself. It says in ``demand`` what its parameters ask of the ledger, and
    overrides what is different.
    """

    name: str
    noun: str
    inventory: str
    declaration: type[Parameters]
    stored: type[Stored]
    own_inventory: Inventory | None = None
    growing: frozenset[str] = frozenset()
    counted: str = ""
    additions: type[BaseModel] | None = None
    later_additions: Mapping[str, type[BaseModel]] = MappingProxyType({})
    #: What is shown beside the parameters: ids of what the cloud has made.
    effects_model: type[BaseModel] | None = None
    #: The parameters that a change can set to null.
    nullable: frozenset[str] = frozenset()
    #: The field that a refusal by the rules of the declaration names.
    ruled: str | None = None

    def __init__(self, default_before_end: str = "") -> None:
        self._default_before_end = default_before_end

    def request_model(self, *, strict: bool) -> type[BaseModel]:
        return request_form(self.declaration, strict=strict)

    def change_model(self, *, strict: bool) -> type[BaseModel]:
        return change_form(self.declaration, strict=strict)

    def answer_model(self, *, strict: bool) -> type[BaseModel]:
        return answer_form(self.declaration, self.effects_model, strict=strict)

    def read(self, parameters: Mapping[str, object]) -> Stored:
        """Return the parameters, as this release or an earlier one has stored them."""
        return self.stored.model_validate({**parameters, "resource_type": self.name})

    def merge(
        self, current: Mapping[str, object], change: Mapping[str, object], *, running: bool
    ) -> Mapping[str, object]:
        given = {name: value for name, value in change.items() if value is not None or name in self.nullable}
        try:
            merged = self.read({**current, **given})
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidParameter(first["msg"], field=str(first["loc"][-1]) if first["loc"] else self.ruled) from None
        after = merged.model_dump(exclude={"resource_type"})
        for additions in (self.additions, *self.later_additions.values()):
            if additions is not None:
                after = without_defaults(additions, after)
        self.check_change(current, after, running=running)
        return {**after, **self.still_known(current, after)}

    def check_change(self, current: Mapping[str, object], after: Mapping[str, Any], *, running: bool) -> None:
        """Raise ``InvalidParameter`` or ``InvalidState`` if a reservation cannot be changed like this."""

    def still_known(self, current: Mapping[str, object], after: Mapping[str, object]) -> Mapping[str, object]:
        """Return what the cloud has said of the parameters and is still true after a change."""
        return NOTHING

    def required_fact(self, parameters: Mapping[str, object]) -> FactReference | None:
        return None

    def complete(self, parameters: Mapping[str, object], fact: Mapping[str, object]) -> Mapping[str, object]:
        return parameters

    def effects(self, reservation_id: str) -> Mapping[str, object]:
        return NOTHING

    def is_prepared(self, parameters: Mapping[str, object]) -> bool:
        return False

    def trusted_for(self, parameters: Mapping[str, object]) -> str | None:
        return None

    def before_end(self, parameters: Mapping[str, object]) -> str | None:
        return action_of(parameters, self._default_before_end)


def refuse_changes(
    current: Mapping[str, object], after: Mapping[str, object], *, declared: Collection[str], but: Collection[str]
) -> None:
    """Raise ``InvalidState`` where a running reservation would become another, or smaller.

    Of the ``declared`` parameters, those that would be empty are left out of ``after``.
    """
    emptied = {name: None for name, value in current.items() if value and name in declared and name not in after}
    for name, value in {**after, **emptied}.items():
        if name not in but and value != current.get(name):
            raise InvalidState(
                f"{name} cannot be changed: an active reservation doesn't allow to reduce/replace what it has.",
                field=name,
            )
    before, amount = current.get("amount"), after.get("amount")
    if isinstance(before, int) and isinstance(amount, int) and amount < before:
        raise InvalidState(
            f"The amount cannot be {amount}: an active reservation doesn't allow to reduce/replace what it has "
            f"({before}).",
            field="amount",
        )
