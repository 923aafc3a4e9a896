"""Leases on the wire, at each version: how requests are read, and the model of answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, LiteralString, Union, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    RootModel,
    StrictInt,
    StrictStr,
    Tag,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, PydanticKnownError

from tenure.api.schemas import answers
from tenure.api.schemas.answers import Answer, AnswerAt, Document, ModelAt, Written
from tenure.api.schemas.moments import MinuteOrNow, Rfc3339, Rfc3339OrNow
from tenure.api.schemas.refusals import check
from tenure.api.schemas.texts import MAX_ID, PRINTABLE, GivenName, Identifier, LenientName, Message, RegionName
from tenure.api.versions import OLDEST, Version, by_version
from tenure.domain.errors import InvalidParameter
from tenure.domain.lease import MAX_USER_EVENTS, Lease, Reservation
from tenure.domain.request import LeaseChange, LeaseRequest, ReservationChange, ReservationRequest, UserEvent
from tenure.resources.contract import ResourceType
from tenure.services.bounds import MAX_RESERVATIONS

#: For how many seconds a lease can be held.
LONGEST_HOLD = 3600
#: May be absent, and is then None without being asked; null it must not be.
_OPTIONAL: Any = Field(default_factory=lambda: None)


def _example(start: str, end: str) -> dict[str, Any]:
    """In JSON Schema: a lease that can be had, of nothing yet."""
    return {"examples": [{"name": "bio-42", "start_date": start, "end_date": end, "reservations": []}]}


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LenientLeaseCreate(_Lenient):
    """A lease to be made, as Blazar takes it. ``events`` are taken and ignored: the service makes its own."""

    model_config = ConfigDict(json_schema_extra=_example("2090-03-01 09:30", "2090-03-04 18:00"))

    name: LenientName
    end_date: MinuteOrNow
    start_date: MinuteOrNow
    before_end_date: MinuteOrNow | None = None
    events: list[dict[str, Any]] | None = None


class LenientLeaseUpdate(_Lenient):
    """What changes in a lease, as Blazar takes it."""

    name: LenientName = _OPTIONAL
    end_date: MinuteOrNow = _OPTIONAL
    start_date: MinuteOrNow = _OPTIONAL
    before_end_date: MinuteOrNow | None = None
    events: list[dict[str, Any]] | None = None


class StrictLeaseCreate(_Strict):
    """A lease to be made."""

    model_config = ConfigDict(json_schema_extra=_example("2090-03-01T09:30:00Z", "2090-03-04T18:00:00+01:00"))

    name: GivenName
    start_date: Rfc3339OrNow
    end_date: Rfc3339
    before_end_date: Rfc3339 | None = None


class StrictLeaseUpdate(_Strict):
    """What changes in a lease; what is absent stays."""

    name: GivenName = _OPTIONAL
    start_date: Rfc3339OrNow = _OPTIONAL
    end_date: Rfc3339OrNow = _OPTIONAL
    before_end_date: Rfc3339 = _OPTIONAL


class EventCreate(_Strict):
    """An event that is the owner's: at its time others are told."""

    event_type: Literal["notify_lease"] = "notify_lease"
    time: Rfc3339
    message: Message


class EventUpdate(EventCreate):
    """An event of the owner's that is to be; the one of that ``id``, or without one a new one."""

    id: Identifier = _OPTIONAL


class LeaseCreateWithEvents(StrictLeaseCreate):
    """A lease to be made, with events of its owner's, which lie within it.

    With ``hold_for``, so many seconds, it is booked for as long only, unless it is confirmed.
    """

    events: list[EventCreate] = Field(default_factory=list, max_length=MAX_USER_EVENTS)
    hold_for: Annotated[StrictInt, Field(ge=1, le=LONGEST_HOLD)] = _OPTIONAL


class LeaseUpdateWithEvents(StrictLeaseUpdate):
    """What changes in a lease; what is absent stays. ``events`` are all that the owner's are to be."""

    events: Annotated[list[EventUpdate], Field(max_length=MAX_USER_EVENTS)] = _OPTIONAL


