"""Install the database servers that the tests need, where this machine lets us.

Only as root on Debian or Ubuntu, and only what is missing and not named in the environment. No service is
started by the installation, and none that it brought starts with the machine: the tests start servers of
their own. ``TENURE_TEST_INSTALL=0`` forbids it altogether.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.databases import PACKAGES, SERVER_KINDS, VARIABLES, missing_programs, server_url

#: Debian asks this program before a package starts or restarts a service; 101 says no.
POLICY = Path("/usr/sbin/policy-rc.d")
REFUSE_ALL = "#!/bin/sh\n# While the tests' packages are being installed.\nexit 101\n"

#: What the packages would start with the machine.
SERVICES = ("postgresql", "mariadb")


def missing_servers() -> list[str]:
    """Return the kinds of server that the tests would have to do without."""
    return [kind for kind in SERVER_KINDS if server_url(kind) is None and missing_programs(kind)]


def reason_not_to_install() -> str | None:
    """Return why we may not install packages here, or None if we may."""
    if os.environ.get("TENURE_TEST_INSTALL") == "0":
        return "TENURE_TEST_INSTALL=0"
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "not Debian or Ubuntu"
    if os.geteuid() != 0:
        return "not root"
    return None


def provision() -> list[str]:
    """Install what is missing; return a sentence for each kind of server that still is."""
    missing = missing_servers()
    if not missing:
        return []
    refusal = reason_not_to_install()
    if refusal is None:
        print(f"Installing what the tests need: {', '.join(missing)}", flush=True)
        refusal = _install(missing)
    return [
        f"{kind}: not installed ({refusal}); apt-get install {PACKAGES[kind][0]}, or set {VARIABLES[kind]}"
        for kind in missing_servers()
    ]


def _install(kinds: Iterable[str]) -> str:
    """Install the servers of these kinds; return why, should one be missing all the same."""
    services = _enabled_services()
    try:
        _apt("update")
        packages = [package for kind in kinds for package in _first_known(PACKAGES[kind])]
        with _no_service_starts(POLICY):
            _apt("install", "--no-install-recommends", *packages)
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}` ended with {error.returncode}"
    finally:
        _disable(_enabled_services() - services)
    return "the packages lack its programs"


def _apt(*arguments: str) -> None:
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "-q", "-y", *arguments], check=True, env=environ, stdin=subprocess.DEVNULL)


def _first_known(choices: tuple[str, ...]) -> list[str]:
    """Return the packages of the first choice that this release has; of the last one if it has none."""
    for choice in choices[:-1]:
        packages = choice.split()
        if subprocess.run(["apt-cache", "show", *packages], capture_output=True, check=False).returncode == 0:
            return packages
    return choices[-1].split()


@contextmanager
def _no_service_starts(policy: Path) -> Iterator[None]:
    """Refuse every start of a service meanwhile; put back the policy that was there."""
    with tempfile.TemporaryDirectory(prefix="tenure-policy-", dir=policy.parent) as folder:
        kept = Path(folder) / policy.name
        if policy.exists() or policy.is_symlink():
            policy.rename(kept)
        try:
            policy.write_text(REFUSE_ALL)
            policy.chmod(0o755)
            yield
        finally:
            policy.unlink(missing_ok=True)
            if kept.exists() or kept.is_symlink():
                kept.rename(policy)


def _enabled_services() -> set[str]:
    if shutil.which("systemctl") is None:
        return set()
    enabled = set()
    for service in SERVICES:
        command = ["systemctl", "is-enabled", service]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.stdout.strip() == "enabled":
            enabled.add(service)
    return enabled


def _disable(services: Iterable[str]) -> None:
    """Keep services that came with our packages from starting with the machine."""
    for service in sorted(services):
        subprocess.run(["systemctl", "disable", service], capture_output=True, check=False)


if __name__ == "__main__":
    still_missing = provision()
    for sentence in still_missing:
        print(f"Left out: {sentence}")
    sys.exit(1 if still_missing and os.environ.get("TENURE_TEST_ALL") == "1" else 0)
