"""How a database carries out the statements of an operation: ``python -m bench --explain 'create: 1 host'``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event

from bench.measure import FRAME, Operation, S

#: How much of a statement is shown.
MOST = 1500

_EXPLAIN = {
    "sqlite": "EXPLAIN QUERY PLAN ",
    "postgresql": "EXPLAIN (ANALYZE, BUFFERS) ",
    "mysql": "ANALYZE FORMAT=JSON ",
}


def show_plans(operation: Operation[S], site: S, engine: Engine, *, seed: int = 1) -> None:
    """Carry the operation out once, and show what the database does for it."""
    call = operation.prepare(site, random.Random(seed))
    with explained(engine):
        result = call.act()
    call.clear(result)


@contextmanager
def explained(engine: Engine, show: Callable[[str], None] = print) -> Iterator[None]:
    """Show the plan of every SELECT that is executed meanwhile, before it is executed."""

    def explain(
        connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool
    ) -> None:
        if executemany or FRAME.match(statement) or statement.startswith(tuple(_EXPLAIN.values())):
            return
        show(f"\n{_short(statement)}\n  {_short(str(parameters))}")
        if statement.startswith("SELECT"):
            for line in _plan(connection, statement, parameters):
                show(f"  | {line}")

    event.listen(engine, "before_cursor_execute", explain)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", explain)


def _plan(connection: Connection, statement: str, parameters: Any) -> Iterator[str]:
    rows = connection.exec_driver_sql(_EXPLAIN[connection.dialect.name] + statement, parameters).all()
    if connection.dialect.name == "sqlite":
        indent = {0: -1}
        for number, parent, _, what in rows:
            indent[number] = indent[parent] + 1
            yield "  " * indent[number] + what
        return
    for row in rows:
        yield from str(row[0]).splitlines()


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MOST else f"{line[:MOST]} ..."
