"""Is what is asked for placed well? Generated demand, placed by ours, by first fit, and by an exact solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from bench.demand import (
    Mix,
    Request,
    Sampler,
    days_of_hosts,
    instances_by_affinity,
    instances_with_gpus,
    plain,
    requests_of,
    share,
    small_instances,
    whole_hosts,
    with_gpus,
)
from bench.exact import Best, best
from bench.replay import Outcome, by_choice, by_order, crowded, first_hosts_first, free_share, play, play_unmoved

Say = Callable[[str], None]

OURS, OURS_STAYING = "ours", "ours, plans stay"
FIRST_MOVING, FIRST = "first fit, plans move", "first fit"
PLACERS = (OURS, FIRST_MOVING, FIRST)
#: The order of preference alone, where nothing moves that was placed.
STAYING = (OURS_STAYING, FIRST)
#: A stretch counts as long from so much on.
LONG = timedelta(days=1)

_GPU_SAMPLERS: Mapping[Sampler, int] = {small_instances: 4, instances_with_gpus: 2, days_of_hosts: 1}
_MIXED_SAMPLERS: Mapping[Sampler, int] = {small_instances: 3, days_of_hosts: 1}
#: Little enough for everybody to accept all of it: what differs is what is left free.
FEW = Mix("instances, few", plain(12), {small_instances: 1}, load=0.3)
LARGE = (
    Mix("hosts", plain(16), {whole_hosts: 1}, load=1.0),
    Mix("instances", plain(8), {small_instances: 1}, load=1.0),
    Mix("instances by affinity", plain(8), {instances_by_affinity: 1}, load=1.0),
    Mix("hosts and instances", plain(12), _MIXED_SAMPLERS, load=0.8),
    Mix("hosts and instances, crowded", plain(12), _MIXED_SAMPLERS, load=1.2),
    Mix("hosts, instances, GPUs", with_gpus(12), _GPU_SAMPLERS, load=1.0),
    FEW,
)
#: Small enough for the exact solver.
SMALL = (
    Mix("hosts", plain(4), {whole_hosts: 1}, load=1.2, days=10),
    Mix("instances", plain(3), {small_instances: 1}, load=1.2, days=10),
    Mix("instances by affinity", plain(3), {instances_by_affinity: 1}, load=1.2, days=10),
    Mix("hosts and instances", plain(4), _MIXED_SAMPLERS, load=1.2, days=10),
    Mix("hosts, instances, GPUs", with_gpus(4), _GPU_SAMPLERS, load=1.2, days=10),
)


@dataclass(slots=True)
class Tally:
    """What somebody made of a demand, over all seeds."""

    accepted: int = 0
    host_hours: float = 0.0
    #: The sum of the parts of the hosts' time that was wholly free for long, one for each seed.
    free: float = 0.0

    def add(self, mix: Mix, outcome: Outcome) -> None:
        self.accepted += len(outcome.accepted)
        self.host_hours += sum(_worth(mix, request) for request in outcome.accepted)
        self.free += free_share(mix.hosts, outcome.placed, mix.window, at_least=LONG)


@dataclass(slots=True)
class Placing:
    """A demand, from several seeds, and what each made of it."""

    mix: Mix
    seeds: int = 0
    offered: int = 0
    offered_hours: float = 0.0
    tallies: dict[str, Tally] = field(default_factory=dict)
    #: The most requests, and the most host-hours, of each seed; none where that is too much for the solver.
    best: list[tuple[Best, Best]] = field(default_factory=list)
    #: Where more was promised than there is, or more accepted than can be.
    wrong: list[str] = field(default_factory=list)

    def add(self, requests: Sequence[Request], outcomes: Mapping[str, Outcome]) -> None:
        """What each made of the requests of one more seed."""
        self.seeds += 1
        self.offered += len(requests)
        self.offered_hours += sum(_worth(self.mix, request) for request in requests)
        for name, outcome in outcomes.items():
            self.tallies.setdefault(name, Tally()).add(self.mix, outcome)
            self.wrong += [f"{name} promised too much of {where}" for where in crowded(self.mix.hosts, outcome.placed)]

    def complaints(self) -> Iterator[str]:
        yield from (f"{self.mix.name}: {line}" for line in self.wrong)


@dataclass(frozen=True, slots=True)
class Placings:
    """All that was measured."""

    staying: Sequence[Placing]
    large: Sequence[Placing]
    small: Sequence[Placing]

    def complaints(self) -> Iterator[str]:
        for placing in (*self.staying, *self.large, *self.small):
            yield from placing.complaints()


def measure_all(*, quick: bool, say: Say) -> Placings:
    """All demands: the large ones without moves, and with plans that move; the small ones with the exact solver."""
    large = [replace(mix, days=3) for mix in LARGE] if quick else LARGE
    often, seeds, small_seeds = (2, 1, 1) if quick else (20, 3, 5)
    return Placings(
        [measure_order(mix, seeds=often, say=say) for mix in large],
        [measure_placing(mix, seeds=_seeds(mix, seeds), solve=False, say=say) for mix in large],
        [measure_placing(mix, seeds=small_seeds, solve=True, say=say) for mix in SMALL],
    )


def _seeds(mix: Mix, count: int) -> int:
    """How often it is made up anew; more often where it takes no time."""
    return 3 * count if mix.name == FEW.name else count


def measure_placing(mix: Mix, *, seeds: int, solve: bool, say: Say) -> Placing:
    """Let each place the same requests, of so many seeds."""
    found = Placing(mix)
    for seed in range(1, seeds + 1):
        requests = requests_of(mix, seed)
        say(f"placing: {mix.name}, {len(mix.hosts)} hosts, {len(requests)} requests, seed {seed}")
        outcomes = {FIRST: play_unmoved(mix, requests, by_order), OURS: play(mix, requests)}
        with first_hosts_first():
            outcomes[FIRST_MOVING] = play(mix, requests)
        found.add(requests, outcomes)
        if solve:
            _solve(found, requests, outcomes)
    tallies = (f"{name} {one.accepted} ({one.host_hours:.0f} host-hours)" for name, one in found.tallies.items())
    say(f"placing: {mix.name}: of {found.offered} accepted: {', '.join(tallies)}")
    return found


def measure_order(mix: Mix, *, seeds: int, say: Say) -> Placing:
    """The order of preference alone: where nothing moves."""
    say(f"placing: {mix.name}, where nothing moves")
    found = Placing(mix)
    for seed in range(1, seeds + 1):
        requests = requests_of(mix, seed)
        ways = {OURS_STAYING: by_choice, FIRST: by_order}
        found.add(requests, {name: play_unmoved(mix, requests, pick) for name, pick in ways.items()})
    return found


def _solve(found: Placing, requests: Sequence[Request], outcomes: dict[str, Outcome]) -> None:
    mix = found.mix

    def seconds(request: Request) -> int:
        return round(_worth(mix, request) * 3600)

    most, longest = best(mix.hosts, requests), best(mix.hosts, requests, seconds)
    found.best.append((most, longest))
    for name, outcome in outcomes.items():
        if len(outcome.accepted) > most.bound or sum(map(seconds, outcome.accepted)) > longest.bound:
            found.wrong.append(f"{name} accepted more than can be")


def _worth(mix: Mix, request: Request) -> float:
    """Host-hours: how many hosts' worth, for how long."""
    return share(request.demand, mix.hosts) * request.hours


