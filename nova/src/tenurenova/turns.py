"""A limit on concurrent work, over all processes of one machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FolderError(Exception):
    """The folder for the lock files is unusable; the text says why."""


class Turns:
    """A number of turns, shared by all processes that name the same folder. A process that ends frees its turns."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count

    @contextmanager
    def take(self) -> Iterator[bool]:
        """Take a turn until the end of the block; yield False, without waiting, if none is free.

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
            for turn in range(self._count):
                file = self._folder / f"turn-{turn}"
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
