"""Turns: so many at a time, in all processes of one machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FolderError(Exception):
    """Turns cannot be counted in their folder; the text says why."""


class Turns:
    """So many turns, which all processes share that name the same folder. Whoever ends gives his back."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count

    @contextmanager
    def take(self) -> Iterator[bool]:
        """A turn until the end of the block; False where none is left, which is not waited for.

        Raises ``FolderError``.
        """
        descriptor = self._lock()
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _lock(self) -> int | None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._folder.stat().st_uid != os.geteuid():
                raise PermissionError(f"{self._folder} is another user's")
            for number in range(self._count):
                file = self._folder / f"turn-{number}"
                descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    os.close(descriptor)
                    if not isinstance(error, BlockingIOError):
                        raise
                else:
                    return descriptor
        except OSError as error:
            raise FolderError(str(error)) from error
        return None
