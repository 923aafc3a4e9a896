"""The packages of the cloud: Debian's, and a virtual environment of OpenStack's."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from testbed.places import BIN, CACHE, REPOSITORY, TESTBED, VENV, say
from testbed.processes import TestbedError, run
from tests.support.debian import install_packages, reason_not_to_install

#: What the cloud's processes and its virtual environment need, and by which program to know that it is there.
DEBIAN = {
    "mariadb-server-core": "mariadbd",
    "mariadb-client-core": "mariadb",
    "rabbitmq-server": "rabbitmqctl",
    "memcached": "memcached",
    "gcc": "gcc",
}
#: Needed to make the virtual environment only: pip compiles uwsgi.
BUILDING = ("gcc", "libc6-dev", "python3-dev", "python3-venv")
#: What these packages would start with the machine.
SERVICES = ("rabbitmq-server", "memcached", "epmd.service", "epmd.socket")

REQUIREMENTS = TESTBED / "requirements.txt"
CONSTRAINTS = TESTBED / "constraints.txt"
#: The distribution that is installed beside Nova, and its filter.
NOVA = REPOSITORY / "nova"
NOVA_FILTER = "tenurenova.filter.TenureFilter"
#: What stands before Nova's API, for servers that are booted for a lease.
NOVA_MIDDLEWARE = "tenurenova.middleware:filter_factory"
NOVA_FILTER_NAME = NOVA_FILTER.rpartition(".")[2]
#: The file of a virtual environment that is written last: where it is, the environment is whole.
COMPLETE = ".complete"


def install() -> None:
    """Install what is missing. Raises ``TestbedError`` where that is not possible."""
    began = time.monotonic()
    missing = [package for package, program in DEBIAN.items() if shutil.which(program) is None]
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not BIN.exists() and (missing or not header.exists()):
        missing += BUILDING
    if missing:
        _install_debian(missing)
    _ensure_environment()
    if has_nova_filter():
        _install_nova_filter()
    say(f"installed in {time.monotonic() - began:.0f} s")


def _ensure_environment() -> None:
    """Have the virtual environment of the present requirements in the cache, and the link lead to it."""
    python = f"{sys.version} {sys.base_exec_prefix}".encode()
    made_of = sha256(REQUIREMENTS.read_bytes() + CONSTRAINTS.read_bytes() + python).hexdigest()[:16]
    environment = CACHE / f"openstack-{made_of}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another checkout may be making it
        if not (environment / COMPLETE).exists():
            _make_environment(environment)
    if VENV.is_symlink() or not VENV.exists():
        VENV.unlink(missing_ok=True)
    else:
        shutil.rmtree(VENV)  # made before there was a cache
    VENV.symlink_to(environment)


def _make_environment(environment: Path) -> None:
    say("Python packages, into", environment)
    run(sys.executable, "-m", "venv", "--clear", environment, log="install")
    python = environment / "bin/python"
    run(python, "-m", "pip", "install", "-q", "uv", "-c", CONSTRAINTS, log="install")
    # Compiled here each time: a cache does not tell one build of a version of Python from another, and a uwsgi
    # of the other does not find its modules.
    _install_python(python, "--no-cache", "uwsgi", "-c", CONSTRAINTS)
    _install_python(python, "-r", REQUIREMENTS, "-c", CONSTRAINTS)
    (environment / COMPLETE).touch()


def _install_python(python: Path, *arguments: object) -> None:
    """Install Python packages into the virtual environment of this interpreter."""
    command = [python.with_name("uv"), "pip", "install", "-q", "--compile-bytecode", "--python", python]
    run(*command, *arguments, log="install")


def _install_debian(packages: Iterable[str]) -> None:
    say("Debian packages:", *packages)
    refusal = reason_not_to_install()
    if refusal is not None:
        raise TestbedError(f"missing, and not to be installed here ({refusal}): {' '.join(packages)}")
    try:
        install_packages([(package,) for package in packages], SERVICES)
    except subprocess.CalledProcessError as error:
        raise TestbedError(str(error)) from error


def choose_constraints() -> None:
    """Write which versions pip chooses, given ``requirements.txt`` alone."""
    newest = CACHE / "openstack-newest"
    run(sys.executable, "-m", "venv", "--clear", newest, log="install")
    run(newest / "bin/python", "-m", "pip", "install", "-q", "-r", REQUIREMENTS, log="install")
    freeze = [str(newest / "bin/python"), "-m", "pip", "freeze"]
    chosen = subprocess.run(freeze, capture_output=True, text=True, check=True, timeout=60).stdout
    title = CONSTRAINTS.read_text().partition("\n")[0]
    CONSTRAINTS.write_text(f"{title}\n{chosen}")
    shutil.rmtree(newest)


def has_nova_filter() -> bool:
    """Whether this checkout has the filter that Nova is to be given."""
    return any("class TenureFilter" in path.read_text() for path in nova_sources() if path.name == "filter.py")


def nova_sources() -> list[Path]:
    """Return the files of what we install beside Nova: those who run them are restarted when they change."""
    return sorted(path for path in NOVA.rglob("*.py") if "tests" not in path.parts)


def _install_nova_filter() -> None:
    """Install what `nova/` has beside Nova, such that a change in the checkout is a change in the cloud."""
    made_of = VENV / ".nova-filter-made-of"
    wanted = f"{NOVA} {sha256((NOVA / 'pyproject.toml').read_bytes()).hexdigest()}"
    if not made_of.exists() or made_of.read_text() != wanted:
        _install_python(BIN / "python", "--no-deps", "--editable", NOVA)
        made_of.write_text(wanted)
