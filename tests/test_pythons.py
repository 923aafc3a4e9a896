"""The quick tests on newer versions of Python than the one that `make setup` takes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import run_to_end

REPOSITORY = Path(__file__).resolve().parents[1]
#: For all quick tests, in one process, on a busy machine.
SECONDS = 3600


def python_3_13() -> str | None:
    """Return a Python 3.13: the machine's, or that of Debian 13 where the machine is one of Debian."""
    if found := shutil.which("python3.13"):
        return found
    if shutil.which("patchelf") is None or shutil.which("apt-get") is None:
        return None
    command = [REPOSITORY / "tools" / "python-of-debian-13"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=SECONDS).stdout.strip()


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_the_quick_tests_pass(version: str):
    python = shutil.which(f"python{version}") or (python_3_13() if version == "3.13" else None)
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
