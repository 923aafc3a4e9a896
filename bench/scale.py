"""Does it matter how large the cloud is? The same operations on a small and on a large one, in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

from bench.ledger import Size
from bench.measure import Comparison, Operation, Series, compare, measure
from bench.operations import CREATES, OPERATIONS, REFUSALS, Site, open_site, times_of
from tests.support.databases import DatabaseServers

SMALL = Size("small", 100)
LARGE = Size("large", 10_000)
#: Only for information: what a create costs in the largest cloud that anybody has.
HUGE = Size("huge", 100_000, bookings_of_host=6, rush=False)

#: Large enough for every operation, and no larger.
QUICK_SMALL = Size("small", 100, bookings_of_host=40)
QUICK_LARGE = Size("large", 300, bookings_of_host=40)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scale:
    """What was measured on one kind of database."""

    kind: str
    small: Size
    large: Size
    comparisons: Sequence[Comparison]
    huge: Size | None = None
    creates: Sequence[tuple[str, Series]] = ()


def measure_scale(
    servers: DatabaseServers,
    kind: str,
    *,
    small: Size = SMALL,
    large: Size = LARGE,
    huge: Size | None = HUGE,
    operations: Sequence[Operation[Site]] = OPERATIONS,
    rounds: int = 30,
    warm_up: int = 3,
    say: Say = lambda _line: None,
) -> Scale:
    """The comparison of two sizes, and the creates alone on a third."""
    times = times_of(small, datetime.now(UTC))
    with ExitStack() as stack:
        sites: list[Site] = []
        for size in (small, large):
            say(f"{kind}: writing {described(size)}")
            sites.append(stack.enter_context(open_site(stack.enter_context(servers.fresh_database(kind)), size, times)))
        say(f"{kind}: measuring {len(operations)} operations, {rounds} times each on both")
        comparisons = compare(
            operations, sites[0], sites[1], lambda site: site.db.engine, rounds=rounds, warm_up=warm_up
        )
    if huge is None:
        return Scale(kind, small, large, comparisons)
    say(f"{kind}: writing {described(huge)}")
    times = times_of(huge, datetime.now(UTC))
    with servers.fresh_database(kind) as url, open_site(url, huge, times) as site:
        say(f"{kind}: measuring")
        usual = [
            operation for operation in (*CREATES, *REFUSALS) if "booked" not in operation.name
        ]  # this operation has no busy days
        creates = [
            (operation.name, measure(operation, site, site.db.engine, rounds=rounds // 2)) for operation in usual
        ]
    return Scale(kind, small, large, comparisons, huge, creates)


def described(size: Size) -> str:
    return f"{size.hosts:,} hosts, {size.leases:,} leases, {size.allocations:,} allocations"
