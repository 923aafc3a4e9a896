"""Reading a document as a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tenure.api.dialects import dialect_of
from tenure.api.versions import Version

M = TypeVar("M", bound=BaseModel)


def check(model: type[M], document: Mapping[str, Any], version: Version, *, tags: Collection[str] = ()) -> M:
    """Read ``document`` as ``model``. Raises the error of the version for the first problem.

    ``tags`` are the names of a union's members, which are no part of a field's path.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise dialect_of(version).refusal(error.errors(include_url=False), tags) from None
