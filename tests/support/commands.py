"""Programs that a test runs to their end, and the formats of clients' commands."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.support.waiting import COMMAND_SECONDS


def run_to_end(
    command: Sequence[str | Path],
    *,
    seconds: float = COMMAND_SECONDS,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program that gets no input; ``stdout`` of the result has both its output and its errors."""
    return subprocess.run(
        [*map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        cwd=cwd,
        env=env,
        check=False,
    )


def output_of(command: Sequence[str | Path], *, seconds: float = COMMAND_SECONDS, cwd: Path | str | None = None) -> str:
    """Return the output of a program. Raises ``AssertionError`` with the end of it where the program fails."""
    done = run_to_end(command, seconds=seconds, cwd=cwd)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout[-4000:]}"
    return done.stdout


def document(text: str) -> Any:
    """Return the JSON in a command's output; python-blazarclient may print a sentence before it."""
    return json.loads(text[min(text.find(mark) for mark in "{[" if mark in text) :])


def in_minutes(minutes: int) -> str:
    """Return a time this number of minutes from now, in python-blazarclient's format."""
    return f"{datetime.now(UTC) + timedelta(minutes=minutes):%Y-%m-%d %H:%M}"
