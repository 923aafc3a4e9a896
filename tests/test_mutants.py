"""The kept mutants can be applied, and the run of mutants reports which of them survive."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tools.mutants import (
    REPOSITORY,
    Checkout,
    Mutant,
    Outcome,
    Refused,
    Run,
    Verdict,
    copies,
    explain,
    main,
    quick_tests,
    read_mutants,
    run_mutants,
    stale,
    summarise,
)

#: How many mutants there are at most: only guards are worth the minutes.
MOST = 60

SOURCE = """
def double(number):
    return number * 2

def half(number):
    return number / 2

def is_complete():
    return True

assert is_complete()
"""
TESTS = """
import logging
import pytest
from numbers_of_ours import double, half

def test_double():
    logging.error("shown above the name of a test that fails")
    assert double(3) == 6

@pytest.mark.slow
def test_half(): assert half(6) == 3
"""
SETTINGS = """
[tool.pytest.ini_options]
addopts = ["--strict-markers", "-p", "no:schemathesis"]
markers = ["slow: takes long", "install: installs something"]
"""
DOUBLE = Mutant(
    name="double",
    breaks="The double is the triple.",
    module="numbers_of_ours",
    function="double",
    change="return number * 3",
    tests=("tests/test_numbers.py",),
)
HALF = replace(DOUBLE, name="half", breaks="The half is the third.", function="half", change="return number / 3")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small project: a module, its tests, and tests that always fail."""
    folder = tmp_path_factory.mktemp("project") / "checkout"
    for name, text in (
        ("src/numbers_of_ours.py", SOURCE),
        ("tests/test_numbers.py", TESTS),
        ("tests/test_others.py", "def test_it(): assert False\n"),
        ("pyproject.toml", SETTINGS),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


# The kept mutants


def test_every_mutant_can_be_applied():
    """A mutant whose function is renamed, or loses what is changed, is brought up to date with that commit."""
    assert stale(read_mutants()) == []


def test_every_mutant_is_a_change_that_python_understands():
    for mutant in read_mutants():
        file = mutant.file_in(REPOSITORY)
        compile(mutant.apply(file.read_text()), str(file), "exec")


def test_every_mutant_describes_its_defect_and_names_existing_tests():
    for mutant in read_mutants():
        assert mutant.breaks.endswith("."), mutant.name
        assert "\n" not in mutant.breaks, mutant.name
        for test in mutant.tests:
            path, *names = test.partition("[")[0].split("::")
            assert (REPOSITORY / path).exists(), mutant.name
            text = (REPOSITORY / path).read_text() if names else ""
            assert all(f"def {name}(" in text or f"class {name}" in text for name in names), mutant.name


def test_there_are_mutants_of_every_layer():
    mutants = read_mutants()
    assert len(mutants) <= MOST
    layers = {
        *(f"tenure.{name}." for name in ("api", "domain", "drivers", "resources", "rpc", "services", "store")),
        *("tenureclient.", "tenurenova."),
    }
    assert {layer for layer in layers for mutant in mutants if mutant.module.startswith(layer)} == layers


@pytest.fixture(scope="session")
def copy() -> Iterator[Checkout]:
    """One copy of the checkout for each process that runs tests."""
    with copies(1) as (checkout,):
        yield checkout


@pytest.mark.long
@pytest.mark.parametrize("mutant", read_mutants(), ids=lambda mutant: mutant.name)
def test_a_quick_test_kills_the_mutant(copy: Checkout, mutant: Mutant):
    outcome = copy.judge(mutant)
    assert outcome.verdict is Verdict.KILLED, explain(outcome)


# The run of mutants


def files_of(folder: Path) -> Mapping[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_each_mutant_gets_its_verdict_and_the_working_tree_stays_as_it_is(checkout: Path):
    mutants = {
        DOUBLE: Verdict.KILLED,
        # Only a slow test notices it. The mutant before it has left no trace.
        HALF: Verdict.SURVIVED,
        replace(DOUBLE, name="again"): Verdict.KILLED,
        replace(DOUBLE, name="import", function="is_complete", change="return False"): Verdict.BROKEN,
        replace(DOUBLE, name="other", tests=("tests/test_others.py",)): Verdict.UNKNOWN,
    }
    before = files_of(checkout)
    outcomes = run_mutants(list(mutants), repository=checkout, jobs=2, say=lambda _line: None)
    assert {outcome.mutant: outcome.verdict for outcome in outcomes} == mutants
    assert outcomes[0].run.failed == "tests/test_numbers.py::test_double"
    assert files_of(checkout) == before


@pytest.mark.slow
def test_a_mutant_that_never_ends_is_given_up(checkout: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tools.mutants.SECONDS", 0.0)
    monkeypatch.setattr("tools.mutants.PATIENCE", 2.0)
    endless = replace(DOUBLE, change="return any(False for _ in iter(int, 1))")
    [outcome] = run_mutants([endless], repository=checkout, say=lambda _line: None)
    assert outcome.verdict is Verdict.TIMEOUT
    assert "numbers_of_ours.py" in explain(outcome)  # where it was


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (replace(DOUBLE, module="letters"), "there is no module letters"),
        (replace(DOUBLE, function="triple"), "there is no function triple"),
        (replace(DOUBLE, change="skip check"), "double has nothing to skip check"),
        (replace(DOUBLE, change="burn it"), "there is no change 'burn'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mutant_that_cannot_be_applied_stops_the_run(checkout: Path, wrong: Mutant, said: str):
    with pytest.raises(Refused, match=said):
        run_mutants([wrong], repository=checkout, say=lambda _line: None)


# The report


def test_the_survivors_are_named_and_the_run_fails(capsys: pytest.CaptureFixture[str]):
    run = Run(1, "tests/test_numbers.py::test_double", "the output", 1.0)
    outcomes = [Outcome(DOUBLE, Verdict.KILLED, run), Outcome(HALF, Verdict.SURVIVED, run)]
    assert summarise(outcomes) == 1
    printed = capsys.readouterr().out
    assert "half (survived), in numbers_of_ours:half\n  breaks: The half is the third.\n" in printed
    assert "double" not in printed
    assert printed.endswith("\n1 killed, 1 survived, 0 timeout, 0 broken, 0 unknown\n")
    assert summarise(outcomes[:1]) == 0


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.KILLED])
def test_every_verdict_but_killed_fails_the_run(verdict: Verdict):
    lines: list[str] = []
    assert summarise([Outcome(DOUBLE, verdict, Run(None, "", "the output", 1.0))], lines.append) == 1
    assert "double" in lines[0]


# The command line

DATA = """
[[module]]
name = "numbers_of_ours"
tests = ["tests/test_numbers.py"]

[[module.mutant]]
name = "double"
breaks = "The double is the triple."
function = "double"
change = "return number * 3"

[[module.mutant]]
name = "half"
breaks = "The half is the third."
function = "half"
change = "return number / 3"
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "mutants.toml"
    path.write_text(DATA)
    return path


@pytest.mark.slow
def test_all_mutants_are_run_from_the_command_line(checkout: Path, data: Path, capsys: pytest.CaptureFixture[str]):
    assert main([], repository=checkout, data=data) == 1
    assert "\n1 killed, 1 survived, 0 timeout, 0 broken, 0 unknown\n" in capsys.readouterr().out


def test_mutants_are_chosen_by_name_and_listed_without_being_run(data: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["--list", "--only", "double"], data=data) == 0
    printed = capsys.readouterr().out
    assert "The double is the triple." in printed
    assert "half" not in printed
    assert main(["--only", "nonsense"], data=data) == 1


def test_only_the_quick_tests_of_a_distribution_are_run():
    assert quick_tests(REPOSITORY / "client") == "not install"
    assert "postgresql" not in quick_tests(REPOSITORY, also=["postgresql"])
    markers = quick_tests(REPOSITORY).removeprefix("not ").split(" and not ")
    [quick] = re.findall(r"^QUICK +:= not \((.*)\)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert set(markers) == set(quick.split(" or "))  # those of `make check`


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('name = "half"', 'name = "double"'), "two mutants have the same name: double"),
        (('["tests/test_numbers.py"]', '["tests/a.py", "client/tests/b.py"]'), "of one distribution"),
    ],
)
def test_data_that_contradict_themselves_are_refused(data: Path, change: tuple[str, str], said: str):
    data.write_text(DATA.replace(*change))
    with pytest.raises(Refused, match=said):
        read_mutants(data)
