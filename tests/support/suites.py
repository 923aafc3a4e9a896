"""Run the suites of tests, on database servers that are started once, and say what each took.

``python -m tests.support.suites`` runs what ``make test`` promises; with ``TENURE_TEST_LONG=1`` everything there is.
``... store api`` runs those two suites, ``... --but races cloud`` all without those two. The suites that need a real
cloud run on the testbed, which is brought up for them where it may be; meanwhile the others run at low priority. The
last line is the sum: ``12 passed, 0 failed, 0 skipped``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from types import FrameType
from xml.etree import ElementTree

from tests.support.databases import (
    SERVER_KINDS,
    VARIABLES,
    DatabaseServers,
    ServerMissing,
    follow_parent,
    quick_folder,
)
from tests.support.durations import REPORTS, REPOSITORY, describe, read_durations
from tests.support.lengths import LONG
from tests.support.provision import provision
from tests.support.real_cloud import CloudFailed, real_cloud

#: Tests that need most of the machine for themselves: they run in two suites of their own after all others. The suites
#: run at the same time, each one test at a time; together they keep two processors busy.
ALONE = "races or crash"

#: The folders of tests that need something of the testbed: they share it, so they run one at a time.
CLOUD_FOLDERS = ("processes", "cloud")

#: The folder whose failed tests are run once more: other people's services, on a busy machine, fail by themselves.
AGAIN = "cloud"

#: More than any suite takes; one that hangs must not take the whole run with it.
SUITE_SECONDS = (6 if LONG else 1) * 60 * 60

#: How long a single test of a long run may take, in seconds; of other runs, ``pyproject.toml`` says it.
LONG_TEST_SECONDS = 3600

#: How much the suites beside the cloud's leave to these: at 10, four busy processes of the cloud left 3 % of a
#: processor, with which the first search of a service, of 0.2 s, took longer than the 5 s that it may.
NICENESS = 5

NO_TESTS_COLLECTED = 5

#: Everything listens on loopback: without this, ``requests`` looks for proxies in the environment at each request.
NO_PROXIES = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}

#: How much of an error the summary shows, in lines and characters of each: what comes before the summary may be cut off
#: where it is read.
ERROR_LINES, ERROR_LENGTH = 6, 300

#: Before the names of suites that are left out.
BUT = "--but"

#: Before the names of suites that are run on servers which the environment names, with no tables and no sum.
ONLY_RUN = "--only-run"


class Lane(Enum):
    """When a suite runs."""

    #: At low priority, while those that need a real cloud run.
    BESIDE = "beside"
    CLOUD = "cloud"
    #: After all others, with the machine for itself and for the others of this lane.
    ALONE = "alone"
    #: Only when it is named.
    ON_REQUEST = "on request"


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A set of tests that is run by one pytest."""

    name: str
    arguments: Sequence[str]
    folder: Path = REPOSITORY
    lane: Lane = Lane.BESIDE


