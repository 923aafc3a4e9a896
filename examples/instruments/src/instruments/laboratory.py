"""The laboratory: instruments behind locks, and badges that open them. It knows nothing of Tenure.

In an own distribution this is whatever controls the real thing: a client of its API. Here it is a file, so that the
example can be tried anywhere.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TABLES = (
    "CREATE TABLE IF NOT EXISTS instrument (id TEXT PRIMARY KEY, name TEXT NOT NULL, kind TEXT NOT NULL,"
    " room TEXT NOT NULL, resolution_nm INTEGER NOT NULL, fault TEXT)",
    "CREATE TABLE IF NOT EXISTS badge (instrument_id TEXT PRIMARY KEY REFERENCES instrument (id),"
    " project TEXT NOT NULL, purpose TEXT NOT NULL)",
)
_FIRST = (
    ("1", "confocal-1", "microscope", "b12", 180, None),
    ("2", "confocal-2", "microscope", "b12", 180, None),
    ("3", "electron-1", "microscope", "cellar", 1, None),
    ("4", "raman-1", "spectrometer", "b14", 500, None),
    ("5", "raman-2", "spectrometer", "b14", 500, None),
)


@dataclass(frozen=True, slots=True)
class Instrument:
    """A thing in a room; ``fault`` says why it cannot be used, None where it can."""

    id: str
    name: str
    kind: str
    room: str
    resolution_nm: int
    fault: str | None


@dataclass(frozen=True, slots=True)
class Badge:
    """Who can open an instrument; ``purpose`` is free text."""

    instrument_id: str
    project: str
    purpose: str


class Taken(Exception):
    """Somebody else can open the instrument; only one may."""


class Laboratory:
    """A laboratory in a file, with five instruments at first; in memory without one. Any thread may ask.

    Raises ``ConnectionError`` while its file cannot be used.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._file = sqlite3.connect(path or ":memory:", timeout=10, check_same_thread=False, isolation_level=None)
        with self._using() as file:
            for table in _TABLES:
                file.execute(table)
            if not file.execute("SELECT 1 FROM instrument").fetchone():
                file.executemany("INSERT INTO instrument VALUES (?, ?, ?, ?, ?, ?)", _FIRST)

    def close(self) -> None:
        self._file.close()

    def instruments(self) -> list[Instrument]:
        with self._using() as file:
            return [Instrument(*row) for row in file.execute("SELECT * FROM instrument ORDER BY id")]

    def badges(self) -> dict[str, Badge]:
        """Who can open what, by the instrument's id."""
        with self._using() as file:
            return {row[0]: Badge(*row) for row in file.execute("SELECT * FROM badge")}

    def give(self, badge: Badge) -> None:
        """Let somebody in. Raises ``Taken``, also where the same project has it for another purpose."""
        with self._using() as file:
            file.execute("INSERT INTO badge VALUES (?, ?, ?) ON CONFLICT DO NOTHING", _row(badge))
            found = file.execute("SELECT * FROM badge WHERE instrument_id = ?", (badge.instrument_id,)).fetchone()
        if Badge(*found) != badge:
            raise Taken(badge.instrument_id)

    def take_back(self, badge: Badge) -> None:
        """Nobody gets in by this badge any more."""
        with self._using() as file:
            file.execute("DELETE FROM badge WHERE (instrument_id, project, purpose) = (?, ?, ?)", _row(badge))

    def report(self, instrument_id: str, fault: str | None) -> None:
        """Somebody says that an instrument is broken, or mended."""
        with self._using() as file:
            file.execute("UPDATE instrument SET fault = ? WHERE id = ?", (fault, instrument_id))

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._file.execute("BEGIN IMMEDIATE")
                try:
                    yield self._file
                except BaseException:
                    self._file.execute("ROLLBACK")
                    raise
                self._file.execute("COMMIT")
            except sqlite3.Error as error:
                raise ConnectionError(f"the laboratory does not answer: {error}") from error


def _row(badge: Badge) -> tuple[str, str, str]:
    return badge.instrument_id, badge.project, badge.purpose
