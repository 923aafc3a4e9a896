"""The tests' databases share compiled statements."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import create_engine, event, literal, select
from sqlalchemy.engine.interfaces import CacheStats


def test_compiled_statements_are_shared_between_engines(tmp_path: Path):
    found: list[CacheStats] = []
    label = f"of_{uuid4().hex}"  # in no other statement

    def note(connection: Any, cursor: Any, statement: Any, parameters: Any, context: Any, many: Any) -> None:
        found.append(context.cache_hit)

    for number in (1, 2):
        engine = create_engine(f"sqlite:///{tmp_path / str(number)}.db")
        event.listen(engine, "before_cursor_execute", note)
        with engine.connect() as connection:
            assert connection.scalar(select(literal(number).label(label))) == number
        engine.dispose()
    assert found == [CacheStats.CACHE_MISS, CacheStats.CACHE_HIT]