@dataclass
class Result:
    """What came of a suite."""

    passed: int = 0
    failed: int = 0
    seconds: float = 0.0
    #: The reasons for leaving tests out, and how many each concerns.
    left_out: Counter[str] = field(default_factory=Counter)
    #: The failed tests, each with its error.
    errors: dict[str, str] = field(default_factory=dict)
    #: The tests that failed and passed when they were run once more, each with its error.
    passed_again: dict[str, str] = field(default_factory=dict)

    @property
    def skipped(self) -> int:
        return self.left_out.total()

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def find_suites(repository: Path, jobs: int, *, long: bool = LONG) -> list[Suite]:
    """Return the suites of a checkout: the server's tests, those of other distributions, and each folder by itself.

    Without ``long``, tests that are marked so are left out.
    """
    tests = repository / "tests"
    shared = [folder for name in CLOUD_FOLDERS if (folder := tests / name).is_dir()]
    parallel = ["-n", str(jobs), "--dist", "worksteal"]
    quick = [*parallel, *_marked(f"not ({ALONE})", long), "--hypothesis-profile=thorough"]
    suites = [
        Suite(
            name="server",
            arguments=[*quick, *(f"--ignore=tests/{folder.name}" for folder in shared), "tests"],
            folder=repository,
        )
    ]
    suites += [
        Suite(name=folder.name, arguments=[*parallel, "tests"], folder=folder)
        for folder in (repository / "client", repository / "nova", *sorted((repository / "examples").glob("*")))
        if (folder / "tests").is_dir()
    ]
    suites += [
        Suite(
            name=folder.name,
            arguments=[*_marked("", long), f"tests/{folder.name}"],
            folder=repository,
            lane=Lane.CLOUD,
        )
        for folder in shared
    ]
    alone = [*(f"--ignore=tests/{folder.name}" for folder in shared), "tests"]
    suites += [
        Suite(
            name="crashes",
            arguments=[*_marked("crash", long), *alone],
            folder=repository,
            lane=Lane.ALONE,
        ),
        Suite(name="races", arguments=[*_marked("races", long), *alone], folder=repository, lane=Lane.ALONE),
    ]
    modules = [str(path.relative_to(repository)) for path in sorted(tests.glob("test_*.py"))]
    suites.append(Suite(name="repository", arguments=[*quick, *modules], folder=repository, lane=Lane.ON_REQUEST))
    suites += [
        Suite(
            name=folder.name,
            arguments=[*quick, f"tests/{folder.name}"],
            folder=repository,
            lane=Lane.ON_REQUEST,
        )
        for folder in sorted(tests.iterdir())
        if folder.is_dir() and folder not in shared and any(folder.rglob("test_*.py"))
    ]
    return suites


def _marked(expression: str, long: bool) -> list[str]:
    """Return the arguments that choose tests by their markers."""
    chosen = [f"({expression})"] * bool(expression) + ["not long"] * (not long)
    return ["-m", " and ".join(chosen)] if chosen else []


def choose(suites: Iterable[Suite], names: Sequence[str]) -> list[Suite]:
    """Return the suites of these names; without names, or with those after ``--but``, all others but on request."""
    if names and names[0] != BUT:
        return [suite for suite in suites if suite.name in names]
    return [suite for suite in suites if suite.lane is not Lane.ON_REQUEST and suite.name not in names]


def run_suite(suite: Suite, environ: Mapping[str, str], reports: Path = REPORTS) -> Result:
    """Run one suite with pytest; its own output passes through, its JUnit report is kept in ``reports``."""
    print(f"\n##### {suite.name}", flush=True)
    report = _report_of(suite, reports)
    if suite.name != AGAIN:
        return _run_pytest(suite, suite.arguments, report, environ)
    cache = f"cache_dir={reports / f'{suite.name}-cache'}"  # of its own: other suites note what failed of theirs
    result = _run_pytest(suite, ["-o", cache, "--cache-clear", *suite.arguments], report, environ)
    if result.failed and report.exists():
        print(f"\n##### {suite.name}: once more what failed", flush=True)
        second = report.with_name(f"{suite.name}-again.xml")
        last_failed = ["-o", cache, "--last-failed", "--last-failed-no-failures=none"]
        again = _run_pytest(suite, [*last_failed, *suite.arguments], second, environ)
        if again.passed + again.failed == result.failed:
            result.passed += again.passed
            result.failed = again.failed
            result.errors = again.errors
            still = failures(second)
            result.passed_again = {name: error for name, error in failures(report).items() if name not in still}
        result.seconds += again.seconds
    return result


def _run_pytest(suite: Suite, arguments: Sequence[str], report: Path, environ: Mapping[str, str]) -> Result:
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    began = time.monotonic()
    timeout = ["-o", f"faulthandler_timeout={LONG_TEST_SECONDS}"] if LONG else []
    command = [sys.executable, "-m", "pytest", f"--junitxml={report}", *timeout, *arguments]
    code = _run_with_deadline(command, suite.folder, environ)
    result = read_report(report) if report.exists() else Result()
    ended_well = report.exists() and code in {0, NO_TESTS_COLLECTED}
    if not (ended_well or result.failed or (code == 1 and result.left_out)):
        print(f"{suite.name} ended with {code}", flush=True)
        result.failed += 1
    result.seconds = time.monotonic() - began
    return result


