"""The manual has every command with every option, and its examples can be run."""

from __future__ import annotations

import argparse
import re
import shlex
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tenureclient import ReservationRequest
from tenureclient.cli.command import ReservationCommand
from tenureclient.cli.shell import TenureShell
from tenureclient.resources import RESERVATION_TYPES
from tenureclient.testing import FakeServer

USERS_GUIDES = Path(__file__).parents[2] / "docs" / "user"
MANUAL = USERS_GUIDES / "cli.md"
README = Path(__file__).parents[1] / "README.md"
COMMANDS = {command.name.replace("_", " "): command for command in entry_points(group="tenure.commands")}

pytestmark = pytest.mark.skipif(not MANUAL.exists(), reason="the manual is in the repository only")


def manual() -> str:
    """Return the manual, and the pages of types, which have the commands and options of their type."""
    pages = [MANUAL, *sorted(set(USERS_GUIDES.glob("*.md")) - {MANUAL})] if MANUAL.exists() else []
    return "".join(f"{page.read_text()}\n## The end of a page\n" for page in pages)


def section(command: str) -> str:
    """Return what the manual says of a command, with the options that pages of types add to it."""
    found = re.findall(rf"^### {command}\n(.*?)(?=^##)", manual(), re.DOTALL | re.MULTILINE)
    assert found, f"the manual has no section '### {command}'"
    return "\n".join(found)


#: The options of types, which several commands have, and which are described once.
OF_TYPES = {
    name
    for reservation_type in RESERVATION_TYPES.values()
    for option in reservation_type.options
    for name in option.names.split()
}


def parser_of(command: str) -> argparse.ArgumentParser:
    kind: type[ReservationCommand] = COMMANDS[command].load()
    return kind(TenureShell(), None).get_parser(f"tenure {command}")


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_option_is_in_the_manual(command: str, plain_logging: None) -> None:
    text = section(command)
    assert f"    tenure {command} " in text
    groups = parser_of(command)._action_groups
    takes_reservations = "--reservation" in parser_of(command)._option_string_actions
    own = [group for group in groups if "formatter" not in (group.title or "").lower()]
    for action in (action for group in own for action in group._group_actions):
        for option in action.option_strings:
            described = section("lease create") if option in OF_TYPES and takes_reservations else text
            assert option in ("-h", "--help") or re.search(rf"(?<![\w-]){option}(?![\w-])", described), option


def manual_examples() -> list[str]:
    """Return the command lines of the manual that are no synopsis."""
    synopsis = r"^((?:## Synopsis|### .*)\n\n)(?: +(?:tenure|openstack) .*\n)+"
    return re.findall(r"^ +tenure (.*)$", re.sub(synopsis, r"\1", manual(), flags=re.MULTILINE), re.MULTILINE)


def words_of(line: str) -> list[str]:
    """Return a command with its arguments, without the options of the program before it."""
    _, words = TenureShell().parser.parse_known_args(shlex.split(line))
    return words


@pytest.mark.parametrize("line", manual_examples())
def test_every_example_of_the_manual_can_be_read(line: str, plain_logging: None) -> None:
    shell = TenureShell()
    factory, name, arguments = shell.command_manager.find_command(words_of(line))
    parser = factory(shell, None).get_parser(name)
    assert parser.parse_args(arguments)


def test_every_group_of_commands_has_an_example(plain_logging: None) -> None:
    groups = {command.split()[0] for command in COMMANDS}
    assert {words_of(line)[0] for line in manual_examples()} == groups


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_example_of_the_help_can_be_read(command: str, plain_logging: None) -> None:
    parser = parser_of(command)
    for arguments, _ in COMMANDS[command].load().examples:
        assert parser.parse_args(shlex.split(arguments))


def python_blocks() -> list[str]:
    text = README.read_text() if README.exists() else ""
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_what_the_readme_requests_can_be_requested() -> None:
    [block] = [block for block in python_blocks() if block.startswith("ReservationRequest.")]
    known = {"ReservationRequest": ReservationRequest, "network_id": "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0001"}
    for line in block.splitlines():
        assert isinstance(eval(line, known), ReservationRequest), line


@pytest.mark.parametrize("number", range(len(python_blocks())))
def test_the_programs_of_the_readme_can_be_read(number: int) -> None:
    assert compile(python_blocks()[number], str(README), "exec")


def test_every_public_part_of_the_fake_server_is_in_the_readme() -> None:
    text = README.read_text()
    for name in vars(FakeServer):
        assert name.startswith("_") or re.search(rf"\bserver\.{name}\b", text), name
