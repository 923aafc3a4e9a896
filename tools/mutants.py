"""``make mutants``: break the code in known ways, one at a time, and expect a quick test to fail each time.

A mutant is one small change of the product code, in ``mutants.toml``: a function, what is done to it, the tests that
must notice it, and what it breaks. It takes a guard away: a lock, a constraint, a policy, a limit, a right. A mutant is
killed when one of its tests fails. A mutant that survives shows a guard that no quick test covers.

Mutants are applied to copies of the checkout in a temporary folder. The working tree is never changed.

``python -m tools.mutants`` runs all mutants, ``--only NAME`` one of them (repeatable), and ``--list`` names them. The
exit code is 0 if every mutant is killed, and 1 otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.support.databases import quick_folder
from tools.code_changes import Inapplicable, changed

REPOSITORY = Path(__file__).parents[1]
DATA = Path(__file__).with_name("mutants.toml")

#: The markers of tests that are not quick: they are never run against a mutant.
NOT_QUICK = ("slow", "races", "crash", "cloud", "postgresql", "mariadb", "long", "install")

#: The distributions beside the server's: their tests run in their own folder, with their own configuration.
OTHERS = ("client", "nova")
#: The folders of the packages, in a checkout.
SOURCES = ("src", "client/src", "nova/src")

#: What a copy of the checkout does not need.
LEFT_BEHIND = (".git", ".reports", ".venv", ".run", ".cloud", "*_cache", ".hypothesis", "__pycache__", "*.egg-info")

#: Settings of the tests around a run, such as more examples in a long run, which the tests of mutants do not take over.
NOT_INHERITED = ("PYTEST_", "TENURE_TEST_")

#: The tests may take this many seconds with a mutant, and this many times what they take without it on top.
SECONDS = 90.0
PATIENCE = 4.0

#: How long a test waits, on an idle machine, for what may never come with a mutant.
PATIENCE_SECONDS = 5.0

#: How long tests that are ended have for printing what they were doing.
ABORT_SECONDS = 5.0

PASSED, FAILED = 0, 1


class Refused(Exception):
    """Raised when the mutants cannot be run. The text says why."""


class Verdict(Enum):
    KILLED = "killed"
    SURVIVED = "survived"
    #: The tests did not end in time: whether they would have failed is not known.
    TIMEOUT = "timeout"
    #: The tests could not be collected: the mutant does not change a behaviour, it breaks an import.
    BROKEN = "broken"
    #: The tests fail without the mutant, too: their failure with it says nothing.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one function, and the tests that must fail with it."""

    name: str
    #: What users or operators would see go wrong.
    breaks: str
    module: str
    #: The qualified name in the module.
    function: str
    #: What is done to it, see ``tools.code_changes``.
    change: str
    #: Paths or node ids below the checkout, all of the same distribution.
    tests: tuple[str, ...]
    #: The markers that its tests may have although quick tests do not, such as that of a database server.
    needs: tuple[str, ...] = ()

    def file_in(self, repository: Path) -> Path:
        """Return the file of the module. Raises ``Refused`` if there is none."""
        below = self.module.replace(".", "/")
        files = [repository / source / name for source in SOURCES for name in (f"{below}.py", f"{below}/__init__.py")]
        for file in files:
            if file.exists():
                return file
        raise Refused(f"{self.name}: there is no module {self.module}")

    def apply(self, text: str) -> str:
        """Return the text of the module with the change. Raises ``Refused`` if there is nothing to change."""
        try:
            return changed(text, self.function, self.change)
        except Inapplicable as inapplicable:
            raise Refused(f"{self.name}: in {self.module}, {inapplicable}") from None


#: The tests of a mutant, and the markers that they may have.
Selection = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Run:
    """The outcome of one pytest."""

    #: The exit code of pytest; None if it did not end in time.
    code: int | None
    #: The first test that failed.
    failed: str
    output: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on one mutant, and the run of tests that led to it."""

    mutant: Mutant
    verdict: Verdict
    run: Run

    def __str__(self) -> str:
        killer = f"  {self.run.failed}" if self.verdict is Verdict.KILLED else ""
        return f"{self.verdict.value:<9}{self.run.seconds:6.1f} s  {self.mutant.name}{killer}"


def read_mutants(data: Path = DATA) -> list[Mutant]:
    """Return the kept mutants. Raises ``Refused`` if two have the same name or the tests of one are of two kinds."""
    mutants = []
    for module in tomllib.loads(data.read_text())["module"]:
        for table in module["mutant"]:
            tests, needs = (tuple(table.pop(key, module.get(key, ()))) for key in ("tests", "needs"))
            mutants.append(Mutant(**table, module=module["name"], tests=tests, needs=needs))
    twice = [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1]
    if twice:
        raise Refused(f"two mutants have the same name: {', '.join(twice)}")
    for mutant in mutants:
        if len({folder_of(test) for test in mutant.tests}) != 1:
            raise Refused(f"{mutant.name}: the tests of one mutant are of one distribution")
    return mutants


def folder_of(test: str) -> str:
    """Return the folder of the distribution that a test belongs to, "" for the server's."""
    first = test.partition("/")[0]
    return first if first in OTHERS else ""


