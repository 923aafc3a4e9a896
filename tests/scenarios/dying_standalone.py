"""A ``tenure-standalone`` that kills itself when an event reaches a named point.

``python -m tests.scenarios.dying_standalone POINT ...``; the other arguments are those of ``tenure-standalone``.
"""

from __future__ import annotations

import logging
import sys

from tenure.cmd.standalone import parser, serve
from tests.support.dying import dying_at


def main() -> int:
    point, *rest = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    return serve(parser().parse_args(rest), checkpoint=dying_at(point))


if __name__ == "__main__":
    sys.exit(main())
