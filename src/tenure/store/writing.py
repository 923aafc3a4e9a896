"""Updates and deletions by how many rows they change."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import CursorResult, Delete, Update
from sqlalchemy.orm import Session

from tenure.store.conflict import Overtaken


def count_changed(session: Session, statement: Update | Delete) -> int:
    """Execute an UPDATE or a DELETE, and return the number of rows that met its conditions."""
    return cast(CursorResult[Any], session.execute(statement)).rowcount


def try_change_row(session: Session, statement: Update | Delete) -> bool:
    """Execute an UPDATE or a DELETE of one row as it was read; return False if the row has changed since."""
    return count_changed(session, statement) == 1


def change_row(session: Session, statement: Update | Delete) -> None:
    """Execute an UPDATE or a DELETE of one row as it was read; raise ``Overtaken`` if the row has changed since."""
    if not try_change_row(session, statement):
        raise Overtaken
