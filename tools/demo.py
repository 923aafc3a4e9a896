"""``make demo``: a small cloud of its own, booked with the real command line, from the first lease to a timeline.

Starts ``tenure-standalone`` on a free port with a folder of its own, and removes both at the end, however that comes.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

BIN = Path(sys.executable).parent
HOSTS = 6
#: How long one command may take at most, waits included.
COMMAND_SECONDS = 180
START_SECONDS = 30
#: How many characters of the timeline stand for its length at most.
COLUMNS = 72
USER, OPERATOR = "tenure-demo", "tenure-admin"


class DemoFailed(Exception):
    """Something went otherwise than it should; the text says what."""


# --- the service


def clean_environment() -> dict[str, str]:
    """The environment without what would lead the clients to another cloud."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    return {**kept, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "PYTHONUNBUFFERED": "1"}


@contextmanager
def running_service(folder: Path) -> Iterator[Path]:
    """A service with its data below ``folder``; the file in which clients find it. Ends with the block."""
    data = folder / "data"
    command = ["tenure-standalone", "--port", "0", "--hosts", str(HOSTS), "--data-dir", str(data)]
    show(f"$ {shlex.join(command)} &")
    with (folder / "service.log").open("wb") as log:
        service = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=clean_environment(),
            start_new_session=True,  # Ctrl-C is ours to handle
        )
    try:
        show(first_line(service))
        yield data / "clouds.yaml"
    finally:
        end(service)


