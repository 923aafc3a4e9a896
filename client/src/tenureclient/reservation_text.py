"""Reservations as written on a command line: ``resource_type=physical:host,min=1,...``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tenureclient.reservation_request import ReservationChange, ReservationRequest
from tenureclient.wire import JsonObject, JsonValue

_NUMBERS = frozenset(["min", "max", "amount", "vcpus", "memory_mb", "disk_gb", "ephemeral_gb", "size_gb"])
_TEXTS = frozenset(
    [
        "id",
        "resource_type",
        "flavor_id",
        "network_id",
        "hypervisor_properties",
        "resource_properties",
        "before_end",
        "region",
        "availability_zone",
        "server_id",
        "volume_type",
        "at_end",
    ]
)
_CLOSING = {"[": "]", "{": "}"}
_WHOLE_NUMBER = re.compile(r"-?\d+", re.ASCII)
#: Texts that need no quotes.
_PLAIN = re.compile(r"[\w.:/@-]*", re.ASCII)
_COUNT = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


class UnreadableReservation(ValueError):
    """The text is not a list of key=value pairs, or a value does not fit its key."""


def parse_reservation(text: str) -> ReservationRequest:
    """Read a reservation to create. Commas in brackets or quotes belong to the value."""
    values = parse_pairs(text)
    resource_type = values.pop("resource_type", None)
    if not isinstance(resource_type, str) or not resource_type:
        raise UnreadableReservation(f"'{text}' names no resource_type, such as physical:host.")
    if resource_type == "physical:host":
        _fill_counts(values, text)
    if resource_type == "virtual:floatingip":
        required = values.get("required_floatingips")
        values.setdefault("amount", max(1, len(required)) if isinstance(required, list) else 1)
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


def parse_count(text: str) -> tuple[int, int]:
    """Read a count, ``2`` or ``2-4``, as the minimum and the maximum."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise UnreadableReservation(f"'{text}' is not a count; write 2, or 2-4 for at least 2 and up to 4.")
    least = int(match[1])
    most = least if match[2] is None else int(match[2])
    if not 1 <= least <= most:
        raise UnreadableReservation(f"'{text}' is not a count: at least 1, and the smaller number first.")
    return least, most


def parse_amount(text: str) -> int:
    """Read an exact count."""
    if not _WHOLE_NUMBER.fullmatch(text.strip()) or int(text) < 1:
        raise UnreadableReservation(f"'{text}' is not a count: a whole number, at least 1.")
    return int(text)


def parse_extra_spec(text: str) -> tuple[str, str]:
    """Read ``key=value``; the value may begin with an operator of its own, as in ``vcpus=>= 8``."""
    key, _, value = (part.strip() for part in text.partition("="))
    if not key or not value:
        raise UnreadableReservation(f"'{text}' is not key=value.")
    return key, value


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
    """Yield the parts between the commas that stand outside all brackets and quotes.

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


def _fill_counts(values: dict[str, JsonValue], text: str) -> None:
    if "min" not in values and "max" not in values:
        raise UnreadableReservation(f"'{text}' does not say how many hosts: min=... is missing.")
    values.setdefault("max", values.get("min"))
    values.setdefault("min", 1)
