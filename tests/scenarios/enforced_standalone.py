"""A ``tenure-standalone`` with an external enforcement service, which checks its leases and is notified of them.

``python -m tests.scenarios.enforced_standalone URL ...``; the other arguments are those of ``tenure-standalone``.
"""

from __future__ import annotations

import logging
import sys

from tenure.cmd.standalone import parser, serve
from tests.support.credits import filter_for


def main() -> int:
    url, *rest = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    return serve(parser().parse_args(rest), filters={"ExternalServiceFilter": filter_for(url)})


if __name__ == "__main__":
    sys.exit(main())
