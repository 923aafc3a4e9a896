"""The length of tests without a natural end: as short as useful, or longer on request.

``TENURE_TEST_LONG=1`` makes all of them longer; the races have their own variable, ``TENURE_TEST_RACE_OPERATIONS``.
"""

from __future__ import annotations

import os

LONG = os.environ.get("TENURE_TEST_LONG") == "1"

#: Of a race for whole hosts in one process; other races have so many as take no longer.
RACE_OPERATIONS = int(os.environ.get("TENURE_TEST_RACE_OPERATIONS") or (5000 if LONG else 250))


def times(usual: int, long: int) -> int:
    """Return how often to repeat something: by default few times, or more often on request."""
    return long if LONG else usual
