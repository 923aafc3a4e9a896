"""The standalone service as a process of its own, as a user runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

BIN = Path(sys.executable).parent


@dataclass
class Standalone:
    """A running service: its URL (ending in ``/v1``), its folder, its process."""

    url: str
    data_dir: Path
    process: subprocess.Popen[str]

    def token(self, user: str) -> str:
        users = yaml.safe_load((self.data_dir / "tokens.yaml").read_text())["users"]
        return next(one["token"] for one in users if one["user_name"] == user)

    def environment(self, cloud: str) -> dict[str, str]:
        """The environment of a client that talks to it as ``tenure-admin`` or ``tenure-demo``."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
        return {**kept, "OS_CLIENT_CONFIG_FILE": str(self.data_dir / "clouds.yaml"), "OS_CLOUD": cloud}

    def stop(self) -> int:
        """End it as an operator does; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=30)


def start(
    data_dir: Path, *, hosts: int = 5, command: Sequence[str] = (str(BIN / "tenure-standalone"),), port: int = 0
) -> Standalone:
    """Start a service on a free port and wait until it serves. The caller ends it."""
    log = (data_dir.parent / f"{data_dir.name}.log").open("a")
    process = subprocess.Popen(
        [*command, "--port", str(port), "--data-dir", str(data_dir), "--hosts", str(hosts)],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    log.close()
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    if found is None:
        process.kill()
        process.wait()
        raise AssertionError(f"the service did not start: {Path(log.name).read_text()[-4000:]}")
    return Standalone(found.group(), data_dir, process)


@contextmanager
def standalone(data_dir: Path, *, hosts: int = 5) -> Iterator[Standalone]:
    service = start(data_dir, hosts=hosts)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.kill()
        if service.process.stdout is not None:
            service.process.stdout.close()
