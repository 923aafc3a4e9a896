"""Write the pages about what design documents and requirements ask for, from ``designs.toml``, and check that file.

``python -m tools.designs`` writes ``docs/designs.md``, ``docs/api/promise.md``, and the lists of what is missing in
``README.md`` and ``docs/goals.md``. With ``--check`` it writes nothing. The exit code is 1 if the file has a fault, or
if with ``--check`` a page differs from it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
DATA = Path(__file__).with_name("designs.toml")

ALL_PAGE = Path("docs/designs.md")
CALLS_PAGE = Path("docs/api/promise.md")
#: The pages of which a part is written, between two comments.
README, GOALS = Path("README.md"), Path("docs/goals.md")
#: The folder of decisions.
DECISIONS = "docs/adr/"
BEGIN, END = "<!-- written by make designs -->", "<!-- end of what is written by make designs -->"

#: A call: method and target, and the body, if there is one.
CALL = re.compile(r"(GET|POST|PUT|DELETE) (/\S*)(?: (\{.*\}))?")


class Status(StrEnum):
    """How far a statement holds; ``MEANINGS`` says what each status means."""

    SERVED = "served"
    DIFFERS = "differs"
    PARTLY = "partly"
    NOT = "not"


MEANINGS = {
    Status.SERVED: "it holds",
    Status.DIFFERS: "its purpose is met in another way, which the linked page explains",
    Status.PARTLY: "a part of it holds, and the row says what is missing",
    Status.NOT: "it does not hold",
}


ABOUT_ALL = """
Tenure follows the architecture documents of Climate and Blazar, and two documents of OPNFV Promise. This page has
each of their statements, whether it holds, and the tests that show it.
[Goals](goals.md#what-the-designs-ask-for-and-is-missing) lists what is missing. `make designs` writes this page from
[tools/designs.toml](../tools/designs.toml).
"""
ABOUT_CALLS = """
This page has each of its requirements, whether Tenure meets it, and the calls for it at API 1.3. A test makes each
call: those in the fourth column work, and those in the fifth are refused. [What the designs say](../designs.md) has
the tests of each requirement. `make designs` writes this page from [tools/designs.toml](../../tools/designs.toml).
"""
ABBREVIATIONS = """
In the calls, `$lease` stands for the id of a lease, `$network` for that of an external network, `$host` and
`$hostname` for the id and the name of a host, `$project` for the id of a project, `$period` for `"start_date":
"2030-01-02T00:00:00Z", "end_date": "2030-01-03T00:00:00Z"`, and `$hosts` for `{"resource_type": "physical:host",
"min": 1, "max": 1, "hypervisor_properties": "", "resource_properties": ""}`.
"""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A document whose statements are in the table, and how many there are."""

    letter: str
    title: str
    about: str
    statements: int
    #: Whether its rows have calls, and are on the page of the calls as well.
    has_calls: bool = False
    #: Whether a decision says why a statement of it does not hold, or only in part.
    has_decisions: bool = False


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A row: what a document says, and what is true of it now."""

    id: str
    says: str
    status: Status
    #: How it is served, in what it differs, or what is missing.
    how: str = ""
    #: Pages of the documentation, each with a heading if needed, as in ``docs/user/booking.md#how-many``.
    where: tuple[str, ...] = ()
    #: The tests that show it, as pytest takes them.
    tests: tuple[str, ...] = ()
    #: Calls that work, and calls that are refused.
    calls: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    #: The ids of the gaps that it belongs to.
    gaps: tuple[str, ...] = ()

    @property
    def letter(self) -> str:
        return self.id[0]

    @property
    def is_lacking(self) -> bool:
        """Whether something that it says is missing."""
        return self.status in {Status.PARTLY, Status.NOT}


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Something that is missing, which one statement or several ask for."""

    id: str
    missing: str


@dataclass(frozen=True, kw_only=True)
class Designs:
    """The whole table."""

    documents: tuple[Document, ...]
    statements: tuple[Statement, ...]
    gaps: tuple[Gap, ...]

    def of(self, document: Document) -> list[Statement]:
        """Return the statements of a document."""
        return [statement for statement in self.statements if statement.letter == document.letter]


def read_designs(text: str) -> Designs:
    """Return the table in a TOML document. Raises ``ValueError`` or ``TypeError`` for unknown or missing fields."""
    content = tomllib.loads(text)
    if unknown := content.keys() - {"document", "statement", "gap"}:
        raise ValueError(f"unknown tables: {', '.join(sorted(unknown))}")
    return Designs(
        documents=tuple(Document(**entry) for entry in content.get("document", ())),
        statements=tuple(_statement(entry) for entry in content.get("statement", ())),
        gaps=tuple(Gap(**entry) for entry in content.get("gap", ())),
    )


def _statement(entry: Mapping[str, Any]) -> Statement:
    lists = {field.name for field in fields(Statement) if field.default == ()}
    values: dict[str, Any] = {name: tuple(value) if name in lists else value for name, value in entry.items()}
    values["status"] = Status(values["status"])
    return Statement(**values)


# Faults


def faults(designs: Designs, repository: Path = REPOSITORY) -> list[str]:
    """Return what is wrong with the table, a line for each fault."""
    found = list(_wrong_numbers(designs))
    gaps = [gap.id for gap in designs.gaps]
    found += [f"gap {gap}: there are several" for gap, times in Counter(gaps).items() if times > 1]
    used = {gap for statement in designs.statements for gap in statement.gaps}
    found += [f"gap {gap}: no statement belongs to it" for gap in gaps if gap not in used]
    for statement in designs.statements:
        found += [f"{statement.id}: {fault}" for fault in _faults_of(statement, gaps, repository)]
    found += _undecided(designs)
    return found


def _undecided(designs: Designs) -> Iterator[str]:
    for document in designs.documents:
        for statement in designs.of(document) if document.has_decisions else ():
            if statement.is_lacking and not any(page.startswith(DECISIONS) for page in statement.where):
                yield f"{statement.id}: it is {statement.status}, and no decision about that is named"


def _wrong_numbers(designs: Designs) -> Iterator[str]:
    letters = {document.letter for document in designs.documents}
    for statement in designs.statements:
        if statement.letter not in letters:
            yield f"{statement.id}: there is no document {statement.letter}"
    for document in designs.documents:
        expected = [f"{document.letter}{number}" for number in range(1, document.statements + 1)]
        numbers = [statement.id for statement in designs.of(document)]
        for missing in sorted(set(expected) - set(numbers), key=expected.index):
            yield f"{missing}: the statement is missing"
        if sorted(expected) == sorted(numbers) and expected != numbers:
            yield f"document {document.letter}: its statements are not in their order"
        for number, times in Counter(numbers).items():
            if number not in expected:
                yield f"{number}: document {document.letter} has {document.statements} statements"
            elif times > 1:
                yield f"{number}: there are several"


def _faults_of(statement: Statement, gaps: Sequence[str], repository: Path) -> Iterator[str]:
    texts = [statement.says, statement.how, *statement.calls, *statement.refused]
    if any("|" in text or "\n" in text for text in texts):
        yield "a cell has a | or several lines"
    if statement.status is not Status.NOT and not statement.tests:
        yield f"it is {statement.status}, and no test is named"
    for test in statement.tests:
        if not test_exists(test, repository):
            yield f"there is no test {test}"
    for page in statement.where:
        if not heading_exists(page, repository):
            yield f"there is no page {page}"
    if statement.status is Status.DIFFERS and not statement.where:
        yield "it differs, and no page that explains it is named"
    if statement.status is not Status.SERVED and not statement.how:
        yield f"it is {statement.status}, and does not say what differs or is missing"
    if statement.is_lacking and not statement.gaps:
        yield f"it is {statement.status}, and belongs to no gap"
    if not statement.is_lacking and statement.gaps:
        yield f"it is {statement.status}, and belongs to a gap"
    for gap in statement.gaps:
        if gap not in gaps:
            yield f"there is no gap {gap}"
    for call in (*statement.calls, *statement.refused):
        if not CALL.fullmatch(call):
            yield f"this is no call: {call}"


def test_exists(name: str, repository: Path) -> bool:
    """Whether there is a test of this name, such as ``tests/test_it.py::TestClass::test_it``."""
    file, *parts = name.split("::")
    path = repository / file
    return bool(parts) and parts[-1].startswith("test_") and path.is_file() and "::".join(parts) in _functions(path)


@cache
def _functions(path: Path) -> frozenset[str]:
    """Return the functions of a module, and those of its classes as ``Class::function``."""
    return frozenset(_named_functions(ast.parse(path.read_text()).body, ""))


def _named_functions(body: Iterable[ast.stmt], before: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield before + node.name
        elif isinstance(node, ast.ClassDef):
            yield from _named_functions(node.body, f"{before}{node.name}::")


def heading_exists(page: str, repository: Path) -> bool:
    """Whether there is this page of the documentation, and the heading after its ``#``."""
    file, _, heading = page.partition("#")
    path = repository / file
    return file.endswith(".md") and path.is_file() and (not heading or heading in _headings(path))


@cache
def _headings(path: Path) -> frozenset[str]:
    """Return the anchors of a page, as GitHub makes them of its headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = [re.sub(r"[^\w\- ]", "", title.lower()) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return frozenset(title.strip().replace(" ", "-") for title in titles)


# Pages


def pages(designs: Designs, repository: Path = REPOSITORY) -> dict[Path, str]:
    """Return the whole text of each page that depends on the table, by its path in the repository."""
    return {
        ALL_PAGE: all_page(designs),
        CALLS_PAGE: calls_page(designs),
        README: _with_part(repository / README, missing_list(designs)),
        GOALS: _with_part(repository / GOALS, missing_table(designs)),
    }


def stale(designs: Designs, repository: Path = REPOSITORY) -> list[str]:
    """Return the paths of the pages that are not what the table says."""
    return [
        str(path)
        for path, text in pages(designs, repository).items()
        if not (repository / path).is_file() or (repository / path).read_text() != text
    ]


def all_page(designs: Designs) -> str:
    """Return the page of all statements."""
    lines = [
        "# What the designs say",
        "",
        *_paragraph(ABOUT_ALL),
        "",
        *_table(("status", "means"), [(status, MEANINGS[status]) for status in Status]),
        "",
        *_table(("document", "statements", *Status), [_counts(designs, document) for document in designs.documents]),
    ]
    for document in designs.documents:
        rows = [
            (
                statement.id,
                statement.says,
                statement.status,
                _joined(statement.how, ", ".join(_link(page, ALL_PAGE) for page in statement.where)),
                ", ".join(_test_link(test, ALL_PAGE) for test in statement.tests),
            )
            for statement in designs.of(document)
        ]
        lines += ["", f"## {document.letter}: {document.title}", "", *_paragraph(document.about), ""]
        lines += _table(("number", "the document says", "status", "how, or what is missing", "tests"), rows)
    return "\n".join(lines) + "\n"


def calls_page(designs: Designs) -> str:
    """Return the page of the requirements, with the calls of each."""
    documents = [document for document in designs.documents if document.has_calls]
    rows = [
        (
            statement.id,
            statement.says,
            statement.status,
            " ".join(map(_code, statement.calls)),
            " ".join(map(_code, statement.refused)),
            _joined(statement.how, ", ".join(_link(page, CALLS_PAGE) for page in statement.where)),
        )
        for document in documents
        for statement in designs.of(document)
    ]
    lines = [
        "# Requirements of OPNFV Promise",
        "",
        *_paragraph(" ".join([*(document.about for document in documents), ABOUT_CALLS])),
        "",
        *_table(("status", "means"), [(status, MEANINGS[status]) for status in Status]),
        "",
        *_paragraph(ABBREVIATIONS),
        "",
        *_table(("number", "requirement", "status", "calls", "refused", "how, or what is missing"), rows),
    ]
    return "\n".join(lines) + "\n"


def missing_list(designs: Designs) -> str:
    """Return what is missing, as a list."""
    return "".join("\n".join(_wrapped(gap.missing, "* ", "  ")) + "\n" for gap in designs.gaps)


def missing_table(designs: Designs) -> str:
    """Return what is missing, as a table with the statements that ask for it."""
    rows = [
        (gap.missing, ", ".join(statement.id for statement in designs.statements if gap.id in statement.gaps))
        for gap in designs.gaps
    ]
    return "\n".join(_table(("what is missing", "statements"), rows)) + "\n"


def _with_part(path: Path, part: str) -> str:
    """Return the text of a page with this part between its two comments. Raises ``ValueError`` without them."""
    before, begin, rest = path.read_text().partition(f"{BEGIN}\n")
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path.name} lacks the comments {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{part}\n{END}{after}"


def _counts(designs: Designs, document: Document) -> tuple[str, ...]:
    counts = Counter(statement.status for statement in designs.of(document))
    return (f"{document.letter}: {document.title}", str(document.statements), *(str(counts[one]) for one in Status))


def _paragraph(text: str) -> list[str]:
    return _wrapped(" ".join(text.split()), "", "")


def _wrapped(text: str, first: str, later: str) -> list[str]:
    """Return a text in lines, with what the first line and the later ones begin with."""
    return textwrap.wrap(
        text,
        120,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(header)} |",
        f"|{'---|' * len(header)}",
        *("|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|" for row in rows),
    ]


def _joined(text: str, links: str) -> str:
    return f"{text} ({links})" if text and links else text or links


def _code(call: str) -> str:
    found = CALL.fullmatch(call)
    assert found is not None, call
    method, target, body = found.groups()
    return f"`{method} {target}`" + (f" `{body}`" if body else "")


def _link(page: str, here: Path) -> str:
    file, _, heading = page.partition("#")
    name = Path(file).parent.name if Path(file).stem == "README" else Path(file).stem
    title = re.sub(r"^[0-9]{1,2}-", "", heading or name).replace("-", " ")
    return f"[{title}]({_relative(file, here)}{page.removeprefix(file)})"


def _test_link(test: str, here: Path) -> str:
    file, *_, name = test.split("::")
    return f"[{name}]({_relative(file, here)})"


def _relative(file: str, here: Path) -> str:
    """Return the path from a page to a file of the repository."""
    folder = here.parent
    ups = 0
    while not Path(file).is_relative_to(folder):
        folder, ups = folder.parent, ups + 1
    return "../" * ups + Path(file).relative_to(folder).as_posix()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.designs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and name the pages that differ")
    check = parser.parse_args().check
    designs = read_designs(DATA.read_text())
    wrong = faults(designs)
    if check:
        wrong += [f"{page}: run `make designs`" for page in stale(designs)]
    elif not wrong:
        for path, text in pages(designs).items():
            (REPOSITORY / path).write_text(text)
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
