"""The run of all suites counts right, and is green only when everything is."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support import suites as runner
from tests.support.durations import REPOSITORY, describe, read_durations
from tests.support.real_cloud import CloudFailed
from tests.support.suites import (
    AGAIN,
    Lane,
    Result,
    Suite,
    choose,
    find_suites,
    main,
    run_on_cloud,
    run_suite,
    summarise,
)

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


def suite_of(tmp_path: Path, source: str, *, name: str = "it") -> Suite:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(source)
    return Suite(name=name, arguments=["-q", "test_it.py"], folder=tmp_path)


def run(suite: Suite) -> Result:
    return run_suite(suite, os.environ, suite.folder / "reports")


@pytest.mark.slow
def test_every_outcome_is_counted_once(tmp_path: Path):
    result = run(suite_of(tmp_path, SOURCE))
    assert (result.passed, result.failed, result.left_out) == (2, 3, Counter({"no oracle": 1}))


@pytest.mark.slow
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
    assert run(suite_of(tmp_path, source)).failed == 1


@pytest.mark.slow
def test_a_suite_without_tests_has_not_failed(tmp_path: Path):
    result = run(suite_of(tmp_path, ""))
    assert (result.passed, result.failed, result.skipped) == (0, 0, 0)


FAILS_ONCE = """
from pathlib import Path

def test_fails_once():
    before = Path("been-here").exists()
    Path("been-here").touch()
    assert before

def test_passes(): assert not Path("passed").exists(); Path("passed").touch()
"""


#: The error of the test that fails once.
ERROR_ONCE = "assert False"


@pytest.mark.slow
def test_a_failed_test_of_the_real_cloud_is_repeated_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    result = run(suite_of(tmp_path, FAILS_ONCE, name=AGAIN))
    assert (result.passed, result.failed, result.passed_again) == (2, 0, {"test_it.test_fails_once": ERROR_ONCE})
    assert summarise({AGAIN: result}, [], complete=True) == 0
    assert "FAILED, AND PASSED WHEN RUN AGAIN\n  test_it.test_fails_once" in capsys.readouterr().out


@pytest.mark.slow
def test_a_test_of_the_real_cloud_that_fails_twice_has_failed(tmp_path: Path):
    result = run(suite_of(tmp_path, FAILS_ONCE + "\ndef test_fails(): assert False\n", name=AGAIN))
    assert (result.passed, result.failed, result.passed_again) == (2, 1, {"test_it.test_fails_once": ERROR_ONCE})


@pytest.mark.slow
def test_no_other_test_is_run_again(tmp_path: Path):
    result = run(suite_of(tmp_path, FAILS_ONCE))
    assert (result.passed, result.failed, result.passed_again) == (1, 1, {})


def test_a_cloud_that_does_not_come_up_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def broken() -> NoReturn:
        raise CloudFailed("no Keystone")

    monkeypatch.setattr(runner, "real_cloud", broken)
    assert run_on_cloud([suite_of(tmp_path, "")], os.environ) == {"it": Result(failed=1)}


MARKED = """
import pytest

@pytest.fixture(autouse=True)
def marked(record_property):
    record_property("marker", "slow")

class TestIt:
    def test_passes(self): pass
"""


@pytest.mark.slow
def test_durations_are_added_up_by_suite_folder_and_marker(tmp_path: Path):
    suite = suite_of(tmp_path, MARKED)
    run(suite)
    (duration,) = read_durations("it", tmp_path / "reports" / "it.xml")
    assert (duration.folder, duration.name, duration.markers) == ("", "test_it.TestIt.test_passes", ("slow",))
    lines = describe([duration])
    assert [line.split()[:2] for line in lines if line.startswith(("it", "slow"))] == [
        ["it", "1"],
        ["it:", "1"],
        ["slow", "1"],
    ]
    assert lines[-1].endswith(" s  test_it.TestIt.test_passes")


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


def test_the_last_lines_name_skipped_tests_and_the_sum(capsys: pytest.CaptureFixture[str]):
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


@pytest.mark.slow
def test_the_summary_names_each_failed_test_with_its_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = """
import pytest

@pytest.fixture
def broken(): raise OSError("no disk")

def test_adds(): assert 1 + 1 == 3, "one line\\nand another"
def test_uses(broken): pass
"""
    summarise({"it": run(suite_of(tmp_path, source))}, [], complete=False)
    printed = capsys.readouterr().out
    assert printed.partition("FAILED\n")[2].splitlines()[:6] == [
        "  test_it.test_adds",
        "      AssertionError: one line",
        "        and another",
        "      assert (1 + 1) == 3",
        "  test_it.test_uses",
        '      failed on setup with "OSError: no disk"',
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


def test_a_test_runs_in_one_suite_unless_its_folder_is_named():
    every_day = choose(find_suites(REPOSITORY, jobs=1), [])
    assert [suite.name for suite in every_day][:3] == ["server", "client", "nova"]
    (server,) = (suite for suite in every_day if suite.name == "server")
    (races,) = (suite for suite in every_day if suite.name == "races")
    for suite in (server, races):
        assert {"--ignore=tests/cloud", "--ignore=tests/processes"} <= set(suite.arguments)
    assert [suite.name for suite in every_day if suite.lane is Lane.CLOUD] == ["processes", "cloud"]


def test_suites_are_named_or_left_out():
    suites = find_suites(REPOSITORY, jobs=1)
    every_day = choose(suites, [])
    assert [suite.name for suite in choose(suites, ["api", "store"])] == ["api", "store"]
    assert [suite for suite in every_day if suite.name not in {"cloud", "races"}] == choose(
        suites, ["--but", "races", "cloud"]
    )
    assert main(["--but", "nonsense"]) == main(["api", "--but", "races"]) == 2


def test_long_tests_run_only_when_everything_does():
    for suite in find_suites(REPOSITORY, jobs=1, long=False):
        if suite.folder != REPOSITORY:
            continue  # which know no such marker
        assert "not long" in suite.arguments[suite.arguments.index("-m") + 1], suite.name
    for suite in find_suites(REPOSITORY, jobs=1, long=True):
        assert "not long" not in " ".join(suite.arguments), suite.name
