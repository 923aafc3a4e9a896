"""The server's documents as dataclasses: a field is declared once, and its type says how it is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from types import NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Self,
    TypeAlias,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from tenureclient.wire import Fields, JsonValue

D = TypeVar("D", bound="Document")

#: Reads the field of this name.
Reader: TypeAlias = Callable[[Fields, str], object]

#: Text that some servers send as a number; empty if it is absent.
LooseText: TypeAlias = Annotated[str, Fields.loose_text]
#: A flag that is set unless the server says otherwise.
SetFlag: TypeAlias = Annotated[bool, partial(Fields.flag, default=True)]

_READERS: Mapping[object, Reader] = {
    str: Fields.text,
    int: Fields.number,
    float: Fields.decimal,
    bool: Fields.flag,
    datetime: Fields.moment,
    timedelta: Fields.seconds,
    tuple[int, ...]: Fields.integers,
    tuple[str, ...]: Fields.strings,
    Mapping[str, int]: partial(Fields.values, read=Fields.number),
    Mapping[str, str]: partial(Fields.values, read=Fields.text),
}

#: The names in the definition of ``JsonValue``, which refers to itself.
_IN_JSON = {"JsonValue": object, "Mapping": Mapping}


class Document:
    """A dataclass whose fields are those of a document of the server, under the same names.

    The type of a field says how it is read: ``str`` has to be there, ``str | None`` may be absent. A field of
    another form is ``Annotated`` with its reader.
    """

    __slots__ = ()

    #: What errors call the document, and the readers of its fields.
    subject: ClassVar[str]
    readers: ClassVar[Mapping[str, Reader]]
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @classmethod
    def from_wire(cls, document: JsonValue) -> Self:
        """Read a document. Raises ``MalformedDocument`` if a field is missing or has another form."""
        return cls.read(document)

    @classmethod
    def read(cls, document: JsonValue) -> Self:
        """Read the fields as they are declared; ``from_wire`` may change the document before."""
        fields = Fields(document, cls.subject)
        return cls(**{name: read(fields, name) for name, read in cls.readers.items()})


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def document(subject: str, *, kw_only: bool = False) -> Callable[[type[D]], type[D]]:
    """Make a class the frozen dataclass of a document; ``subject`` is what errors call it, such as "a lease"."""

    def declared(model: type[D]) -> type[D]:
        made = dataclasses.dataclass(frozen=True, slots=True, kw_only=kw_only)(model)
        hints = get_type_hints(made, localns=_IN_JSON, include_extras=True)
        made.subject = subject
        made.readers = {field.name: _reader(hints[field.name]) for field in dataclasses.fields(made)}
        return made

    return declared


def sent_as(name: str, hint: object) -> Reader:
    """Return the reader of a field of this type that has another name in the document."""
    read = _reader(hint)
    return lambda fields, _name: read(fields, name)


def _reader(hint: Any) -> Reader:
    if get_origin(hint) is Annotated:
        reader: Reader = hint.__metadata__[0]
        return reader
    if hint in _READERS:
        return _READERS[hint]
    match get_args(hint):
        case (model, end) if end is Ellipsis:
            return lambda fields, name: fields.items(name, model.from_wire)
        case (present, end) if end is NoneType:
            read = _reader(present)
            return lambda fields, name: None if fields.value(name) is None else read(fields, name)
    return lambda fields, name: hint.from_wire(fields.value(name))
