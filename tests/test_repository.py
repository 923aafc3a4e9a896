"""What a checkout promises outside of its code: commands, licence, pinned versions, release notes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tenure.api.errors import Refusal
from tenure.api.schemas.answers import SHOWN_EVENTS
from tenure.api.versions import Version
from tenure.domain.errors import TenureError
from tenure.domain.lease import AllocationState, EventStatus, LeaseStatus, ReservationStatus
from tests.support.suites import find_suites
from tests.support.waiting import patience

REPOSITORY = Path(__file__).parents[1]
DISTRIBUTIONS = sorted(path.parent for path in REPOSITORY.glob("*/pyproject.toml"))


@cache
def tracked_files() -> list[Path]:
    """Return the files that git knows or would add."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    paths = [REPOSITORY / name for name in names.split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def pyproject(folder: Path = REPOSITORY) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def lines_matching(pattern: str, files: Iterable[Path]) -> list[str]:
    expression = re.compile(pattern)
    return [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if expression.search(line)
    ]


# Commands


def make(*arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--no-print-directory", *arguments]
    result = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def targets() -> set[str]:
    phony = re.findall(r"^\.PHONY: (.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    return {target for line in phony for target in line.split()}


def test_every_target_is_in_the_help():
    shown = dict(re.findall(r"^  make ([a-z-]+) +(\S.*)$", make("help"), re.MULTILINE))
    assert shown.keys() == targets()


def test_make_alone_lists_all_targets():
    assert make() == make("help")


@pytest.mark.parametrize("target", ["setup", "demo", "run", "check", "test", "bench", "clean"])
def test_the_commands_of_every_day_are_there(target: str):
    assert target in targets()


def test_every_command_that_the_guides_name_exists():
    guides = [REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    named = {target for guide in guides for target in re.findall(r"`make ([a-z-]+)", guide.read_text())}
    assert {"check", "test"} <= named <= targets()


def test_ci_runs_the_commands_of_the_guides():
    script = REPOSITORY / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = re.findall(r"^ *(?:step )?make ([^#&\n]*)", script.read_text(), re.MULTILINE)
    named = {word for command in commands for word in command.split() if not word.startswith("-")}
    assert {"setup", "lint", "demo", "test"} <= named <= targets()
    subprocess.run(["bash", "-n", script], check=True)


# The licence

#: The words of the text that the Apache Software Foundation publishes.
APACHE_2 = "0ffddef9e48f8a09aed5caf2d44f7ba1c1be2d9b8e0a6f693b1635b2d5566645"


@pytest.mark.parametrize("folder", [REPOSITORY, *DISTRIBUTIONS], ids=lambda folder: folder.name)
def test_the_licence_is_apache_2_in_full(folder: Path):
    assert pyproject(folder)["project"]["license"] == "Apache-2.0"
    words = (folder / "LICENSE").read_text().replace("https://", "http://").split()
    assert sha256(" ".join(words).encode()).hexdigest() == APACHE_2


# Versions


def constraints() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", pin)] == []
    return {canonicalize_name(name): version for name, _, version in (pin.partition("==") for pin in pins)}


@pytest.mark.parametrize("folder", [REPOSITORY, *DISTRIBUTIONS], ids=lambda folder: folder.name)
def test_every_dependency_is_pinned_to_a_version_that_it_allows(folder: Path):
    project = pyproject(folder)["project"]
    extras = project.get("optional-dependencies", {})
    stated = [*project.get("dependencies", ()), *(text for extra in extras.values() for text in extra)]
    pins = constraints() | {pyproject()["project"]["name"]: pyproject()["project"]["version"]}
    ours = {pyproject(other)["project"]["name"] for other in DISTRIBUTIONS}
    for requirement in map(Requirement, stated):
        if requirement.name not in ours and (requirement.marker is None or requirement.marker.evaluate()):
            assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_the_standalone_service_stays_light():
    """Nothing of the OpenStack extra may be needed by what is always installed."""
    heavy = {Requirement(text).name for text in pyproject()["project"]["optional-dependencies"]["openstack"]}
    assert heavy.isdisjoint(Requirement(text).name for text in pyproject()["project"]["dependencies"])


# Files


def test_no_file_names_a_path_of_the_own_machine():
    places = "|".join(["/work" + "/", "/tmp/" + "venv", "/home/" + r"\w+/", r"\." + "pyenv", "/root" + "/"])
    assert lines_matching(rf"(?<![\w./-])({places})", tracked_files()) == []


def test_no_file_holds_conflict_markers():
    assert lines_matching("^(<<<<<<<|>>>>>>>) ", tracked_files()) == []


def test_text_ends_with_one_newline_and_lines_without_blanks():
    text = [path for path in tracked_files() if path.suffix in {".py", ".md", ".toml", ".txt", ".yaml", ".yml"}]
    assert [path for path in text if path.stat().st_size and not path.read_text().endswith("\n")] == []
    assert lines_matching(r"[ \t]+$", text) == []


@pytest.mark.slow
def test_every_entry_point_of_the_server_can_be_loaded():
    project = pyproject()["project"]
    groups = [project["scripts"], *project["entry-points"].values()]
    targets = [target.partition(":") for group in groups for target in group.values()]
    assert targets
    code = "".join(f"import {module}; {module}.{name}\n" for module, _, name in targets)
    subprocess.run([sys.executable, "-c", code], check=True)


# Documents


def suites_of_the_guide() -> set[str]:
    guide = (REPOSITORY / "docs" / "contributor" / "testing.md").read_text()
    table = guide[guide.index("| suite |") :].partition("\n\n")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE))


def test_the_guide_to_testing_lists_the_suites_that_there_are():
    assert suites_of_the_guide() == {suite.name for suite in find_suites(REPOSITORY, jobs=1)}


def test_links_between_documents_have_targets():
    for page in (path for path in tracked_files() if path.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(REPOSITORY)}: {target}"


def headings(page: Path) -> set[str]:
    """The anchors that a page has, as GitHub makes them of its headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = [re.sub(r"[^\w\- ]", "", title.lower()) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {title.strip().replace(" ", "-") for title in titles}


def test_links_to_a_part_of_a_document_lead_to_a_heading():
    found = 0
    for page in (path for path in tracked_files() if path.suffix == ".md"):
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text()):
            found += 1
            assert anchor in headings(page.parent / target if target else page), f"{page.name}: {target}#{anchor}"
    assert found


def test_every_document_can_be_found_from_the_readme():
    reached, waiting = set[Path](), [REPOSITORY / "README.md"]
    while waiting:
        page = waiting.pop()
        if page.is_dir():
            waiting += page.glob("*.md")
        elif page.suffix == ".md" and page not in reached:
            reached.add(page)
            links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
            waiting += [(page.parent / target).resolve() for target in links]
    lost = [path for path in tracked_files() if path.suffix == ".md" and path not in reached]
    assert lost == [], "docs/README.md lists all documents"


def test_every_decision_has_its_number_and_its_parts():
    folder = REPOSITORY / "docs" / "adr"
    pages = sorted(folder.glob("0*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        assert f"({page.name})" in (folder / "README.md").read_text()
        assert page.read_text().startswith(f"# {page.name[:4]}: ")
        assert {"context", "decision", "consequences", "rejected"} <= headings(page), page.name


def document(name: str) -> str:
    return (REPOSITORY / "docs" / name).read_text()


def first_column(name: str, header: str) -> list[str]:
    """The first column of the table that begins with these words, without backticks."""
    [table] = re.findall(rf"^\| {re.escape(header)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", document(name), re.MULTILINE)
    return [row.split("|")[1].strip().strip("`") for row in table.splitlines()]


def sentence(name: str, beginning: str) -> str:
    """The sentence of a page that begins with these words, up to the next full stop."""
    [found] = re.findall(rf"{re.escape(beginning)}[^.]*\.", document(name))
    assert isinstance(found, str)
    return found


def test_every_status_and_event_is_explained():
    shown = [status.value for status in LeaseStatus if status is not LeaseStatus.DELETED]
    assert sorted(first_column("user/booking.md", "status of a lease")) == sorted(shown)
    assert sorted(first_column("user/booking.md", "event")) == sorted(kind.value for kind in SHOWN_EVENTS)
    assert first_column("operations/events.md", "status of an event") == [status.value for status in EventStatus]
    of_reservations = sentence("user/booking.md", "Reservations have a status of their own")
    assert re.findall(r"`(\w+)`", of_reservations) == [status.value for status in ReservationStatus]
    of_events = sentence("user/booking.md", "An event is")
    assert re.findall(r"[A-Z_]{2,}", of_events) == [status.value for status in EventStatus]
    of_hosts = document("user/booking.md").partition("## When it is decided which host\n")[2].partition("\n## ")[0]
    states = [state.value for state in AllocationState if state is not AllocationState.LAPSED]  # only accounts have it
    assert re.findall(r"`(\w+)`", of_hosts) == states


def test_every_error_and_every_version_is_listed():
    def names(kind: type[TenureError]) -> set[str]:
        return {kind.name}.union(*map(names, kind.__subclasses__()))

    listed = re.findall(r"`(\w+)` \(\d{3}\)", sentence("api/microversions.md", "The names:"))
    assert sorted(listed) == sorted(names(TenureError) | names(Refusal))
    assert first_column("api/microversions.md", "version") == [version.value for version in Version]


@pytest.mark.slow
def test_every_option_of_a_program_is_explained():
    command = [sys.executable, "-m", "tenure.cmd.standalone", "--help"]
    usage = subprocess.run(command, capture_output=True, text=True, check=True, timeout=patience()).stdout
    options = set(re.findall(r"--[a-z-]+", usage)) - {"--help"}
    assert sorted(first_column("operations/standalone.md", "option")) == sorted(options)


# Release notes


NOTES = sorted((REPOSITORY / "releasenotes" / "notes").iterdir())


@pytest.mark.parametrize("path", NOTES, ids=lambda path: path.name)
def test_a_release_note_has_sections_that_are_known_and_full(path: Path):
    config = yaml.safe_load((REPOSITORY / "releasenotes" / "config.yaml").read_text())
    known = {"prelude", *(name for name, _ in config["sections"])}
    assert re.fullmatch(r"[a-z0-9-]+-[0-9a-f]{16}\.yaml", path.name)
    note = yaml.safe_load(path.read_text())
    assert note
    assert note.keys() <= known
    for section, entries in note.items():
        assert isinstance(entries, str if section == "prelude" else list)
        assert all(entries)
