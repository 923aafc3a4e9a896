"""``tenure-manager``, but for one thing: it kills itself when an event reaches a named point.

``python -m tests.support.dying POINT ...``; the rest is what ``tenure-manager`` takes.
"""

from __future__ import annotations

import os
import signal
import sys

from tenure.cmd.manager import PROG, serve
from tenure.cmd.process import configure, run
from tenure.services.execution.performer import Checkpoint


def dying_at(point: str) -> Checkpoint:
    """What to call at the points of events, to die at one as by ``kill -9``."""

    def die(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    return die


def main() -> int:
    point, *rest = sys.argv[1:]
    return run(lambda: serve(configure(rest, prog=PROG), checkpoint=dying_at(point)), prog=PROG)


if __name__ == "__main__":
    sys.exit(main())
