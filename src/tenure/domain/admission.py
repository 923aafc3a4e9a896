"""How new leases are admitted."""

from __future__ import annotations

from enum import StrEnum


class AdmissionWay(StrEnum):
    """How room was found for a new lease."""

    GREEDY = "greedy"  # beside all plans
    MOVED = "moved"  # plans of other leases made way
    EXACT = "exact"  # the exact search arranged plans anew
    WAITED = "waited"  # it waited until there was room
