"""Leases on the wire: their models with the fields of the resource types, and the reading of requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, LiteralString, Union, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    RootModel,
    StrictStr,
    Tag,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, PydanticKnownError

from tenure.api.schemas import answers, as_shown
from tenure.api.schemas.answers import Answer, Document, Written
from tenure.api.schemas.availability import LargestSearch, LongestSearch, OfferSearch
from tenure.api.schemas.lease_models import (
    MOST_CHOICES,
    OPTIONAL,
    FlexibleLeaseCreate,
    LeaseConfirm,
    LeaseCreateWithBoot,
    LeaseCreateWithEvents,
    LeaseForms,
    LeaseUpdateWithEvents,
    Placed,
    Strict,
)
from tenure.api.schemas.refusals import check
from tenure.api.schemas.texts import MAX_ID
from tenure.api.versions import Version
from tenure.domain.availability import OfferQuery
from tenure.domain.boot import Boot
from tenure.domain.errors import InvalidParameter
from tenure.domain.lease import DETAILS, Lease, Reservation
from tenure.domain.request import (
    FlexibleRequest,
    LeaseChange,
    LeaseRequest,
    ReservationChange,
    ReservationRequest,
    UserEvent,
    When,
)
from tenure.resources.contract import GrownType, ResourceType
from tenure.services.leases.bounds import MAX_RESERVATIONS


class LeaseSchemas:
    """The models of leases at a version, with the installed resource types; reads requests.

    Only reservations of the ``enabled`` types can be requested and changed, by default of all. Answers may have those
    of the others.
    """

    def __init__(
        self,
        resource_types: Iterable[ResourceType],
        version: Version,
        forms: LeaseForms,
        enabled: Collection[str] | None = None,
    ) -> None:
        self._version = version
        self._checks_values = forms.is_strict
        self._is_placed = forms.is_placed
        self._resource_types = tuple(resource_types)
        bookable = [
            resource_type for resource_type in self._resource_types if enabled is None or resource_type.name in enabled
        ]
        self._names = tuple(resource_type.name for resource_type in bookable)
        requests = [(resource_type.name, _request_model(resource_type, forms)) for resource_type in bookable]
        self._nullable = {name: _nullable(model) for name, model in requests}
        member = _reservation(requests)
        changed = _list_of(
            _reservation([(resource_type.name, _change_model(resource_type, forms)) for resource_type in bookable])
        )
        self.create_model = _with_reservations("LeaseCreate", forms.create, _list_of(member))
        if issubclass(forms.create, FlexibleLeaseCreate):
            choice = _with_reservations("Choice", Strict, _list_of(member))
            choices = Annotated[list[choice], Field(min_length=1, max_length=MOST_CHOICES)]  # type: ignore[valid-type]  # known at run time only
            self.create_model = create_model("LeaseCreate", __base__=self.create_model, any_of=(choices, OPTIONAL))
        self.update_model = _with_reservations("LeaseUpdate", forms.update, changed)
        self.confirm_model = _with_reservations("LeaseConfirm", LeaseConfirm, changed)
        self.add_model: type[BaseModel] = create_model("ReservationCreate", __base__=RootModel[member])  # type: ignore[valid-type]  # known at run time only
        self.search_model = _with_reservations("OfferSearch", OfferSearch, _list_of(member))
        self.longest_model = _with_reservations("LongestSearch", LongestSearch, _list_of(member))
        self.largest_model = create_model("LargestSearch", __base__=LargestSearch, reservation=(member, ...))
        self.answer = _answer_model(self._resource_types, forms)
        self.dry_run: type[Answer] = create_model("DryRun", __base__=answers.DryRunDocument, lease=(self.answer, ...))

    def read_request(self, body: Mapping[str, object]) -> LeaseRequest | FlexibleRequest:
        """Return the lease that ``body`` requests."""
        given: Any = check(self.create_model, body, self._version, tags=self._names)
        can_be_flexible = isinstance(given, FlexibleLeaseCreate)
        if can_be_flexible and (given.is_flexible() or given.any_of is not None or given.waits):
            return self._flexible(given)
        return LeaseRequest(
            **_details(given),
            starts_at=given.start_date,
            ends_at=given.end_date,
            before_end_at=given.before_end_date,
            reservations=tuple(map(self._asked, given.reservations)),
            events=self._user_events(given) or (),
            hold_for=self._hold_for(given),
            boot=_boot_of(given),
        )

    def _flexible(self, given: Any) -> FlexibleRequest:
        if given.any_of is not None and given.reservations:
            raise InvalidParameter("It cannot be given together with reservations.", field="any_of")
        listed = [choice.reservations for choice in given.any_of] if given.any_of is not None else [given.reservations]
        return FlexibleRequest(
            **_details(given),
            choices=tuple(tuple(map(self._asked, reservations)) for reservations in listed),
            window=given.window() if given.is_flexible() else None,
            starts_at=given.start_date,
            ends_at=given.end_date,
            before_end_at=given.before_end_date,
            events=self._user_events(given) or (),
            hold_for=self._hold_for(given),
            is_listed=given.any_of is not None,
            waits=given.waits,
            confirm_within=None if given.confirm_within is None else timedelta(seconds=given.confirm_within),
            boot=_boot_of(given),
        )

    def read_reservation(self, body: Mapping[str, object]) -> ReservationRequest:
        """Return the reservation that ``body`` consists of."""
        given: Any = check(self.add_model, body, self._version, tags=self._names)
        return self._asked(given.root)

    def read_search(self, body: Mapping[str, object]) -> OfferQuery:
        """Return the search for periods that ``body`` asks for."""
        given: Any = check(self.search_model, body, self._version, tags=self._names)
        return OfferQuery(
            reservations=tuple(map(self._asked, given.reservations)), window=given.window(), limit=given.limit
        )

    def read_longest(self, body: Mapping[str, object]) -> tuple[tuple[ReservationRequest, ...], When | None]:
        """Return the reservations and the start of a search for the longest lease."""
        given: Any = check(self.longest_model, body, self._version, tags=self._names)
        return tuple(map(self._asked, given.reservations)), given.start_date

    def read_largest(self, body: Mapping[str, object]) -> tuple[ReservationRequest, When | None, datetime]:
        """Return the reservation, the start and the end of a search for the largest amount."""
        given: Any = check(self.largest_model, body, self._version, tags=self._names)
        return self._asked(given.reservation), given.start_date, given.end_date

    def _asked(self, given: Any) -> ReservationRequest:
        region = given.region or "" if isinstance(given, Placed) else ""
        parameters = given.model_dump(exclude={"resource_type", *(Placed.model_fields if self._is_placed else ())})
        return ReservationRequest(given.resource_type, parameters, region, checks_values=self._checks_values)

    def read_change(self, body: Mapping[str, object], find_lease: Callable[[], Lease]) -> LeaseChange:
        """Return the change that ``body`` requests.

        The lease is read only if the types of reservations are needed, or if the body has what only answers have.
        """
        body = self._without_unchanged(body, find_lease)
        given: Any = check(self.update_model, self._with_types(body, find_lease), self._version, tags=self._names)
        return LeaseChange(
            **_details(given),
            starts_at=given.start_date,
            ends_at=given.end_date,
            before_end_at=given.before_end_date,
            reservations=self._changes(body, given.reservations),
            events=self._user_events(given),
        )

    def _without_unchanged(self, body: Mapping[str, object], find_lease: Callable[[], Lease]) -> Mapping[str, object]:
        """Return a body without what is as it is shown: from 1.3 on clients can send back what they were shown."""
        of_service = self.answer.model_fields.keys() - self.update_model.model_fields.keys()
        if not as_shown.accepts_as_shown(self._version) or not as_shown.has_shown(body, of_service):
            return body
        return as_shown.only_changes(body, self.answer.show(find_lease()), of_service)

    def read_confirmation(
        self, body: Mapping[str, object], find_lease: Callable[[], Lease]
    ) -> tuple[ReservationChange, ...]:
        """Return the changes of reservations in the body of a confirmation."""
        given: Any = check(self.confirm_model, self._with_types(body, find_lease), self._version, tags=self._names)
        return self._changes(body, given.reservations)

    def _changes(self, body: Mapping[str, object], given: Iterable[Any]) -> tuple[ReservationChange, ...]:
        """Return the changes of reservations, each with the type that the client has given."""
        types, checks_values = _given_types(body), self._checks_values
        return tuple(
            ReservationChange(reservation.id, self._changed(reservation), types[index], checks_values=checks_values)
            for index, reservation in enumerate(given)
        )

    def _hold_for(self, given: Any) -> timedelta | None:
        """Return the duration of the hold, or None for a lease without a hold."""
        seconds = getattr(given, "hold_for", None)
        return None if seconds is None else timedelta(seconds=seconds)

    def _user_events(self, given: Any) -> tuple[UserEvent, ...] | None:
        """Return the new events of the owner, or None if they stay as they are."""
        if not isinstance(given, LeaseCreateWithEvents | LeaseUpdateWithEvents) or given.events is None:
            return None  # before 1.2 owners have no events, and 1.0 ignores what it gets
        return tuple(UserEvent(event.time, event.message, getattr(event, "id", None)) for event in given.events)

    def _changed(self, reservation: Any) -> Document:
        """Return the changed parameters of a reservation. Null leaves a parameter as it is, unless it may be null."""
        given: Document = reservation.model_dump(exclude={"id", "resource_type"}, exclude_unset=True)
        nullable = self._nullable[reservation.resource_type]
        return {name: value for name, value in given.items() if value is not None or name in nullable}

    def _with_types(self, body: Mapping[str, object], find_lease: Callable[[], Lease]) -> Mapping[str, object]:
        """Return the body with the type of every reservation, which clients may leave out."""
        given_types = _given_types(body)
        if all(given_types):
            return body
        types: Mapping[object, str] | None = None
        if len(self._resource_types) > 1:
            types = {reservation.id: reservation.resource_type for reservation in find_lease().reservations}
        given: Any = body["reservations"]
        return {
            **body,
            "reservations": [
                {**item, "resource_type": self._type_of(item.get("id"), types, f"reservations[{position}].id")}
                if isinstance(item, dict) and not given_type
                else item
                for position, (item, given_type) in enumerate(zip(given, given_types, strict=True))
            ],
        }

    def _type_of(self, reservation_id: object, types: Mapping[object, str] | None, field: str) -> str:
        if types is None or not isinstance(reservation_id, str):
            return self._names[0]
        if reservation_id not in types:
            raise InvalidParameter(
                f"Please enter valid reservation IDs. Invalid reservation IDs are: {reservation_id[:MAX_ID]}",
                field=field,
            )
        return types[reservation_id]


#: The models of leases at each version.
SchemasAt = Callable[[Version], LeaseSchemas]


def _request_model(resource_type: ResourceType, forms: LeaseForms) -> type[BaseModel]:
    """Return the model of a new reservation: the parameters of its type, and from 1.2 on the region."""
    model = resource_type.request_model(strict=forms.is_strict)
    if not forms.is_placed:
        return model
    return create_model(
        model.__name__, __base__=(Placed, *_additions(resource_type, forms), model), __doc__=model.__doc__
    )


def _additions(resource_type: ResourceType, forms: LeaseForms) -> tuple[type[BaseModel], ...]:
    """Return the models of further parameters of the type, the latest first; none before 1.2."""
    if not forms.is_placed:
        return ()
    grown = resource_type.later_additions if isinstance(resource_type, GrownType) else {}
    later = [model for since, model in grown.items() if Version(since) <= forms.version]
    return (*reversed(later), *([resource_type.additions] if resource_type.additions is not None else []))


def _change_model(resource_type: ResourceType, forms: LeaseForms) -> type[BaseModel]:
    """Return the model of a change of a reservation."""
    change = resource_type.change_model(strict=forms.is_strict)
    # The changes of the type keep their own validators; the id comes first.
    return create_model(
        f"{change.model_config.get('title') or change.__name__}OfReservation",
        __base__=(*_additions(resource_type, forms), change, forms.identified),
        resource_type=(StrictStr | None, Field(default=None, json_schema_extra={"enum": [resource_type.name, None]})),
    )


def _details(given: BaseModel) -> dict[str, Any]:
    """Return the details of a lease that the request can have at its version."""
    return {name: getattr(given, name) for name in DETAILS & type(given).model_fields.keys()}


def _boot_of(given: BaseModel) -> Boot | None:
    """Return the request of the servers that are made at the start; None before 1.4."""
    boot = given.boot if isinstance(given, LeaseCreateWithBoot) else None
    if boot is None:
        return None
    return Boot(boot.request, boot.microversion, None if boot.flavor is None else boot.flavor.model_dump())


def _with_reservations(name: str, base: type[BaseModel], reservations: Any) -> type[BaseModel]:
    return create_model(name, __base__=base, reservations=(reservations, Field(default_factory=list)))


def _nullable(model: type[BaseModel]) -> frozenset[str]:
    """Return the fields that may be null."""
    return frozenset(name for name, field in model.model_fields.items() if type(None) in get_args(field.annotation))


def _given_types(body: Mapping[str, object]) -> list[Any]:
    """Return the type of each reservation in the body, or None for a reservation without one."""
    reservations = body.get("reservations")
    if not isinstance(reservations, list):
        return []
    return [item.get("resource_type") if isinstance(item, dict) else None for item in reservations]


def _reservation(models: list[tuple[str, type[BaseModel]]]) -> Any:
    """Return the annotation of a reservation, which is read by the model of its resource type."""
    names = [name for name, _ in models]

    def check_type(value: Any) -> Any:
        if not isinstance(value, dict):
            raise PydanticKnownError("dict_type")
        given = value.get("resource_type")
        if given is None:
            raise _wrong_type("missing", value)
        if given not in names:
            shown = {"resource_type": str(given)[:80]}
            text = "The {resource_type} resource type is not supported"
            raise _wrong_type(PydanticCustomError("unsupported_type", text, shown), given)
        return value

    member: Any = models[0][1]
    if len(models) > 1:
        members: Any = tuple(Annotated[model, Tag(name)] for name, model in models)
        member = Annotated[Union[members], Discriminator(_resource_type)]  # noqa: UP007  # a varying number of members
    return Annotated[member, BeforeValidator(check_type)]


def _wrong_type(kind: LiteralString | PydanticCustomError, given: Any) -> ValidationError:
    """Return the error for the resource type of a reservation, which is checked before the other fields."""
    return ValidationError.from_exception_data(
        "Reservation", [{"type": kind, "loc": ("resource_type",), "input": given}]
    )


def _list_of(reservation: Any) -> Any:
    return Annotated[list[reservation], Field(max_length=MAX_RESERVATIONS)]


def _resource_type(value: Any) -> str | None:
    found = value.get("resource_type") if isinstance(value, dict) else getattr(value, "resource_type", None)
    return found if isinstance(found, str) else None


def _answer_model(resource_types: tuple[ResourceType, ...], forms: LeaseForms) -> type[Answer]:
    """Return the model of a lease in answers; each reservation has the common fields and those of its type."""
    base = forms.reservation
    fields = {resource_type.name: _shown_fields(resource_type, forms) for resource_type in resource_types}
    defaults = {name: {field: _default(shown[field]) for field in shown} for name, shown in fields.items()}

    def show(reservation: Reservation) -> Document:
        known = {**reservation.parameters, **reservation.effects}
        shown = defaults.get(reservation.resource_type)  # all fields, if the type is no longer installed
        parameters = known if shown is None else {name: known.get(name, default) for name, default in shown.items()}
        return {**parameters, **base.show(reservation)}

    members = tuple(
        _reservation_answer(resource_type, base, fields[resource_type.name]) for resource_type in resource_types
    )
    member: Any = members[0]
    if len(members) > 1:
        member = Annotated[Union[members], Field(discriminator="resource_type")]  # noqa: UP007  # a varying number of members
    reservations: Any = (list[Annotated[member, Written(show)]], ...)
    return create_model("Lease", __base__=forms.lease, reservations=reservations)


def _shown_fields(resource_type: ResourceType, forms: LeaseForms) -> Mapping[str, FieldInfo]:
    """Return the fields of a reservation that its type shows."""
    models = (resource_type.answer_model(strict=forms.is_strict), *_additions(resource_type, forms))
    return {name: field for model in models for name, field in model.model_fields.items()}


def _default(field: FieldInfo) -> object:
    """Return the value of a field in answers while its real value is not known."""
    return None if field.is_required() else field.get_default(call_default_factory=True)


def _reservation_answer(
    resource_type: ResourceType, base: type[Answer], shown: Mapping[str, FieldInfo]
) -> type[Answer]:
    fields: Any = {name: (field.annotation, ...) for name, field in shown.items()}
    tag: Any = (Literal[resource_type.name], ...)
    title = resource_type.request_model(strict=True).__name__
    return create_model(f"{title}Document", __base__=base, resource_type=tag, **fields)
