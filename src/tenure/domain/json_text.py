"""JSON texts from outside, read without values that later layers could not handle.

Every JSON text that a caller sends is read here: bodies, and texts of JSON inside queries and fields.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from tenure.domain.errors import InvalidParameter

#: The deepest nesting of a text.
MAX_DEPTH = 32
#: The largest number of values in a text: numbers, texts, lists and objects.
MAX_VALUES = 20_000
#: The absolute value of every number in a text is less.
NUMBER_LIMIT = 10**19

JsonObject = dict[str, object]

#: A JSON string. Without a closing quote it extends to the end of the text.
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def read_json(text: bytes | str, *, subject: str = "The body", field: str = "body", within: str = "") -> object:
    """Return the value of a JSON text.

    Raises ``InvalidParameter`` for a text that is not UTF-8, not JSON, too deep, or has too many values; for texts in
    it with NUL or half of a character; for numbers that are too large, and for names that are repeated. ``subject``
    names the text in the refusal, and ``field`` is its field; ``within`` is put before the paths of values in it.
    """
    try:
        content = text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError:
        raise InvalidParameter(f"{subject} holds half of a character (a lone surrogate).", field=field) from None
    if _has_too_many_values(content):  # before parsing, as parsed values need many times their size in the text
        raise InvalidParameter(f"{subject} has more than {MAX_VALUES} values.", field=field)
    try:
        value = _Reader(subject, field).read(content)
        _check(value, ((), within) if within else ())
    except (RecursionError, _TooDeep):
        raise InvalidParameter(f"{subject} is nested deeper than {MAX_DEPTH} levels.", field=field) from None
    return value


def _has_too_many_values(content: bytes) -> bool:
    """Whether the text has too many values: each but the first follows its own comma or opening bracket."""
    texts = 2 * MAX_VALUES  # an object's values have names
    between = _TEXT.split(content, maxsplit=texts)
    if len(between) > texts:
        return True
    return 1 + sum(part.count(sign) for part in between for sign in (b",", b"[", b"{")) > MAX_VALUES


class _TooDeep(Exception):
    """A value is nested deeper than the limit."""


class _Huge:
    """Stands for a number beyond the limit until it is known whose value it is."""

    def __init__(self, text: str) -> None:
        self.text = text[:40]


class _Reader:
    """Reads a text, whose name and field are in the refusals."""

    def __init__(self, subject: str, field: str) -> None:
        self._subject = subject
        self._field = field

    def read(self, content: bytes) -> object:
        try:
            return json.loads(
                content.decode("utf-8"),
                parse_constant=self._refuse_constant,
                parse_float=_finite,
                parse_int=_bounded,
                object_pairs_hook=self._without_repetition,
            )
        except UnicodeDecodeError:
            raise InvalidParameter(f"{self._subject} is not UTF-8.", field=self._field) from None
        except json.JSONDecodeError as error:
            raise InvalidParameter(
                f"{self._subject} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
                field=self._field,
            ) from None

    def _refuse_constant(self, name: str) -> NoReturn:
        raise InvalidParameter(f"{self._subject} is not JSON: {name} is no number.", field=self._field)

    def _without_repetition(self, pairs: list[tuple[str, object]]) -> JsonObject:
        document = dict(pairs)
        if len(document) != len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise InvalidParameter(
                f"{self._subject} has the field {_shown(twice)} more than once.", field=_shown(twice) or self._field
            )
        return document


def _finite(text: str) -> float | _Huge:
    number = float(text)
    return number if abs(number) < NUMBER_LIMIT else _Huge(text)


def _bounded(text: str) -> int | _Huge:
    if len(text) > len(str(-NUMBER_LIMIT)):  # parsing a million digits takes long
        return _Huge(text)
    number = int(text)
    return number if abs(number) < NUMBER_LIMIT else _Huge(text)


#: The way to a value: the way to what it lies in, and its name or position there. A path is made of it for a refusal
#: only: the paths of all values together may be longer than the text by far.
_Way = tuple["_Way", str | int] | tuple[()]


def _check(value: object, way: _Way) -> None:
    """Refuse invalid values and names. Without recursion, as the client determines the depth."""
    if not isinstance(value, dict | list):
        _check_scalar(value, way)
        return
    waiting: list[tuple[dict[str, object] | list[object], _Way, int]] = [(value, way, 0)]
    while waiting:
        group, above, depth = waiting.pop()
        if isinstance(group, dict):
            for name in group:
                _check_scalar(name, above, name)
        for last, inner in group.items() if isinstance(group, dict) else enumerate(group):
            if not isinstance(inner, dict | list):
                _check_scalar(inner, above, last)
            elif depth == MAX_DEPTH:
                raise _TooDeep
            else:
                waiting.append((inner, (above, last), depth + 1))


def _check_scalar(value: object, way: _Way, *last: str | int) -> None:
    if isinstance(value, _Huge):
        path = _path(way, *last)
        raise InvalidParameter(f"{path}: the number {value.text} is too large.", field=path)
    if not isinstance(value, str):
        return
    if "\0" in value:
        path = _path(way, *last)
        raise InvalidParameter(f"{path} holds a NUL character, which no text may.", field=path)
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            path = _path(way, *last)
            raise InvalidParameter(f"{path} holds half of a character (a lone surrogate).", field=path) from None


def _path(way: _Way, *last: str | int) -> str:
    """Return a way as text, such as ``reservations[1].min``."""
    parts: list[str] = []
    for name in last:
        way = (way, name)
    while way:
        way, name = way
        parts.append(f"[{name}]" if isinstance(name, int) else f".{_shown(name)}")
    return "".join(reversed(parts)).removeprefix(".") or "value"


def _shown(name: str) -> str:
    """Return the name of a field as an error text repeats it."""
    return name[:80].encode("utf-8", "replace").decode("utf-8").replace("\0", "?")
