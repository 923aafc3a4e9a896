"""The container file: the image is built as its first lines say, and the API, the manager and the tools run in it.

The image of Python that it begins with is made of Debian's packages, since no registry is asked.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

import pytest

from testbed.places import CACHE
from tests.conftest import FreshDatabase
from tests.support.cloud import REPOSITORY
from tests.support.commands import output_of, run_to_end
from tests.support.deployment import Program, write_config
from tests.support.installed import copy_checkout, need_packages
from tests.support.surroundings import Surroundings, open_surroundings
from tests.support.waiting import COMMAND_SECONDS, wait_for

pytestmark = [pytest.mark.long, pytest.mark.postgresql]

CONTAINERFILE = REPOSITORY / "deploy" / "Containerfile"
#: crun takes no machine with both kinds of cgroups.
RUNTIME = ("--runtime", "runc")
#: The user that the file says.
USER = 42475
#: To build the image takes longer than other commands: packages are fetched.
BUILD_SECONDS = 4 * COMMAND_SECONDS

PACKAGES = ("python3", "python3-venv", "python-is-python3", "ca-certificates")
#: The authorities of this machine are those of the image as well: there may be a proxy between it and PyPI.
HOOK = """
cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"
printf '[global]\\ncert = /etc/ssl/certs/ca-certificates.crt\\n' >"$1/etc/pip.conf"
"""


def run(*words: str | Path, seconds: float = COMMAND_SECONDS) -> str:
    """What a command prints; raises ``AssertionError`` with that where it fails."""
    return output_of(words, seconds=seconds, cwd="/")


@dataclass(frozen=True)
class Podman:
    """Podman with a store of its own, that needs nothing of the kernel but what chroot needs."""

    store: Path

    def command(self, *words: str | Path) -> list[str | Path]:
        folders: list[str | Path] = ["--root", self.store / "root", "--runroot", self.store / "run"]
        folders += ["--tmpdir", self.store / "tmp"]
        return ["podman", *folders, "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", *RUNTIME, *words]

    def run(self, *words: str | Path, seconds: float = COMMAND_SECONDS) -> str:
        return run(*self.command(*words), seconds=seconds)


def python_image() -> Path:
    """An archive of Debian with Python, made once on a machine."""
    image = CACHE / "debian-bookworm-python.tar"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not image.exists():
            made = image.with_suffix(".new.tar")
            included = f"--include={','.join(PACKAGES)}"
            options = ["--quiet", "--variant=minbase", included, f"--customize-hook={HOOK}"]
            run("mmdebstrap", *options, "bookworm", made, seconds=BUILD_SECONDS)
            made.rename(image)
    return image


@dataclass(frozen=True)
class Image:
    """The image, and how it is run."""

    podman: Podman
    around: Surroundings
    config: Path

    def command(self, *words: str, options: tuple[str, ...] = ()) -> list[str | Path]:
        """As the first lines of the file say, but on the network of this machine, and with small limits."""
        mounted = ["-v", f"{self.config}:/etc/tenure:ro"]
        # So that a machine runs them that does not let limits be raised.
        kept = ["--network", "host", "--ulimit", "nofile=10000:10000", "--ulimit", "nproc=4096:4096"]
        return self.podman.command("run", "--rm", *kept, *mounted, *options, "tenure", *words)

    def run(self, *words: str) -> str:
        return run(*self.command(*words))


@pytest.fixture(scope="module")
def image(message_bus: str, fresh_database: FreshDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    need_packages({"podman": "podman", "runc": "runc", "mmdebstrap": "mmdebstrap"})
    folder = tmp_path_factory.mktemp("container")
    [base] = {line.split()[1] for line in CONTAINERFILE.read_text().splitlines() if line.startswith("FROM ")}
    checkout = folder / "checkout"
    copy_checkout(checkout)
    with ExitStack() as stack:
        # Podman takes no long path.
        podman = Podman(Path(stack.enter_context(TemporaryDirectory(prefix="tenure-podman-", dir="/tmp"))))
        stack.callback(forget, podman)
        podman.run("import", "--quiet", python_image(), base)
        # Each layer would be a copy of the whole.
        build = ["build", "--isolation", "chroot", "--network", "host", "--pull=never", "--layers=false"]
        podman.run(*build, "-f", checkout / "deploy/Containerfile", "-t", "tenure", checkout, seconds=BUILD_SECONDS)
        around = stack.enter_context(open_surroundings(message_bus, fresh_database))
        config = folder / "etc"
        config.mkdir(mode=0o755)
        shutil.chown(write_config(config / "tenure.conf", around.options), USER, USER)
        yield Image(podman, around, config)


def forget(podman: Podman) -> None:
    """Remove the store and what is mounted there.

    Podman still writes about a container after its end; a reset at that moment fails and succeeds later
    (https://github.com/containers/podman/issues/17957).
    """
    tried: list[CompletedProcess[str]] = []

    def reset() -> bool:
        tried.append(run_to_end(podman.command("system", "reset", "--force"), seconds=COMMAND_SECONDS, cwd="/"))
        return tried[-1].returncode == 0

    wait_for(lambda: f"the reset of Podman: {tried[-1].stdout}", reset)


def test_the_image_holds_only_the_service(image: Image):
    [found] = json.loads(image.podman.run("image", "inspect", "tenure"))
    assert found["Config"]["User"] == f"{USER}:{USER}"
    assert found["Config"]["Cmd"] == ["tenure-api"]
    assert image.run("id", "-u").strip() == str(USER)
    image.run("test", "!", "-e", "/source")
    image.run("test", "!", "-w", "/opt/tenure")


@contextmanager
def running(image: Image, folder: Path, name: str, *words: str) -> Iterator[Program]:
    """A container of that name; in the end it is stopped as an operator stops it."""
    command = image.command(*words, options=("--name", name, "--stop-timeout", "90"))
    program = Program(name, [str(word) for word in command], folder / f"{name}.log")
    program.start()
    try:
        yield program
    finally:
        if program.is_running:
            image.podman.run("stop", name)
        assert program.process is not None
        program.process.wait(COMMAND_SECONDS)


def test_a_lease_lives_and_ends_in_containers(image: Image, tmp_path: Path):
    around = image.around
    image.run("tenure-manage", "db", "upgrade")
    assert "as this release needs it" in image.run("tenure-manage", "db", "check")
    with (
        running(image, tmp_path, "tenure-manager", "tenure-manager") as manager,
        running(image, tmp_path, "tenure-api") as api,
    ):
        wait_for(lambda: f"Tenure to be well: {manager.tail()}\n{api.tail()}", around.is_well)
        admin, owner = around.caller("admin", "member", "reader"), around.caller("member", "reader")
        status, answer = admin.call("POST", "/os-hosts", {"name": "node-1.lab"})
        assert status == 201, answer
        status, lease = owner.book(1, seconds=600)
        assert status == 201, lease
        assert owner.wait_for_status(lease["id"], "ACTIVE", "ERROR")["status"] == "ACTIVE"
        assert owner.call("DELETE", f"/leases/{lease['id']}")[0] == 204
        wait_for("the end of the lease", lambda: owner.call("GET", f"/leases/{lease['id']}")[0] == 404)
    for program in (manager, api):
        assert program.process is not None
        assert program.process.returncode == 0, program.tail()
        assert "Traceback" not in program.tail()
