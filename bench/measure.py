"""Taking times: two sizes in round_number in one run, so that a machine that drifts does not matter to their ratio."""

from __future__ import annotations

import gc
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sqlalchemy import Engine, event

S = TypeVar("S")

#: What only begins and ends transactions is no statement that a size could add to.
FRAME = re.compile(r"\s*(BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|SET)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Call:
    """One call, made ready: ``act`` is measured, ``clear`` puts back what it changed."""

    act: Callable[[], Any]
    clear: Callable[[Any], None] = lambda _result: None


@dataclass(frozen=True, slots=True)
class Operation(Generic[S]):
    """Something to be measured.

    ``prepare`` makes a call ready on a site; the same numbers come from ``rng`` on both sites. ``limit`` is how many
    times as long it may take on the large one, None where it grows with the number of hosts by its nature.
    """

    name: str
    prepare: Callable[[S, random.Random], Call]
    limit: float | None = 3.0


@dataclass(slots=True)
class Series:
    """The measurements of one operation on one site."""

    seconds: list[float] = field(default_factory=list)
    statements: list[int] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def p95(self) -> float:
        return percentile(self.seconds, 95)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One operation on the small site and on the large one."""

    name: str
    limit: float | None
    small: Series
    large: Series

    @property
    def ratio(self) -> float:
        return self.large.median / self.small.median

    @property
    def holds(self) -> bool:
        return self.limit is None or self.ratio <= self.limit

    @property
    def same_statements(self) -> bool:
        return set(self.small.statements) == set(self.large.statements)

    def complaints(self) -> Iterator[str]:
        """What is not as it must be, a line each."""
        if not self.holds:
            yield (
                f"{self.name}: the median is {self.ratio:.1f} times as long on the large cloud "
                f"({self.small.median * 1000:.2f} ms, {self.large.median * 1000:.2f} ms), {self.limit:g} are allowed"
            )
        if not self.same_statements:
            yield (
                f"{self.name}: another number of SQL statements on the large cloud "
                f"({counts(self.small.statements)}, {counts(self.large.statements)})"
            )


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many percent do not exceed: one of those measured."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(0, int(rank) - 1)]


def counts(statements: Sequence[int]) -> str:
    """The numbers of statements that occurred."""
    found = sorted(set(statements))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    """The statements that are executed meanwhile, in whatever thread."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not FRAME.match(statement):
            seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


def compare(
    operations: Sequence[Operation[S]],
    small: S,
    large: S,
    engine_of: Callable[[S], Engine],
    *,
    rounds: int,
    seed: int = 1,
    warm_up: int = 3,
) -> list[Comparison]:
    """Every operation on both sites, in turns; the first few rounds only warm up."""
    found = [Comparison(operation.name, operation.limit, Series(), Series()) for operation in operations]
    for round_number in range(-warm_up, rounds):
        for operation, comparison in zip(operations, found, strict=True):
            pair = [(small, comparison.small), (large, comparison.large)]
            for site, series in pair if round_number % 2 else reversed(pair):
                call = operation.prepare(site, random.Random(f"{seed} {round_number} {operation.name}"))
                seconds, statements = _take(call, engine_of(site))
                if round_number >= 0:
                    series.seconds.append(seconds)
                    series.statements.append(statements)
    return found


def measure(
    operation: Operation[S], site: S, engine: Engine, *, rounds: int, seed: int = 1, warm_up: int = 3
) -> Series:
    """One operation on one site."""
    series = Series()
    for round_number in range(-warm_up, rounds):
        call = operation.prepare(site, random.Random(f"{seed} {round_number} {operation.name}"))
        seconds, statements = _take(call, engine)
        if round_number >= 0:
            series.seconds.append(seconds)
            series.statements.append(statements)
    return series


def _take(call: Call, engine: Engine) -> tuple[float, int]:
    with counted(engine) as statements:
        gc.collect(0)
        gc.disable()
        try:
            begin = time.perf_counter()
            result = call.act()
            seconds = time.perf_counter() - begin
        finally:
            gc.enable()
    call.clear(result)
    return seconds, len(statements)
