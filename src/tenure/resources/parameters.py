"""The parameters of a resource type, declared once.

A declaration is a model of what is stored of a reservation. ``Forms`` in the annotation of a field says how requests
write the field, where that differs. The models of requests, changes and answers are made from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, Optional, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo


class _Mark(Enum):
    AS_STORED = "as stored"
    ABSENT = "absent"


AS_STORED: Final = _Mark.AS_STORED
#: In place of an annotation: requests of the version do not have the field.
ABSENT: Final = _Mark.ABSENT


@dataclass(frozen=True, slots=True)
class Forms:
    """How a field is written in requests and shown in answers, where that differs from how it is stored.

    ``strict`` is its annotation in requests from 1.1 on, ``lenient`` at 1.0, and ``lenient_change`` in changes at 1.0.
    ``default`` makes optional from 1.1 on what 1.0 requires. A ``fixed`` field cannot be changed. Requests and answers
    lack what is ``internal``; answers at 1.0 lack what is ``new`` in 1.1, and what 1.0 cannot ask for.
    """

    strict: Any = AS_STORED
    lenient: Any = AS_STORED
    lenient_change: Any = AS_STORED
    default: Any = ...
    fixed: bool = False
    internal: bool = False
    new: bool = False


class Parameters(BaseModel):
    """What is stored of a reservation, without what all reservations have.

    The other base classes of a declaration are rules: their validators hold in all requests and changes as well. Those
    in ``request_rules`` hold only in requests.
    """

    model_config = ConfigDict(extra="ignore")

    #: What is reserved, in the plural, for the descriptions.
    noun: ClassVar[str]
    #: What can be changed while the reservation runs, for the descriptions; empty for everything.
    while_it_runs: ClassVar[str] = ""
    #: Whether Blazar has the type. If not, requests at 1.0 are written as from 1.1 on.
    is_known_to_blazar: ClassVar[bool] = True
    request_rules: ClassVar[tuple[type[BaseModel], ...]] = ()


@dataclass(frozen=True, slots=True)
class _Declared:
    """A field of a declaration."""

    name: str
    annotation: Any
    info: FieldInfo
    forms: Forms

    def written(self, annotation: Any) -> Any:
        return self.annotation if annotation is AS_STORED else annotation

    def default(self) -> Any:
        """Return the default that the declaration gives, as ``create_model`` takes it; ``...`` if there is none."""
        if self.info.is_required():
            return ...
        return Field(default_factory=self.info.default_factory) if self.info.default_factory else self.info.default


def _declared(declaration: type[Parameters]) -> Iterator[_Declared]:
    hints = get_type_hints(declaration, include_extras=True)
    for name, info in declaration.model_fields.items():
        forms = [mark for mark in info.metadata if isinstance(mark, Forms)]
        yield _Declared(name, hints[name], info, forms[-1] if forms else Forms())


@cache
def request_form(declaration: type[Parameters], *, strict: bool) -> type[BaseModel]:
    """Return the model of a reservation to be made; with ``strict``, from 1.1 on."""
    strict = strict or not declaration.is_known_to_blazar
    fields: dict[str, Any] = {}
    for field in _declared(declaration):
        annotation = field.written(field.forms.strict if strict else field.forms.lenient)
        if annotation is ABSENT or field.forms.internal:
            continue
        has_own_default = strict and field.forms.default is not ...
        fields[field.name] = annotation, field.forms.default if has_own_default else field.default()
    rules = (*_rules(declaration), *declaration.request_rules)
    text = declaration.__doc__ if strict else f"A reservation of {declaration.noun}, as Blazar takes it."
    name, settings = _title(declaration.__name__, strict=strict)
    return _model(name, rules, text or "", fields, settings)


@cache
def change_form(declaration: type[Parameters], *, strict: bool) -> type[BaseModel]:
    """Return the model of what may change in a reservation; with ``strict``, from 1.1 on."""
    strict = strict or not declaration.is_known_to_blazar
    fields: dict[str, Any] = {}
    for field in _declared(declaration):
        forms = field.forms
        lenient = forms.lenient if forms.lenient_change is AS_STORED else forms.lenient_change
        annotation = field.written(forms.strict if strict else lenient)
        if annotation is ABSENT or forms.internal or forms.fixed or field.name == "resource_type":
            continue
        fields[field.name] = annotation if _is_nullable(annotation) else Optional[annotation], None  # noqa: UP045  # at run time
    limits = "; while it runs, " + declaration.while_it_runs if declaration.while_it_runs and strict else ""
    author = "" if strict else ", as Blazar takes it"
    text = f"What may change in a reservation of {declaration.noun}{author}{limits}."
    name, settings = _title(declaration.__name__.replace("Reservation", "Change"), strict=strict)
    return _model(name, _rules(declaration), text, fields, settings)


@cache
def answer_form(declaration: type[Parameters], effects: type[BaseModel] | None, *, strict: bool) -> type[BaseModel]:
    """Return the model of what is shown of a reservation: its parameters, and ``effects`` in the cloud.

    Nothing is validated by it: the parameters may be those of an earlier release.
    """
    strict = strict or not declaration.is_known_to_blazar
    fields: dict[str, Any] = {}
    for field in _declared(declaration):
        forms = field.forms
        is_hidden = not strict and (forms.new or forms.lenient is ABSENT)
        if forms.internal or is_hidden or field.name == "resource_type":
            continue
        default = field.default() if forms.default is ... else forms.default
        fields[field.name] = _plain(field.annotation), default
    for name, info in effects.model_fields.items() if effects is not None else ():
        fields[name] = info.annotation, info
    text = f"What is shown of a reservation of {declaration.noun}."
    return _model(declaration.__name__.replace("Reservation", "Answer"), (), text, fields, {})


def _rules(declaration: type[Parameters]) -> tuple[type[BaseModel], ...]:
    return tuple(base for base in declaration.__bases__ if base is not Parameters and issubclass(base, BaseModel))


def _title(name: str, *, strict: bool) -> tuple[str, dict[str, str]]:
    """Return the name of a model of requests, and its settings. Blazar ignores fields that it does not know."""
    return (name, {"extra": "forbid"}) if strict else (f"Lenient{name}", {"extra": "ignore", "title": name})


def _model(
    name: str, rules: tuple[type[BaseModel], ...], text: str, fields: dict[str, Any], settings: dict[str, str]
) -> type[BaseModel]:
    made: Any = create_model  # its overloads do not know models that are made of models
    model: type[BaseModel] = made(name, __base__=rules or (BaseModel,), __cls_kwargs__=settings, __doc__=text, **fields)
    return model


def _is_nullable(annotation: Any) -> bool:
    bare = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return type(None) in get_args(bare)


def _plain(annotation: Any) -> Any:
    """Return the type of an annotation without its limits: of a literal, the type of its values."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _plain(parts[0])
    if origin is Literal:
        return type(parts[0])
    if origin in {Union, UnionType}:
        return Union[tuple(map(_plain, parts))]  # noqa: UP007  # of as many as there are
    if origin is list:
        return list[_plain(parts[0])]  # type: ignore[misc]  # known at run time only
    return annotation
