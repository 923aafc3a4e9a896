"""Install Debian packages and leave the machine as it was, but for them: no service starts, now or later."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

#: Debian asks this program before a package starts or restarts a service; 101 says no.
POLICY = Path("/usr/sbin/policy-rc.d")
REFUSE_ALL = "#!/bin/sh\n# While packages are being installed.\nexit 101\n"


def reason_not_to_install() -> str | None:
    """Return why we may not install packages here, or None if we may."""
    if os.environ.get("TENURE_TEST_INSTALL") == "0":
        return "TENURE_TEST_INSTALL=0"
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "not Debian or Ubuntu"
    if os.geteuid() != 0:
        return "not root"
    return None


def install_packages(wanted: Iterable[Sequence[str]], services: Collection[str]) -> None:
    """Install packages, of each entry the first choice that this release has (words are packages).

    ``services`` are what they would start with the machine; those that did so before go on to.
    Raises ``subprocess.CalledProcessError``.
    """
    before = _enabled(services)
    try:
        _apt("update")
        packages = [package for choices in wanted for package in _first_known(choices)]
        with no_service_starts(POLICY):
            _apt("install", "--no-install-recommends", *packages)
    finally:
        _disable(_enabled(services) - before)


@contextmanager
def no_service_starts(policy: Path) -> Iterator[None]:
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


def _apt(*arguments: str) -> None:
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "-q", "-y", *arguments], check=True, env=environ, stdin=subprocess.DEVNULL)


def _first_known(choices: Sequence[str]) -> list[str]:
    """Return the packages of the first choice that this release has; of the last one if it has none."""
    for choice in choices[:-1]:
        packages = choice.split()
        if subprocess.run(["apt-cache", "show", *packages], capture_output=True, check=False).returncode == 0:
            return packages
    return choices[-1].split()


def _enabled(services: Iterable[str]) -> set[str]:
    if shutil.which("systemctl") is None:
        return set()
    enabled = set()
    for service in services:
        command = ["systemctl", "is-enabled", service]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.stdout.strip() == "enabled":
            enabled.add(service)
    return enabled


def _disable(services: Iterable[str]) -> None:
    """Keep services that came with our packages from starting with the machine."""
    for service in sorted(services):
        subprocess.run(["systemctl", "disable", service], capture_output=True, check=False)
