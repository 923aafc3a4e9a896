"""Reading the bodies of requests: JSON objects, and nothing that hurts further in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NoReturn

import falcon

from tenure.api.errors import TooLarge, UnsupportedMediaType
from tenure.api.schemas.texts import NUMBER_LIMIT
from tenure.domain.errors import InvalidParameter

#: No body is larger.
MAX_BYTES = 1024 * 1024
#: No body is nested deeper.
MAX_DEPTH = 32

JsonObject = dict[str, object]


def read_object(req: falcon.Request) -> JsonObject:
    """The body as a JSON object; empty where there is none."""
    content_type = (req.content_type or "").partition(";")[0].strip().lower()
    if content_type not in ("", "application/json"):
        raise UnsupportedMediaType(content_type)
    document = _parse(_read(req))
    if not isinstance(document, dict):
        raise InvalidParameter("The body must be a JSON object.", field="body")
    for path, value in _walk(document):
        _check(path, value)
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
    if len(text) > len(str(-NUMBER_LIMIT)):  # it takes long to read a number of a million digits
        return _Huge(text)
    number = int(text)
    return number if abs(number) < NUMBER_LIMIT else _Huge(text)


def _without_repetition(pairs: list[tuple[str, object]]) -> JsonObject:
    document = dict(pairs)
    if len(document) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in document if names.count(name) > 1)
        raise InvalidParameter(f"The body has the field {_shown(twice)} more than once.", field=_shown(twice))
    return document


def _walk(document: JsonObject) -> Iterator[tuple[str, object]]:
    """Every value with its path, and every name as a value. Without recursion: the depth is the sender's choice."""
    waiting: list[tuple[str, object, int]] = [("", document, 0)]
    while waiting:
        path, value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise _too_deep()
        yield path, value
        if isinstance(value, dict):
            for name, inner in value.items():
                below = f"{path}.{_shown(name)}" if path else _shown(name)
                yield below, name
                waiting.append((below, inner, depth + 1))
        elif isinstance(value, list):
            waiting += ((f"{path}[{index}]", inner, depth + 1) for index, inner in enumerate(value))


def _check(path: str, value: object) -> None:
    if isinstance(value, _Huge):
        raise InvalidParameter(f"{path}: the number {value.text} is too large.", field=path)
    if not isinstance(value, str):
        return
    if "\0" in value:
        raise InvalidParameter(f"{path} holds a NUL character, which no text may.", field=path)
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidParameter(f"{path} holds half of a character (a lone surrogate).", field=path) from None


def _shown(name: str) -> str:
    """A field's name as a refusal repeats it."""
    return name[:80].encode("utf-8", "replace").decode("utf-8").replace("\0", "?")


def _too_deep() -> InvalidParameter:
    return InvalidParameter(f"The body is nested deeper than {MAX_DEPTH} levels.", field="body")