def promises(found: Placings) -> Iterator[str]:
    """What is not as it must be.

    Ours accepts more than first fit over all demands, with plans that move and without, and leaves more hosts free for
    long where all is accepted.
    """
    everything: tuple[tuple[str, Callable[[Tally], float]], ...] = (
        ("requests", lambda tally: tally.accepted),
        ("host-hours", lambda tally: tally.host_hours),
    )
    for measured, measure in everything:
        yield from _worse(measured, found.large, OURS, measure)
        yield from _worse(f"{measured} where nothing moves", found.staying, OURS_STAYING, measure)
    few = [placing for placing in found.staying if placing.mix.name == FEW.name]
    yield from _worse("time free for long", few, OURS_STAYING, lambda tally: tally.free)


def _worse(measured: str, demands: Sequence[Placing], name: str, measure: Callable[[Tally], float]) -> Iterator[str]:
    ours, others = (sum(measure(placing.tallies[placer]) for placing in demands) for placer in (name, FIRST))
    if ours < others:
        yield f"placing: {measured}: {ours:.2f} by ours, {others:.2f} by first fit"


def placing_table(found: Placings) -> Iterator[str]:
    """How much of each demand each accepted, and what was left free."""
    yield "### Placing"
    for title, demands in (
        ("", found.large),
        (", small enough for the exact solver", found.small),
        (", where nothing moves", found.staying),
    ):
        yield ""
        yield f"Requests accepted{title}:"
        yield ""
        yield from _table(
            demands, lambda placing: f"{placing.offered:,}", lambda _, tally: f"{tally.accepted:,}", _most
        )
        yield ""
        yield f"Host-hours accepted{title}:"
        yield ""
        yield from _table(
            demands,
            lambda placing: f"{placing.offered_hours:,.0f}",
            lambda _, tally: f"{tally.host_hours:,.0f}",
            _longest,
        )
    yield ""
    yield "Time of the hosts in which they are wholly free for a day or longer, of all their time, where nothing moves:"
    yield ""
    yield from _table(
        found.staying, lambda _: "", lambda placing, tally: f"{tally.free / placing.seeds:.1%}", lambda _: ""
    )
    yield ""


def _table(
    found: Sequence[Placing],
    offered: Callable[[Placing], str],
    shown: Callable[[Placing, Tally], str],
    best_of: Callable[[Placing], str],
) -> Iterator[str]:
    placers = PLACERS if OURS in found[0].tallies else STAYING
    columns = ["demand", "hosts", "offered", *placers, "the best"]
    kept = [number for number, name in enumerate(columns) if _is_filled(name, found, offered)]
    rows = [
        [
            placing.mix.name,
            f"{len(placing.mix.hosts)}",
            offered(placing),
            *(shown(placing, placing.tallies[name]) for name in placers),
            best_of(placing),
        ]
        for placing in found
    ]
    yield "| " + " | ".join(columns[number] for number in kept) + " |"
    yield "|---|" + "---:|" * (len(kept) - 1)
    for row in rows:
        yield "| " + " | ".join(row[number] for number in kept) + " |"


def _is_filled(column: str, found: Sequence[Placing], offered: Callable[[Placing], str]) -> bool:
    if column == "the best":
        return any(placing.best for placing in found)
    return column != "offered" or any(map(offered, found))


def _most(placing: Placing) -> str:
    return _best_text([most for most, _ in placing.best], unit=1)


def _longest(placing: Placing) -> str:
    return _best_text([longest for _, longest in placing.best], unit=3600)


def _best_text(found: Sequence[Best], *, unit: int) -> str:
    text = f"{sum(placing.found for placing in found) / unit:,.0f}"
    if all(placing.is_proven for placing in found):
        return text
    return f"{text} to {sum(placing.bound for placing in found) / unit:,.0f}"
