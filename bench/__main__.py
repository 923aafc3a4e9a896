"""``python -m bench``: measure, print the tables, and fail where a promise is broken."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bench.admission import admission_table, measure_admissions
from bench.cloud import LARGE as LARGE_CLOUD
from bench.cloud import QUICK as QUICK_CLOUD
from bench.cloud import RequestFigures, measure_cloud
from bench.creates import creates_table, measure_creates
from bench.fairness import FULL as FULL_FLOODS
from bench.fairness import QUICK as QUICK_FLOODS
from bench.fairness import fairness_table, measure_fairness
from bench.http import measure_http
from bench.large import measure_large
from bench.memory import QUICK as QUICK_LOAD
from bench.memory import Load, measure_memory
from bench.operations import OPERATIONS, open_site, times_of
from bench.placing import measure_all, placing_table, promises
from bench.plans import show_plans
from bench.report import (
    large_table,
    lateness_table,
    memory_table,
    requests_table,
    scale_table,
    search_table,
    starts_table,
    surroundings,
    throughput_table,
)
from bench.scale import HUGE, LARGE, QUICK_LARGE, QUICK_SMALL, SMALL, Say, measure_scale
from bench.search import measure_searches
from bench.slow_end import measure_lateness
from tests.support.bus import RABBITMQ_URL
from tests.support.databases import MARIADB, POSTGRESQL, SQLITE, DatabaseServers, ServerMissing

SECTIONS = ("scale", "slow-end", "http", "placing", "admission", "large", "search")
#: The one that is measured only where it is asked for: it needs a real cloud, `make cloud`.
CLOUD = "cloud"
#: Measured only where it is asked for: on a database server, it needs a message bus.
FAIRNESS = "fairness"
#: Measured only where it is asked for: it needs a message bus.
CREATES = "creates"
#: Measured only where it is asked for: it takes an hour.
MEMORY = "memory"
KINDS = (SQLITE, POSTGRESQL)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the arguments name; 1 where a promise is broken, 2 where a database is missing."""
    arguments = _parser().parse_args(argv)
    arguments.databases = arguments.databases or KINDS
    logging.getLogger("alembic").setLevel(logging.WARNING)
    begin = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begin:6.1f} s  {line}", file=sys.stderr, flush=True)

    with DatabaseServers() as servers:
        try:
            for kind in arguments.databases:
                if kind != SQLITE:
                    servers.url(kind)
        except ServerMissing as missing:
            print(missing, file=sys.stderr)
            return 2
        if arguments.explain is not None:
            _explain(servers, arguments)
            return 0
        show(surroundings(servers, arguments.databases))
        complaints = _measure(servers, arguments, say)
    say("done")
    for complaint in complaints:
        print(f"BROKEN: {complaint}")
    print(f"{len(complaints)} promises are broken" if complaints else "Every promise holds.")
    return 1 if complaints else 0


def show(lines: Iterable[str]) -> None:
    """Print a part of the report as soon as it is there: what comes after it may fail."""
    print(*lines, sep="\n", flush=True)


