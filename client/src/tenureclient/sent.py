"""Arguments of the library as fields of requests: each is declared once, as a field of a ``TypedDict``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any, get_args, get_type_hints

from tenureclient.wire import NEWEST, Feature, JsonValue, Version, moment_to_wire


def written(value: Any, version: Version) -> JsonValue:
    """Return a value as a request has it: what has no form in JSON has a method ``to_wire``."""
    match value:
        case datetime():
            return moment_to_wire(value, version)
        case timedelta():
            return int(value.total_seconds())
        case time():
            return f"{value:%H:%M}"
        case Mapping():
            return {name: written(item, version) for name, item in value.items()}
        case list() | tuple():
            return [written(item, version) for item in value]
        case bool() | int() | str():
            return value
    document: JsonValue = value.to_wire(version)
    return document


def fields_of(values: Mapping[str, Any], version: Version = NEWEST) -> dict[str, JsonValue]:
    """Return the given fields of a request, in the usual form."""
    return {name: written(value, version) for name, value in values.items() if _is_given(value)}


def query_of(**values: Any) -> dict[str, str]:
    """Return the given parameters of a query, in the usual form."""
    return {name: str(value) for name, value in fields_of(values).items()}


def _is_given(value: Any) -> bool:
    """Whether a value is said: it is neither None, nor False, nor an empty list."""
    return value is not None and value is not False and value not in ((), [])


@dataclass(frozen=True, slots=True)
class Sent:
    """How an argument is sent, unless under its own name and in the usual form.

    Without a ``name``, its fields are fields of the request. ``feature`` is what older servers lack, for each value or
    for those for which ``needs`` holds; ``later`` are newer features, in order, each with the values that need it. An
    empty list is not sent unless ``even_empty``.
    """

    name: str | None
    write: Callable[[Any, Version], JsonValue] = written
    feature: Feature | None = None
    needs: Callable[[Any], bool] = lambda _value: True
    even_empty: bool = False
    later: tuple[tuple[Feature, Callable[[Any], bool]], ...] = ()

    def needed(self, value: Any) -> Feature | None:
        """Return the newest feature that a value needs; None if all servers have it."""
        first = () if self.feature is None else ((self.feature, self.needs),)
        return next((feature for feature, needs in reversed((*first, *self.later)) if needs(value)), None)


class Arguments:
    """The arguments of a call that are given: neither None, nor False, nor an empty list.

    ``declared`` is the ``TypedDict`` of the arguments. Raises ``TypeError`` for an argument that it does not have.
    """

    def __init__(self, declared: type[Any], arguments: Mapping[str, Any]) -> None:
        hints = get_type_hints(declared, include_extras=True)
        if unknown := arguments.keys() - hints.keys():
            raise TypeError(f"There is no argument {', '.join(sorted(unknown))}.")
        self._sent = {
            name: next((extra for extra in get_args(hint)[1:] if isinstance(extra, Sent)), Sent(name))
            for name, hint in hints.items()
        }
        values = {name: _repeatable(arguments.get(name)) for name in hints}
        #: The values by the names of the arguments, in the order of their declaration.
        self.given = {
            name: value
            for name, value in values.items()
            if _is_given(value) or (value == () and self._sent[name].even_empty)
        }

    def to_wire(self, version: Version) -> dict[str, JsonValue]:
        """Return the fields of the request in a version."""
        document: dict[str, JsonValue] = {}
        for argument, value in self.given.items():
            sent = self._sent[argument]
            shown = sent.write(value, version)
            document |= shown if sent.name is None and isinstance(shown, Mapping) else {sent.name or argument: shown}
        return document

    @property
    def needs(self) -> Feature | None:
        """What some servers lack of what is asked for; None if all have it.

        The newest of the features says so, and of several the one of the last field.
        """
        found = [self._sent[argument].needed(value) for argument, value in self.given.items()]
        needed = sorted((feature for feature in found if feature is not None), key=lambda feature: feature.since)
        return needed[-1] if needed else None


def _repeatable(value: Any) -> Any:
    """Return a value that can be read more than once."""
    return tuple(map(_repeatable, value)) if isinstance(value, Iterable) and not isinstance(value, str) else value
