"""The models of requests, changes and answers follow from the declaration of a type's parameters."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, Field, StrictInt, StrictStr, ValidationError, model_validator

from tenure.resources.parameters import ABSENT, Forms, Parameters, answer_form, change_form, request_form


class _Even(BaseModel):
    @model_validator(mode="after")
    def _even(self) -> _Even:
        if (getattr(self, "seats", None) or 0) % 2:
            raise ValueError("seats come in pairs")
        return self


class _Named(BaseModel):
    @model_validator(mode="after")
    def _named(self) -> _Named:
        if not getattr(self, "room", None):
            raise ValueError("name a room")
        return self


class SeatReservation(_Even, Parameters):
    """A reservation of seats."""

    noun: ClassVar[str] = "seats"
    while_it_runs: ClassVar[str] = "only that there are more of them"
    request_rules: ClassVar[tuple[type[BaseModel], ...]] = (_Named,)

    resource_type: Literal["lab:seat"]
    seats: Annotated[int, Forms(strict=StrictInt)]
    room: Annotated[StrictStr, Forms(default="main")]
    side: Annotated[Literal["left", "right"] | None, Forms(fixed=True)] = None
    tags: Annotated[list[StrictStr], Forms(lenient=ABSENT)] = Field(default_factory=list)
    notice: Annotated[bool, Forms(new=True)] = False
    seen: Annotated[str, Forms(internal=True)] = ""


class SeatEffects(BaseModel):
    key: str | None = None


SEATS: dict[str, Any] = {"resource_type": "lab:seat", "seats": 2, "room": "east"}


def names(model: type[BaseModel]) -> list[str]:
    return list(model.model_fields)


def refused(model: type[BaseModel], **given: object) -> str:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(given)
    return str(caught.value)


def test_requests_have_the_fields_of_their_version():
    assert names(request_form(SeatReservation, strict=False)) == ["resource_type", "seats", "room", "side", "notice"]
    strict = request_form(SeatReservation, strict=True)
    assert names(strict) == ["resource_type", "seats", "room", "side", "tags", "notice"]
    assert strict.__name__ == "SeatReservation"


def test_blazars_requests_are_read_leniently():
    lenient, strict = (request_form(SeatReservation, strict=strict) for strict in (False, True))
    given = lenient.model_validate({**SEATS, "seats": "2", "unknown": 1})
    assert given.model_dump()["seats"] == 2
    assert "seats" in refused(strict, **{**SEATS, "seats": "2"})
    assert "unknown" in refused(strict, **SEATS, unknown=1)


def test_parameters_required_by_blazar_may_have_a_default_later():
    given = {"resource_type": "lab:seat", "seats": 2}
    assert "room" in refused(request_form(SeatReservation, strict=False), **given)
    assert request_form(SeatReservation, strict=True).model_validate(given).model_dump()["room"] == "main"


def test_changes_are_optional_and_leave_out_fixed_parameters():
    change = change_form(SeatReservation, strict=True)
    assert names(change) == ["seats", "room", "tags", "notice"]
    assert change.model_validate({}).model_dump(exclude_unset=True) == {}
    assert "only that there are more of them" in (change.__doc__ or "")


def test_rules_hold_in_requests_and_changes_and_request_rules_in_requests_only():
    request, change = request_form(SeatReservation, strict=True), change_form(SeatReservation, strict=True)
    assert "pairs" in refused(request, **{**SEATS, "seats": 3})
    assert "pairs" in refused(change, seats=3)
    assert "name a room" in refused(request, **{**SEATS, "room": ""})
    assert change.model_validate({"room": ""}).model_dump(exclude_unset=True) == {"room": ""}


def test_answers_show_parameters_and_effects_without_limits():
    oldest, later = (answer_form(SeatReservation, SeatEffects, strict=strict) for strict in (False, True))
    assert names(oldest) == ["seats", "room", "side", "key"]
    assert names(later) == ["seats", "room", "side", "tags", "notice", "key"]
    annotations = [later.model_fields[name].annotation for name in ("seats", "room", "side", "tags")]
    assert annotations == [int, str, str | None, list[str]]


def test_a_type_that_blazar_does_not_have_has_strict_requests_at_all_versions():
    class OwnReservation(SeatReservation):
        is_known_to_blazar: ClassVar[bool] = False

    assert request_form(OwnReservation, strict=False) is not None
    assert names(request_form(OwnReservation, strict=False)) == names(request_form(OwnReservation, strict=True))
