"""``.ci/run`` is red when any part of it is, and leaves nothing running; the make of these tests only takes notes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.suites import REPOSITORY

SECONDS = 30

#: It writes down what it is asked for. What is in FAILS ends badly, what is in STAYS does not end by itself.
MAKE = """#!/bin/bash
echo "$*" >> "$LOG"
case $* in *test*)
    case $STAYS in "$*") echo $$ >> "$LOG.pid"; exec sleep 600 ;; esac
    case $FAILS in "$*") echo "1 passed, 2 failed, 0 skipped"; echo "make: *** Error 1" >&2; exit 2 ;; esac
    echo "4 passed, 0 failed, 0 skipped" ;;
esac
case $FAILS in "$*") exit 2 ;; esac
"""
BESIDE, CLOUD, ALONE = "test SUITES=--but races", "cloud-test", "test SUITES=races"


def ci(folder: Path, *, fails: str = "", stays: str = "") -> tuple[subprocess.Popen[str], Path]:
    """The script in a checkout of its own, with that ``make``; what that has written down."""
    checkout, log = folder / "checkout", folder / "log"
    for name in (".ci", ".venv/bin", "bin"):
        (checkout / name).mkdir(parents=True)
    shutil.copy(REPOSITORY / ".ci" / "run", checkout / ".ci" / "run")
    for name, text in {"bin/make": MAKE, ".venv/bin/python": "#!/bin/sh\n"}.items():
        (checkout / name).write_text(text)
        (checkout / name).chmod(0o755)
    subprocess.run(["git", "init", "-q"], cwd=checkout, check=True, timeout=SECONDS)
    (checkout / ".git" / "info" / "exclude").write_text("*\n")
    path = f"{checkout / 'bin'}:{os.environ['PATH']}"
    environ = os.environ | {"PATH": path, "LOG": str(log), "FAILS": fails, "STAYS": stays}
    process = subprocess.Popen(
        [checkout / ".ci" / "run"], env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return process, log


def run(folder: Path, *, fails: str = "", stays: str = "") -> tuple[int, list[str], list[str]]:
    """Its exit code, what was made, and what was printed."""
    process, log = ci(folder, fails=fails, stays=stays)
    printed, _ = process.communicate(timeout=SECONDS)
    return process.returncode, log.read_text().splitlines(), printed.splitlines()


def pid_in(log: Path) -> int:
    """That of what stays, once it is there."""
    pid, deadline = log.with_name("log.pid"), time.monotonic() + SECONDS
    while not pid.exists() or not pid.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(pid.read_text())


def test_all_is_run_and_added_up(tmp_path: Path):
    code, made, printed = run(tmp_path)
    assert (code, printed[-1]) == (0, "12 passed, 0 failed, 0 skipped")
    assert sorted(made) == sorted(["setup", "lint", "demo", "cloud", BESIDE, CLOUD, "cloud-down", ALONE])
    assert made[-2:] == ["cloud-down", ALONE]


@pytest.mark.parametrize("part", [BESIDE, CLOUD, ALONE])
def test_a_suite_that_fails_makes_it_red_and_keeps_no_other_from_its_run(tmp_path: Path, part: str):
    code, made, printed = run(tmp_path, fails=part)
    assert (code, printed[-1]) == (1, "9 passed, 2 failed, 0 skipped")
    assert {BESIDE, CLOUD, ALONE, "cloud-down"} <= set(made)


@pytest.mark.parametrize("part", ["setup", "lint", "demo"])
def test_nothing_is_begun_where_a_step_before_it_fails(tmp_path: Path, part: str):
    code, made, _ = run(tmp_path, fails=part)
    assert (code, made[-1]) == (2, part)


def test_without_a_cloud_it_ends_with_what_runs_beside(tmp_path: Path):
    code, made, _ = run(tmp_path, fails="cloud", stays=BESIDE)
    assert (code, made[-1]) == (2, "cloud-down")
    for pid in (tmp_path / "log.pid").read_text().split() if (tmp_path / "log.pid").exists() else ():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_what_runs_beside_and_is_killed_makes_it_red(tmp_path: Path):
    process, log = ci(tmp_path, stays=BESIDE)
    os.kill(pid_in(log), signal.SIGKILL)
    printed, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, printed.splitlines()[-1]) == (1, "8 passed, 0 failed, 0 skipped")
    assert {CLOUD, ALONE, "cloud-down"} <= set(log.read_text().splitlines())


def test_whoever_ends_it_ends_all_of_it(tmp_path: Path):
    process, log = ci(tmp_path, stays=BESIDE)
    pid = pid_in(log)
    process.terminate()
    process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert log.read_text().splitlines()[-1] == "cloud-down"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