def first_line(service: subprocess.Popen[bytes]) -> str:
    """What the service says as soon as it serves."""
    assert service.stdout is not None
    said, until = b"", time.monotonic() + START_SECONDS
    while b"\n" not in said:
        ready, _, _ = select.select([service.stdout], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise DemoFailed(f"the service did not start within {START_SECONDS} s")
        part = os.read(service.stdout.fileno(), 4096)
        if not part:
            raise DemoFailed(f"the service ended with exit code {service.wait(10)} before it served")
        said += part
    line = said.decode().splitlines()[0]
    if not line.startswith("Tenure serves "):
        raise DemoFailed(f"the service said: {line}")
    return line


def end(service: subprocess.Popen[bytes]) -> None:
    """End our service, and nothing else."""
    service.terminate()
    try:
        service.wait(15)
    except subprocess.TimeoutExpired:
        service.kill()
        service.wait()


# --- the command line


class CommandLine:
    """Runs ``tenure`` as a user does, and shows what was typed and what came."""

    def __init__(self, clouds: Path) -> None:
        self._environment = {**clean_environment(), "OS_CLIENT_CONFIG_FILE": str(clouds)}

    def run(self, line: str, *, cloud: str = USER, refused: bool = False) -> None:
        """Run a command and let it print; ``refused`` where it has to fail."""
        prefix = "" if cloud == USER else f"OS_CLOUD={cloud} "
        show(f"\n$ {prefix}tenure {line}")
        code = self._start(line, cloud, capture=False).returncode
        if code != (1 if refused else 0):
            raise DemoFailed(f"tenure {line}: exit code {code}")

    def ask(self, line: str, *, cloud: str = USER) -> Any:
        """What a command answers as JSON, without showing it."""
        done = self._start(f"{line} -f json", cloud, capture=True)
        if done.returncode:
            raise DemoFailed(f"tenure {line}: exit code {done.returncode}\n{done.stderr}")
        return json.loads(done.stdout)

    def _start(self, line: str, cloud: str, *, capture: bool) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [str(BIN / "tenure"), *shlex.split(line)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if capture else None,
                stderr=subprocess.PIPE if capture else subprocess.STDOUT,
                env={**self._environment, "OS_CLOUD": cloud},
                text=True,
                timeout=COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"tenure {line}: not done after {COMMAND_SECONDS} s") from None


# --- the story


def play(tenure: CommandLine) -> None:
    step("The operator has six hosts that can be reserved, one of them with a GPU.")
    began = time.monotonic()
    tenure.run("host list -c hypervisor_hostname -c vcpus -c memory_mb -c properties", cloud=OPERATOR)
    pace = pace_for(time.monotonic() - began)

    step("Somebody books two of them, from in a few seconds on.")
    tenure.run(
        f"lease create breakfast --hosts 2 --with 'vcpus>=64' --start +{6 * pace}s --for {8 * pace}s"
        " -c name -c status -c start_date"
    )
    tenure.run("lease hosts breakfast -c hypervisor_hostname -c vcpus -c status")

    step("Others book as well: the host with the GPU, and two hosts from the end of breakfast on.")
    tenure.run(
        f"lease create training --hosts 1 --with gpu=a100 --start +{7 * pace}s --for {30 * pace}s"
        " -c name -c status -c start_date"
    )
    after = end_of(tenure, "breakfast")
    tenure.run(
        f"lease create lunch --hosts 2 --with 'vcpus>=64' --start {after:%Y-%m-%dT%H:%M:%SZ} --for {12 * pace}s"
        " -c name -c status -c start_date"
    )

    step("What is not there is not promised, and the answer says why: three of six are taken at that time.")
    tenure.run(f"lease create feast --hosts 5 --start +{7 * pace}s --for {5 * pace}s", refused=True)
    step("The same at another time is no problem. And a slip of the pen is not taken for a full cloud.")
    tenure.run(f"lease create feast --hosts 5 --start +{40 * pace}s --for {10 * pace}s -c name -c status -c start_date")
    tenure.run("lease create typo --hosts 1 --with gpo=a100 --for 5s", refused=True)

    step("The time comes: the lease starts by itself, and its owner has the hosts.")
    tenure.run(f"lease wait breakfast --until ACTIVE --wait-timeout {30 * pace}s -c name -c status -c start_date")
    tenure.run("lease hosts breakfast -c hypervisor_hostname -c vcpus -c status")

    step("The time is over: the hosts are taken back, and the next lease has what it was promised.")
    tenure.run(f"lease wait breakfast --until TERMINATED --wait-timeout {30 * pace}s -c name -c status -c end_date")
    tenure.run(f"lease wait lunch --until ACTIVE --wait-timeout {30 * pace}s -c name -c status -c start_date")
    tenure.run("lease history breakfast")
    tenure.run("lease list --sort-by start_date")

    step("Who has which host when, drawn from the allocations (tenure lease hosts LEASE -f json):")
    show("")
    for line in draw(stays_of(tenure), datetime.now(UTC)):
        show(f"  {line}".rstrip())


def pace_for(command_seconds: float) -> int:
    """How much slower the story goes on a machine where one command takes so long."""
    return min(5, max(1, round(command_seconds)))


def end_of(tenure: CommandLine, lease: str) -> datetime:
    return datetime.fromisoformat(tenure.ask(f"lease show {lease} -c end_date")["end_date"])


# --- the timeline


@dataclass(frozen=True)
class Stay:
    """One host with one lease, for a stretch of time."""

    lease: str
    host: str
    start: datetime
    end: datetime
    status: str


def stays_of(tenure: CommandLine) -> list[Stay]:
    columns = "-c hypervisor_hostname -c start_date -c end_date -c status"
    return [
        Stay(
            lease["name"],
            host["hypervisor_hostname"],
            datetime.fromisoformat(host["start_date"]),
            datetime.fromisoformat(host["end_date"]),
            host["status"],
        )
        for lease in tenure.ask("lease list --sort-by start_date -c name")
        for host in tenure.ask(f"lease hosts {lease['name']} {columns}")
    ]


def draw(stays: Sequence[Stay], now: datetime) -> Iterator[str]:
    """A line for each host: capitals for what is or was held, small letters for what is planned."""
    first, last = min(stay.start for stay in stays), max(stay.end for stay in stays)
    step_seconds = max(1, -(-(last - first) // timedelta(seconds=COLUMNS)))
    width = -(-(last - first) // timedelta(seconds=step_seconds))

    def column(moment: datetime) -> int:
        return round((moment - first) / timedelta(seconds=step_seconds))

    leases = list(dict.fromkeys(stay.lease for stay in stays))
    letters = dict(zip(leases, "ABCDEFGHIJKLMNOPQRSTUVWXYZ", strict=False))
    for host in sorted({stay.host for stay in stays}):
        cells = ["."] * width
        for stay in (one for one in stays if one.host == host):
            letter = letters[stay.lease] if stay.status in {"held", "released"} else letters[stay.lease].lower()
            for position in range(column(stay.start), min(width, max(column(stay.end), column(stay.start) + 1))):
                cells[position] = letter
        yield f"{host}  {''.join(cells)}"
    margin = " " * len(max((stay.host for stay in stays), key=len))
    yield f"{margin}  {' ' * column(now)}^ now, {now:%H:%M:%S} UTC"
    yield ""
    for lease, letter in letters.items():
        mine = [stay for stay in stays if stay.lease == lease]
        start, stop = min(stay.start for stay in mine), max(stay.end for stay in mine)
        states = ", ".join(sorted({stay.status for stay in mine}))
        yield f"{letter} {lease:<10} {start:%H:%M:%S} to {stop:%H:%M:%S}  hosts: {len(mine)}, {states}"
    yield f"1 character is {step_seconds} s; capitals: held or given back, small letters: planned"


# --- around it


def show(text: str) -> None:
    print(text, flush=True)


def step(text: str) -> None:
    show(f"\n# {text}")


def stop(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def tell(problem: str, log: Path) -> None:
    """Say what went wrong, with the end of the service's log."""
    print(f"\nThe demo failed: {problem}", file=sys.stderr)
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    print("\n".join(["The log of the service ends with:", *lines[-40:]]), file=sys.stderr, flush=True)


def main() -> int:
    """Play it; the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="tenure-demo-"))
    try:
        step("A cloud of six simulated hosts, and Tenure before it, in one process:")
        with running_service(folder) as clouds:
            show(f"$ export OS_CLIENT_CONFIG_FILE={clouds} OS_CLOUD={USER}")
            play(CommandLine(clouds))
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    except (DemoFailed, OSError) as problem:
        tell(str(problem), folder / "service.log")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(f"\nThat took {time.monotonic() - began:.0f} s. Nothing is left behind. To try it yourself: make run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