def quick_tests(folder: Path, *, also: Collection[str] = ()) -> str:
    """Return the expression for the quick tests of a distribution, and for tests whose other markers are in ``also``.

    Pytest refuses markers that are not registered.
    """
    settings = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    registered = {marker.partition(":")[0] for marker in settings.get("markers", ())}
    return " and ".join(f"not {marker}" for marker in NOT_QUICK if marker in registered and marker not in also)


def stale(mutants: Iterable[Mutant], repository: Path = REPOSITORY) -> list[str]:
    """Return a complaint for every mutant that can no longer be applied."""
    complaints = []
    for mutant in mutants:
        try:
            mutant.apply(mutant.file_in(repository).read_text())
        except Refused as refused:
            complaints.append(str(refused))
    return complaints


class Checkout:
    """A copy of the checkout, to which one mutant at a time is applied."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self._folder = folder
        #: A time of modification for each mutant, decades before that of any file.
        self._seconds = itertools.count(1)
        #: The runs without a mutant, by the tests.
        self._unchanged: dict[Selection, Run] = {}
        shutil.copytree(repository, folder, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_BEHIND))

    def judge(self, mutant: Mutant) -> Outcome:
        """Run the tests of a mutant with it, after they have passed without it; that is tried once for the same tests.

        Raises ``Refused`` if the mutant cannot be applied.
        """
        selection = mutant.tests, mutant.needs
        unchanged = self._unchanged.get(selection)
        if unchanged is None:
            unchanged = self._unchanged[selection] = self._run(selection, None)
        if unchanged.code != PASSED:
            return Outcome(mutant, Verdict.UNKNOWN, unchanged)
        with self._changed_by(mutant):
            run = self._run(selection, SECONDS + PATIENCE * unchanged.seconds)
        verdicts = {None: Verdict.TIMEOUT, PASSED: Verdict.SURVIVED, FAILED: Verdict.KILLED}
        return Outcome(mutant, verdicts.get(run.code, Verdict.BROKEN), run)

    @contextmanager
    def _changed_by(self, mutant: Mutant) -> Iterator[None]:
        path = mutant.file_in(self._folder)
        original, times = path.read_text(), path.stat()
        path.write_text(mutant.apply(original))
        # Python compares whole seconds of this time to decide whether its compiled file is out of date.
        seconds = next(self._seconds)
        os.utime(path, (seconds, seconds))
        try:
            yield
        finally:
            path.write_text(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _run(self, selection: Selection, seconds: float | None) -> Run:
        """Run the quick tests among these until the first fails, for at most so many seconds."""
        tests, needs = selection
        folder = folder_of(tests[0])
        names = [test.removeprefix(f"{folder}/") for test in tests]
        options = ["-x", "-q", "-rfE", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        options += ["-m", quick_tests(self._folder / folder, also=needs)]
        environ = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)} | {
            "PYTHONPATH": os.pathsep.join(str(self._folder / source) for source in SOURCES),
            "TMPDIR": str(self._folder.parent),
            # Compiled files are shared by all runs, and lie outside of the checkout.
            "PYTHONDONTWRITEBYTECODE": "",
            "TENURE_TEST_PATIENCE": str(PATIENCE_SECONDS),
            "PYTHONPYCACHEPREFIX": str(self._folder.parent / "bytecode"),
        }
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", *options, *names]
        code, output = _call(command, self._folder / folder, environ, seconds)
        found = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", output, re.MULTILINE)
        failed = "/".join(filter(None, (folder, found.group(1)))) if found else ""
        return Run(code, failed, output, time.monotonic() - began)


def _call(
    command: Sequence[str], folder: Path, environ: Mapping[str, str], seconds: float | None
) -> tuple[int | None, str]:
    """Return the exit code and the output of a command. It is ended after so many seconds, and the code is None.

    A Python that is ended prints what each of its threads was doing, if it has pytest's fault handler.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        code: int | None = None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(ABORT_SECONDS)
            with suppress(ProcessLookupError):  # what the process has started may still be there
                os.killpg(process.pid, signal.SIGKILL)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return code, output.read()


