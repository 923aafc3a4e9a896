"""Arguments of the library as fields of requests: each is declared once, as a field of a ``TypedDict``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, get_args, get_type_hints

from tenureclient.wire import JsonValue, Version, moment_to_wire


def written(value: Any, version: Version) -> JsonValue:
    """Return a value as a request has it: what has no form in JSON has a method ``to_wire``."""
    match value:
        case datetime():
            return moment_to_wire(value, version)
        case timedelta():
            return int(value.total_seconds())
        case tuple():
            return [written(item, version) for item in value]
        case bool() | int() | str():
            return value
    document: JsonValue = value.to_wire(version)
    return document


@dataclass(frozen=True, slots=True)
class Sent:
    """How an argument is sent, unless under its own name and in the usual form.

    Without a ``name``, its fields are fields of the request. ``feature`` names, in words for a user, what servers
    below the version ``since`` lack, for each value or for those for which ``needs`` holds. An empty list is not sent
    unless ``even_empty``.
    """

    name: str | None
    write: Callable[[Any, Version], JsonValue] = written
    feature: str | None = None
    since: Version = Version.V1_1
    needs: Callable[[Any], bool] = lambda _value: True
    even_empty: bool = False


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
        kept = {name: _kept(arguments.get(name)) for name in hints}
        #: The values by the names of the arguments, in the order of their declaration.
        self.given = {
            name: value
            for name, value in kept.items()
            if value is not None and value is not False and (value != () or self._sent[name].even_empty)
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
    def needs(self) -> tuple[str | None, Version]:
        """What some servers lack of what is asked for, and the oldest version that has it; None if all have it.

        The last of the given fields says so: fields are declared in the order of their versions.
        """
        needed: tuple[str | None, Version] = (None, Version.V1_1)
        for argument, value in self.given.items():
            sent = self._sent[argument]
            if sent.feature is not None and sent.needs(value):
                needed = (sent.feature, sent.since)
        return needed


def _kept(value: Any) -> Any:
    """Return a value that can be read more than once."""
    return tuple(map(_kept, value)) if isinstance(value, Iterable) and not isinstance(value, str) else value