def _measure(servers: DatabaseServers, arguments: argparse.Namespace, say: Say) -> list[str]:
    """Show a table after the other; return what is not as it must be."""
    complaints: list[str] = []
    sections = arguments.sections or SECTIONS
    if "scale" in sections:
        for kind in arguments.databases:
            sizes = (QUICK_SMALL, QUICK_LARGE, None) if arguments.quick else (SMALL, LARGE, HUGE)
            small, large, huge = sizes
            rounds = arguments.rounds or (10 if arguments.quick else 30)
            scale = measure_scale(servers, kind, small=small, large=large, huge=huge, rounds=rounds, say=say)
            show(scale_table(scale))
            complaints += [f"{kind}: {line}" for comparison in scale.comparisons for line in comparison.complaints()]
    if "slow-end" in sections:
        spreads = [timedelta(0)] if arguments.quick else [timedelta(0), timedelta(minutes=1)]
        lateness = [measure_lateness(50 if arguments.quick else 200, spread, say) for spread in spreads]
        show(lateness_table(lateness))
        complaints += [line for spread in lateness for line in spread.complaints()]
    if "http" in sections:
        show(throughput_table(measure_http(1 if arguments.quick else 5, say)))
    if "placing" in sections:
        placings = measure_all(quick=arguments.quick, say=say)
        show(placing_table(placings))
        complaints += placings.complaints()
        complaints += [] if arguments.quick else promises(placings)
    if "admission" in sections:
        admissions = measure_admissions(quick=arguments.quick, say=say)
        show(admission_table(admissions))
        complaints += [line for each in admissions for line in each.complaints()]
    if "large" in sections:
        crowds = measure_large(servers, quick=arguments.quick, say=say)
        show(large_table(crowds))
        complaints += [line for crowd in crowds for line in crowd.complaints()]
    if "search" in sections:
        for kind in arguments.databases:
            rounds = arguments.rounds or (5 if arguments.quick else 100)
            searches = measure_searches(servers, kind, quick=arguments.quick, rounds=rounds, say=say)
            show(search_table(searches))
            complaints += searches.complaints()
    if MEMORY in sections:
        usual = QUICK_LOAD if arguments.quick else Load()
        memory = measure_memory(replace(usual, minutes=arguments.minutes or usual.minutes), say)
        show(memory_table(memory))
        complaints += memory.failures if arguments.quick else memory.complaints()
    if FAIRNESS in sections:
        for kind in arguments.databases:
            size = QUICK_FLOODS if arguments.quick else FULL_FLOODS
            bus, only = arguments.message_bus, arguments.only
            fairness = measure_fairness(servers, kind, say, scale=size, managers=arguments.managers, bus=bus, only=only)
            show(fairness_table(fairness))
            complaints += [line for each in fairness for line in each.complaints()]
    if CREATES in sections:
        creates = measure_creates(servers, say, seconds=2 if arguments.quick else 20, bus=arguments.message_bus)
        show(creates_table(creates))
        complaints += [] if arguments.quick else creates.complaints()
    if CLOUD in sections:
        rounds = arguments.rounds or (5 if arguments.quick else 100)
        for found in measure_cloud(rounds, say, size=QUICK_CLOUD if arguments.quick else LARGE_CLOUD):
            show(requests_table(found) if isinstance(found, RequestFigures) else starts_table(found))
            complaints += found.complaints()
    return complaints


def _explain(servers: DatabaseServers, arguments: argparse.Namespace) -> None:
    """Show what the databases make of the operations whose names contain a text."""
    size = QUICK_LARGE if arguments.quick else LARGE
    times = times_of(QUICK_SMALL if arguments.quick else SMALL, datetime.now(UTC))
    for kind in arguments.databases:
        with servers.fresh_database(kind) as url, open_site(url, size, times) as site:
            for operation in OPERATIONS:
                if arguments.explain in operation.name:
                    print(f"\n##### {kind}: {operation.name}")
                    show_plans(operation, site, site.db.engine)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "sections",
        nargs="*",
        choices=[*SECTIONS, FAIRNESS, CREATES, MEMORY, CLOUD, ()],
        default=(),
        metavar="SECTION",
        help=f"{', '.join(SECTIONS)}; all of these without. Only by their names: {FAIRNESS}, {CREATES}, {MEMORY}, and "
        f"{CLOUD}, which needs `make cloud`",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds: does it run at all?")
    parser.add_argument(
        "--database",
        action="append",
        dest="databases",
        choices=[*KINDS, MARIADB],
        help="on this one only (may be repeated)",
    )
    parser.add_argument("--managers", type=int, default=1, help=f"how many managers and APIs {FAIRNESS} runs")
    parser.add_argument(
        "--message-bus",
        default=RABBITMQ_URL,
        metavar="URL",
        help=f"the RabbitMQ of {FAIRNESS} on a database server, and of {CREATES} (default: that of `make cloud`)",
    )
    parser.add_argument("--only", metavar="TEXT", default="", help=f"only those floods of {FAIRNESS} named so")
    parser.add_argument("--rounds", type=int, help="how often each operation is measured on each size")
    parser.add_argument("--minutes", type=float, help=f"how long {MEMORY} sends requests, 60 without")
    parser.add_argument("--explain", metavar="TEXT", help="show the query plans of the operations named so instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
