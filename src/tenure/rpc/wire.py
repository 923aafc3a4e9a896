"""Conversion of domain values and our errors to plain JSON values, and back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, time, timedelta
from types import GenericAlias, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from cattrs import Converter
from cattrs.preconf.json import make_converter

from tenure.domain import errors
from tenure.domain.capacity import Capacity
from tenure.domain.errors import TenureError
from tenure.domain.request import Moment
from tenure.domain.shortfall import Shortfall


def _is_requested_date(kind: Any) -> bool:
    """Whether a type is a union of a date and a ``Moment``, which the service resolves."""
    return get_origin(kind) in {Union, UnionType} and Moment in get_args(kind)


def _decode_requested_date(value: str | None, _kind: Any) -> datetime | Moment | None:
    if value is None:
        return None
    try:
        return Moment(value)
    except ValueError:
        return datetime.fromisoformat(value)


def _new_converter() -> Converter:
    converter = make_converter()
    converter.register_unstructure_hook(Capacity, dict)
    converter.register_structure_hook(Capacity, lambda value, _kind: Capacity(value))
    converter.register_unstructure_hook(timedelta, lambda value: value.total_seconds())
    converter.register_structure_hook(timedelta, lambda value, _kind: timedelta(seconds=value))
    converter.register_unstructure_hook(time, time.isoformat)
    converter.register_structure_hook(time, lambda value, _kind: time.fromisoformat(value))
    converter.register_structure_hook_func(lambda kind: kind is object, lambda value, _kind: value)  # a JSON value
    converter.register_structure_hook_func(_is_requested_date, _decode_requested_date)
    converter.register_unstructure_hook_func(_is_requested_date, lambda value: converter.unstructure(value))
    return converter


_CONVERTER = _new_converter()


def encode(value: object, kind: Any) -> Any:
    """Return a value of the type ``kind`` as plain values."""
    return _CONVERTER.unstructure(value, unstructure_as=kind)


def decode(value: Any, kind: Any) -> Any:
    """Return the decoded value of the type ``kind``; raise ``ValueError`` or ``TypeError`` for an invalid one."""
    return None if kind is type(None) else _CONVERTER.structure(value, kind)


def _all_errors(root: type[TenureError]) -> Iterator[type[TenureError]]:
    for kind in root.__subclasses__():
        yield kind
        yield from _all_errors(kind)


#: The errors that can be sent: all of ``domain/errors.py``, by class name.
ERRORS: Mapping[str, type[TenureError]] = {
    kind.__name__: kind for kind in _all_errors(TenureError) if kind.__module__ == errors.__name__
}


def encode_error(error: TenureError) -> dict[str, Any]:
    """Return an error as plain values: its class, and the arguments of its constructor."""
    kind = next(error_class for error_class in type(error).__mro__ if error_class.__name__ in ERRORS)
    given = {
        parameter.name: encode(getattr(error, parameter.name), hint)
        for parameter, hint in _parameters(ERRORS[kind.__name__])
    }
    return {"error": kind.__name__, "given": given}


def decode_error(document: Mapping[str, Any]) -> TenureError:
    """Return the decoded error; raise ``KeyError`` for an unknown class."""
    kind = ERRORS[document["error"]]
    positional, named = [], {}
    for parameter, hint in _parameters(kind):
        value = decode(document["given"][parameter.name], hint)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            positional += value
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        else:
            positional.append(value)
    constructor: Callable[..., TenureError] = kind
    return constructor(*positional, **named)


def _parameters(kind: type[TenureError]) -> Iterator[tuple[inspect.Parameter, Any]]:
    """Yield the parameters of an error's constructor; the error keeps each as an attribute of the same name."""
    hints = get_type_hints(kind.__init__, localns={"Shortfall": Shortfall})
    for parameter in inspect.signature(kind).parameters.values():
        hint = hints[parameter.name]
        many = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        yield parameter, GenericAlias(tuple, (hint, ...)) if many else hint
