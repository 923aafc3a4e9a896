"""The standalone service in its own process, as a user runs it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.support.forking import Forked
from tests.support.waiting import patience, wait_for

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Caller:
    """A client over plain HTTP that shares no code with ours."""

    port: int
    token: str
    version: str = "1.1"

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return the status and the document of an answer; raise ``OSError`` or ``HTTPException`` if there is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience())
        headers = {"X-Auth-Token": self.token, "OpenStack-API-Version": f"reservation {self.version}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, f"/v1{path}", None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def book(
        self,
        hosts: int = 1,
        *,
        seconds: float,
        delay: float = 0.0,
        notice: float | None = None,
        before_end: str = "snapshot",
        others: Sequence[Mapping[str, object]] = (),
    ) -> tuple[int, Any]:
        """Request a lease that starts ``delay`` seconds from now; ``before_end`` comes ``notice`` seconds from now.

        It has this number of hosts, if any, and the reservations ``others``. Returns the status, and the lease or the
        refusal.
        """
        now = datetime.now(UTC)
        whole = [{"resource_type": "physical:host", "min": hosts, "max": hosts, "before_end": before_end}]
        body: dict[str, object] = {
            "name": "lease",
            "start_date": rfc3339(now + timedelta(seconds=delay)) if delay else "now",
            "end_date": rfc3339(now + timedelta(seconds=delay + seconds)),
            "reservations": [*(whole if hosts else []), *others],
        }
        if notice is not None:
            body["before_end_date"] = rfc3339(now + timedelta(seconds=notice))
        status, answer = self.call("POST", "/leases", body)
        return status, answer["lease"] if status == 201 else answer

    def lease(self, lease_id: str) -> Any:
        status, answer = self.call("GET", f"/leases/{lease_id}")
        assert status == 200, answer
        return answer["lease"]

    def wait_for_status(self, lease_id: str, *requested: str) -> Any:
        """Wait until the lease has one of these statuses, and return it."""

        def settled() -> Any:
            lease = self.lease(lease_id)
            return lease if lease["status"] in requested else None

        return wait_for(lambda: f"{' or '.join(requested)} of {self.lease(lease_id)}", settled)


def rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def log_of(data_dir: Path) -> Path:
    return data_dir.parent / f"{data_dir.name}.log"


@dataclass
class Standalone:
    """A running service: its URL (ending in ``/v1``), its folder, its process."""

    url: str
    data_dir: Path
    process: subprocess.Popen[str] | Forked

    def token(self, user: str) -> str:
        users = yaml.safe_load((self.data_dir / "tokens.yaml").read_text())["users"]
        return next(account["token"] for account in users if account["user_name"] == user)

    def environment(self, cloud: str) -> dict[str, str]:
        """Return the environment of a client that authenticates as ``tenure-admin`` or ``tenure-demo``."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
        return {**kept, "OS_CLIENT_CONFIG_FILE": str(self.data_dir / "clouds.yaml"), "OS_CLOUD": cloud}

    def caller(self, user: str = "demo", version: str = "1.1") -> Caller:
        """Return a client of the service."""
        port = urlsplit(self.url).port
        assert port is not None
        return Caller(port, self.token(user), version)

    @property
    def log(self) -> str:
        """Return the log of all its processes."""
        return log_of(self.data_dir).read_text()

    def stop(self) -> int:
        """Stop it as an operator does; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait for its end; return the exit code."""
        code = self.process.wait(timeout=patience())
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.ended()


def launch(
    data_dir: Path,
    *,
    hosts: int = 5,
    program: Sequence[str] = ("tenure-standalone",),
    command: Sequence[str] | None = None,
    port: int = 0,
    regions: Sequence[str] = (),
) -> subprocess.Popen[str] | Forked:
    """Start a process without waiting: the program with its first arguments, forked, or a command as it is."""
    more = ["--regions", ",".join(regions)] if regions else []
    arguments = ["--port", str(port), "--data-dir", str(data_dir), "--hosts", str(hosts), *more]
    if command is None:
        return Forked(program[0], [*program[1:], *arguments], env=os.environ, stderr=log_of(data_dir))
    with log_of(data_dir).open("a") as log:
        return subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=log, text=True)


def start(
    data_dir: Path,
    *,
    hosts: int = 5,
    program: Sequence[str] = ("tenure-standalone",),
    command: Sequence[str] | None = None,
    port: int = 0,
    regions: Sequence[str] = (),
) -> Standalone:
    """Start a service on a free port and wait until it serves. The caller ends it."""
    process = launch(data_dir, hosts=hosts, program=program, command=command, port=port, regions=regions)
    assert process.stdout is not None
    limit = threading.Timer(patience(), process.kill)
    limit.start()
    line = process.stdout.readline()
    limit.cancel()
    found = re.search(r"http://\S+", line)
    if found is None:
        process.kill()
        process.wait()
        process.stdout.close()
        raise AssertionError(f"the service did not start: {log_of(data_dir).read_text()[-4000:]}")
    return Standalone(found.group(), data_dir, process)


@contextmanager
def standalone(data_dir: Path, *, hosts: int = 5, regions: Sequence[str] = ()) -> Iterator[Standalone]:
    service = start(data_dir, hosts=hosts, regions=regions)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.kill()
