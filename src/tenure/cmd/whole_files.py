"""Files that are written whole or not at all, whenever the process ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the path of a file to make, which takes the place of ``path`` when the block ends without an error.

    The file is beside ``path`` and does not exist yet: what an earlier process left there is removed.
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