def _report_of(suite: Suite, reports: Path = REPORTS) -> Path:
    return reports / f"{suite.name}.xml"


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
    failed = failures(report)
    result = Result(failed=len(failed), errors=failed)
    tree = ElementTree.parse(report)
    for case in tree.iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            continue
        if skipped is None:
            result.passed += 1
        elif skipped.get("type") == "pytest.xfail":
            result.passed += 1  # strict: it failed as it was said to
        else:
            result.left_out[skipped.get("message") or "no reason given"] += 1
    result.seconds = sum(float(suite.get("time", 0)) for suite in tree.iter("testsuite"))
    return result


def failures(report: Path) -> dict[str, str]:
    """Return the tests that failed by a JUnit report, each with its error."""
    return {
        f"{case.get('classname')}.{case.get('name')}": problem.get("message") or ""
        for case in ElementTree.parse(report).iter("testcase")
        for problem in case
        if problem.tag in {"failure", "error"}
    }


def run_all(suites: Sequence[Suite]) -> int:
    """Run suites, print the durations and the sum, and return the exit code of the whole run."""
    (REPORTS / "sum").unlink(missing_ok=True)
    notes = provision()
    results: dict[str, Result] = {}
    beside = [suite for suite in suites if suite.lane in {Lane.BESIDE, Lane.ON_REQUEST}]
    on_cloud = [suite for suite in suites if suite.lane is Lane.CLOUD]
    alone = [suite for suite in suites if suite.lane is Lane.ALONE]
    with DatabaseServers() as servers:
        environ = {"TMPDIR": str(quick_folder()), **NO_PROXIES} | os.environ
        for kind in SERVER_KINDS:
            try:
                environ[VARIABLES[kind]] = servers.url(kind)
            except ServerMissing:
                continue  # its tests say so themselves
        if on_cloud and beside:
            print(f"{_names(beside)}: beside the cloud, with what processors it leaves; output at the end", flush=True)
            with _started(beside, environ, NICENESS) as wait:
                results |= run_on_cloud(on_cloud, environ)
                results |= wait()
        else:
            results |= {suite.name: run_suite(suite, environ) for suite in beside}
            results |= run_on_cloud(on_cloud, environ)
        if len(alone) > 1:
            print(f"{_names(alone[:-1])}: beside {alone[-1].name}; output at the end", flush=True)
            with _started(alone[:-1], environ) as wait:
                results |= {alone[-1].name: run_suite(alone[-1], environ)}
                results |= wait()
        else:
            results |= {suite.name: run_suite(suite, environ) for suite in alone}
    REPORTS.mkdir(exist_ok=True)
    reports = {suite.name: report for suite in suites if (report := _report_of(suite)).exists()}
    durations = [duration for name, report in reports.items() for duration in read_durations(name, report)]
    print("\n".join(describe(durations)))
    (REPORTS / "sum").write_text(f"{add_up(results.values())}\n")
    return summarise(results, notes, complete=os.environ.get("TENURE_TEST_ALL") == "1")


def run_on_cloud(suites: Sequence[Suite], environ: Mapping[str, str]) -> dict[str, Result]:
    """Run the suites that need a real cloud. Without a cloud their tests say so; one that breaks fails them all."""
    if not suites:
        return {}
    try:
        with real_cloud() as missing:
            if missing:
                print(f"No cloud is brought up: {missing}", flush=True)
            return {suite.name: run_suite(suite, environ) for suite in suites}
    except CloudFailed as error:
        print(error, flush=True)
        return {suite.name: Result(failed=1) for suite in suites}


def _names(suites: Iterable[Suite]) -> str:
    return ", ".join(suite.name for suite in suites)


