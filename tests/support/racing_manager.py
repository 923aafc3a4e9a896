"""A manager with its API in its own process, for tests with several managers on one database."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from waitress.server import create_server

from tenure.api.app import create_app
from tenure.api.auth import TokenFileAuth
from tenure.api.policies import Policies
from tenure.clock import SystemClock
from tenure.factory import Components, build
from tenure.resources.contract import load_types
from tenure.store.database import Database
from tests.support.simulated import SimulatedCloud
from tests.support.waiting import patience

THREADS = 16
#: Short, so that the reconciler competes with everything else as well.
REPAIR = timedelta(seconds=10)


@dataclass
class Figures:
    """The statistics of a manager: how often its transactions conflicted, and the highest number of attempts."""

    meetings: Counter[str] = field(default_factory=Counter)
    attempts: int = 1
    cpu_seconds: float = 0.0
    #: The errors in its log: transactions that would have promised a resource twice.
    errors: list[str] = field(default_factory=list)


@contextmanager
def managers(url: str, cloud: Path, tokens: Path, count: int, figures: Figures) -> Iterator[list[int]]:
    """Run managers on one database and one cloud; yield their ports. Adds up their statistics in ``figures``."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        ports = []
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_manage, args=(url, cloud, tokens, there), daemon=True)
            process.start()
            there.close()
            stack.callback(_stop, process, here, figures)
            assert here.poll(patience()), "a manager did not start"
            ports.append(here.recv())
        yield ports


def _stop(process: Any, connection: Connection, figures: Figures) -> None:
    try:
        connection.send("stop")
        assert connection.poll(patience()), "a manager did not stop"
        seen: Figures = connection.recv()
        figures.meetings += seen.meetings
        figures.attempts = max(figures.attempts, seen.attempts)
        figures.cpu_seconds += seen.cpu_seconds
        figures.errors += seen.errors
        process.join(patience())
    finally:
        process.kill()
        process.join()
        connection.close()


def _manage(url: str, cloud: Path, tokens: Path, connection: Connection) -> None:
    """Serve until stopped, then report the statistics."""
    meetings = _Meetings()
    db = Database(url)
    service = build(
        Components(
            db=db,
            driver=SimulatedCloud(cloud),
            types=load_types(),
            authorize=Policies().authorize,
            clock=SystemClock(),
            workers=THREADS,
            reconcile_interval=REPAIR,
        )
    )
    app = create_app(service.manager, service.components.types, authenticate=lambda inner: TokenFileAuth(inner, tokens))
    server = create_server(app, host="127.0.0.1", port=0, threads=THREADS)
    threading.Thread(target=server.run, daemon=True).start()
    service.engine.start()
    connection.send(server.effective_port)
    connection.recv()
    server.close()
    server.task_dispatcher.shutdown(cancel_pending=True, timeout=10)
    service.engine.stop()
    meetings.figures.cpu_seconds = time.process_time()
    connection.send(meetings.figures)
    db.close()


class _Meetings(logging.Handler):
    """Counts conflicts of transactions by the database's error."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.figures = Figures()
        logger = logging.getLogger("tenure.store.database")
        logger.addHandler(self)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            self.figures.errors.append(f"{record.getMessage()}: {record.exc_info[1] if record.exc_info else None}")
        if not isinstance(record.args, tuple) or len(record.args) != 2:
            return  # not about transactions that met
        attempt, error = record.args  # as the database logs it
        original: Any = getattr(error, "orig", error)
        code = getattr(original, "sqlstate", None) or next(iter(original.args), "")
        self.figures.meetings[f"{type(original).__name__} {code}".strip()] += 1
        self.figures.attempts = max(self.figures.attempts, int(str(attempt)) + 1)
