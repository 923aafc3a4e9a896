"""The programs of a deployment, called as an operator calls them, on files of a test.

They run in the process of the test: imports take many times longer than the commands.
"""

from __future__ import annotations

import io
import logging
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from tenure.cmd import manage, status
from tenure.cmd.standalone import open_service
from tenure.config import CONFIG_DIR_VARIABLE
from tenure.factory import Service
from tests.support.simulated import SimulatedCloud

PROGRAMS: Mapping[str, Callable[[Sequence[str]], int]] = {"tenure-manage": manage.main, "tenure-status": status.main}


@dataclass(frozen=True)
class Ended:
    """What came of a program."""

    returncode: int
    stdout: str
    stderr: str


@contextmanager
def _logs_as_before() -> Iterator[None]:
    """Restore the logging of the test process after a program has changed it."""
    root, hook = logging.getLogger(), sys.excepthook
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in list(root.manager.loggerDict)}
    try:
        yield
    finally:
        sys.excepthook = hook
        for handler in set(root.handlers) - set(handlers):
            root.removeHandler(handler)
        for handler in handlers:
            if handler not in root.handlers:
                root.addHandler(handler)
        root.setLevel(level)
        for name in list(root.manager.loggerDict):
            logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))


@dataclass(frozen=True)
class Site:
    """A folder with a ``tenure.conf``, a ledger in ``tenure.db`` and a simulated cloud in ``cloud.db``."""

    folder: Path

    @property
    def ledger(self) -> str:
        return f"sqlite:///{self.folder / 'tenure.db'}"

    def configure(self, *, connection: str | None = None, more: str = "") -> None:
        """Write the configuration; ``connection`` is that of the ledger, unless it is given; "" leaves it out."""
        connection = self.ledger if connection is None else connection
        database = f"[database]\nconnection = {connection}\n" if connection else ""
        text = f"[DEFAULT]\ndriver = simulated\n{database}[simulated]\npath = {self.folder / 'cloud.db'}\n{more}"
        (self.folder / "tenure.conf").write_text(text)

    def run(self, program: str, *arguments: str) -> Ended:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err), _logs_as_before():
            patch.chdir(self.folder)
            patch.setenv(CONFIG_DIR_VARIABLE, str(self.folder))
            patch.setattr(sys, "argv", [program, *arguments])
            try:
                code = PROGRAMS[program](arguments)
            except SystemExit as end:  # of argparse
                code = end.code if isinstance(end.code, int) else 1
        return Ended(code, out.getvalue(), err.getvalue())

    def set_revision(self, revision: str) -> None:
        """Let the database say that its schema is at this revision."""
        with closing(sqlite3.connect(self.folder / "tenure.db")) as db, db:
            db.execute("UPDATE alembic_version SET version_num = ?", (revision,))

    @contextmanager
    def service(self, *, hosts: int) -> Iterator[Service]:
        """The service itself, with so many hosts that can be reserved."""
        service = open_service(self.folder, hosts=hosts)
        with closing(service.components.db):
            yield service

    @contextmanager
    def cloud(self) -> Iterator[SimulatedCloud]:
        with SimulatedCloud(self.folder / "cloud.db") as cloud:
            yield cloud


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.configure()
    return made