@contextmanager
def _started(
    suites: Sequence[Suite], environ: Mapping[str, str], niceness: int = 0
) -> Iterator[Callable[[], dict[str, Result]]]:
    """Run suites in a process of their own until the end of the block, which is less urgent by ``niceness``.

    Yields a function that waits for them, prints their output and returns what came of each.
    """
    REPORTS.mkdir(exist_ok=True)
    log = REPORTS / f"{suites[0].name}-beside.log"
    for suite in suites:
        _report_of(suite).unlink(missing_ok=True)
    names = [suite.name for suite in suites]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.suites", ONLY_RUN, *names],
            cwd=REPOSITORY,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(_yield_processors, niceness),
        )

    def wait() -> dict[str, Result]:
        process.wait()
        print(log.read_text(errors="replace"), flush=True)
        results = {suite.name: _read_again(suite) for suite in suites}
        if process.returncode and not any(result.failed for result in results.values()):
            results[names[-1]].failed += 1
        return results

    try:
        yield wait
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
            print(log.read_text(errors="replace"), flush=True)


def _read_again(suite: Suite) -> Result:
    """Return what the report of a suite says that another process ran; one without a report has failed."""
    report = _report_of(suite)
    return read_report(report) if report.exists() else Result(failed=1)


def _yield_processors(niceness: int) -> None:
    """Be nice, as a process and as the group of processes that a new session is, and end with the parent."""
    os.nice(niceness)
    follow_parent(signal.SIGTERM)


def add_up(results: Iterable[Result]) -> Result:
    """Return the sum of what came of suites."""
    total = Result()
    for result in results:
        total.passed += result.passed
        total.failed += result.failed
        total.seconds += result.seconds
        total.left_out += result.left_out
        total.errors |= result.errors
        total.passed_again |= result.passed_again
    return total


def summarise(results: Mapping[str, Result], notes: Sequence[str], *, complete: bool) -> int:
    """Print the figures of each suite, what failed, was run again or was left out, then the sum.

    Returns the exit code.
    """
    total = add_up(results.values())
    print(f"\n{'suite':<14}{'passed':>8}{'failed':>8}{'skipped':>9}{'minutes':>9}")
    for name, result in results.items():
        print(_row(name, result))
    print(_row("all", total))
    if total.errors:
        print("\nFAILED")
        _print_errors(total.errors)
    if total.passed_again:
        print("\nFAILED, AND PASSED WHEN RUN AGAIN")
        _print_errors(total.passed_again)
    if total.left_out or notes:
        print("\nLEFT OUT" + (", which TENURE_TEST_ALL=1 forbids" if complete else ""))
        for note in notes:
            print(f"  {note}")
        for reason, count in sorted(total.left_out.items()):
            print(f"  {count} test{'s'[: count > 1]}: {reason}")
    print(f"\n{total}", flush=True)
    whole = not (total.left_out or notes)
    return 0 if total.passed and not total.failed and (whole or not complete) else 1


def _print_errors(errors: Mapping[str, str]) -> None:
    """Print failed tests, each with the first lines of its error."""
    for name, error in sorted(errors.items()):
        print(f"  {name}")
        for line in [line for line in error.splitlines() if line.strip()][:ERROR_LINES]:
            print(f"      {line[:ERROR_LENGTH]}")


def _row(name: str, result: Result) -> str:
    return f"{name:<14}{result.passed:>8}{result.failed:>8}{result.skipped:>9}{result.seconds / 60:>9.1f}"


def main(arguments: Sequence[str]) -> int:
    only_run, names = arguments[:1] == [ONLY_RUN], list(arguments)
    if only_run:
        names.remove(ONLY_RUN)
    jobs = int(os.environ.get("TENURE_TEST_JOBS") or len(os.sched_getaffinity(0)))
    suites = find_suites(REPOSITORY, jobs)
    unknown = sorted(set(names[names[:1] == [BUT] :]) - {suite.name for suite in suites})
    if unknown:
        print(f"No such suite: {', '.join(unknown)}. There are: {', '.join(suite.name for suite in suites)}")
        return 2
    signal.signal(signal.SIGTERM, _leave)
    chosen = choose(suites, names)
    if only_run:
        return max(1 if run_suite(suite, os.environ).failed else 0 for suite in chosen)
    return run_all(chosen)


def _leave(signum: int, frame: FrameType | None) -> None:
    """End by an exception, so that the servers are stopped on the way out."""
    sys.exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
