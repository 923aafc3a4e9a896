"""The figures as tables in Markdown, and where they are from."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from sqlalchemy import create_engine, text

from bench.cloud import RequestFigures, StartFigures
from bench.http import Throughput
from bench.large import Crowd
from bench.measure import Comparison, counts, percentile
from bench.memory import MEBIBYTE, MINUTE, MemoryFigures
from bench.scale import Scale, described
from bench.search import OTHER_MANAGERS, Searches
from bench.slow_end import Lateness
from tests.support.databases import POSTGRESQL, SQLITE, DatabaseServers


def surroundings(servers: DatabaseServers, kinds: Iterable[str]) -> list[str]:
    """The machine and the versions."""
    lines = [
        f"Measured on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} processors ({_processor()}), "
        f"{_memory_gib():.0f} GiB of memory, {platform.system()} {platform.release()}; "
        f"the load was {os.getloadavg()[1]:.1f} before.",
        f"Python {platform.python_version()}, SQLAlchemy {version('SQLAlchemy')}, "
        + ", ".join(_servers(servers, kinds)),
    ]
    return [*lines, ""]


def _servers(servers: DatabaseServers, kinds: Iterable[str]) -> Iterator[str]:
    for kind in kinds:
        if kind == SQLITE:
            yield f"SQLite {sqlite3.sqlite_version}"
        elif kind == POSTGRESQL:
            engine = create_engine(servers.url(kind))
            with engine.connect() as connection:
                yield f"PostgreSQL {connection.execute(text('SHOW server_version')).scalar_one()}"
            engine.dispose()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def scale_table(scale: Scale) -> Iterator[str]:
    """Each operation on both sizes; then the creates on the third."""
    yield f"### {scale.kind}"
    yield ""
    yield f"small: {described(scale.small)}; large: {described(scale.large)}"
    yield ""
    yield "| operation | SQL statements | small, median ms | large, median ms | ratio | at most |"
    yield "|---|---:|---:|---:|---:|---:|"
    for comparison in scale.comparisons:
        limit = "" if comparison.limit is None else f"{comparison.limit:g}"
        yield (
            f"| {comparison.name} | {_statements(comparison)} | {comparison.small.median * 1000:.1f} "
            f"| {comparison.large.median * 1000:.1f} | {comparison.ratio:.2f} | {limit} |"
        )
    yield ""
    if scale.huge is not None:
        yield f"huge: {described(scale.huge)}"
        yield ""
        yield "| operation | SQL statements | median ms | 95 of 100 within ms |"
        yield "|---|---:|---:|---:|"
        for name, series in scale.creates:
            yield f"| {name} | {counts(series.statements)} | {series.median * 1000:.1f} | {series.p95 * 1000:.1f} |"
        yield ""


def _statements(comparison: Comparison) -> str:
    small, large = counts(comparison.small.statements), counts(comparison.large.statements)
    return small if comparison.same_statements else f"{small}; {large}"


def lateness_table(found: Sequence[Lateness]) -> Iterator[str]:
    """How late starts were."""
    yield "### One end hangs, others start"
    yield ""
    yield "| starts | spread over | median late | 95 of 100 within | latest |"
    yield "|---:|---:|---:|---:|---:|"
    for lateness in found:
        yield (
            f"| {lateness.starts} | {lateness.spread.total_seconds():.0f} s | {lateness.median.total_seconds():.2f} s "
            f"| {lateness.p95.total_seconds():.2f} s | {lateness.latest.total_seconds():.2f} s |"
        )
    yield ""


def large_table(found: Sequence[Crowd]) -> Iterator[str]:
    """How long large requests took, and small ones beside them."""
    yield "### Large requests, and leases of one host beside them"
    yield ""
    yield "| database | request | outcome | taken | leases of one host beside it | median | longest |"
    yield "|---|---|---|---:|---:|---:|---:|"
    for crowd in found:
        durations = (crowd.taken, crowd.median, max(crowd.others))
        taken, median, longest = (duration.total_seconds() for duration in durations)
        yield (
            f"| {crowd.kind} | {crowd.name} | {crowd.outcome} | {taken:.2f} s "
            f"| {len(crowd.others)} | {median:.2f} s | {longest:.2f} s |"
        )
    yield ""


def search_table(found: Searches) -> Iterator[str]:
    """What the index of availability costs, and how long searches take."""
    yield f"### Searches on {found.kind}, {described(found.size)}, half of them to come"
    yield ""
    yield f"The index was made in {found.build_seconds:.1f} s; the process grew by {found.mebibytes:.0f} MiB."
    yield ""
    yield "| operation | median ms | 99 of 100 within ms |"
    yield "|---|---:|---:|"
    for name, series in found.operations:
        yield f"| {name} | {series.median * 1000:.1f} | {percentile(series.seconds, 99) * 1000:.1f} |"
    yield ""
    beside = found.beside_others
    if beside is None:
        return
    yield f"While {OTHER_MANAGERS} other managers made {beside.bookings_per_second:.0f} bookings a second:"
    yield ""
    yield "| operation | median ms | 99 of 100 within ms | longest ms |"
    yield "|---|---:|---:|---:|"
    for name, series in (("index behind the ledger", beside.behind), *beside.operations):
        p99, longest = percentile(series.seconds, 99), max(series.seconds)
        yield f"| {name} | {series.median * 1000:.1f} | {p99 * 1000:.1f} | {longest * 1000:.1f} |"
    yield ""


def throughput_table(found: Sequence[Throughput]) -> Iterator[str]:
    """Requests a second."""
    yield "### HTTP, tenure-standalone"
    yield ""
    yield "| request | connections | requests a second | median ms | 99 of 100 within ms |"
    yield "|---|---:|---:|---:|---:|"
    for throughput in found:
        median, p99 = throughput.median * 1000, throughput.p99 * 1000
        yield (
            f"| {throughput.name} | {throughput.connections} | {throughput.per_second:.0f} | {median:.1f} | {p99:.1f} |"
        )
    yield ""


def memory_table(found: MemoryFigures) -> Iterator[str]:
    """The memory of the process over time, and for each lease."""
    load, last = found.load, found.samples[-1]
    yield f"### Memory of tenure-standalone, {load.hosts} hosts, {load.per_second:g} mixed requests a second"
    yield ""
    yield "| minutes | MiB | requests | leases made | of them gone |"
    yield "|---:|---:|---:|---:|---:|"
    step = max(1, len(found.samples) // 12)
    for sample in [*found.samples[:-1:step], last]:
        yield (
            f"| {sample.seconds / MINUTE:.1f} | {sample.resident / MEBIBYTE:.1f} | {sample.requests:,} "
            f"| {sample.leases_made:,} | {sample.leases_gone:,} |"
        )
    yield ""
    yield (
        f"The first half grew by {found.first_half / MEBIBYTE:.1f} MiB, the second by "
        f"{found.second_half / MEBIBYTE:.1f} MiB ({found.second_half / found.middle.resident:.1%}): "
        f"{found.per_lease_gone / 1024:.1f} KiB for each lease gone in it. "
        f"{load.held} more leases that stay took {found.per_lease_held / 1024:.1f} KiB each."
    )
    yield ""
    sent = ", ".join(
        f"{name} {count:,}" + (f" ({found.refused[name]:,} refused)" if found.refused[name] else "")
        for name, count in found.requests.most_common()
    )
    yield f"Requests: {sent}."
    yield ""


def requests_table(found: RequestFigures) -> Iterator[str]:
    """What requests take beside a real cloud, and what its own do."""
    yield "### Beside a real OpenStack: Keystone, RabbitMQ, MariaDB"
    yield ""
    yield f"{found.hosts:,} hosts, {found.leases:,} leases"
    yield ""
    yield "| request | times | median ms | 95 of 100 within ms |"
    yield "|---|---:|---:|---:|"
    for series in (*found.tenure, *found.others):
        yield f"| {series.name} | {len(series.seconds)} | {series.median * 1000:.1f} | {series.p95 * 1000:.1f} |"
    yield ""
    shares = ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in found.shares.items())
    spent = ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in found.processor.items())
    yield f"A create by who spent it, on average: {shares}. A create and its delete took of a processor: {spent}."
    yield ""
    yield (
        f"{found.bookings} creates and deletes made {found.logins} logins at Keystone and {found.calls} calls to the "
        "cloud."
    )
    yield ""


def starts_table(found: StartFigures) -> Iterator[str]:
    """How late leases were that start at one instant."""
    late = found.late
    yield (
        f"{len(late)} leases of one instant were ACTIVE {late[0]:.1f} s (the first), "
        f"{statistics.median(late):.1f} s (the median) and {late[-1]:.1f} s (the last) after their start."
    )
    yield ""
