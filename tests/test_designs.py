"""The table of what design documents ask for is whole, names tests that exist, and the pages are written from it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.designs import (
    ALL_PAGE,
    BEGIN,
    CALLS_PAGE,
    DATA,
    END,
    GOALS,
    README,
    REPOSITORY,
    Designs,
    Status,
    faults,
    missing_list,
    missing_table,
    pages,
    read_designs,
    stale,
)

#: How many statements each document has.
STATEMENTS = {"A": 44, "B": 51, "C": 18, "E": 34, "P": 30, "R": 50}

MODULE = """
def test_it(): ...

class TestMore:
    def test_more(self): ...
    def help(self): ...
"""
SMALL = """
[[document]]
letter = "A"
title = "the first"
about = "About it."
statements = 3
has_decisions = true

[[document]]
letter = "R"
title = "the second"
about = "About requirements."
statements = 1
has_calls = true

[[statement]]
id = "A1"
says = "It works."
status = "served"
where = ["docs/user.md#how-it-works"]
tests = ["tests/test_it.py::test_it", "tests/test_it.py::TestMore::test_more"]

[[statement]]
id = "A2"
says = "It sings."
status = "differs"
how = "It hums."
where = ["docs/user.md"]
tests = ["tests/test_it.py::test_it"]

[[statement]]
id = "A3"
says = "It flies."
status = "partly"
how = "Missing: landing."
where = ["docs/adr/0001-landing.md"]
tests = ["tests/test_it.py::test_it"]
gaps = ["landing"]

[[statement]]
id = "R1"
says = "It swims."
status = "not"
how = "Missing."
calls = ['GET /v1/leases']
refused = ['POST /v1/leases {"swim": true}']
gaps = ["swimming", "landing"]

[[gap]]
id = "landing"
missing = "Landing."

