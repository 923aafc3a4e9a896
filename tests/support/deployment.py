"""Tenure as operators run it: managers and APIs in processes of their own, with a message bus."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tenure.store.database import Database
from tests.support import schemas
from tests.support.bus import RABBITMQ_URL
from tests.support.waiting import COMMAND_SECONDS, patience, wait_for

BIN = Path(sys.executable).parent

#: Options by group and name.
Options = Mapping[str, Mapping[str, object]]


class ProcessFailed(AssertionError):
    """A process failed that a test relies on; the text has the end of its log."""


@dataclass
class Program:
    """A process that can be stopped and started again."""

    name: str
    command: Sequence[str | Path]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self.process is None, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(word) for word in self.command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop the process; return its exit code. Raises ``ProcessFailed`` if it does not end."""
        assert self.process is not None, f"{self.name} does not run"
        process, self.process = self.process, None
        process.send_signal(number)
        try:
            return process.wait(patience())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ProcessFailed(f"{self.name} did not end: {self.tail()}") from None

    def kill(self) -> None:
        """Kill the process, as a crash does."""
        self.stop(signal.SIGKILL)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


@dataclass
class Deployment:
    """Managers and APIs on one database and one message bus."""

    folder: Path
    config: Path
    managers: list[Program] = field(default_factory=list)
    apis: list[Program] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    def url(self, number: int = 0) -> str:
        """Return the endpoint of an API, as in the catalogue."""
        return f"http://127.0.0.1:{self.ports[number]}/v1"

    def health(self, number: int = 0) -> int:
        """Return the status of an API's health check, 0 if it does not answer."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.ports[number]}/healthcheck", timeout=patience()
            ) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def wait_until_well(self) -> None:
        """Wait until every API says that everything is well; raise ``ProcessFailed`` if a process has ended."""

        def is_well(number: int) -> bool:
            for program in (*self.managers, self.apis[number]):
                if program.process is not None and not program.is_running:
                    raise ProcessFailed(f"{program.name} has ended: {program.tail()}")
            return self.health(number) == 200

        for number, api in enumerate(self.apis):
            wait_for(
                lambda api=api: f"{api.name} to be well:\n{api.tail()}\n{self.managers[0].tail()}",  # type: ignore[misc]
                partial(is_well, number),
            )

    def logs(self) -> str:
        """Return all logs."""
        return "\n".join(program.log.read_text(errors="replace") for program in (*self.managers, *self.apis))

    def manage(self, *arguments: str) -> str:
        """Return the output of ``tenure-manage``; raise ``CalledProcessError``."""
        command = [str(BIN / "tenure-manage"), "--config-file", str(self.config), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_SECONDS).stdout


@contextmanager
def deploy(
    folder: Path,
    database: str,
    options: Options,
    *,
    managers: int = 1,
    apis: int = 1,
    manager_command: Sequence[str | Path] = (BIN / "tenure-manager",),
) -> Iterator[Deployment]:
    """Run managers and APIs on the database at the URL, with a schema, until the end of the block."""
    db = Database(database)
    schemas.lay_out(db)
    db.close()
    common = {group: dict(values) for group, values in options.items()}
    common.setdefault("database", {})["connection"] = database
    common.setdefault("manager", {}).setdefault("rpc_topic", f"tenure.{folder.name}")
    config = write_config(folder / "tenure.conf", common)
    deployment = Deployment(folder, config)
    with ExitStack() as stack:
        for number in range(managers):
            own = write_config(folder / f"manager-{number}.conf", {"manager": {"name": f"{folder.name}-{number}"}})
            command = [*manager_command, "--config-file", config, "--config-file", own]
            deployment.managers.append(Program(f"manager-{number}", command, folder / f"manager-{number}.log"))
        for number in range(apis):
            deployment.ports.append(free_port())
            own = write_config(folder / f"api-{number}.conf", {"DEFAULT": {"port": deployment.ports[-1]}})
            command = [BIN / "tenure-api", "--config-file", config, "--config-file", own]
            deployment.apis.append(Program(f"api-{number}", command, folder / f"api-{number}.log"))
        for program in (*deployment.managers, *deployment.apis):
            stack.callback(_end, program)
            program.start()
        deployment.wait_until_well()
        yield deployment


def _end(program: Program) -> None:
    if program.process is not None:
        program.stop()


def write_config(path: Path, options: Options) -> Path:
    """Write options as oslo.config reads them; return the path. The file is private: it has passwords."""
    lines = []
    for group, values in options.items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {_text(value)}" for name, value in values.items()]
    path.touch(mode=0o600)
    path.write_text("\n".join(lines) + "\n")
    return path


def _text(value: object) -> str:
    return str(value).replace("$", "$$")


def free_port() -> int:
    """Return a free port of the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def keystone_options(openrc: Mapping[str, str], *, user: str = "tenure", project: str = "service") -> Options:
    """Return the options of a deployment beside the testbed's cloud."""
    account = {
        "auth_url": openrc["OS_AUTH_URL"],
        "username": user,
        "password": openrc["OS_PASSWORD"],
        "project_name": project,
        "user_domain_name": "Default",
        "project_domain_name": "Default",
    }
    return {
        "DEFAULT": {
            "transport_url": RABBITMQ_URL,
            "os_region_name": openrc["OS_REGION_NAME"],
        },
        "service_auth": account,
        "keystone_authtoken": {
            **account,
            "auth_type": "password",
            "www_authenticate_uri": openrc["OS_AUTH_URL"],
            "memcached_servers": "127.0.0.1:11211",
            "service_token_roles_required": "true",
        },
        "oslo_messaging_notifications": {"driver": "messagingv2"},
    }
