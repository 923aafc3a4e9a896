"""What the processes of a deployment share: options, logs, metrics, and an orderly end."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from oslo_config import cfg
from oslo_log import log

from tenure import metrics
from tenure.cmd.log_lines import write_safe_lines
from tenure.config import CONFIG_DIR, CONFIG_DIR_VARIABLE, PROJECT, new_config, read_config
from tenure.domain.errors import Unavailable
from tenure.store import schema
from tenure.store.database import Database
from tenure.tracing import TraceFilter

LOG = logging.getLogger(__name__)

#: How often to check whether an unavailable database is back, and how often to log that it is away, in seconds.
ASK_SECONDS = 2.0
SAY_SECONDS = 60.0


class StartFailed(Exception):
    """The process cannot start as requested; the text says why, and what to do."""


def configure(
    arguments: Sequence[str], *, prog: str, options: Sequence[cfg.Opt] = (), quiet: Sequence[str] = ()
) -> cfg.ConfigOpts:
    """Return the configuration from the command line and the files, and set up logging.

    ``options`` are additional command line options. Warnings of the loggers in ``quiet`` are suppressed: the program
    reports those problems itself. Raises ``StartFailed`` for a file that cannot be used.
    """
    conf = new_config()
    conf.register_cli_opts(options)
    log.register_options(conf)
    levels = ["alembic=WARN", "waitress=WARN", *(f"{name}=ERROR" for name in quiet)]
    log.set_defaults(default_log_levels=[*log.get_default_log_levels(), *levels])
    try:
        read_config(conf, arguments, files=config_files(), prog=prog)
        log.setup(conf, PROJECT)
    except (cfg.Error, log.LogConfigError) as error:
        raise StartFailed(f"{error}; the configuration is read from {CONFIG_DIR}, or --config-file names it") from error
    for handler in logging.getLogger().handlers:
        handler.addFilter(TraceFilter())
    write_safe_lines()
    return conf


def config_files() -> list[Path]:
    """Return the file in the folder that the environment variable names; if it is not set, oslo.config searches."""
    folder = os.environ.get(CONFIG_DIR_VARIABLE)
    return [Path(folder) / f"{PROJECT}.conf"] if folder else []


def why_unavailable(error: Unavailable) -> str:
    """Return the database's own error text as a single line."""
    cause = getattr(error.__cause__, "orig", None) or error.__cause__
    words = str(cause.args[-1] if cause is not None and cause.args else error).split()
    return f"the database cannot be used: {' '.join(words)}"


def wrong_with_schema(db: Database) -> str | None:
    """Return what must be done before this release can use the database; None if nothing. Raises ``Unavailable``."""
    current, expected = schema.current(db), schema.head()
    if current == expected:
        return None
    if current is None or schema.knows(current):
        return f"the schema is at {current or 'nothing'}, this release needs {expected}: run tenure-manage db upgrade"
    return f"the schema is at {current}, which this release does not know: a newer release or another program made it"


def wait_for_schema(
    db: Database, *, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
) -> None:
    """Wait until the database can be used, and log once a minute why it cannot.

    Raises ``StartFailed`` if it answers, but its schema is not the one that this release needs.
    """
    said_at = -math.inf
    while True:
        try:
            with _silent("tenure.store.database"):  # it would log a warning for each attempt
                wrong = wrong_with_schema(db)
        except Unavailable as error:
            if clock() - said_at >= SAY_SECONDS:
                said_at = clock()
                LOG.warning("%s; waiting for it", why_unavailable(error))
            sleep(ASK_SECONDS)
            continue
        if wrong is not None:
            raise StartFailed(wrong)
        return


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Silence a logger in this block."""
    logger = logging.getLogger(name)

    def refuse(_record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)


def show_metrics(conf: cfg.ConfigOpts) -> None:
    """Serve this process's metrics, if configured."""
    metrics.serve(conf.metrics.port, conf.metrics.host)


def run(main: Callable[[], int], *, prog: str) -> int:
    """Run a program; return its exit code. ``StartFailed`` is printed as a single line."""
    try:
        return main()
    except StartFailed as failure:
        print(f"{prog}: {failure}", file=sys.stderr)
        return 1


def wait_for_the_end() -> None:
    """Wait for SIGTERM or SIGINT. After the first one, ignore both, so that they do not disturb the stop."""
    stop_requested = threading.Event()

    def request_stop(_number: int, _frame: object) -> None:
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, signal.SIG_IGN)
        stop_requested.set()

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, request_stop)
    while not stop_requested.wait(3600):
        pass
