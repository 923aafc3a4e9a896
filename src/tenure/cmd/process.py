"""What the processes of a deployment have in common: options, logs, metrics, and an orderly end."""

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
from tenure.config import CONFIG_DIR, CONFIG_DIR_VARIABLE, PROJECT, new_config, read_config
from tenure.domain.errors import Unavailable
from tenure.store import schema
from tenure.store.database import Database
from tenure.tracing import TraceFilter

LOG = logging.getLogger(__name__)

#: How often a database that is away is asked whether it is there again, and how often it is said that it is away.
ASK_SECONDS = 2.0
SAY_SECONDS = 60.0


class StartFailed(Exception):
    """The process cannot do its work as it was asked to; the text says why and what to do."""


def configure(
    arguments: Sequence[str], *, prog: str, options: Sequence[cfg.Opt] = (), quiet: Sequence[str] = ()
) -> cfg.ConfigOpts:
    """The configuration from the command line and the files, with logs as it says.

    ``options`` are more of the command line. Of the loggers that ``quiet`` names, warnings are left out: the program
    says itself what is wrong. Raises ``StartFailed`` for a file that cannot be used.
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
    return conf


def config_files() -> list[Path]:
    """The file in the folder that the environment names; none where it names none, for oslo.config to look around."""
    folder = os.environ.get(CONFIG_DIR_VARIABLE)
    return [Path(folder) / f"{PROJECT}.conf"] if folder else []


def why_unavailable(error: Unavailable) -> str:
    """One line that says what is wrong with the database, in its own words."""
    cause = getattr(error.__cause__, "orig", None) or error.__cause__
    words = str(cause.args[-1] if cause is not None and cause.args else error).split()
    return f"the database cannot be used: {' '.join(words)}"


def wrong_with_schema(db: Database) -> str | None:
    """What has to be done before this release can use the database; None where nothing has. Raises ``Unavailable``."""
    found, wanted = schema.current(db), schema.head()
    if found == wanted:
        return None
    if found is None or schema.knows(found):
        return f"the schema is at {found or 'nothing'}, this release needs {wanted}: run tenure-manage db upgrade"
    return f"the schema is at {found}, which this release does not know: a newer release or another program made it"


def wait_for_schema(
    db: Database, *, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
) -> None:
    """Wait until the database can be used, and say once a minute why it cannot.

    Raises ``StartFailed`` where it answers, and its schema is not what this release needs.
    """
    said_at = -math.inf
    while True:
        try:
            with _silent("tenure.store.database"):  # it would warn of each attempt
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
    """Have a logger say nothing meanwhile."""
    logger = logging.getLogger(name)

    def refuse(_record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)


def show_metrics(conf: cfg.ConfigOpts) -> None:
    """Show this process's metrics where the operator wants them."""
    metrics.serve(conf.metrics.port, conf.metrics.host)


def run(main: Callable[[], int], *, prog: str) -> int:
    """Run a program; its exit code. What it cannot do is said in one line."""
    try:
        return main()
    except StartFailed as failure:
        print(f"{prog}: {failure}", file=sys.stderr)
        return 1


def wait_for_the_end() -> None:
    """Wait until somebody asks the process to end, by SIGTERM or SIGINT; from then on it is not disturbed."""
    asked = threading.Event()

    def ask(_number: int, _frame: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
    while not asked.wait(3600):
        pass