class LeaseConfirm(_Strict):
    """That a held lease is wanted, with what only now is known of its reservations."""


_CREATE_BASE: ModelAt = by_version(LenientLeaseCreate, StrictLeaseCreate, LeaseCreateWithEvents)
_UPDATE_BASE: ModelAt = by_version(LenientLeaseUpdate, StrictLeaseUpdate, LeaseUpdateWithEvents)


class LenientReservationId(BaseModel):
    id: Annotated[StrictStr, Field(max_length=MAX_ID, json_schema_extra={"minLength": 1})]


class StrictReservationId(BaseModel):
    id: Annotated[StrictStr, Field(min_length=1, max_length=MAX_ID, pattern=PRINTABLE)]


class LeaseSchemas:
    """Leases at one version, by the resource types that are registered: requests are read and leases are shown."""

    def __init__(self, kinds: Iterable[ResourceType], version: Version) -> None:
        self._version = version
        self._kinds = tuple(kinds)
        self._names = tuple(kind.name for kind in self._kinds)
        requests = [(kind.name, _request_model(kind, version)) for kind in self._kinds]
        self._nullable = {name: _nullable(model) for name, model in requests}
        member = _reservation(requests)
        changed = _list_of(_reservation([(kind.name, _change_model(kind, version)) for kind in self._kinds]))
        self.create_model = _with_reservations("LeaseCreate", _CREATE_BASE(version), _list_of(member))
        self.update_model = _with_reservations("LeaseUpdate", _UPDATE_BASE(version), changed)
        self.confirm_model = _with_reservations("LeaseConfirm", LeaseConfirm, changed)
        self.add_model: type[BaseModel] = create_model("ReservationCreate", __base__=RootModel[member])  # type: ignore[valid-type]  # known at run time only
        self.answer = _answer_model(self._kinds, version)

    def read_request(self, body: Mapping[str, object]) -> LeaseRequest:
        """The lease that ``body`` asks for."""
        given: Any = check(self.create_model, body, self._version, tags=self._names)
        return LeaseRequest(
            name=given.name,
            starts_at=given.start_date,
            ends_at=given.end_date,
            before_end_at=given.before_end_date,
            reservations=tuple(map(self._asked, given.reservations)),
            events=self._user_events(given) or (),
            hold_for=self._hold_for(given),
        )

    def read_reservation(self, body: Mapping[str, object]) -> ReservationRequest:
        """The reservation that ``body`` asks for, by itself."""
        given: Any = check(self.add_model, body, self._version, tags=self._names)
        return self._asked(given.root)

    def _asked(self, given: Any) -> ReservationRequest:
        parameters = given.model_dump(exclude={"resource_type", *(["region"] if has_regions(self._version) else [])})
        region = given.region if has_regions(self._version) else None
        return ReservationRequest(
            given.resource_type, parameters, region or "", checks_values=self._version is not OLDEST
        )

    def read_change(self, body: Mapping[str, object], find_lease: Callable[[], Lease]) -> LeaseChange:
        """What ``body`` asks to change. The lease is looked at only where it decides how the body is to be read."""
        given: Any = check(self.update_model, self._with_types(body, find_lease), self._version, tags=self._names)
        return LeaseChange(
            name=given.name,
            starts_at=given.start_date,
            ends_at=given.end_date,
            before_end_at=given.before_end_date,
            reservations=self._changes(body, given.reservations),
            events=self._user_events(given),
        )

    def read_confirmation(
        self, body: Mapping[str, object], find_lease: Callable[[], Lease]
    ) -> tuple[ReservationChange, ...]:
        """What ``body`` says of the reservations of a lease that it confirms."""
        given: Any = check(self.confirm_model, self._with_types(body, find_lease), self._version, tags=self._names)
        return self._changes(body, given.reservations)

    def _changes(self, body: Mapping[str, object], given: Iterable[Any]) -> tuple[ReservationChange, ...]:
        """What changes in reservations, each with the type that the client says it has."""
        told, checks_values = _told_types(body), self._version is not OLDEST
        return tuple(
            ReservationChange(reservation.id, self._changed(reservation), told[index], checks_values=checks_values)
            for index, reservation in enumerate(given)
        )

    def _hold_for(self, given: Any) -> timedelta | None:
        """For how long a lease is to be held, None for one that is to be at once."""
        if not can_be_held(self._version) or given.hold_for is None:
            return None
        return timedelta(seconds=given.hold_for)

    def _user_events(self, given: Any) -> tuple[UserEvent, ...] | None:
        """What the owner's events are to be, None where they stay."""
        if not has_user_events(self._version) or given.events is None:
            return None
        return tuple(UserEvent(event.time, event.message, getattr(event, "id", None)) for event in given.events)

    def _changed(self, reservation: Any) -> Document:
        """What changes in a reservation: null names nothing, but where a parameter may be null."""
        given: Document = reservation.model_dump(exclude={"id", "resource_type"}, exclude_unset=True)
        nullable = self._nullable[reservation.resource_type]
        return {name: value for name, value in given.items() if value is not None or name in nullable}

    def _with_types(self, body: Mapping[str, object], find_lease: Callable[[], Lease]) -> Mapping[str, object]:
        """The body with the type of every reservation, which clients need not tell."""
        told = _told_types(body)
        if all(told):
            return body
        types: Mapping[object, str] | None = None
        if len(self._names) > 1:
            types = {reservation.id: reservation.resource_type for reservation in find_lease().reservations}
        given: Any = body["reservations"]
        return {
            **body,
            "reservations": [
                {**item, "resource_type": self._type_of(item.get("id"), types, f"reservations[{place}].id")}
                if isinstance(item, dict) and not kind
                else item
                for place, (item, kind) in enumerate(zip(given, told, strict=True))
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


def has_user_events(version: Version) -> bool:
    """Whether owners can have events of their own."""
    return version >= Version.V1_2


def can_be_held(version: Version) -> bool:
    """Whether a lease can be booked for a while, until it is confirmed."""
    return version >= Version.V1_2


def has_regions(version: Version) -> bool:
    """Whether requests can say where, and what is shown says it."""
    return version >= Version.V1_2


class Placed(BaseModel):
    """Where a reservation is to be."""

    region: Annotated[
        RegionName | None,
        Field(description="The region that all of it is in; the home region of the service unless it is named."),
    ] = None


def _request_model(kind: ResourceType, version: Version) -> type[BaseModel]:
    """The model of a reservation to be made: what its type asks for, and from 1.2 on where."""
    asked = kind.request_model(strict=version is not OLDEST)
    if not has_regions(version):
        return asked
    return create_model(asked.__name__, __base__=(Placed, *additions_of(kind, version), asked), __doc__=asked.__doc__)


def additions_of(kind: ResourceType, version: Version) -> tuple[type[BaseModel], ...]:
    """What requests of the type can name at the version beside its own model: nothing before 1.2."""
    return () if kind.additions is None or version < Version.V1_2 else (kind.additions,)


def _change_model(kind: ResourceType, version: Version) -> type[BaseModel]:
    """The model of what changes in a reservation."""
    strict = version is not OLDEST
    change = kind.change_model(strict=strict)
    identified = StrictReservationId if strict else LenientReservationId
    # The changes of the type keep their own validators; the id comes first.
    return create_model(
        f"{change.model_config.get('title') or change.__name__}OfReservation",
        __base__=(*additions_of(kind, version), change, identified),
        resource_type=(StrictStr | None, Field(default=None, json_schema_extra={"enum": [kind.name, None]})),
    )


def _with_reservations(name: str, base: type[BaseModel], reservations: Any) -> type[BaseModel]:
    return create_model(name, __base__=base, reservations=(reservations, Field(default_factory=list)))


def _nullable(model: type[BaseModel]) -> frozenset[str]:
    """The fields that may be null."""
    return frozenset(name for name, field in model.model_fields.items() if type(None) in get_args(field.annotation))


def _told_types(body: Mapping[str, object]) -> list[Any]:
    """What the client says that the type of each reservation is, None where it says nothing."""
    reservations = body.get("reservations")
    if not isinstance(reservations, list):
        return []
    return [item.get("resource_type") if isinstance(item, dict) else None for item in reservations]


def _reservation(models: list[tuple[str, type[BaseModel]]]) -> Any:
    """The type of a reservation, which is read by the model of its resource type."""
    names = [name for name, _ in models]

    def check_type(value: Any) -> Any:
        if not isinstance(value, dict):
            raise PydanticKnownError("dict_type")
        told = value.get("resource_type")
        if told is None:
            raise _wrong_type("missing", value)
        if told not in names:
            shown = {"resource_type": str(told)[:80]}
            text = "The {resource_type} resource type is not supported"
            raise _wrong_type(PydanticCustomError("unsupported_type", text, shown), told)
        return value

    member: Any = models[0][1]
    if len(models) > 1:
        members: Any = tuple(Annotated[model, Tag(name)] for name, model in models)
        member = Annotated[Union[members], Discriminator(_resource_type)]  # noqa: UP007  # of as many as there are
    return Annotated[member, BeforeValidator(check_type)]


def _wrong_type(kind: LiteralString | PydanticCustomError, given: Any) -> ValidationError:
    """What is wrong with the resource type of a reservation, which is read before the reservation's fields."""
    return ValidationError.from_exception_data(
        "Reservation", [{"type": kind, "loc": ("resource_type",), "input": given}]
    )


def _list_of(reservation: Any) -> Any:
    return Annotated[list[reservation], Field(max_length=MAX_RESERVATIONS)]


def _resource_type(value: Any) -> str | None:
    found = value.get("resource_type") if isinstance(value, dict) else getattr(value, "resource_type", None)
    return found if isinstance(found, str) else None


_RESERVATION_ANSWER: AnswerAt = by_version(
    answers.ReservationOf10, answers.ReservationDocument, answers.PlacedReservation
)
_LEASE_ANSWER: AnswerAt = by_version(answers.LeaseOf10, answers.LeaseOf11, answers.LeaseOf12)


def _answer_model(kinds: tuple[ResourceType, ...], version: Version) -> type[Answer]:
    """Return the model of a lease in answers; each reservation has what its type shows, beside what all have."""
    base = _RESERVATION_ANSWER(version)
    fields = {kind.name: _shown_fields(kind, version) for kind in kinds}
    defaults = {name: {field: _default(shown[field]) for field in shown} for name, shown in fields.items()}

    def show(reservation: Reservation) -> Document:
        known = {**reservation.parameters, **reservation.effects}
        shown = defaults.get(reservation.resource_type)  # of a type that is not installed any more, all is shown
        parameters = known if shown is None else {name: known.get(name, default) for name, default in shown.items()}
        return {**parameters, **base.show(reservation)}

    members = tuple(_reservation_answer(kind, base, fields[kind.name]) for kind in kinds)
    member: Any = members[0]
    if len(members) > 1:
        member = Annotated[Union[members], Field(discriminator="resource_type")]  # noqa: UP007  # of as many as there are
    reservations: Any = (list[Annotated[member, Written(show)]], ...)
    return create_model("Lease", __base__=_LEASE_ANSWER(version), reservations=reservations)


def _shown_fields(kind: ResourceType, version: Version) -> Mapping[str, FieldInfo]:
    """Return what the type shows of a reservation."""
    models = (kind.answer_model(strict=version is not OLDEST), *additions_of(kind, version))
    return {name: field for model in models for name, field in model.model_fields.items()}


def _default(field: FieldInfo) -> object:
    """Return what stands for a field of a model of answers while it is not known."""
    return None if field.is_required() else field.get_default(call_default_factory=True)


def _reservation_answer(kind: ResourceType, base: type[Answer], shown: Mapping[str, FieldInfo]) -> type[Answer]:
    fields: Any = {name: (field.annotation, ...) for name, field in shown.items()}
    tag: Any = (Literal[kind.name], ...)
    title = kind.request_model(strict=True).__name__
    return create_model(f"{title}Document", __base__=base, resource_type=tag, **fields)
