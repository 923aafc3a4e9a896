"""A file of SQLite that this process has open: whether it is still the file at its path, and the room on its disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path

#: Below this free space nothing new is booked: what has been promised must still be recorded when it begins and ends.
#: On a small disk it is a share of the disk.
RESERVED_BYTES = 64 * 1024 * 1024
RESERVED_SHARE = 0.05


class OpenFile:
    """A database file with its write-ahead log.

    Connections go on working after another program has deleted or replaced the file, but what they write is lost when
    the process ends. The identity of both files is noted while connections are open, and compared by ``lost``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(os.path.realpath(path))  # as SQLite finds it, which is also the place of its log
        self._names = {str(self._path): self._path.name, f"{self._path}-wal": f"{self._path.name}-wal"}
        self._guard = threading.Lock()
        self._connections = 0
        #: Device and inode, by path.
        self._noted: dict[str, tuple[int, int]] = {}

    def opened(self) -> None:
        """Count a new connection."""
        with self._guard:
            self._connections += 1

    def closed(self) -> None:
        """Count the end of a connection. After the last, another program may replace the files: SQLite does it too."""
        with self._guard:
            self._connections -= 1
            if self._connections <= 0:
                self._noted.clear()

    def lost(self) -> str | None:
        """Return why nothing that is written would be kept; None if it would."""
        with self._guard:
            if self._connections <= 0:
                return None
            for path, name in self._names.items():
                try:
                    status = os.stat(path)  # several times in each request: a Path is five times slower
                except OSError:
                    if path in self._noted or name == self._path.name:
                        return f"{name} was deleted while the service uses it"
                    continue
                identity = status.st_dev, status.st_ino
                if self._noted.setdefault(path, identity) != identity:
                    return f"{name} was replaced while the service uses it"
        return None

    def short_of_space(self) -> str | None:
        """Return by how much the disk is too full for new bookings; None if there is room, or it cannot be found."""
        try:
            disk = os.statvfs(self._path.parent)
        except OSError:
            return None
        free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        least = min(RESERVED_BYTES, int(total * RESERVED_SHARE))
        if free >= least:
            return None
        return f"the disk is nearly full: {free // 1024} KiB are free, and {least // 1024} KiB must be"
