"""Install the database servers that the tests need, where this machine lets us.

Only as root on Debian or Ubuntu, and only what is missing and not named in the environment. No service is
started by the installation, and none that it brought starts with the machine: the tests start servers of
their own. ``TENURE_TEST_INSTALL=0`` forbids it altogether.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

from tests.support.databases import PACKAGES, SERVER_KINDS, VARIABLES, missing_programs, missing_tools, server_url
from tests.support.debian import install_packages, reason_not_to_install

#: What the packages would start with the machine.
SERVICES = ("postgresql", "mariadb")


def missing_servers() -> list[str]:
    """Return the kinds of server that the tests would have to do without, or without the programs of its operator."""
    return [
        kind for kind in SERVER_KINDS if server_url(kind) is None and (missing_programs(kind) or missing_tools(kind))
    ]


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
    try:
        install_packages([PACKAGES[kind] for kind in kinds], SERVICES)
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}` ended with {error.returncode}"
    return "the packages lack its programs"


if __name__ == "__main__":
    still_missing = provision()
    for sentence in still_missing:
        print(f"Left out: {sentence}")
    sys.exit(1 if still_missing and os.environ.get("TENURE_TEST_ALL") == "1" else 0)
