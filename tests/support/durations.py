"""How long the tests of a run took: by suite, by folder and by marker, and the slowest tests.

``python -m tests.support.durations`` prints this for the JUnit reports that the last run kept in ``.reports``;
``python -m tests.support.durations FOLDER`` for the reports in another folder.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

REPOSITORY = Path(__file__).parents[2]

#: Where a run keeps the JUnit report and the output of each suite. Git ignores it.
REPORTS = REPOSITORY / ".reports"

#: The property of a test case in a JUnit report that holds the name of one marker of the test.
MARKER = "marker"

SLOWEST = 40

#: In place of a marker, for tests that have none.
UNMARKED = "none"


@dataclass(frozen=True, kw_only=True)
class Duration:
    """The seconds that one test took, with the setup and the teardown of its fixtures."""

    suite: str
    folder: str
    name: str
    markers: tuple[str, ...]
    seconds: float


def read_durations(suite: str, report: Path) -> list[Duration]:
    """Return the duration of each test case in the JUnit report of a suite."""
    return [
        Duration(
            suite=suite,
            folder=_folder(case.get("classname", "")),
            name=f"{case.get('classname', '')}.{case.get('name', '')}",
            markers=tuple(entry.get("value", "") for entry in case.iter("property") if entry.get("name") == MARKER),
            seconds=float(case.get("time", 0)),
        )
        for case in ElementTree.parse(report).iter("testcase")
    ]


def _folder(classname: str) -> str:
    """Return ``tests/api`` for ``tests.api.test_leases.TestCreate``, and ``tests`` for ``tests.test_imports``."""
    parts = classname.split(".")
    module = next((number for number, part in enumerate(parts) if part.startswith("test_")), 0)
    return "/".join(parts[:module])


def describe(durations: Sequence[Duration]) -> list[str]:
    """Return the lines of the tables: seconds by suite, by folder and by marker, and the slowest tests."""
    lines = _table("suite", durations, lambda duration: [duration.suite])
    lines += _table("folder", durations, lambda duration: [f"{duration.suite}: {duration.folder}"])
    lines += _table("marker", durations, lambda duration: duration.markers or [UNMARKED])
    lines += ["", f"the {SLOWEST} slowest tests"]
    slowest = sorted(durations, key=lambda duration: -duration.seconds)[:SLOWEST]
    return lines + [f"{duration.seconds:>8.1f} s  {duration.name}" for duration in slowest]


def _table(title: str, durations: Iterable[Duration], groups_of: Callable[[Duration], Iterable[str]]) -> list[str]:
    """Return a table of seconds and tests, the group that took longest first."""
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, int] = defaultdict(int)
    for duration in durations:
        for group in groups_of(duration):
            seconds[group] += duration.seconds
            tests[group] += 1
    rows = sorted(seconds, key=lambda group: -seconds[group])
    return ["", f"{title:<40}{'tests':>8}{'seconds':>10}"] + [
        f"{group:<40}{tests[group]:>8}{seconds[group]:>10.1f}" for group in rows
    ]


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0]) if arguments else REPORTS
    reports = sorted(folder.glob("*.xml"))
    if not reports:
        print(f"There are no JUnit reports in {folder}: `make test` writes them.", file=sys.stderr)
        return 1
    print("\n".join(describe([found for report in reports for found in read_durations(report.stem, report)])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
