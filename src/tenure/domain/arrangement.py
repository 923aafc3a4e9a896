"""The exact question behind a refusal: can plans and a new lease be arranged so that everything fits?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tenure.domain.allocation import Demand
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.period import Period

#: The class of which each use takes one, and a use of the whole resource all: so the two exclude each other, even if
#: they have no class in common.
OCCUPIED, MOST_USES = "OCCUPIED", 2**20


@dataclass(frozen=True, slots=True)
class FixedUse:
    """An allocation that stays where it is."""

    period: Period
    amounts: Capacity
    exclusive: bool


@dataclass(frozen=True, slots=True)
class Site:
    """A resource with the allocations that stay on it."""

    resource_id: int
    version: int
    capacity: Capacity
    fixed: tuple[FixedUse, ...] = ()

    @property
    def room(self) -> Capacity:
        """What the resource has, itself included."""
        return self.capacity + Capacity({OCCUPIED: MOST_USES})

    def is_used(self, instant: datetime) -> bool:
        """Whether an allocation that stays is there at this instant."""
        return any(use.period.contains(instant) for use in self.fixed)

    def taken(self, amounts: Capacity, *, exclusive: bool) -> Capacity:
        """Return what a use takes of the room: all of it if it is exclusive."""
        if exclusive:
            return self.room
        return Capacity({name: amount for name, amount in amounts.items() if name != WHOLE}) + Capacity({OCCUPIED: 1})


@dataclass(frozen=True, slots=True)
class Piece:
    """Units of a reservation that are to be placed on some of the sites that ``may`` have them.

    ``current`` is where they are planned now; empty for a new reservation. A changed reservation may be planned there
    for another period. A plan that is not changed ``is_in_place``, and may stay there, also in conflict with others.
    """

    reservation_id: str
    demand: Demand
    period: Period
    units: int
    may: frozenset[int]
    current: Mapping[int, int]
    is_in_place: bool = False

    def staying(self, resource_id: int) -> int:
        """Return how many of its units may stay on a site without room."""
        return self.current.get(resource_id, 0) if self.is_in_place else 0


def most_apart(piece: Piece, resource_id: int) -> int:
    """Return how many units of a piece may be on a site if they are to be apart; those that are there now may stay."""
    return max(1, piece.staying(resource_id))


@dataclass(frozen=True, slots=True)
class Problem:
    """Sites, and all pieces that are to be placed on them.

    At each instant a site has room for what is placed there. If it has not, since an allocation is overdue or the site
    has shrunk, plans may stay: as many units of each piece as are planned there now, and nothing else.
    """

    sites: tuple[Site, ...]
    pieces: tuple[Piece, ...]

    def is_overfull(self) -> bool:
        """Whether pieces ask for more whole sites than are left for them when a new piece starts: then nothing fits.

        It compares numbers only, so False does not say that everything fits.
        """
        whole = [piece for piece in self.pieces if piece.demand.exclusive]
        for instant in {piece.period.start for piece in whole if not piece.current}:
            present = [piece for piece in whole if piece.period.contains(instant)]
            may = frozenset[int]().union(*(piece.may for piece in present))
            # Plans may stay where they are, also in conflict with others.
            left = sum(
                max(not site.is_used(instant), sum(piece.staying(site.resource_id) for piece in present))
                for site in self.sites
                if site.resource_id in may
            )
            if sum(piece.units for piece in present) > left:
                return True
        return False


@dataclass(frozen=True, slots=True)
class Solution:
    """The units of each piece by resource id, in the order of the pieces.

    None if there is no arrangement; then ``is_proven`` tells whether that is certain.
    """

    units: tuple[Mapping[int, int], ...] | None
    is_proven: bool = True