[[gap]]
id = "swimming"
missing = "Swimming."
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small repository whose pages are what the small table says."""
    for path, text in (
        ("docs/user.md", "# It\n\n## How it works\n\n```\n# no heading\n```\n"),
        (
            "tests/test_it.py",
            "def test_it(): ...\n\n\nclass TestMore:\n    def test_more(self): ...\n    def help(self): ...\n",
        ),
        ("README.md", f"# It\n\n{BEGIN}\n{END}\n\nMore.\n"),
        ("docs/goals.md", f"# Goals\n\n{BEGIN}\nold\n{END}\n"),
        ("docs/api/README.md", "# API\n"),
        ("docs/adr/0001-landing.md", "# 0001: Landing comes later\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for page, text in pages(read_designs(SMALL), tmp_path).items():
        (tmp_path / page).write_text(text)
    return tmp_path


@pytest.fixture(scope="module")
def designs() -> Designs:
    return read_designs(DATA.read_text())


# The table


def test_the_table_has_no_fault(designs: Designs):
    assert faults(designs) == []


def test_no_statement_is_missing(designs: Designs):
    assert {document.letter: document.statements for document in designs.documents} == STATEMENTS
    found = [statement.id for statement in designs.statements]
    assert found == [f"{letter}{number}" for letter, count in STATEMENTS.items() for number in range(1, count + 1)]


def test_the_pages_are_what_make_designs_writes(designs: Designs):
    assert stale(designs) == [], "run `make designs`"


def test_make_designs_runs_the_tool():
    command = ["make", "--no-print-directory", "-n", "designs"]
    printed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert "-m tools.designs\n" in printed


# The tool, with a small table


def test_a_right_table_has_no_fault(checkout: Path):
    assert faults(read_designs(SMALL), checkout) == []
    assert stale(read_designs(SMALL), checkout) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        pytest.param("test_it.py::test_it", "test_it.py::test_no", "A1: there is no test", id="no such test"),
        pytest.param("test_it.py::test_it", "test_no.py::test_it", "A1: there is no test", id="no such file"),
        pytest.param("TestMore::test_more", "test_more", "A1: there is no test", id="a test of a class without it"),
        pytest.param("TestMore::test_more", "TestMore::help", "A1: there is no test", id="a function that is no test"),
        pytest.param(
            'tests = ["tests/test_it.py::test_it", "tests/test_it.py::TestMore::test_more"]\n',
            "",
            "A1: it is served, and no test is named",
            id="served without a test",
        ),
        pytest.param("#how-it-works", "#no-heading", "A1: there is no page", id="no such heading"),
        pytest.param("docs/user.md#how-it-works", "tests/test_it.py", "A1: there is no page", id="a page that is none"),
        pytest.param('where = ["docs/user.md"]', 'where = ["docs/no.md"]', "A2: there is no page", id="no such page"),
        pytest.param('where = ["docs/user.md"]\n', "", "A2: it differs, and no page", id="differs without explanation"),
        pytest.param('how = "It hums."\n', "", "A2: it is differs, and does not say", id="differs without words"),
        pytest.param('how = "Missing: landing."\n', "", "A3: it is partly, and does not", id="partly without words"),
        pytest.param(
            'where = ["docs/adr/0001-landing.md"]\n',
            "",
            "A3: it is partly, and no decision",
            id="partly without decision",
        ),
        pytest.param('gaps = ["landing"]\n', "", "A3: it is partly, and belongs to no gap", id="partly without a gap"),
        pytest.param('gaps = ["landing"]', 'gaps = ["sinking"]', "A3: there is no gap sinking", id="no such gap"),
        pytest.param('status = "partly"', 'status = "served"', "A3: it is served, and belongs", id="a served gap"),
        pytest.param('["swimming", "landing"]', '["landing"]', "gap swimming: no statement", id="a gap of nothing"),
        pytest.param('id = "swimming"', 'id = "landing"', "gap landing: there are several", id="a gap twice"),
        pytest.param('id = "A2"', 'id = "A4"', "A2: the statement is missing", id="a number missing"),
        pytest.param('id = "A2"', 'id = "A4"', "A4: document A has 3 statements", id="a number too much"),
        pytest.param('id = "A2"', 'id = "A1"', "A1: there are several", id="a number twice"),
        pytest.param('id = "A2"', 'id = "B1"', "B1: there is no document B", id="no such document"),
        pytest.param("statements = 1", "statements = 2", "R2: the statement is missing", id="the last one missing"),
        pytest.param("It hums.", "It hums | it sings.", "A2: a cell has a |", id="a cell in two"),
        pytest.param("GET /v1/leases", "FETCH /v1/leases", "R1: this is no call", id="no call"),
    ],
)
def test_each_fault_is_found(checkout: Path, old: str, new: str, fault: str):
    assert old in SMALL
    found = faults(read_designs(SMALL.replace(old, new, 1)), checkout)
    assert [line for line in found if line.startswith(fault)], found


def test_statements_are_in_their_order(checkout: Path):
    swapped = re.sub(r'"A([12])"', lambda found: f'"A{3 - int(found[1])}"', SMALL)
    assert faults(read_designs(swapped), checkout) == ["document A: its statements are not in their order"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('status = "partly"', 'status = "mostly"'),
        ('status = "partly"', 'state = "partly"'),
        ('says = "It flies."', ""),
        ("[[gap]]", "[[hole]]"),
    ],
)
def test_a_table_of_another_form_is_refused(old: str, new: str):
    with pytest.raises((ValueError, TypeError, KeyError)):
        read_designs(SMALL.replace(old, new))


@pytest.mark.parametrize("page", [ALL_PAGE, CALLS_PAGE, README, GOALS])
def test_a_stale_page_is_found(checkout: Path, page: Path):
    text = (checkout / page).read_text()
    changed = text.replace("It flies.", "It jumps.").replace("Landing.", "Starting.").replace("It swims.", "It dives.")
    assert changed != text
    (checkout / page).write_text(changed)
    assert stale(read_designs(SMALL), checkout) == [str(page)]
    (checkout / page).write_text(text)
    assert stale(read_designs(SMALL), checkout) == []


def test_a_page_without_its_comments_is_refused(checkout: Path):
    (checkout / README).write_text("# It\n")
    with pytest.raises(ValueError, match="lacks the comments"):
        stale(read_designs(SMALL), checkout)


def test_the_pages_have_each_statement_and_what_is_missing(checkout: Path):
    written = pages(read_designs(SMALL), checkout)
    everything, calls = written[ALL_PAGE], written[CALLS_PAGE]
    assert (
        "| A1 | It works. | served | [how it works](user.md#how-it-works) | [test_it](../tests/test_it.py), "
        in everything
    )
    assert "| A2 | It sings. | differs | It hums. ([user](user.md)) | [test_it](../tests/test_it.py) |" in everything
    assert "| A: the first | 3 | 1 | 1 | 1 | 0 |" in everything
    assert "| R1 | It swims. | not | Missing. | |" in everything
    assert '| R1 | It swims. | not | `GET /v1/leases` | `POST /v1/leases` `{"swim": true}` | Missing. |' in calls
    assert "It works." not in calls
    assert missing_list(read_designs(SMALL)) == "* Landing.\n* Swimming.\n"
    assert missing_table(read_designs(SMALL)).splitlines()[2:] == ["| Landing. | A3, R1 |", "| Swimming. | R1 |"]
    assert written[README].endswith(f"* Landing.\n* Swimming.\n\n{END}\n\nMore.\n")
    assert "old" not in written[GOALS]


def test_the_tool_names_faults_and_stale_pages():
    command = [sys.executable, "-m", "tools.designs", "--check"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_status_is_explained(designs: Designs):
    page = pages(designs)[ALL_PAGE]
    assert all(f"| {status} | " in page for status in Status)
