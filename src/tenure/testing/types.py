"""The contract of resource types, as tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from tenure.domain.allocation import Demand, Spread
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.errors import InvalidParameter, InvalidState
from tenure.domain.requirement import parse_expression
from tenure.resources.contract import NOTIFY, ResourceType

Document = Mapping[str, Any]

#: The largest integer that fits every database.
MAX_NUMBER = 2**31 - 1


class TypeContract:
    """The tests for every resource type.

    A type's test class inherits it, and gives examples of requests and changes, without ``resource_type``.
    """

    kind: ResourceType
    #: Valid requests of API 1.1 and later: the smallest first, then others.
    requests: Sequence[Document]
    #: Invalid requests, each with the wrong field.
    refused: Sequence[tuple[Document, str]]
    #: Valid changes of the first request before its start.
    changes: Sequence[Document]
    #: Invalid changes of the first request, each with the wrong field.
    refused_changes: Sequence[tuple[Document, str]] = ()
    #: Valid ``additions`` of the first request from API 1.2 on.
    additional: Sequence[Document] = ()
    #: The fact of the cloud that the type wants.
    fact: Document = {}  # noqa: RUF012  # replaced, never written to

    # What it is

    def test_has_a_name_and_an_inventory(self):
        kind = self.kind
        assert kind.name.partition(":")[2], "a vendor or a sort, a colon, and what it is"
        assert kind.name == kind.name.strip().lower()
        assert kind.noun.strip()
        if kind.stock is None:
            assert kind.inventory != kind.name, "a type without an inventory is served from another's"
        else:
            assert kind.inventory == kind.stock.name == kind.name
            assert kind.stock.noun.strip()
            assert kind.stock.rules.strip()

    # Requests

    @pytest.mark.parametrize("strict", [True, False])
    def test_models_have_a_json_schema_and_a_description(self, strict: bool):
        for model in (
            self.kind.request_model(strict=strict),
            self.kind.change_model(strict=strict),
            self.kind.answer_model(strict=strict),
        ):
            schema = model.model_json_schema()
            assert json.loads(json.dumps(schema)) == schema
            assert schema.get("description"), f"{model.__name__} has no docstring"

    @pytest.mark.parametrize("strict", [True, False])
    def test_requests_name_the_resource_type(self, strict: bool):
        field = self.kind.request_model(strict=strict).model_fields["resource_type"]
        assert field.is_required()
        adapter: TypeAdapter[Any] = TypeAdapter(field.annotation or str)
        adapter.validate_python(self.kind.name)
        with pytest.raises(ValidationError):
            adapter.validate_python("another:type")

    def test_valid_requests_are_accepted(self):
        assert self.requests
        for request in self.requests:
            self.parameters(request)

    def test_unknown_fields_are_refused(self):
        for model, given in (
            (self.kind.request_model(strict=True), {**self.requests[0], "resource_type": self.kind.name}),
            (self.kind.change_model(strict=True), {}),
        ):
            with pytest.raises(ValidationError, match="no_such_field"):
                model.model_validate({**given, "no_such_field": 1})

    def test_invalid_requests_are_refused(self):
        assert self.refused
        for request, field in self.refused:
            with pytest.raises((ValidationError, InvalidParameter)) as caught:
                self.kind.demand(self.parameters(request))
            assert field in fields_of(caught.value), request

    def test_numbers_fit_every_database(self):
        for model in (self.kind.request_model(strict=True), self.kind.change_model(strict=True)):
            for name, schema in whole_numbers(model):
                assert "minimum" in schema or "exclusiveMinimum" in schema, name
                assert schema.get("maximum", schema.get("exclusiveMaximum", MAX_NUMBER + 1)) <= MAX_NUMBER, name

    def test_parameters_can_be_stored(self):
        for request in self.requests:
            parameters = self.parameters(request)
            assert stored(parameters) == dict(parameters)
            assert "resource_type" not in parameters

    # What is asked of the ledger

    def test_demand_has_counts_and_amounts(self):
        for request in self.requests:
            demand = self.kind.demand(self.parameters(request))
            assert demand.inventory == self.kind.inventory
            assert demand.noun == self.kind.noun
            assert 0 <= demand.minimum <= demand.maximum
            assert demand.amounts, "a unit takes something"
            if demand.exclusive:
                assert demand.spread is Spread.ANTI_AFFINITY
            else:
                assert WHOLE not in demand.amounts, "what is taken as a whole is exclusive"

    def test_whole_resources_are_demanded_one_by_one(self):
        demands = [self.kind.demand(self.parameters(request)) for request in self.requests]
        assert all(demand.amounts == Capacity({WHOLE: 1}) for demand in demands if WHOLE in demand.amounts)

    @pytest.mark.parametrize(
        "expression",
        [
            '["==", "$vcpus", "64"]',
            '["in", "$rack", "r1", "r2"]',
            '["or", ["==", "$vcpus", "64"], ["==", "$gpu", "a100"]]',
            '["not", ["==", "$gpu", "a100"]]',
        ],
    )
    def test_conditions_may_use_the_whole_property_language(self, expression: str):
        """For types with conditions on properties."""
        model = self.kind.request_model(strict=True)
        for name in {"resource_properties", "hypervisor_properties"} & model.model_fields.keys():
            demand = self.kind.demand(self.parameters({**self.requests[0], name: expression}))
            assert set(parse_expression(expression, field=name).terms) <= set(demand.expression.terms)

    def test_demand_depends_only_on_the_parameters(self):
        for request in self.requests:
            parameters = self.parameters(request)
            before = deepcopy(dict(parameters))
            first = self.kind.demand(parameters)
            assert self.kind.demand(stored(parameters)) == first
            assert parameters == before

    # Changes

    def test_change_may_be_empty(self):
        model = self.kind.change_model(strict=True)
        assert model.model_validate({}).model_dump(exclude_unset=True) == {}
        assert not {"id", "resource_type"} & model.model_fields.keys()
        assert self.kind.growing <= model.model_fields.keys()

    @pytest.mark.parametrize("running", [False, True])
    def test_empty_change_changes_nothing(self, running: bool):
        for request in self.requests:
            parameters = self.parameters(request)
            merged = self.kind.merge(parameters, {}, running=running)
            assert self.demand_after(merged) == self.kind.demand(parameters)
            assert stored(merged) == stored(self.kind.merge(merged, {}, running=running))

    def test_unchanged_values_are_accepted_while_running(self):
        """Clients may send back the values of answers."""
        known = self.kind.change_model(strict=True).model_fields.keys()
        for request in self.requests:
            parameters = self.parameters(request)
            again = {name: value for name, value in parameters.items() if name in known}
            assert self.demand_after(self.kind.merge(parameters, again, running=True)) == self.kind.demand(parameters)

    def test_valid_changes_are_made(self):
        assert self.changes
        current = self.parameters(self.requests[0])
        before = deepcopy(dict(current))
        for change in self.changes:
            after = self.kind.merge(current, self.change(change), running=False)
            assert {name: after[name] for name in change} == dict(change)
            assert stored(after) == dict(after)
            self.demand_after(after)
            assert current == before, "the parameters before it are left alone"

    def test_contradicting_changes_are_refused(self):
        current = self.parameters(self.requests[0])
        for change, field in self.refused_changes:
            with pytest.raises((ValidationError, InvalidParameter, InvalidState)) as caught:
                self.demand_after(self.kind.merge(current, self.change(change), running=False))
            assert field in fields_of(caught.value), change

    def test_running_reservation_does_not_get_smaller(self):
        """The owner keeps what he has until the end; he can drop the reservation, or end the lease."""
        for name in self.kind.growing:
            for request in self.requests:
                current = self.parameters(request)
                number = current.get(name)
                if not isinstance(number, int) or isinstance(number, bool) or number < 2:
                    continue
                before = self.kind.demand(current)
                try:
                    after = self.demand_after(self.kind.merge(current, {name: number - 1}, running=True))
                except (InvalidState, InvalidParameter):
                    continue
                assert before.minimum <= after.maximum, f"{name} became {number - 1}"

    # What was added at 1.2

    def test_additions_ask_for_nothing_by_default(self):
        if self.kind.additions is None:
            assert not self.additional, "there is nothing to name"
            return
        assert self.kind.additions.__doc__, f"{self.kind.additions.__name__} has no docstring"
        left_out = self.kind.additions.model_validate({}).model_dump()
        for request in self.requests:
            parameters = self.parameters(request)
            assert self.kind.demand({**parameters, **left_out}) == self.kind.demand(parameters)

    def test_additions_have_names_of_their_own(self):
        if self.kind.additions is None:
            return
        names = self.kind.additions.model_fields.keys()
        assert not {"id", "resource_type", "region"} & names
        for strict in (True, False):
            for ask in (self.kind.request_model, self.kind.change_model, self.kind.answer_model):
                assert not ask(strict=strict).model_fields.keys() & names
        for name, schema in whole_numbers(self.kind.additions):
            assert "minimum" in schema, name
            assert schema.get("maximum", MAX_NUMBER + 1) <= MAX_NUMBER, name

    def test_additions_work_in_requests_and_in_changes(self):
        assert self.additional or self.kind.additions is None
        for addition in self.additional:
            named = self.addition(addition)
            current = self.parameters(self.requests[0])
            at_once = self.kind.demand({**current, **named})
            after = self.kind.merge(current, named, running=False)
            assert at_once != self.kind.demand(current), addition
            assert self.demand_after(after) == at_once, addition
            assert stored(after) == dict(after)

    # What is shown

    @pytest.mark.parametrize("strict", [True, False])
    def test_answer_fields_are_known_or_have_a_default(self, strict: bool):
        fields = self.kind.answer_model(strict=strict).model_fields
        assert not {"id", "lease_id", "status", "created_at", "updated_at", "resource_type"} & fields.keys()
        for request in self.requests:
            known = {**self.parameters(request), **self.kind.effects("r-1")}
            for name, field in fields.items():
                assert name in known or not field.is_required(), name

    def test_effects_can_be_stored(self):
        effects = self.kind.effects("r-1")
        assert stored(effects) == dict(effects)

    # What the cloud does

    def test_names_the_actions_of_the_cloud(self):
        for request in self.requests:
            parameters = self.parameters(request)
            assert self.kind.is_prepared(parameters) in {True, False}
            action = self.kind.before_end(parameters)
            assert action is None or action

    def test_actions_as_owner_need_a_trust(self):
        for request in self.requests:
            parameters = self.parameters(request)
            field = self.kind.trusted_for(parameters)
            assert field is None or field in {"resource_type", *parameters}, field
            if self.kind.before_end(parameters) not in {None, NOTIFY}:
                assert field is not None, "what is done to what the owner has is done as the owner"

    def test_known_facts_are_not_wanted(self):
        for request in self.requests:
            assert self.kind.wanted(self.parameters(request)) is None

    # How it is asked

    def parameters(self, request: Document) -> Mapping[str, object]:
        """Return the parameters of a request, as the service has them: validated, and completed with wanted facts."""
        model = self.kind.request_model(strict=True)
        given = model.model_validate({**request, "resource_type": self.kind.name})
        parameters: Mapping[str, object] = given.model_dump(exclude={"resource_type"})
        if self.kind.wanted(parameters) is not None:
            parameters = self.kind.complete(parameters, self.fact)
        return parameters

    def change(self, change: Document) -> Mapping[str, object]:
        """Return a change with its given fields, as the service has it."""
        return self.kind.change_model(strict=True).model_validate(change).model_dump(exclude_unset=True)

    def addition(self, addition: Document) -> Mapping[str, object]:
        """Return the given fields of the additions, as the service has them."""
        assert self.kind.additions is not None, "there is nothing to name"
        return self.kind.additions.model_validate(addition).model_dump(exclude_unset=True)

    def demand_after(self, parameters: Mapping[str, object]) -> Demand:
        """Return the demand after a change, completed with wanted facts."""
        if self.kind.wanted(parameters) is not None:
            parameters = self.kind.complete(parameters, self.fact)
        return self.kind.demand(parameters)


def stored(document: Mapping[str, object]) -> dict[str, object]:
    """Return the document as it comes back from the database."""
    found: dict[str, object] = json.loads(json.dumps(dict(document)))
    return found


def fields_of(error: Exception) -> str:
    """Return the field and message of an error."""
    if isinstance(error, ValidationError):
        return " ".join(f"{detail['loc']} {detail['msg']}" for detail in error.errors())
    return f"{getattr(error, 'field', '')} {error}"


def whole_numbers(model: type[BaseModel]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each integer of a model with its schema."""
    for name, schema in model.model_json_schema().get("properties", {}).items():
        for alternative in [schema, *schema.get("anyOf", ())]:
            if alternative.get("type") == "integer":
                yield name, alternative
