"""How versions say what is wrong: Blazar's way at 1.0, and ours from 1.1 on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from pydantic_core import ErrorDetails

from tenure.api import errors, problems
from tenure.api.blazar import errors as blazar
from tenure.api.errors import ErrorAnswer
from tenure.api.schemas.answers import Answer, ErrorDocument
from tenure.api.versions import OLDEST, Version
from tenure.domain.errors import TenureError


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The form of errors, and what they apply to."""

    #: Returns the refusal for the problems of a document. The names of a union's members are no part of a field's path.
    refusal: Callable[[list[ErrorDetails], Collection[str]], TenureError]
    #: Returns the answer for an error, by the method and the path of the request.
    answer: Callable[[TenureError, str, str], ErrorAnswer]
    #: The answer for unexpected errors.
    internal: ErrorAnswer
    #: Whether every answer names its version, and errors of the authentication get this form, too.
    is_everywhere: bool
    #: The models of errors, and those of an error of the authentication beside them.
    models: tuple[type[Answer], ...]
    unauthorized: tuple[type[Answer], ...] = ()
    #: The statuses of refused bodies, beside 400.
    refuses_bodies_with: tuple[int, ...]


OURS = Dialect(
    refusal=problems.refusal,
    answer=lambda error, _method, _path: errors.error_answer(error),
    internal=errors.INTERNAL,
    is_everywhere=True,
    models=(ErrorDocument,),
    refuses_bodies_with=(413, 415),
)
BLAZAR = Dialect(
    refusal=blazar.refusal,
    answer=blazar.error_answer,
    internal=blazar.INTERNAL,
    is_everywhere=False,
    models=(blazar.ErrorOfRoute, blazar.ErrorOfFramework),
    unauthorized=(blazar.UnauthorizedDocument,),
    refuses_bodies_with=(413,),
)


def dialect_of(version: Version) -> Dialect:
    """Return the dialect of a version."""
    return BLAZAR if version is OLDEST else OURS
