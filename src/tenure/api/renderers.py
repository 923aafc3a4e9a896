"""The media types of answers: each renders the document of an answer as bytes, and describes these.

An operation answers with JSON unless its query asks for another of its renderers by ``format``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, get_args

from tenure.api.schemas.answers import Answer, Document

#: Returns the reference of the description to a model.
Reference = Callable[[type[Answer]], Document]


class Renderer(Protocol):
    """A media type of an answer."""

    @property
    def format(self) -> str:
        """Its name in a query."""

    @property
    def content_type(self) -> str:
        """The media type with its parameters."""

    def write(self, document: Document, model: type[Answer]) -> bytes:
        """Return the body with a document of this model."""

    def schema(self, models: Sequence[type[Answer]], reference: Reference) -> Document:
        """Return the JSON Schema of the body with a document of one of these models."""


@dataclass(frozen=True, slots=True)
class Json:
    format: ClassVar[str] = "json"
    content_type: ClassVar[str] = "application/json"

    def write(self, document: Document, model: type[Answer]) -> bytes:
        return json.dumps(document).encode()

    def schema(self, models: Sequence[type[Answer]], reference: Reference) -> Document:
        schemas = [reference(model) for model in models]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


@dataclass(frozen=True, slots=True)
class Csv:
    """A row for each object of the list under a key, which begins with the other fields of the document."""

    key: str
    format: ClassVar[str] = "csv"
    content_type: ClassVar[str] = "text/csv; charset=utf-8"

    def write(self, document: Document, model: type[Answer]) -> bytes:
        """Return the rows below a row with the names of the columns."""
        shared = [field for name, field in document.items() if name != self.key]
        written = io.StringIO()
        rows = csv.writer(written)
        rows.writerow(self._columns(model))
        rows.writerows([*shared, *item.values()] for item in document[self.key])
        return written.getvalue().encode()

    def schema(self, models: Sequence[type[Answer]], reference: Reference) -> Document:
        first = ",".join(self._columns(models[0]))
        return {"type": "string", "description": f"With format={self.format}. The first row is {first}"}

    def _columns(self, model: type[Answer]) -> list[str]:
        [item] = get_args(model.model_fields[self.key].annotation)
        return [*(name for name in model.model_fields if name != self.key), *item.model_fields]


JSON = Json()
