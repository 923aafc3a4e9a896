"""Tenure installed below ``/opt/tenure`` as the operators' guide says, for programs with an ``/etc`` of their own.

This needs root on Debian. Missing Debian packages are installed if that is allowed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed.places import CACHE
from tests.conftest import NOTHING_LEFT_OUT
from tests.support.cloud import REPOSITORY
from tests.support.commands import output_of
from tests.support.debian import install_packages, reason_not_to_install
from tests.support.waiting import COMMAND_SECONDS

#: What a checkout must have to be installed.
CHECKOUT = ("pyproject.toml", "constraints.txt", "LICENSE", "src", "client", "deploy")

#: Debian's own Python: what Debian compiles, such as mod_wsgi, fits no other.
PYTHON = "/usr/bin/python3"

#: Of a shell that finds the programs of Debian, and those that the guide installs.
PATH = "/opt/tenure/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"

#: Other folders in /opt stay where they are.
ENTER = """
set -e
for folder in /opt/*/; do
    [ -d "$folder" ] || continue
    mkdir -p "$0$folder"
    mount --bind "$folder" "$0$folder"
done
mount --rbind "$0/opt" /opt
mount --bind "$0/etc" /etc
cd /
exec "$@"
"""


def copy_checkout(target: Path) -> None:
    """Copy the files of this checkout that are installed."""
    target.mkdir()
    for name in CHECKOUT:
        source = REPOSITORY / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copy(source, target / name)


def need_packages(programs: Mapping[str, str], services: tuple[str, ...] = ()) -> None:
    """Make these programs or files available, each with its Debian package.

    If they cannot be installed, the test is skipped, or fails if no test may be left out.
    """
    missing = sorted({package for program, package in programs.items() if not _is_there(program)})
    if os.geteuid() != 0:
        refusal: str | None = "not root"
    elif not missing:
        return
    else:
        refusal = reason_not_to_install()
    if refusal is None:
        try:
            install_packages([(package,) for package in missing], services)
        except subprocess.CalledProcessError as error:
            refusal = f"`{' '.join(error.cmd)}` ended with {error.returncode}"
        else:
            return
    reason = f"{', '.join(missing) or 'namespaces'}: not to be had here ({refusal})"
    if os.environ.get(NOTHING_LEFT_OUT) == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _is_there(program: str) -> bool:
    """Whether the program, or the file with an absolute path, exists."""
    return Path(program).exists() if program.startswith("/") else shutil.which(program) is not None


@dataclass(frozen=True)
class Installed:
    """The folder whose ``opt`` and ``etc`` programs see in place of the machine's."""

    folder: Path

    @property
    def opt(self) -> Path:
        return self.folder / "opt"

    @property
    def etc(self) -> Path:
        return self.folder / "etc"

    def command(self, *words: str | Path, **environ: str) -> list[str]:
        """Return a command as root runs it according to the guide; its process gets the signals."""
        variables = [f"{name}={value}" for name, value in {"PATH": PATH, "LANG": "C.UTF-8", **environ}.items()]
        enter = ["unshare", "--mount", "bash", "-c", ENTER, str(self.folder)]
        return [*enter, "env", "-i", *variables, *map(str, words)]

    def run(self, *words: str | Path, **environ: str) -> str:
        """Return the output of a command; raise ``AssertionError`` with the output if it fails."""
        return output_of(self.command(*words, **environ))


def install(folder: Path, *more: str) -> Installed:
    """Install Tenure from this checkout, and ``more`` from PyPI, with its account, as the guide says."""
    installed = Installed(folder)
    installed.opt.mkdir(mode=0o755)
    subprocess.run(["cp", "-a", "/etc", installed.etc], check=True, timeout=COMMAND_SECONDS)
    checkout = folder / "checkout"
    copy_checkout(checkout)
    installed.run(PYTHON, "-m", "venv", "--without-pip", "/opt/tenure")
    uv: list[str | Path] = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet"]
    uv += ["--python", "/opt/tenure/bin/python"]
    tenure = f"{checkout}[mariadb,postgresql,openstack]"
    kept = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "SSL_", "HOME"))}
    installed.run(*uv, "--constraint", checkout / "constraints.txt", tenure, **kept)
    # A cache does not tell one build of a version of Python from another: what is compiled here has one of its own.
    if more:
        installed.run(*uv, *more, **kept | {"UV_CACHE_DIR": str(CACHE / "uv-of-debian")})
    installed.run("systemd-sysusers", checkout / "deploy" / "systemd" / "tenure.sysusers")
    (installed.etc / "tenure").mkdir(exist_ok=True)
    return installed
