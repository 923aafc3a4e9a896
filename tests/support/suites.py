"""Run every suite, one after another, on database servers that are started once; say what each took.

``python -m tests.support.suites`` runs all of them but the one that needs a real cloud, ``... store api`` those two,
``... cloud`` the one, ``... --but races`` all without that. The last line is the sum:
``12 passed, 0 failed, 0 skipped``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from xml.etree import ElementTree

from tests.support.databases import SERVER_KINDS, VARIABLES, DatabaseServers, ServerMissing, quick_folder
from tests.support.provision import provision

REPOSITORY = Path(__file__).parents[2]

#: Tests that need the machine for themselves; they run in a suite of their own, one at a time.
ALONE = "races or crash"

#: The folder of tests of a real cloud: they share it, so they run one at a time, and only when asked for.
CLOUD = "cloud"

#: More than any suite takes; one that hangs must not take the whole run with it.
SUITE_SECONDS = 60 * 60

NO_TESTS_COLLECTED = 5

#: Before the names of suites that are left out.
BUT = "--but"


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A set of tests that is run by one pytest."""

    name: str
    arguments: Sequence[str]
    folder: Path = REPOSITORY
    #: Left out unless it is named.
    on_request: bool = False


@dataclass
class Result:
    """What came of a suite."""

    passed: int = 0
    failed: int = 0
    seconds: float = 0.0
    #: The reasons for leaving tests out, and how many each concerns.
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def skipped(self) -> int:
        return self.left_out.total()

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def find_suites(repository: Path, jobs: int) -> list[Suite]:
    """Return the suites of a checkout: the folders below ``tests``, and the other distributions' tests."""
    parallel = ["-n", str(jobs), "-m", f"not ({ALONE})", "--hypothesis-profile=thorough"]
    tests = repository / "tests"
    suites = [
        Suite(
            name="repository",
            arguments=[
                *parallel,
                *(str(path.relative_to(repository)) for path in sorted(tests.glob("test_*.py"))),
            ],
            folder=repository,
        )
    ]
    suites += [
        Suite(name=folder.name, arguments=[*parallel, f"tests/{folder.name}"], folder=repository)
        for folder in sorted(tests.iterdir())
        if folder.is_dir() and folder.name != CLOUD and any(folder.rglob("test_*.py"))
    ]
    alone = ["-m", ALONE, f"--ignore=tests/{CLOUD}", "tests"]
    suites.append(Suite(name="races", arguments=alone, folder=repository))
    suites += [
        Suite(name=folder.name, arguments=["tests"], folder=folder)
        for folder in (repository / "client", repository / "nova", *sorted((repository / "examples").glob("*")))
        if (folder / "tests").is_dir()
    ]
    if (tests / CLOUD).is_dir():
        suites.append(Suite(name=CLOUD, arguments=[f"tests/{CLOUD}"], folder=repository, on_request=True))
    return suites


def choose(suites: Iterable[Suite], names: Sequence[str]) -> list[Suite]:
    """Return the suites of these names; without names, or with those after ``--but``, all others but on request."""
    if names and names[0] != BUT:
        return [suite for suite in suites if suite.name in names]
    return [suite for suite in suites if not suite.on_request and suite.name not in names]


def run_suite(suite: Suite, environ: Mapping[str, str]) -> Result:
    """Run one suite with pytest; its own output passes through."""
    print(f"\n##### {suite.name}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tenure-report-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", f"--junitxml={report}", *suite.arguments]
        code = _run_with_deadline(command, suite.folder, environ)
        reported = report.exists()
        result = read_report(report) if reported else Result()
    ended_well = reported and code in {0, NO_TESTS_COLLECTED}
    if not (ended_well or result.failed or (code == 1 and result.left_out)):
        print(f"{suite.name} ended with {code}", flush=True)
        result.failed += 1
    result.seconds = time.monotonic() - began
    return result


def _run_with_deadline(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> int | str:
    """Run a command in a process group of its own; end the whole group if it, or we, cannot wait longer."""
    process = subprocess.Popen(command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, process_group=0)
    try:
        return process.wait(SUITE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no result after {SUITE_SECONDS // 60} minutes"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def read_report(report: Path) -> Result:
    """Count what a JUnit report tells. A test that fails and whose fixture fails as well counts once."""
    result = Result()
    failed = set()
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add((case.get("classname"), case.get("name")))
        elif skipped is None:
            result.passed += 1
        elif skipped.get("type") == "pytest.xfail":
            result.passed += 1  # strict: it failed as it was said to
        else:
            result.left_out[skipped.get("message") or "no reason given"] += 1
    result.failed = len(failed)
    return result


def run_all(suites: Iterable[Suite]) -> int:
    """Run suites, print the sum, and return the exit code of the whole run."""
    notes = provision()
    results: dict[str, Result] = {}
    with DatabaseServers() as servers:
        environ = {"TMPDIR": str(quick_folder())} | os.environ
        for kind in SERVER_KINDS:
            try:
                environ[VARIABLES[kind]] = servers.url(kind)
            except ServerMissing:
                continue  # its tests say so themselves
        for suite in suites:
            results[suite.name] = run_suite(suite, environ)
    return summarise(results, notes, complete=os.environ.get("TENURE_TEST_ALL") == "1")


def summarise(results: Mapping[str, Result], notes: Sequence[str], *, complete: bool) -> int:
    """Print a table of what was run, then what was left out, then the sum; return the exit code."""
    total = Result()
    print(f"\n{'suite':<14}{'passed':>8}{'failed':>8}{'skipped':>9}{'minutes':>9}")
    for name, result in results.items():
        print(_row(name, result))
        total.passed += result.passed
        total.failed += result.failed
        total.seconds += result.seconds
        total.left_out += result.left_out
    print(_row("all", total))
    if total.left_out or notes:
        print("\nLEFT OUT" + (", which TENURE_TEST_ALL=1 forbids" if complete else ""))
        for note in notes:
            print(f"  {note}")
        for reason, count in sorted(total.left_out.items()):
            print(f"  {count} test{'s'[: count > 1]}: {reason}")
    print(f"\n{total}", flush=True)
    whole = not (total.left_out or notes)
    return 0 if total.passed and not total.failed and (whole or not complete) else 1


def _row(name: str, result: Result) -> str:
    return f"{name:<14}{result.passed:>8}{result.failed:>8}{result.skipped:>9}{result.seconds / 60:>9.1f}"


def main(names: Sequence[str]) -> int:
    jobs = int(os.environ.get("TENURE_TEST_JOBS") or len(os.sched_getaffinity(0)))
    suites = find_suites(REPOSITORY, jobs)
    unknown = sorted(set(names[names[:1] == [BUT] :]) - {suite.name for suite in suites})
    if unknown:
        print(f"No such suite: {', '.join(unknown)}. There are: {', '.join(suite.name for suite in suites)}")
        return 2
    signal.signal(signal.SIGTERM, _leave)
    return run_all(choose(suites, names))


def _leave(signum: int, frame: FrameType | None) -> None:
    """End by an exception, so that the servers are stopped on the way out."""
    sys.exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
