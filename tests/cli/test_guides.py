"""The guide for people who book can be followed from its first command to its last."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.standalone import BIN, Standalone, standalone

GUIDE = Path(__file__).parents[2] / "docs" / "user" / "booking.md"
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def commands() -> list[tuple[str, str]]:
    """What is typed in the guide, and what it says that comes back ("" where it does not say)."""
    typed = []
    for block in re.findall(r"```console\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            length = next(number for number in range(1, len(lines) + 1) if _is_whole("\n".join(lines[:number])))
            typed.append(("\n".join(lines[:length]), "\n".join(lines[length:])))
    return typed


def _is_whole(command: str) -> bool:
    """Whether a shell would wait for no further line."""
    return not command.endswith("\\") and command.count("'") % 2 == 0


def run(service: Standalone, command: str) -> subprocess.CompletedProcess[str]:
    environ = service.environment("tenure-demo")
    environ |= {"PATH": f"{BIN}:{os.environ['PATH']}", "TZ": "UTC"}
    shell = ["bash", "-c", command]
    return subprocess.run(shell, env=environ, capture_output=True, text=True, timeout=120, check=False)


def with_real_ids(service: Standalone, command: str) -> str:
    """The command with the id of the last reservation of the lease that it names."""
    if not _ID.search(command):
        return command
    lease = command.split()[3 if " set " in command else 4]
    shown = json.loads(run(service, f"tenure lease show {lease} -f json").stdout)
    return _ID.sub(shown["reservations"][-1]["id"], command)


@pytest.mark.slow
def test_the_guide_can_be_followed(tmp_path: Path):
    with standalone(tmp_path / "data", hosts=8) as service:
        follow(service)


def follow(service: Standalone) -> None:
    """Type every command of the guide; each does what the guide says."""
    followed = [(command, said) for command, said in commands() if command.startswith(("tenure ", "openstack "))]
    assert len(followed) > 20
    for command, said in followed:
        # A date that stands in the guide lies in the future, whenever the test is run.
        result = run(service, with_real_ids(service, command).replace("2027-", "2127-"))
        refused = said.startswith("Not enough")
        assert result.returncode == refused, f"{command}\n{result.stdout}\n{result.stderr}"
        if refused:
            assert result.stderr.split()[:-1] == said.split()[:-1], command  # but for the id of the request
