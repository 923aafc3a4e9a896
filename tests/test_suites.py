"""The run of all suites counts right, and is green only when everything is."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.support.suites import REPOSITORY, Result, Suite, choose, find_suites, main, run_suite, summarise

SOURCE = """
import pytest

def test_passes(): pass

def test_fails(): assert False

def test_is_skipped(): pytest.skip("no oracle")

@pytest.mark.xfail(strict=True)
def test_fails_as_it_should(): assert False

@pytest.fixture
def broken():
    yield
    raise ValueError

def test_fails_twice(broken): assert False

def test_whose_fixture_fails(broken): pass
"""


def suite_of(tmp_path: Path, source: str) -> Suite:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(source)
    return Suite(name="it", arguments=["-q", "-p", "no:cacheprovider", "test_it.py"], folder=tmp_path)


def test_every_outcome_is_counted_once(tmp_path: Path):
    result = run_suite(suite_of(tmp_path, SOURCE), os.environ)
    assert (result.passed, result.failed, result.left_out) == (2, 3, Counter({"no oracle": 1}))


@pytest.mark.parametrize(
    "source",
    [
        "def test_it(:",
        "import os\ndef test_it(): os._exit(0)",
        "import pytest\npytest.exit('enough', returncode=3)",
    ],
    ids=["not Python", "ended from inside", "given up"],
)
def test_a_suite_that_does_not_finish_has_failed(tmp_path: Path, source: str):
    assert run_suite(suite_of(tmp_path, source), os.environ).failed == 1


def test_a_suite_without_tests_has_not_failed(tmp_path: Path):
    result = run_suite(suite_of(tmp_path, ""), os.environ)
    assert (result.passed, result.failed, result.skipped) == (0, 0, 0)


@pytest.mark.parametrize(
    ("result", "notes", "complete", "code"),
    [
        (Result(passed=1), [], True, 0),
        (Result(passed=1, failed=1), [], False, 1),
        (Result(), [], False, 1),
        (Result(passed=1, left_out=Counter({"no oracle": 2})), [], False, 0),
        (Result(passed=1, left_out=Counter({"no oracle": 2})), [], True, 1),
        (Result(passed=1), ["mariadb: not installed"], False, 0),
        (Result(passed=1), ["mariadb: not installed"], True, 1),
    ],
)
def test_the_exit_code_of_a_whole_run(result: Result, notes: list[str], complete: bool, code: int):
    assert summarise({"store": result}, notes, complete=complete) == code


def test_the_last_lines_name_what_was_left_out_and_the_sum(capsys: pytest.CaptureFixture[str]):
    results = {
        "store": Result(passed=5, failed=1, seconds=90, left_out=Counter({"no oracle": 2})),
        "client": Result(passed=2, seconds=30, left_out=Counter({"no oracle": 1})),
    }
    summarise(results, ["mariadb: not installed"], complete=False)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "suite           passed  failed  skipped  minutes",
        "store                5       1        2      1.5",
        "client               2       0        1      0.5",
        "all                  7       1        3      2.0",
        "",
        "LEFT OUT",
        "  mariadb: not installed",
        "  3 tests: no oracle",
        "",
        "7 passed, 1 failed, 3 skipped",
    ]


def test_every_test_file_belongs_to_a_suite():
    covered = {
        path
        for suite in find_suites(REPOSITORY, jobs=1)
        for argument in suite.arguments
        for path in [suite.folder / argument, *(suite.folder / argument).rglob("test_*.py")]
    }
    files = {*REPOSITORY.glob("tests/**/test_*.py"), *REPOSITORY.glob("*/tests/**/test_*.py")}
    assert files <= covered


def test_suites_are_named_or_left_out():
    suites = find_suites(REPOSITORY, jobs=1)
    every_day = choose(suites, [])
    assert [suite.name for suite in choose(suites, ["api", "store"])] == ["api", "store"]
    assert [suite for suite in every_day if suite.name not in {"api", "races"}] == choose(
        suites, ["--but", "races", "api"]
    )
    assert main(["--but", "nonsense"]) == main(["api", "--but", "races"]) == 2


def test_what_needs_a_real_cloud_runs_only_when_it_is_named():
    suites = find_suites(REPOSITORY, jobs=1)
    every_day = choose(suites, [])
    assert [suite.name for suite in suites if suite not in every_day] == ["cloud"]
    assert [suite.name for suite in choose(suites, ["cloud"])] == ["cloud"]
    assert [suite.name for suite in every_day if suite.arguments[-1] == "tests/cloud"] == []
    (races,) = (suite for suite in every_day if suite.name == "races")
    assert "--ignore=tests/cloud" in races.arguments
