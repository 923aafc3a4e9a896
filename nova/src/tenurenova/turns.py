"""Turns: so many at a time, in all processes of one machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turns:
    """So many turns, which all processes share that name the same folder. Whoever ends gives his back.

    Raises ``OSError`` where the folder cannot be made or is somebody else's.
    """

    def __init__(self, folder: Path, count: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise PermissionError(f"{folder} is another user's")
        self._files = [folder / f"turn-{number}" for number in range(count)]

    @contextmanager
    def take(self) -> Iterator[bool]:
        """A turn until the end of the block; False where none is left, which is not waited for."""
        for file in self._files:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            try:
                yield True
            finally:
                os.close(descriptor)
            return
        yield False
