"""Reservations as written on a command line: ``resource_type=physical:host,min=1,...``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Set

from tenureclient.reservation_request import ReservationChange, ReservationRequest
from tenureclient.reservation_type import UnreadableReservation
from tenureclient.resources import RESERVATION_TYPES
from tenureclient.wire import JsonObject, JsonValue

_PARAMETER = re.compile(r"(\w+)=([\w|]+)")


def _parameters(*placeholders: str) -> Set[str]:
    """Return the parameters of all types that have one of these placeholders."""
    forms = (form for reservation_type in RESERVATION_TYPES.values() for form in reservation_type.parameters)
    pairs = (pair for form in forms for pair in _PARAMETER.findall(form))
    return {name for name, placeholder in pairs if placeholder in placeholders}


_NUMBERS = _parameters("COUNT", "MB", "GB") | {"ephemeral_gb"}
_TEXTS = _parameters("ID", "NAME", "TYPE", "EXPRESSION") | {
    "id",
    "resource_type",
    "at_end",
    "before_end",
    "region",
    "availability_zone",
}
_CLOSING = {"[": "]", "{": "}"}
_WHOLE_NUMBER = re.compile(r"-?\d+", re.ASCII)
#: Texts that need no quotes.
_PLAIN = re.compile(r"[\w.:/@-]*", re.ASCII)


def parse_reservation(text: str) -> ReservationRequest:
    """Read a reservation to create. Commas in brackets or quotes belong to the value."""
    values = parse_pairs(text)
    resource_type = values.pop("resource_type", None)
    if not isinstance(resource_type, str) or not resource_type:
        raise UnreadableReservation(f"'{text}' names no resource_type, such as physical:host.")
    if resource_type in RESERVATION_TYPES:
        RESERVATION_TYPES[resource_type].complete(values, text)
    return ReservationRequest(resource_type, values)


def parse_reservation_change(text: str) -> ReservationChange:
    """Read a change of a reservation: its id and the parameters to change."""
    values = parse_pairs(text)
    reservation_id = values.pop("id", None)
    if not isinstance(reservation_id, str) or not reservation_id:
        raise UnreadableReservation(f"'{text}' does not say which reservation changes: id=... is missing.")
    if not values:
        raise UnreadableReservation(f"'{text}' says nothing that is to change.")
    return ReservationChange(reservation_id, values)


def format_reservation(request: ReservationRequest) -> str:
    """Return the text that ``parse_reservation`` reads as this request."""
    return _pairs({"resource_type": request.resource_type, **request.parameters})


def format_reservation_change(change: ReservationChange) -> str:
    """Return the text that ``parse_reservation_change`` reads as this change."""
    return _pairs({"id": change.id, **change.parameters})


def _pairs(values: JsonObject) -> str:
    return ",".join(f"{key}={_written(value)}" for key, value in values.items())


def parse_pairs(text: str) -> dict[str, JsonValue]:
    """Read ``key=value,key=value``, each value with the type that its key has in the API."""
    values: dict[str, JsonValue] = {}
    for pair in _split(text):
        key, equals, value = pair.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UnreadableReservation(
                f"'{pair.strip()}' in '{text}' is not key=value; put a value with commas in quotes."
            )
        if key in values:
            raise UnreadableReservation(f"'{key}' is given twice in '{text}'.")
        values[key] = _value(key, value.strip())
    return values


def _split(text: str) -> Iterator[str]:
    """Yield the texts between the commas that stand outside all brackets and quotes.

    A quote opens only where a value begins or within brackets, so that an apostrophe in a word is text.
    """
    start = 0
    open_brackets: list[str] = []
    quote = ""
    value_begins = escaped = False
    for position, character in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == quote:
                quote = ""
        elif character in "\"'" and (value_begins or (open_brackets and character == '"')):
            quote = character
        elif character in _CLOSING and (value_begins or open_brackets):
            open_brackets.append(_CLOSING[character])
        elif open_brackets and character == open_brackets[-1]:
            open_brackets.pop()
        elif character == "," and not open_brackets:
            yield text[start:position]
            start = position + 1
        if not character.isspace():
            value_begins = character == "=" and not quote and not open_brackets
    if quote or open_brackets:
        raise UnreadableReservation(f"'{text}' has a bracket or a quote that is not closed.")
    yield text[start:]


def _value(key: str, text: str) -> JsonValue:
    if len(text) >= 2 and text[0] == text[-1] == "'":
        text = text[1:-1]
    elif len(text) >= 2 and text[0] == text[-1] == '"':
        text = str(_json(key, text))
    if key in _NUMBERS:
        if not _WHOLE_NUMBER.fullmatch(text):
            raise UnreadableReservation(f"{key}={text}: not a whole number.")
        return int(text)
    if key in _TEXTS:
        return text
    if key == "affinity":
        return _affinity(text)
    if text.startswith(("[", "{")):
        return _json(key, text)
    return int(text) if _WHOLE_NUMBER.fullmatch(text) else text


def _written(value: JsonValue) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else json.dumps(value)
    return json.dumps(value)


def _affinity(text: str) -> bool | None:
    choices = {"": None, "none": None, "null": None, "true": True, "1": True, "false": False, "0": False}
    if text.lower() not in choices:
        raise UnreadableReservation(f"affinity={text}: not true, false or none.")
    return choices[text.lower()]


def _json(key: str, text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        raise UnreadableReservation(f"{key}={text}: not valid JSON.") from None
    return value