@contextmanager
def copies(count: int, repository: Path = REPOSITORY) -> Iterator[list[Checkout]]:
    """Copies of the checkout for the time of the block, in memory if there is room for them."""
    with tempfile.TemporaryDirectory(prefix="tenure-mutants-", dir=quick_folder()) as name:
        yield [Checkout(repository, Path(name) / f"copy-{number}" / "checkout") for number in range(count)]


def run_mutants(
    mutants: Sequence[Mutant], *, repository: Path = REPOSITORY, jobs: int = 1, say: Callable[[str], None] = print
) -> list[Outcome]:
    """Run every mutant against its tests, and return the outcomes in the same order.

    Mutants with the same tests are run one after the other in the same copy of the checkout. Raises ``Refused`` if a
    mutant cannot be applied.
    """
    if complaints := stale(mutants, repository):
        raise Refused("\n".join(complaints))
    groups: dict[Selection, list[Mutant]] = {}
    for mutant in mutants:
        groups.setdefault((mutant.tests, mutant.needs), []).append(mutant)
    say(f"{len(mutants)} mutants, {len(groups)} selections of tests, {jobs} at a time")
    with copies(jobs, repository) as checkouts:
        idle: queue.SimpleQueue[Checkout] = queue.SimpleQueue()
        for checkout in checkouts:
            idle.put(checkout)

        def run_group(group: Sequence[Mutant]) -> list[Outcome]:
            checkout = idle.get()
            try:
                outcomes = []
                for mutant in group:
                    outcomes.append(checkout.judge(mutant))
                    say(str(outcomes[-1]))
                return outcomes
            finally:
                idle.put(checkout)

        with ThreadPoolExecutor(jobs) as pool:
            # The largest first, so that all jobs end at about the same time.
            outcomes = list(itertools.chain(*pool.map(run_group, sorted(groups.values(), key=len, reverse=True))))
    return sorted(outcomes, key=lambda outcome: mutants.index(outcome.mutant))


def explain(outcome: Outcome) -> str:
    """Return what a developer needs to know of a mutant that is not killed."""
    mutant, output = outcome.mutant, outcome.run.output
    match outcome.verdict:
        case Verdict.BROKEN:
            return f"{mutant.name}: the tests cannot be run with it:\n{output}"
        case Verdict.UNKNOWN:
            return f"{mutant.name}: its tests must pass without it, and do not:\n{output}"
        case Verdict.TIMEOUT:
            return f"{mutant.name}: the tests did not end in time:\n{output}"
    return (
        f"{mutant.name} ({outcome.verdict.value}), in {mutant.module}:{mutant.function}\n"
        f"  breaks: {mutant.breaks}\n"
        f"  tests:  {' '.join(mutant.tests)}"
    )


def summarise(outcomes: Sequence[Outcome], say: Callable[[str], None] = print) -> int:
    """Print every mutant that is not killed, and the number of each verdict. Return the exit code."""
    for outcome in outcomes:
        if outcome.verdict is not Verdict.KILLED:
            say(f"\n{explain(outcome)}")
    counts = Counter(outcome.verdict for outcome in outcomes)
    say("\n" + ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict))
    return 0 if counts[Verdict.KILLED] == len(outcomes) else 1


def main(argv: Sequence[str] | None = None, *, repository: Path = REPOSITORY, data: Path = DATA) -> int:
    arguments = _parser().parse_args(argv)
    began = time.monotonic()
    try:
        mutants = _choose(read_mutants(data), arguments.only)
        if arguments.list:
            for mutant in mutants:
                print(f"{mutant.name:<44} {mutant.module}:{mutant.function}\n    {mutant.breaks}")
            return 0
        code = summarise(run_mutants(mutants, repository=repository, jobs=arguments.jobs, say=_say))
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 1
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")
    return code


def _choose(mutants: Sequence[Mutant], names: Sequence[str] | None) -> Sequence[Mutant]:
    if not names:
        return mutants
    unknown = set(names) - {mutant.name for mutant in mutants}
    if unknown:
        raise Refused(f"there is no mutant {', '.join(sorted(unknown))}; --list names all")
    return [mutant for mutant in mutants if mutant.name in names]


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.partition("\n")[0])
    processors = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--jobs", type=int, default=processors, help="how many mutants run side by side (as many as processors)"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="run this mutant; may be given several times")
    parser.add_argument("--list", action="store_true", help="name the mutants and what they break, and run none")
    return parser


if __name__ == "__main__":
    sys.exit(main())
