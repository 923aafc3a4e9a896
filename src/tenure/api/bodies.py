"""Reading the bodies of requests: JSON objects without values that later layers could not handle."""

from __future__ import annotations

import json
import re
from typing import NoReturn

import falcon

from tenure.api.errors import TooLarge, UnsupportedMediaType
from tenure.api.schemas.texts import NUMBER_LIMIT
from tenure.domain.errors import InvalidParameter

#: The largest size of a body.
MAX_BYTES = 1024 * 1024
#: The deepest nesting of a body.
MAX_DEPTH = 32
#: The largest number of values in a body: numbers, texts, lists and objects.
MAX_VALUES = 20_000

JsonObject = dict[str, object]

#: A JSON string. Without a closing quote it extends to the end of the body.
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def read_object(req: falcon.Request) -> JsonObject:
    """Return the body as a JSON object, which is empty if there is no body."""
    content_type = (req.content_type or "").partition(";")[0].strip().lower()
    if content_type not in ("", "application/json"):
        raise UnsupportedMediaType(content_type)
    document = _parse(_read(req))
    if not isinstance(document, dict):
        raise InvalidParameter("The body must be a JSON object.", field="body")
    _check(document)
    return document


def _read(req: falcon.Request) -> bytes:
    if (req.content_length or 0) > MAX_BYTES:
        raise TooLarge(MAX_BYTES)
    chunked = req.content_length is None and req.env.get("wsgi.input_terminated")
    stream = req.env["wsgi.input"] if chunked else req.bounded_stream
    body = stream.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        raise TooLarge(MAX_BYTES)
    return bytes(body)


def _parse(body: bytes) -> object:
    if not body:
        return {}
    if _has_too_many_values(body):  # before parsing, as parsed values need many times their size in the body
        raise InvalidParameter(f"The body has more than {MAX_VALUES} values.", field="body")
    try:
        return json.loads(
            body.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_bounded,
            object_pairs_hook=_without_repetition,
        )
    except UnicodeDecodeError:
        raise InvalidParameter("The body is not UTF-8.", field="body") from None
    except json.JSONDecodeError as error:
        raise InvalidParameter(
            f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}.", field="body"
        ) from None
    except RecursionError:
        raise _too_deep() from None


def _has_too_many_values(body: bytes) -> bool:
    """Whether the body has too many values: each but the first follows its own comma or opening bracket."""
    texts = 2 * MAX_VALUES  # an object's values have names
    between = _TEXT.split(body, maxsplit=texts)
    if len(between) > texts:
        return True
    return 1 + sum(part.count(sign) for part in between for sign in (b",", b"[", b"{")) > MAX_VALUES


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidParameter(f"The body is not JSON: {name} is no number.", field="body")


class _Huge:
    """Stands for a number beyond the limit until it is known whose value it is."""

    def __init__(self, text: str) -> None:
        self.text = text[:40]


def _finite(text: str) -> float | _Huge:
    number = float(text)
    return number if abs(number) < NUMBER_LIMIT else _Huge(text)


def _bounded(text: str) -> int | _Huge:
    if len(text) > len(str(-NUMBER_LIMIT)):  # parsing a million digits takes long
        return _Huge(text)
    number = int(text)
    return number if abs(number) < NUMBER_LIMIT else _Huge(text)


def _without_repetition(pairs: list[tuple[str, object]]) -> JsonObject:
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidParameter(f"The body has the field {_shown(twice)} more than once.", field=_shown(twice))
    return document


#: The way to a value: the way to what it lies in, and its name or place there. A path is made of it for a refusal only:
#: the paths of all values together may be longer than the body by far.
_Way = tuple["_Way", str | int] | tuple[()]


def _check(document: JsonObject) -> None:
    """Refuse invalid values and names. Without recursion, as the client determines the depth."""
    waiting: list[tuple[dict[str, object] | list[object], _Way, int]] = [(document, (), 0)]
    while waiting:
        group, way, depth = waiting.pop()
        if isinstance(group, dict):
            for name in group:
                _check_scalar(name, way, name)
        for last, value in group.items() if isinstance(group, dict) else enumerate(group):
            if not isinstance(value, dict | list):
                _check_scalar(value, way, last)
            elif depth == MAX_DEPTH:
                raise _too_deep()
            else:
                waiting.append((value, (way, last), depth + 1))


def _check_scalar(value: object, way: _Way, last: str | int) -> None:
    if isinstance(value, _Huge):
        path = _path((way, last))
        raise InvalidParameter(f"{path}: the number {value.text} is too large.", field=path)
    if not isinstance(value, str):
        return
    if "\0" in value:
        path = _path((way, last))
        raise InvalidParameter(f"{path} holds a NUL character, which no text may.", field=path)
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            path = _path((way, last))
            raise InvalidParameter(f"{path} holds half of a character (a lone surrogate).", field=path) from None


def _path(way: _Way) -> str:
    """Return a way as text, such as ``reservations[1].min``."""
    parts: list[str] = []
    while way:
        way, last = way
        parts.append(f"[{last}]" if isinstance(last, int) else f".{_shown(last)}")
    return "".join(reversed(parts)).removeprefix(".")


def _shown(name: str) -> str:
    """Return the name of a field as an error text repeats it."""
    return name[:80].encode("utf-8", "replace").decode("utf-8").replace("\0", "?")


def _too_deep() -> InvalidParameter:
    return InvalidParameter(f"The body is nested deeper than {MAX_DEPTH} levels.", field="body")
