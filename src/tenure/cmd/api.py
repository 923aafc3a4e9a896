"""``tenure-api``: the REST API as a process of its own. For a WSGI server, use ``tenure.cmd.wsgi``."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from oslo_config.cfg import ConfigOpts

from tenure.api.auth import TokenFileError
from tenure.cmd.listening import listen
from tenure.cmd.process import StartFailed, configure, run, show_metrics
from tenure.collection import spare_loaded_objects
from tenure.deployment import ConfigurationError, open_api

PROG = "tenure-api"
LOG = logging.getLogger(__name__)

#: How long a stop waits for running requests, in seconds.
REQUEST_SECONDS = 15.0


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until stopped; return the exit code."""
    return run(lambda: serve(configure(sys.argv[1:] if argv is None else argv, prog=PROG)), prog=PROG)


def serve(conf: ConfigOpts) -> int:
    """Serve as configured; return the exit code. Raises ``StartFailed``."""
    try:
        app = open_api(conf, requests_of_project=conf.api.threads // 2)
        server = listen(app, host=conf.host, port=conf.port, threads=conf.api.threads)
    except (ConfigurationError, TokenFileError) as error:
        raise StartFailed(str(error)) from error
    except (OSError, ValueError) as error:
        raise StartFailed(f"cannot listen on {conf.host}:{conf.port}: {error}") from error
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, _leave)
    show_metrics(conf)
    spare_loaded_objects()
    LOG.info("the API listens on %s:%d", conf.host, conf.port)
    with suppress(SystemExit):
        server.run()  # usually ends without passing on SystemExit
    server.task_dispatcher.shutdown(timeout=REQUEST_SECONDS)
    LOG.info("the API has stopped")
    return 0


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """End the server's loop. Ignore further signals, so that they do not disturb the stop."""
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, signal.SIG_IGN)
    raise SystemExit


if __name__ == "__main__":
    sys.exit(main())
