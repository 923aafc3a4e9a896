"""Statements that are made once and executed often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import CursorResult, Executable
from sqlalchemy.orm import Session


def run(
    session: Session,
    statement: Executable,
    parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
) -> CursorResult[Any]:
    """Execute a statement of columns, without the ORM; it takes a tenth of the time of ``Session.execute``.

    What the ORM has not written yet is not written before. To make a statement takes longer than to execute it, so it
    should be a constant of a module, with its values as parameters.
    """
    result: CursorResult[Any] = session.connection().execute(statement, parameters)
    return result
