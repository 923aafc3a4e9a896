"""Requests that are refused though there is an arrangement: with moves of single plans, and with the exact search.

Each refusal is compared with a model of the ledger at that time: everything that has not started may be anywhere.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from bench.demand import (
    Mix,
    Request,
    days_of_hosts,
    hosts_of_kinds,
    in_racks,
    instances_by_affinity,
    instances_with_gpus,
    plain,
    requests_of,
    small_instances,
    whole_hosts,
    with_gpus,
)
from bench.exact import is_possible
from bench.replay import Replay
from tenure.domain.errors import NotEnoughResources
from tenure.planning.cp_sat import CpSatSolver
from tenure.planning.exact import Solver

Say = Callable[[str], None]

MOVES, EXACT = "moves of single plans", "exact search"
#: Hosts with cleaning time, and instances, some of them by a resource class that few hosts have.
MIXES = (
    Mix("hosts of kinds, cleaning", in_racks(6), {hosts_of_kinds: 1}, load=1.0, days=20, cleaning=2),
    Mix("hosts, cleaning", plain(4), {whole_hosts: 1}, load=1.2, days=20, cleaning=2),
    Mix("instances", plain(3), {small_instances: 1}, load=1.2, days=10),
    Mix("instances by affinity", plain(3), {instances_by_affinity: 1}, load=1.2, days=10),
    Mix("hosts and instances", plain(4), {small_instances: 3, days_of_hosts: 1}, load=1.2, days=10),
    Mix("instances with GPUs", with_gpus(4), {small_instances: 2, instances_with_gpus: 2}, load=1.2, days=10),
)
#: Too large for the model: only the numbers and the times of the refusals are compared.
LARGE = Mix("hosts of kinds, large", in_racks(200), {hosts_of_kinds: 1}, load=1.1, days=5)


@dataclass(slots=True)
class Refusals:
    """The refusals of a way to admit: how many, how many of them wrong, how many not proven, and how many unknown."""

    count: int = 0
    wrong: int = 0
    unproven: int = 0
    unknown: int = 0
    #: Whether a refusal was called certain that was wrong.
    deceived: bool = False
    #: How long each refused request took.
    seconds: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Admissions:
    """A demand, from several seeds, and its refusals by each way to admit."""

    mix: Mix
    offered: int = 0
    refusals: dict[str, Refusals] = field(default_factory=dict)

    def complaints(self) -> Iterator[str]:
        """Yield what is not as promised: nothing that is proven is wrong."""
        yield from (
            f"{self.mix.name}: {way}: a refusal was proven, and wrong"
            for way, refusals in self.refusals.items()
            if refusals.deceived
        )


class _JudgedReplay(Replay):
    """A replay that compares each refusal with the model."""

    def __init__(self, mix: Mix, solver: Solver | None, refusals: Refusals) -> None:
        super().__init__(mix, solver)
        self._mix = mix
        self._refusals = refusals

    def _admit(self, request: Request) -> None:
        began = time.perf_counter()
        try:
            super()._admit(request)
        except NotEnoughResources:
            self._refusals.seconds.append(time.perf_counter() - began)
            raise

    def _note_refusal(self, request: Request, refusal: NotEnoughResources, coming: Sequence[Request]) -> None:
        possible = None
        if self._mix is not LARGE:
            possible = is_possible(self._mix.hosts, self._held(), [*coming, request])
        self._refusals.count += 1
        self._refusals.wrong += possible is True
        self._refusals.unknown += possible is None
        self._refusals.unproven += not refusal.is_proven
        self._refusals.deceived |= possible is True and refusal.is_proven


def measure_admissions(*, quick: bool, say: Say) -> list[Admissions]:
    """Let both ways admit the same requests, of several seeds."""
    if quick:
        return [measure_admission(MIXES[0], seeds=1, say=say)]
    found = [measure_admission(mix, seeds=5, say=say) for mix in MIXES]
    return [*found, measure_admission(LARGE, seeds=1, say=say)]


def measure_admission(mix: Mix, *, seeds: int, say: Say) -> Admissions:
    """Let both ways admit the requests of one demand."""
    found = Admissions(mix)
    for seed in range(1, seeds + 1):
        requests = requests_of(mix, seed)
        found.offered += len(requests)
        for way in (MOVES, EXACT):
            refusals = found.refusals.setdefault(way, Refusals())
            _JudgedReplay(mix, CpSatSolver() if way == EXACT else None, refusals).run(requests)
    shown = "; ".join(f"{way}: {each.wrong} of {each.count} wrong" for way, each in found.refusals.items())
    say(f"admission: {mix.name}, {found.offered} requests, refusals: {shown}")
    return found


def admission_table(found: Sequence[Admissions]) -> Iterator[str]:
    """Yield the refusals of each demand by each way, and how long they took."""
    yield "### Refused requests"
    yield ""
    yield "| demand | hosts | offered | way | refused | wrongly | not proven | median ms | longest ms |"
    yield "|---|---:|---:|---|---:|---:|---:|---:|---:|"
    for each in found:
        for way, refusals in each.refusals.items():
            times = [seconds * 1000 for seconds in refusals.seconds] or [0.0]
            yield (
                f"| {each.mix.name} | {len(each.mix.hosts)} | {each.offered:,} | {way} | {refusals.count} | "
                f"{_wrong(refusals)} | {refusals.unproven} | {statistics.median(times):.0f} | {max(times):.0f} |"
            )
    yield ""


def _wrong(refusals: Refusals) -> str:
    """Return how many refusals are wrong, and their share; empty if that is not known of any."""
    known = refusals.count - refusals.unknown
    return f"{refusals.wrong} ({refusals.wrong / known:.1%})" if known else ""
