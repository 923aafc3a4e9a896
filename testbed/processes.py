"""The testbed's processes: started once, found again by later commands, ended together.

A file per process says which pid it has, when that was started, and what it was started with, so that neither a
pid that somebody else got meanwhile nor a change of configuration goes unnoticed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from testbed.places import BIN, HOST, LOG, STATE, say

PIDS = STATE / "pid"

#: Longer than any single command takes on a slow machine with a slow network.
COMMAND_SECONDS = 15 * 60
#: Longer than any process takes until it listens.
LISTEN_SECONDS = 120
#: How long the kernel takes at most to end a process that is killed.
KILL_SECONDS = 10

#: Those that this command has started. They are to outlive it, and Python warns of objects of theirs that do not last.
_CHILDREN: list[subprocess.Popen[bytes]] = []


class TestbedError(Exception):
    """Something that the testbed needs failed; the text says what, and where to look."""

    __test__ = False


@dataclass(frozen=True, kw_only=True)
class Process:
    """What is to run, and as what."""

    name: str
    command: Sequence[object]
    environ: Mapping[str, object] = field(default_factory=dict)
    #: Files that it reads when it starts: another content asks for another process.
    reads: Sequence[Path] = ()
    #: Where it listens, once it is of use.
    port: int | None = None

    @property
    def log(self) -> Path:
        return LOG / f"{self.name}.log"

    def fingerprint(self) -> str:
        """Tell this process from one that would behave otherwise."""
        digest = sha256(repr(([str(word) for word in self.command], sorted(map(str, self.environ.items())))).encode())
        for path in self.reads:
            digest.update(path.read_bytes() if path.exists() else b"-")
        return digest.hexdigest()[:16]


def pid_of(name: str) -> int | None:
    """Return the pid of a process of ours that runs, or None."""
    record = _record(name)
    return record[0] if record else None


def known_names() -> list[str]:
    """Return the names of the processes that were started and not stopped, whether or not they still run."""
    return sorted(path.name for path in PIDS.glob("*"))


def start_all(processes: Iterable[Process]) -> None:
    """Have them run as they are now defined: stop those that are defined otherwise, start those that do not run."""
    wanted = [(process, process.fingerprint()) for process in processes]
    running = {process.name: _record(process.name) for process, _ in wanted}
    changed = [process.name for process, seen in wanted if (record := running[process.name]) and record[1] != seen]
    stop(changed)
    for process, fingerprint in wanted:
        if process.name in changed or running[process.name] is None:
            _start(process, fingerprint)


def _start(process: Process, fingerprint: str) -> None:
    if process.port is not None and _answers(process.port):
        raise TestbedError(f"{process.name}: somebody else listens on {HOST}:{process.port}")
    PIDS.mkdir(parents=True, exist_ok=True)
    LOG.mkdir(parents=True, exist_ok=True)
    environ = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    environ |= {name: str(value) for name, value in process.environ.items()}
    with process.log.open("ab") as log:
        started = subprocess.Popen(
            [str(word) for word in process.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=environ,
        )
    _CHILDREN.append(started)
    try:
        since = _start_time(started.pid)
    except OSError:
        since = "ended"  # as is told to who waits for it
    (PIDS / process.name).write_text(f"{started.pid} {since} {fingerprint}")


def wait_until_listening(processes: Iterable[Process]) -> None:
    """Return when those do that have a port; raises ``TestbedError`` if one ends or takes too long."""
    deadline = time.monotonic() + LISTEN_SECONDS
    for process in processes:
        while process.port is not None and not _answers(process.port):
            if pid_of(process.name) is None:
                raise TestbedError(f"{process.name} ended early: see {process.log}")
            if time.monotonic() > deadline:
                raise TestbedError(f"{process.name} does not listen on port {process.port}: see {process.log}")
            time.sleep(0.2)


def stop(names: Iterable[str], *, grace_seconds: float = 15) -> None:
    """End these processes together; those that linger, and what they started, by force."""
    running = {name: pid for name in names if (pid := pid_of(name)) is not None}
    if running:
        say("stop", *running)
    for pid in running.values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    for pid in _lingering(running, grace_seconds):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    _lingering(running, KILL_SECONDS)
    for child in _CHILDREN:
        child.poll()
    for name in names:
        (PIDS / name).unlink(missing_ok=True)


def _lingering(running: Mapping[str, int], seconds: float) -> list[int]:
    """Wait for the end of these processes, and return those that have not ended by then."""
    deadline = time.monotonic() + seconds
    while any(map(pid_of, running)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [pid for name, pid in running.items() if pid_of(name) is not None]


def run(*command: object, log: str, environ: Mapping[str, str] | None = None) -> None:
    """Run a command that must succeed; its output goes to ``<log>.log``. Raises ``TestbedError``."""
    LOG.mkdir(parents=True, exist_ok=True)
    words = [str(word) for word in command]
    path = LOG / f"{log}.log"
    with path.open("ab") as output:
        output.write(f"\n$ {' '.join(words)}\n".encode())
        output.flush()
        try:
            subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | (environ or {}),
                timeout=COMMAND_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise TestbedError(f"{error}: see {path}") from error


def memory_mib(pid: int) -> int:
    """Return the memory of a process and of all below it, in MiB; what several share is counted in parts."""
    total, waiting = 0, [pid]
    while waiting:
        pid = waiting.pop()
        folder = Path(f"/proc/{pid}")
        try:
            lines = (folder / "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            for task in (folder / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:
            continue  # it ended meanwhile
    return total // 1024


def _record(name: str) -> tuple[int, str] | None:
    """The pid and the fingerprint of a process of ours that runs."""
    try:
        pid, started, fingerprint = (PIDS / name).read_text().split()
        if _start_time(int(pid)) == started:
            return int(pid), fingerprint
    except (OSError, ValueError):
        pass
    return None


def _start_time(pid: int) -> str:
    """When a process was started, in ticks since boot. Raises ``OSError`` if it runs no more."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] == "Z":
        raise OSError("a zombie")
    return fields[19]


def _answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), 1).close()
    except OSError:
        return False
    return True
