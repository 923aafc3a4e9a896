"""The units of systemd, run by systemd: they permit a process all that it needs, and no more.

systemd boots in a container of its own, from the programs of this machine and a folder for everything else. What the
operators' guide has typed is typed there. Nova and Keystone are small ones on loopback.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conftest import FreshDatabase
from tests.support.cloud import REPOSITORY
from tests.support.commands import run_to_end
from tests.support.deployment import write_config
from tests.support.installed import Installed, install, need_packages
from tests.support.openstack import Seen
from tests.support.surroundings import Surroundings, open_surroundings
from tests.support.waiting import patience, wait_for

pytestmark = [pytest.mark.long, pytest.mark.postgresql]

UNITS = ("tenure-manager", "tenure-api")
#: What systemd needs in a folder that it takes for a machine.
FOLDERS = (
    "dev",
    "etc/systemd/system",
    "etc/systemd/system-preset",
    "etc/tenure",
    "home",
    "opt/tenure",
    "proc",
    "root",
    "run",
    "srv/units",
    "sys",
    "tmp",
    "usr",
    "var/log/journal",
)
LINKS = ("bin", "lib", "lib64", "sbin")


@dataclass(frozen=True)
class Machine:
    """A container with systemd in it."""

    root: Path
    leader: int

    def type(self, *words: str) -> str:
        """What a command prints that root types there; raises ``AssertionError`` with that where it fails."""
        code, said = self.try_to(*words)
        assert code == 0, f"{' '.join(words)}: {said}"
        return said

    def try_to(self, *words: str, process: int | None = None) -> tuple[int, str]:
        """The exit code of a command and what it prints; as a process there sees the file system, if one is given."""
        inside = ["nsenter", f"--target={self.leader}", "--mount", "--uts", "--ipc", "--pid", "--cgroup"]
        if process is not None:
            inside += ["nsenter", f"--target={process}", "--mount"]
        done = run_to_end([*inside, "env", "-i", "PATH=/opt/tenure/bin:/usr/sbin:/usr/bin:/sbin:/bin", *words])
        return done.returncode, done.stdout

    def show(self, unit: str, name: str) -> str:
        """A property of a unit, as systemd has it."""
        return self.type("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def process(self, unit: str) -> int:
        """The main process of a unit, as it is numbered there."""
        return int(self.show(unit, "MainPID"))

    def status(self, unit: str) -> dict[str, str]:
        """What the kernel says of the main process of a unit."""
        lines = self.type("cat", f"/proc/{self.process(unit)}/status").splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def journal(self) -> str:
        return self.type("journalctl", "--no-pager", "--output=cat", *(f"--unit={unit}" for unit in UNITS))


@contextmanager
def booted(folder: Path, installed: Installed) -> Iterator[Machine]:
    """A machine that has booted, until the end of the block. It has the network of this one."""
    root = folder / "machine"
    for name in FOLDERS:
        (root / name).mkdir(parents=True)
    for name in LINKS:
        if Path("/", name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    shutil.copy("/usr/lib/os-release", root / "etc")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (root / "etc" / "group").write_text("root:x:0:\n")
    (root / "etc" / "machine-id").write_text(f"{uuid4().hex}\n")  # else it would ask who it is at its first boot
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    (root / "etc" / "systemd" / "system-preset" / "00-none.preset").write_text("disable *\n")
    name = f"tenure-{uuid4().hex[:8]}"
    log = folder / "boot.log"
    command = ["systemd-nspawn", f"--directory={root}", f"--machine={name}", "--register=no", "--keep-unit"]
    command += ["--bind-ro=/usr", f"--bind-ro={installed.opt / 'tenure'}:/opt/tenure", "--boot"]
    with log.open("wb") as output:
        container = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def has_booted() -> Machine | None:
        assert container.poll() is None, log.read_text(errors="replace")
        # At first it is another process, which prepares the machine.
        children = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()
        machine = Machine(root, int(children[0]) if children else container.pid)
        said = machine.try_to("systemctl", "is-system-running")[1] if children else ""
        return machine if said.strip() in {"running", "degraded"} else None

    try:
        yield wait_for(lambda: f"systemd to boot: {log.read_text(errors='replace')[-4000:]}", has_booted)
    finally:
        container.send_signal(signal.SIGTERM)  # which shuts the machine down
        try:
            container.wait(patience())
        finally:
            container.kill()
            container.wait()
            with suppress(OSError):
                Path("/run/systemd/nspawn/propagate", name).rmdir()


@dataclass(frozen=True)
class Served:
    """Tenure in its units, and what is around it."""

    machine: Machine
    around: Surroundings


@pytest.fixture(scope="module")
def served(
    message_bus: str, fresh_database: FreshDatabase, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    need_packages({"systemd-nspawn": "systemd-container"})
    folder = tmp_path_factory.mktemp("units")
    (folder / "installed").mkdir()
    installed = install(folder / "installed")
    with open_surroundings(message_bus, fresh_database) as around, booted(folder, installed) as machine:
        write_config(machine.root / "etc" / "tenure.conf", around.options)
        for name in ("tenure.sysusers", "tenure.tmpfiles", *(f"{unit}.service" for unit in UNITS)):
            shutil.copy(REPOSITORY / "deploy" / "systemd" / name, machine.root / "srv" / "units")
        machine.type("bash", "-ec", FOLLOW)
        served = Served(machine, around)
        wait_for(lambda: f"Tenure to be well: {machine.journal()[-4000:]}", served.around.is_well)
        yield served


#: What the guide has typed.
FOLLOW = """
cd /srv/units
install -D -m 0644 tenure.sysusers /etc/sysusers.d/tenure.conf
install -D -m 0644 tenure.tmpfiles /etc/tmpfiles.d/tenure.conf
systemd-sysusers tenure.conf
systemd-tmpfiles --create tenure.conf
mv /etc/tenure.conf /etc/tenure/tenure.conf
chown root:tenure /etc/tenure/tenure.conf
chmod 0640 /etc/tenure/tenure.conf
tenure-manage db upgrade
tenure-status upgrade check
install -m 0644 tenure-api.service tenure-manager.service /etc/systemd/system/
systemctl daemon-reload
systemctl enable --now tenure-manager tenure-api
"""


def test_a_lease_lives_and_ends_in_the_sandbox(served: Served):
    """Logins, the bus, the database and the cloud all work under the filters of system calls and addresses."""
    admin, owner = served.around.caller("admin", "member", "reader"), served.around.caller("member", "reader")
    status, answer = admin.call("POST", "/os-hosts", {"name": "node-1.lab"})
    assert status == 201, answer
    status, lease = owner.book(1, seconds=600)
    assert status == 201, lease
    assert owner.wait_for_status(lease["id"], "ACTIVE", "ERROR")["status"] == "ACTIVE"
    group = served.around.cloud.aggregate(lease["reservations"][0]["id"])
    assert group is not None
    assert len(group.hosts) == 1
    assert owner.call("DELETE", f"/leases/{lease['id']}")[0] == 204
    wait_for("the end of the lease", lambda: owner.call("GET", f"/leases/{lease['id']}")[0] == 404)
    journal = served.machine.journal()
    assert "Traceback" not in journal
    assert "not permitted" not in journal


@pytest.mark.parametrize("unit", UNITS)
def test_a_process_has_no_rights(served: Served, unit: str):
    status = served.machine.status(unit)
    assert {int(number) for number in status["Uid"].split()} == {int(served.machine.type("id", "-u", "tenure"))}
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


@pytest.mark.parametrize("unit", UNITS)
def test_a_process_sees_little_and_writes_nothing(served: Served, unit: str):
    """Asked as root, for whom no permission of a file counts."""
    machine, process = served.machine, served.machine.process(unit)
    for folder in ("/etc", "/etc/tenure", "/opt/tenure", "/srv", "/usr", "/var/log"):
        code, said = machine.try_to("touch", f"{folder}/written", process=process)
        assert (code, "Read-only file system" in said) == (1, True), f"{folder}: {said}"
    home = Path("/", "root", "of-others")
    machine.type("touch", "/tmp/of-others", str(home))
    assert machine.try_to("ls", "/tmp", process=process) == (0, "")
    assert machine.try_to("cat", str(home), process=process)[0] != 0
    devices = machine.try_to("ls", "/dev", process=process)[1].split()
    assert "null" in devices
    assert not {"console", "kmsg", "mem", "vda"} & set(devices)


@pytest.mark.parametrize("unit", UNITS)
def test_a_process_that_dies_is_there_again(served: Served, unit: str):
    machine, before = served.machine, served.machine.process(unit)
    machine.type("kill", "-KILL", str(before))
    wait_for(f"{unit} to be there again", lambda: machine.process(unit) not in {0, before})
    assert machine.show(unit, "NRestarts") == "1"
    wait_for(lambda: f"Tenure to be well: {machine.journal()[-4000:]}", served.around.is_well)


def test_a_stop_waits_for_requests(served: Served):
    """Nova takes its time while a host is registered; the API and the manager are stopped meanwhile."""
    machine, admin = served.machine, served.around.caller("admin", "member", "reader")
    arrived, proceed = threading.Event(), threading.Event()

    def hold(seen: Seen) -> None:
        if seen.service == "compute":
            arrived.set()
            proceed.wait(patience())

    served.around.cloud.observe = hold
    with ThreadPoolExecutor(2) as threads:
        answer = threads.submit(admin.call, "POST", "/os-hosts", {"name": "node-2.lab"})
        assert arrived.wait(patience())
        stop = threads.submit(machine.type, "systemctl", "stop", *UNITS)
        for unit in UNITS:
            wait_for(f"{unit} to stop", lambda unit=unit: machine.show(unit, "ActiveState") == "deactivating")  # type: ignore[misc]
        proceed.set()
        assert answer.result(patience())[0] == 201
        stop.result(patience())
    for unit in UNITS:
        ended = tuple(machine.show(unit, name) for name in ("ActiveState", "Result", "ExecMainStatus"))
        assert ended == ("inactive", "success", "0"), machine.journal()[-4000:]
