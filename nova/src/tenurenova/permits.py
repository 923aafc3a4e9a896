"""A limit on concurrent work, over all processes of one machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

#: Projects share the files of so many groups, so that the folder does not grow with their number.
GROUPS = 64


class FolderError(Exception):
    """The folder for the lock files is unusable; the text says why."""


class Permits:
    """A number of permits, shared by all processes that name the same folder. A process that ends frees its permits.

    A project has at most half of them, and one in any case. Projects whose ids fall into the same group share its part.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count

    @contextmanager
    def take(self, project_id: str) -> Iterator[bool]:
        """Take a permit for a project until the end of the block; yield False, without waiting, if none is free.

        Raises ``FolderError``.
        """
        group = crc32(project_id.encode("utf-8", "replace")) % GROUPS
        own = shared = None
        try:
            own = self._lock(f"project-{group}", max(1, self._count // 2))
            if own is not None:
                shared = self._lock("permit", self._count)
            yield shared is not None
        finally:
            for descriptor in (shared, own):
                if descriptor is not None:
                    os.close(descriptor)

    def _lock(self, name: str, count: int) -> int | None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._folder.stat().st_uid != os.geteuid():
                raise PermissionError(f"{self._folder} is another user's")
            for permit in range(count):
                file = self._folder / f"{name}-{permit}"
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
