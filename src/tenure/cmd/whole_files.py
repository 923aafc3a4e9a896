"""Writing files atomically: whole or not at all, even if the process is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file; it replaces ``path`` when the block ends without an error.

    The temporary file is in the folder of ``path`` and does not exist yet: leftovers of earlier processes are removed.
    """
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    try:
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
