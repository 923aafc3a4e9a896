"""A run names the tests that it left out."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

HALF_A_SUITE = """
    import pytest

    def test_passes():
        pass

    @pytest.mark.parametrize("number", range(3))
    def test_is_skipped(number):
        pytest.skip("the oracle: not on this machine")
    """


def run(tmp_path: Path, *options: str, everything: bool) -> subprocess.CompletedProcess[str]:
    suite = tmp_path / "test_half.py"
    suite.write_text(textwrap.dedent(HALF_A_SUITE))
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    environ = os.environ | {"TENURE_TEST_ALL": "1" if everything else "0"}
    return subprocess.run(
        [*command, *options, str(suite)],
        cwd=REPOSITORY,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "with workers"])
def test_skipped_tests_are_named_last(tmp_path: Path, options: tuple[str, ...]):
    result = run(tmp_path, *options, everything=False)
    *_, title, reason, closing = result.stdout.strip().splitlines()
    assert "LEFT OUT" in title
    assert reason == "3 tests: the oracle: not on this machine"
    assert "1 passed, 3 skipped" in closing
    assert result.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "with workers"])
def test_a_run_of_everything_fails_when_something_is_left_out(tmp_path: Path, options: tuple[str, ...]):
    result = run(tmp_path, *options, everything=True)
    assert "TENURE_TEST_ALL=1: that is a failure." in result.stdout
    assert result.returncode == 1


@pytest.mark.slow
def test_a_whole_run_leaves_nothing_out(tmp_path: Path):
    result = run(tmp_path, "-k", "passes", everything=True)
    assert "LEFT OUT" not in result.stdout
    assert result.returncode == 0
