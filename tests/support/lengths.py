"""How long tests are that could go on for ever: as long as it takes to show what they are about, or longer on request.

``TENURE_TEST_LONG=1`` asks for all of them; the races have a number of their own, ``TENURE_TEST_RACE_OPERATIONS``.
"""

from __future__ import annotations

import os

LONG = os.environ.get("TENURE_TEST_LONG") == "1"

#: Of a race for whole hosts in one process; other races have so many as take no longer.
RACE_OPERATIONS = int(os.environ.get("TENURE_TEST_RACE_OPERATIONS") or (5000 if LONG else 500))


def times(usual: int, long: int) -> int:
    """How often something is done: as usual, or as often as is asked for where nobody waits."""
    return long if LONG else usual
