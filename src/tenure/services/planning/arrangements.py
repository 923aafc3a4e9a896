"""Rearranging plans for new and changed leases: the exact search, if neither room nor moves of single plans are found.

The search runs outside of any transaction. Another transaction writes its result under the versions that it has seen.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from tenure import deadlines
from tenure.deadlines import SearchTooLong
from tenure.domain.allocation import Allocation, Demand
from tenure.domain.arrangement import Problem, Solution
from tenure.domain.errors import NotEnoughResources
from tenure.resources.contract import ResourceTypes
from tenure.services.planning.parts import MOST_PIECES, read_part
from tenure.services.planning.wishes import Wish
from tenure.store.database import Database

LOG = logging.getLogger(__name__)

R = TypeVar("R")

#: How often an arrangement is searched for a request, if others change the ledger meanwhile.
ARRANGED = 10


class Solver(Protocol):
    """Searches for an arrangement."""

    def solve(self, problem: Problem, seconds: float) -> Solution:
        """Return an arrangement, or whether there is none."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The plans of a reservation, and where its units are to be instead."""

    plans: tuple[Allocation, ...]
    demand: Demand
    units: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The plans that move for these wishes, the places of their new units, and the versions of the resources concerned.

    The places are units by resource id, by reservation.
    """

    wishes: tuple[Wish, ...]
    moved: tuple[Moved, ...]
    places: Mapping[str, Mapping[int, int]]
    versions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search: an arrangement, or whether it is proven that there is none."""

    arrangement: Arrangement | None
    is_proven: bool


class OutdatedArrangement(Exception):
    """The ledger or the request has changed since an arrangement was made."""


class Arrangements:
    """Searches for arrangements of all plans that may move, beside everything that stays."""

    def __init__(
        self, db: Database, types: ResourceTypes, solver: Solver, allowed: timedelta, notice: timedelta
    ) -> None:
        """``allowed`` is the time of a search. Plans that begin within ``notice`` stay."""
        self._db = db
        self._types = types
        self._solver = solver
        self._seconds = allowed.total_seconds()
        self._notice = notice

    def find(self, wishes: Sequence[Wish], *, now: datetime) -> Search:
        """Return an arrangement that meets all wishes, each with the least units that it asks for."""
        began = time.monotonic()
        seconds = min(self._seconds, deadlines.seconds_left())
        deadline = began + seconds

        def is_over() -> bool:
            """Whether half of the time is over: the rest is for the solver."""
            return time.monotonic() >= began + seconds / 2

        grouped: dict[tuple[str, str], list[Wish]] = defaultdict(list)
        for wish in wishes:
            grouped[wish.demand.inventory, wish.demand.region].append(wish)
        moved: list[Moved] = []
        places: dict[str, Counter[int]] = defaultdict(Counter)
        versions: dict[int, int] = {}
        for _, wanted in sorted(grouped.items()):
            with self._db.read() as tx:
                part = read_part(tx, self._types, wanted, now=now, notice=self._notice, is_over=is_over)
            longer = [piece for wish in wanted for piece in part.extensions(wish, now=now)]
            new = [piece for wish in wanted for piece in part.new_pieces(wish)]
            pieces = (*(piece for piece, _ in part.plans), *longer, *new)
            left = deadline - time.monotonic()
            if len(pieces) > MOST_PIECES or left <= 0:
                return Search(None, is_proven=False)
            problem = Problem(tuple(part.sites.values()), pieces)
            solution = Solution(None) if problem.is_overfull() else self._solver.solve(problem, left)
            if solution.units is None:
                return Search(None, solution.is_proven and part.is_whole)
            touched: set[int] = set()
            for (piece, plans), units in zip(part.plans, solution.units, strict=False):
                if dict(piece.current) != dict(units):
                    moved.append(Moved(plans, piece.demand, units))
                    touched |= units.keys() | piece.current.keys()
            wished = solution.units[len(part.plans) :]
            for piece, units in zip(new, wished[len(longer) :], strict=True):
                places[piece.reservation_id].update(units)
            touched.update(*wished)
            versions |= {resource_id: part.sites[resource_id].version for resource_id in touched}
        return Search(Arrangement(tuple(wishes), tuple(moved), places, versions), is_proven=True)


def admit(
    arrangements: Arrangements | None,
    run: Callable[[Arrangement | None], R],
    wishes: Callable[[], Sequence[Wish]],
    *,
    now: datetime,
) -> R:
    """Return what ``run`` returns, first without an arrangement.

    If it finds no room, the exact search is asked for an arrangement that meets the ``wishes`` of the last run, and it
    runs once more with that. Raises the errors of ``run``; ``NotEnoughResources`` then says whether it is proven.
    """
    try:
        return run(None)
    except NotEnoughResources as refusal:
        if arrangements is None or refusal.is_proven or not wishes():
            raise
        for _ in range(ARRANGED):
            search = _searched(arrangements, wishes(), now=now)
            refusal.is_proven = search.is_proven and search.arrangement is None
            refusal.is_undecided = not refusal.is_proven
            if search.arrangement is None:
                break
            try:
                with suppress(OutdatedArrangement, NotEnoughResources):
                    return run(search.arrangement)
            except SearchTooLong:
                break  # the refusal is the answer, undecided
        raise


def _searched(arrangements: Arrangements, wishes: Sequence[Wish], *, now: datetime) -> Search:
    """Return the result of the exact search. If it fails, nothing is proven, and the refusal is the answer."""
    try:
        return arrangements.find(wishes, now=now)
    except Exception:
        LOG.exception("the exact search failed")
        return Search(None, is_proven=False)
