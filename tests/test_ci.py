"""``.ci/run`` is red when any part of it is, and leaves nothing running; the make of these tests only takes notes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.durations import REPOSITORY
from tests.support.waiting import COMMAND_SECONDS, patience, wait_for

#: It writes down what it is asked for. What is in FAILS ends badly, what is in STAYS does not end by itself.
MAKE = """#!/bin/bash
echo "$*" >> "$LOG"
case $STAYS in "$*") echo $$ > "$LOG.pid"; exec sleep 600 ;; esac
sum="9 passed, 0 failed, 0 skipped"
case $FAILS in "$*") sum="7 passed, 2 failed, 0 skipped" ;; esac
case $* in test) mkdir .reports; echo "$sum" > .reports/sum ;; esac
case $LITTERS in "$*") touch litter ;; esac
case $FAILS in "$*") exit 2 ;; esac
"""
LINT = "-j2 --output-sync=target lint demo"
STEPS = ["setup", LINT, "test"]


def start_ci(
    folder: Path, *, fails: str = "", stays: str = "", litters: str = ""
) -> tuple[subprocess.Popen[str], Path]:
    """Start the script in a checkout of its own, with that ``make``; return it, and the file of the notes."""
    checkout, log = folder / "checkout", folder / "log"
    for name in (".ci", "bin"):
        (checkout / name).mkdir(parents=True)
    shutil.copy(REPOSITORY / ".ci" / "run", checkout / ".ci" / "run")
    (checkout / "bin/make").write_text(MAKE)
    (checkout / "bin/make").chmod(0o755)
    subprocess.run(["git", "init", "-q"], cwd=checkout, check=True, timeout=patience())
    (checkout / ".git" / "info" / "exclude").write_text("/.ci/\n/bin/\n/.reports/\n")
    path = f"{checkout / 'bin'}:{os.environ['PATH']}"
    environ = os.environ | {"PATH": path, "LOG": str(log), "FAILS": fails, "STAYS": stays, "LITTERS": litters}
    process = subprocess.Popen(
        [checkout / ".ci" / "run"], env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return process, log


def run_ci(folder: Path, *, fails: str = "", litters: str = "") -> tuple[int, list[str], list[str]]:
    """Return the exit code, what was made, and what was printed."""
    process, log = start_ci(folder, fails=fails, litters=litters)
    printed, _ = process.communicate(timeout=patience())
    return process.returncode, log.read_text().splitlines(), printed.splitlines()


def test_every_step_is_done_and_the_sum_comes_last(tmp_path: Path):
    code, made, printed = run_ci(tmp_path)
    assert (code, made, printed[-1]) == (0, STEPS, "9 passed, 0 failed, 0 skipped")


def test_failed_tests_fail_ci_and_the_sum_comes_last(tmp_path: Path):
    code, made, printed = run_ci(tmp_path, fails="test")
    assert (code, made, printed[-1]) == (1, STEPS, "7 passed, 2 failed, 0 skipped")


@pytest.mark.parametrize("step", ["setup", LINT])
def test_nothing_is_begun_after_a_step_that_fails(tmp_path: Path, step: str):
    code, made, _ = run_ci(tmp_path, fails=step)
    assert (code, made[-1]) == (2, step)


def test_a_new_untracked_file_fails_ci(tmp_path: Path):
    code, _, printed = run_ci(tmp_path, litters="test")
    assert code == 1
    assert "?? litter" in printed


def test_ending_ci_ends_the_tests(tmp_path: Path):
    process, log = start_ci(tmp_path, stays="test")
    written = log.with_name("log.pid")
    pid = int(wait_for("the tests to begin", lambda: written.exists() and written.read_text()))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=patience())
    assert process.returncode != 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_the_quick_loop_names_known_markers():
    """Every distribution knows the markers by which its quick tests are chosen. Style and types are not the matter."""
    quick = subprocess.run(
        ["make", "-o", "lint", "check"],
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"], "PYTEST_ADDOPTS": "--collect-only -p no:cacheprovider"},
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert quick.returncode == 0, quick.stdout[-2000:] + quick.stderr[-2000:]
