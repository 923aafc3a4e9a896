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
from tenureclient.testing import FakeServer

MANUAL = Path(__file__).parents[2] / "docs" / "user" / "cli.md"
README = Path(__file__).parents[1] / "README.md"
COMMANDS = {command.name.replace("_", " "): command for command in entry_points(group="tenure.commands")}

pytestmark = pytest.mark.skipif(not MANUAL.exists(), reason="the manual is in the repository only")


def section(command: str) -> str:
    text = MANUAL.read_text()
    match = re.search(rf"^### {command}\n(.*?)(?=^##)", text, re.DOTALL | re.MULTILINE)
    assert match, f"the manual has no section '### {command}'"
    return match[1]


def parser_of(command: str) -> argparse.ArgumentParser:
    kind: type[ReservationCommand] = COMMANDS[command].load()
    return kind(TenureShell(), None).get_parser(f"tenure {command}")


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_option_is_in_the_manual(command: str, plain_logging: None) -> None:
    text = section(command)
    assert f"    tenure {command} " in text
    groups = parser_of(command)._action_groups
    own = [group for group in groups if "formatter" not in (group.title or "").lower()]
    for action in (action for group in own for action in group._group_actions):
        for option in action.option_strings:
            assert option in ("-h", "--help") or option in text, option


def manual_examples() -> list[str]:
    """Return the command lines of the manual that are no synopsis."""
    text = MANUAL.read_text() if MANUAL.exists() else ""
    return [
        line
        for line in re.findall(
            r"^ +tenure ((?:lease|host|floatingip|allocation) [^\[\n]*)$", text, re.MULTILINE
        )
        if not re.search(r"\b(LEASE|HOST|FLOATINGIP|NETWORK_ID|PROPERTY_NAME)\b", line)
    ]


@pytest.mark.parametrize("line", manual_examples())
def test_every_example_of_the_manual_can_be_read(line: str, plain_logging: None) -> None:
    words = shlex.split(line)
    shell = TenureShell()
    factory, name, arguments = shell.command_manager.find_command(words)
    parser = factory(shell, None).get_parser(name)
    assert parser.parse_args(arguments)


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
        assert name.startswith("_") or f"server.{name}" in text, name
