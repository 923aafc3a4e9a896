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
#: The external network of the simulated cloud, and two of its addresses that it gives to nobody by itself.
NETWORK = "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0001"
ADDRESSES = ("203.0.113.20", "203.0.113.21")
#: A pool of its storage.
POOL = "sim-storage@fast#nvme"
#: How moments are written in commands.
EXACT = "%Y-%m-%dT%H:%M:%SZ"
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
    step("And two addresses of the external network.")
    for address in ADDRESSES:
        tenure.run(f"floatingip create {NETWORK} {address} -c floating_ip_address -c reservable", cloud=OPERATOR)
    step("And 500 GB of a pool for volumes.")
    tenure.run(f"volume pool create {shlex.quote(POOL)} 500", cloud=OPERATOR)

    book(tenure, pace)
    refuse(tenure, pace, during=moment_of(tenure, "course", "start_date") + timedelta(seconds=3 * pace))

    step("The time comes: the lease starts by itself. Its owner has a flavor to boot instances with, and an address.")
    tenure.run(f"lease wait course --until ACTIVE --wait-timeout {30 * pace}s -c name -c status -c start_date")
    tenure.run("lease reservation list course -c resource_type -c status -c flavor_id")
    tenure.run("lease floatingips course -c floating_ip_address -c status")

    step("The time is over: all is taken back, and the next lease has the hosts that it was promised.")
    tenure.run(f"lease wait course --until TERMINATED --wait-timeout {30 * pace}s -c name -c status -c end_date")
    tenure.run(f"lease wait lunch --until ACTIVE --wait-timeout {30 * pace}s -c name -c status -c start_date")
    tenure.run("lease hosts lunch -c hypervisor_hostname -c vcpus -c status")
    tenure.run("lease history course")
    tenure.run("lease list --sort-by start_date")

    step("Who has which host and which address when (tenure lease hosts LEASE -f json, tenure lease floatingips ...):")
    show("")
    for line in draw(stays_of(tenure), datetime.now(UTC)):
        show(f"  {line}".rstrip())


def book(tenure: CommandLine, pace: int) -> None:
    """Book a thing of each kind."""
    step("Somebody books a course: room for four instances, an address and a volume, in one lease, in a few seconds.")
    tenure.run(
        "lease create course --instances 4 --vcpus 2 --ram 4g --disk 20"
        f" --floating-ips 1 --network {NETWORK} --volumes 1 --size 100 --volume-type fast"
        f" --start +{12 * pace}s --for {10 * pace}s"
        " -c name -c status -c start_date"
    )
    step("Others book as well: the host with the GPU, and two whole hosts from the end of the course on.")
    tenure.run(
        f"lease create training --hosts 1 --with gpu=a100 --start +{12 * pace}s --for {30 * pace}s"
        " -c name -c status -c start_date"
    )
    step("And one server of a flavor, which is to be there for a while: it is shelved before and after.")
    tenure.run(
        f"lease create render --server-flavor 2 --at-end shelve --start +{14 * pace}s --for {20 * pace}s"
        " -c name -c status -c start_date"
    )
    after = moment_of(tenure, "course", "end_date")
    tenure.run(
        f"lease create lunch --hosts 2 --with 'vcpus>=64' --start {after:{EXACT}} --for {12 * pace}s"
        " -c name -c status -c start_date"
    )


def refuse(tenure: CommandLine, pace: int, *, during: datetime) -> None:
    """Ask for what is not there at a time of the course."""
    step("What is not there is not promised, and the answer says why: of six hosts two are taken at that time.")
    tenure.run(f"lease create feast --hosts 5 --start {during:{EXACT}} --for {5 * pace}s", refused=True)
    step("What belongs together is booked together or not at all: the hosts would be there, the second address is not.")
    tenure.run(
        f"lease create tour --hosts 1 --floating-ips 2 --network {NETWORK} --start {during:{EXACT}} --for {5 * pace}s",
        refused=True,
    )
    step("The same at another time is no problem. And a slip of the pen is not taken for a full cloud.")
    tenure.run(f"lease create feast --hosts 5 --start +{60 * pace}s --for {10 * pace}s -c name -c status -c start_date")
    tenure.run("lease create typo --hosts 1 --with gpo=a100 --for 5s", refused=True)


def pace_for(command_seconds: float) -> int:
    """How much slower the story goes on a machine where one command takes so long."""
    return min(12, max(1, round(command_seconds)))


def moment_of(tenure: CommandLine, lease: str, name: str) -> datetime:
    return datetime.fromisoformat(tenure.ask(f"lease show {lease} -c {name}")[name])


# --- the timeline


@dataclass(frozen=True)
class Stay:
    """One host, or one address, with one lease, for a stretch of time."""

    lease: str
    thing: str
    start: datetime
    end: datetime
    status: str


def stays_of(tenure: CommandLine) -> list[Stay]:
    """All of them. Room for instances is on hosts that several share, and is not drawn."""
    found = []
    for lease in tenure.ask("lease list --sort-by start_date -c name"):
        for command, name in (("hosts", "hypervisor_hostname"), ("floatingips", "floating_ip_address")):
            columns = f"-c {name} -c start_date -c end_date -c status"
            found += [
                Stay(
                    lease["name"],
                    row[name],
                    datetime.fromisoformat(row["start_date"]),
                    datetime.fromisoformat(row["end_date"]),
                    row["status"],
                )
                for row in tenure.ask(f"lease {command} {lease['name']} {columns}")
            ]
    return found


def draw(stays: Sequence[Stay], now: datetime) -> Iterator[str]:
    """A line for each host and each address: capitals for what is or was held, small letters for what is planned."""
    first, last = min(stay.start for stay in stays), max(stay.end for stay in stays)
    step_seconds = max(1, -(-(last - first) // timedelta(seconds=COLUMNS)))
    width = -(-(last - first) // timedelta(seconds=step_seconds))

    def column(moment: datetime) -> int:
        return round((moment - first) / timedelta(seconds=step_seconds))

    leases = list(dict.fromkeys(stay.lease for stay in stays))
    letters = dict(zip(leases, "ABCDEFGHIJKLMNOPQRSTUVWXYZ", strict=False))
    things = sorted({stay.thing for stay in stays}, key=lambda thing: (thing[0].isdigit(), thing))
    margin = max(map(len, things))
    for thing in things:
        cells = ["."] * width
        for stay in (known for known in stays if known.thing == thing):
            letter = letters[stay.lease] if stay.status in {"held", "released"} else letters[stay.lease].lower()
            for position in range(column(stay.start), min(width, max(column(stay.end), column(stay.start) + 1))):
                cells[position] = letter
        yield f"{thing:<{margin}}  {''.join(cells)}"
    yield f"{' ' * margin}  {' ' * column(now)}^ now, {now:%H:%M:%S} UTC"
    yield ""
    for lease, letter in letters.items():
        mine = [stay for stay in stays if stay.lease == lease]
        start, stop = min(stay.start for stay in mine), max(stay.end for stay in mine)
        states = ", ".join(sorted({stay.status for stay in mine}))
        yield f"{letter} {lease:<10} {start:%H:%M:%S} to {stop:%H:%M:%S}  {len(mine)}, {states}"
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
