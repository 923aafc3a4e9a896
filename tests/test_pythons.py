"""The quick tests on newer versions of Python than the one that `make setup` takes."""

from __future__ import annotations

import faulthandler
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import run_to_end
from tests.support.waiting import COMMAND_SECONDS

REPOSITORY = Path(__file__).resolve().parents[1]
#: For all quick tests, in one process, on a busy machine.
SECONDS = 3600


def find_python(version: str) -> str | None:
    """Return a Python of this version: of pyenv, on the path, or the 3.13 of Debian 13 on Debian."""
    if shutil.which("pyenv"):
        found = subprocess.run(["pyenv", "prefix", version], capture_output=True, text=True, timeout=COMMAND_SECONDS)
        if found.returncode == 0:
            return str(Path(found.stdout.strip(), "bin", f"python{version}"))
    python = shutil.which(f"python{version}")
    if python and subprocess.run([python, "-c", ""], capture_output=True, timeout=COMMAND_SECONDS).returncode == 0:
        return python  # pyenv has programs on the path that only say what to type
    if version != "3.13" or shutil.which("patchelf") is None or shutil.which("apt-get") is None:
        return None
    command = [REPOSITORY / "tools" / "python-of-debian-13"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=SECONDS).stdout.strip()


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_the_quick_tests_pass(version: str):
    faulthandler.cancel_dump_traceback_later()  # all the quick tests may take longer than a single test
    python = find_python(version)
    if python is None:
        pytest.skip(f"no python{version}: install it, or patchelf for the 3.13 of Debian 13")
    done = run_to_end(
        ["make", "test-python", f"PYTHON={python}", f"VENV={Path(sys.executable).parents[1]}", "JOBS=2"],
        cwd=REPOSITORY,
        seconds=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert f"Python {version}." in done.stdout
    assert re.search(r"^\d{4,} passed", done.stdout, re.MULTILINE), done.stdout[-2000:]
