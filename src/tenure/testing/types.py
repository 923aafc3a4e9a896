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

    resource_type: ResourceType
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
        resource_type = self.resource_type
        assert resource_type.name.partition(":")[2], "a vendor or a sort, a colon, and what it is"
        assert resource_type.name == resource_type.name.strip().lower()
        assert resource_type.noun.strip()
        if resource_type.own_inventory is None:
            assert resource_type.inventory != resource_type.name, "a type without an inventory is served from another's"
        else:
            assert resource_type.inventory == resource_type.own_inventory.name == resource_type.name
            assert resource_type.own_inventory.noun.strip()
            assert resource_type.own_inventory.rules.strip()

    # Requests

    @pytest.mark.parametrize("strict", [True, False])
    def test_models_have_a_json_schema_and_a_description(self, strict: bool):
        for model in (
            self.resource_type.request_model(strict=strict),
            self.resource_type.change_model(strict=strict),
            self.resource_type.answer_model(strict=strict),
        ):
            schema = model.model_json_schema()
            assert json.loads(json.dumps(schema)) == schema
            assert schema.get("description"), f"{model.__name__} has no docstring"

    @pytest.mark.parametrize("strict", [True, False])
    def test_requests_name_the_resource_type(self, strict: bool):
        field = self.resource_type.request_model(strict=strict).model_fields["resource_type"]
        assert field.is_required()
        adapter: TypeAdapter[Any] = TypeAdapter(field.annotation or str)
        adapter.validate_python(self.resource_type.name)
        with pytest.raises(ValidationError):
            adapter.validate_python("another:type")

    def test_valid_requests_are_accepted(self):
        assert self.requests
        for request in self.requests:
            self.parameters(request)

    def test_unknown_fields_are_refused(self):
        for model, given in (
            (
                self.resource_type.request_model(strict=True),
                {**self.requests[0], "resource_type": self.resource_type.name},
            ),
            (self.resource_type.change_model(strict=True), {}),
        ):
            with pytest.raises(ValidationError, match="no_such_field"):
                model.model_validate({**given, "no_such_field": 1})

    def test_invalid_requests_are_refused(self):
        assert self.refused
        for request, field in self.refused:
            with pytest.raises((ValidationError, InvalidParameter)) as caught:
                self.resource_type.demand(self.parameters(request))
            assert field in fields_of(caught.value), request

    def test_numbers_fit_every_database(self):
        for model in (self.resource_type.request_model(strict=True), self.resource_type.change_model(strict=True)):
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
            demand = self.resource_type.demand(self.parameters(request))
            assert demand.inventory == self.resource_type.inventory
            assert demand.noun == self.resource_type.noun
            assert 0 <= demand.minimum <= demand.maximum
            assert demand.amounts, "a unit takes something"
            if demand.exclusive:
                assert demand.spread is Spread.ANTI_AFFINITY
            else:
                assert WHOLE not in demand.amounts, "what is taken as a whole is exclusive"

    def test_whole_resources_are_demanded_one_by_one(self):
        demands = [self.resource_type.demand(self.parameters(request)) for request in self.requests]
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
        model = self.resource_type.request_model(strict=True)
        for name in {"resource_properties", "hypervisor_properties"} & model.model_fields.keys():
            demand = self.resource_type.demand(self.parameters({**self.requests[0], name: expression}))
            assert set(parse_expression(expression, field=name).terms) <= set(demand.expression.terms)

    def test_demand_depends_only_on_the_parameters(self):
        for request in self.requests:
            parameters = self.parameters(request)
            before = deepcopy(dict(parameters))
            first = self.resource_type.demand(parameters)
            assert self.resource_type.demand(stored(parameters)) == first
            assert parameters == before

    # Changes

    def test_change_may_be_empty(self):
        model = self.resource_type.change_model(strict=True)
        assert model.model_validate({}).model_dump(exclude_unset=True) == {}
        assert not {"id", "resource_type"} & model.model_fields.keys()
        assert self.resource_type.growing <= model.model_fields.keys()

    @pytest.mark.parametrize("running", [False, True])
    def test_empty_change_changes_nothing(self, running: bool):
        for request in self.requests:
            parameters = self.parameters(request)
            merged = self.resource_type.merge(parameters, {}, running=running)
            assert self.demand_after(merged) == self.resource_type.demand(parameters)
            assert stored(merged) == stored(self.resource_type.merge(merged, {}, running=running))

    def test_unchanged_values_are_accepted_while_running(self):
        """Clients may send back the values of answers."""
        known = self.resource_type.change_model(strict=True).model_fields.keys()
        for request in self.requests:
            parameters = self.parameters(request)
            again = {name: value for name, value in parameters.items() if name in known}
            assert self.demand_after(
                self.resource_type.merge(parameters, again, running=True)
            ) == self.resource_type.demand(parameters)

    def test_valid_changes_are_made(self):
        assert self.changes
        current = self.parameters(self.requests[0])
        before = deepcopy(dict(current))
        for change in self.changes:
            after = self.resource_type.merge(current, self.change(change), running=False)
            assert {name: after[name] for name in change} == dict(change)
            assert stored(after) == dict(after)
            self.demand_after(after)
            assert current == before, "the parameters before it are left alone"

    def test_contradicting_changes_are_refused(self):
        current = self.parameters(self.requests[0])
        for change, field in self.refused_changes:
            with pytest.raises((ValidationError, InvalidParameter, InvalidState)) as caught:
                self.demand_after(self.resource_type.merge(current, self.change(change), running=False))
            assert field in fields_of(caught.value), change

    def test_running_reservation_does_not_get_smaller(self):
        """The owner keeps what he has until the end; he can drop the reservation, or end the lease."""
        for name in self.resource_type.growing:
            for request in self.requests:
                current = self.parameters(request)
                number = current.get(name)
                if not isinstance(number, int) or isinstance(number, bool) or number < 2:
                    continue
                before = self.resource_type.demand(current)
                try:
                    after = self.demand_after(self.resource_type.merge(current, {name: number - 1}, running=True))
                except (InvalidState, InvalidParameter):
                    continue
                assert before.minimum <= after.maximum, f"{name} became {number - 1}"

    # What was added at 1.2

    def test_additions_ask_for_nothing_by_default(self):
        if self.resource_type.additions is None:
            assert not self.additional, "there is nothing to name"
            return
        assert self.resource_type.additions.__doc__, f"{self.resource_type.additions.__name__} has no docstring"
        left_out = self.resource_type.additions.model_validate({}).model_dump()
        for request in self.requests:
            parameters = self.parameters(request)
            assert self.resource_type.demand({**parameters, **left_out}) == self.resource_type.demand(parameters)

    def test_additions_have_names_of_their_own(self):
        if self.resource_type.additions is None:
            return
        names = self.resource_type.additions.model_fields.keys()
        assert not {"id", "resource_type", "region"} & names
        for strict in (True, False):
            for ask in (
                self.resource_type.request_model,
                self.resource_type.change_model,
                self.resource_type.answer_model,
            ):
                assert not ask(strict=strict).model_fields.keys() & names
        for name, schema in whole_numbers(self.resource_type.additions):
            assert "minimum" in schema, name
            assert schema.get("maximum", MAX_NUMBER + 1) <= MAX_NUMBER, name

    def test_additions_work_in_requests_and_in_changes(self):
        assert self.additional or self.resource_type.additions is None
        for addition in self.additional:
            named = self.addition(addition)
            current = self.parameters(self.requests[0])
            at_once = self.resource_type.demand({**current, **named})
            after = self.resource_type.merge(current, named, running=False)
            assert at_once != self.resource_type.demand(current), addition
            assert self.demand_after(after) == at_once, addition
            assert stored(after) == dict(after)

    # What is shown

    @pytest.mark.parametrize("strict", [True, False])
    def test_answer_fields_are_known_or_have_a_default(self, strict: bool):
        fields = self.resource_type.answer_model(strict=strict).model_fields
        assert not {"id", "lease_id", "status", "created_at", "updated_at", "resource_type"} & fields.keys()
        for request in self.requests:
            known = {**self.parameters(request), **self.resource_type.effects("r-1")}
            for name, field in fields.items():
                assert name in known or not field.is_required(), name

    def test_effects_can_be_stored(self):
        effects = self.resource_type.effects("r-1")
        assert stored(effects) == dict(effects)

    # What the cloud does

    def test_names_the_actions_of_the_cloud(self):
        for request in self.requests:
            parameters = self.parameters(request)
            assert self.resource_type.is_prepared(parameters) in {True, False}
            action = self.resource_type.before_end(parameters)
            assert action is None or action

    def test_actions_as_owner_need_a_trust(self):
        for request in self.requests:
            parameters = self.parameters(request)
            field = self.resource_type.trusted_for(parameters)
            assert field is None or field in {"resource_type", *parameters}, field
            if self.resource_type.before_end(parameters) not in {None, NOTIFY}:
                assert field is not None, "what is done to what the owner has is done as the owner"

    def test_known_facts_are_not_required(self):
        for request in self.requests:
            assert self.resource_type.required_fact(self.parameters(request)) is None

    # How it is asked

    def parameters(self, request: Document) -> Mapping[str, object]:
        """Return the parameters of a request, as the service has them: validated, and completed with required facts."""
        model = self.resource_type.request_model(strict=True)
        given = model.model_validate({**request, "resource_type": self.resource_type.name})
        parameters: Mapping[str, object] = given.model_dump(exclude={"resource_type"})
        if self.resource_type.required_fact(parameters) is not None:
            parameters = self.resource_type.complete(parameters, self.fact)
        return parameters

    def change(self, change: Document) -> Mapping[str, object]:
        """Return a change with its given fields, as the service has it."""
        return self.resource_type.change_model(strict=True).model_validate(change).model_dump(exclude_unset=True)

    def addition(self, addition: Document) -> Mapping[str, object]:
        """Return the given fields of the additions, as the service has them."""
        assert self.resource_type.additions is not None, "there is nothing to name"
        return self.resource_type.additions.model_validate(addition).model_dump(exclude_unset=True)

    def demand_after(self, parameters: Mapping[str, object]) -> Demand:
        """Return the demand after a change, completed with required facts."""
        if self.resource_type.required_fact(parameters) is not None:
            parameters = self.resource_type.complete(parameters, self.fact)
        return self.resource_type.demand(parameters)


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
