"""Every command of the README and of the guides for users works, from the first to the last."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from string import Template

import pytest

from tenure.cmd.standalone import parser
from tenure.drivers.simulated import SimulatedCloud
from tests.support.forking import run_forked
from tests.support.standalone import BIN, Standalone, standalone
from tests.support.waiting import COMMAND_SECONDS, patience

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
GUIDES = [REPOSITORY / "docs" / "user" / name for name in ("booking.md", "instances.md", "promises.md")]
#: The servers that their guide names.
_SERVERS = ("3f0c2a5e-6c0e-4f0e-9e0e-2f6d6f0c8b11", "9d1e7b3c-0a52-4c86-8f13-5b7e2d90c4a6")
#: The id of a reservation in a command.
_ID = re.compile(r"(?<!server_id=)\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


#: Text that `shlex` reads as a shell does.
_QUOTED = re.compile(r"'[^']*'")

#: Below it are the alternatives to a refused lease. Their dates depend on when the guide is followed.
_INSTEAD = "Possible instead:\n"

#: A command whose answer goes into a variable.
_ASSIGNMENT = re.compile(r"(\w+)=\$\((.*)\)")


def commands(page: Path) -> list[tuple[str, str]]:
    """What is typed on a page, and what it says that comes back ("" where it does not say)."""
    typed = []
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
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
    command = command.replace("\\\n", " ")
    words = shlex.split(command, comments=True)
    if words[0] in {"tenure", "openstack"} and not set(_QUOTED.sub("", command)) & set("|<>&;$`\n"):
        return run_forked(*words, env=environ)  # nothing is left for a shell to do
    shell = ["bash", "-c", command]
    return subprocess.run(shell, env=environ, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)


def with_real_ids(service: Standalone, command: str) -> str:
    """The command with the id of the last reservation of the lease that it names."""
    if not _ID.search(command) or not re.search(r" (set|drop) ", command):
        return command
    lease = command.split()[3 if " set " in command else 4]
    shown = json.loads(run(service, f"tenure lease show {lease} -f json").stdout)
    return _ID.sub(shown["reservations"][-1]["id"], command)


@pytest.mark.slow
def test_the_readme_can_be_followed(tmp_path: Path):
    """Beside what `make run` has started; but for the port, which another may have here."""
    typed = [command for command, _ in commands(README) if not command.startswith("make ")]
    assert [command.split()[0] for command in typed] == ["export", *[".venv/bin/tenure"] * 3]
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(BIN)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    with standalone(tmp_path / ".run", hosts=parser().get_default("hosts")) as service:
        shell = ["bash", "-ec", "\n".join(typed)]
        result = subprocess.run(
            shell, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
        assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
        status, answer = service.caller().call("GET", "/leases")
    assert status == 200
    assert [(lease["name"], lease["status"]) for lease in answer["leases"]] == [("bio-42", "TERMINATED")]


def test_make_run_serves_the_url_of_the_readme():
    said = next(command for command, _ in commands(README) if command.startswith("make run"))
    assert f" http://127.0.0.1:{parser().get_default('port')}/v1 " in said
    environ = {"PATH": os.environ["PATH"]}  # nothing of a make that runs the tests
    command = ["make", "--no-print-directory", "-n", "run"]
    shown = subprocess.run(
        command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=patience(), check=True
    )
    assert shown.stdout.splitlines()[-1] == ".venv/bin/tenure-standalone --data-dir .run"


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_can_be_followed(tmp_path: Path, guide: Path):
    with standalone(tmp_path / "data", hosts=8) as service:
        follow(service, guide)


@pytest.mark.slow
def test_the_guide_of_volumes_can_be_followed(tmp_path: Path):
    with standalone(tmp_path / "data", hosts=1) as service:
        follow(service, REPOSITORY / "docs" / "user" / "volumes.md", at_least=5)


@pytest.mark.slow
def test_the_guide_of_servers_can_be_followed(tmp_path: Path):
    """With the servers that it names, booted by the simulated cloud."""
    guide = (REPOSITORY / "docs" / "user" / "servers.md").read_text()
    with standalone(tmp_path / "data", hosts=2) as service:
        with closing(SimulatedCloud(str(tmp_path / "data" / "cloud.db"))) as cloud:
            cloud.world.add_host("general")
            for named in _SERVERS:
                guide = guide.replace(named, cloud.world.instances.boot("demo-project", "2"))
        (tmp_path / "servers.md").write_text(guide)
        follow(service, tmp_path / "servers.md", at_least=5)


@pytest.mark.slow
def test_the_guide_of_a_cloud_on_a_laptop_can_be_followed(tmp_path: Path):
    """Word by word: a host, a server by hint, a stranger, a snapshot, a server that gives way, a server for later."""
    variables: dict[str, str] = {}
    followed = 0
    with standalone(tmp_path / "data", hosts=parser().get_default("hosts")) as service:
        for command, said in commands(REPOSITORY / "docs" / "user" / "laptop.md"):
            if command.startswith("export "):
                continue
            name, assigned = found.groups() if (found := _ASSIGNMENT.fullmatch(command)) else ("", command)
            result = run(service, Template(assigned.replace("2027-", _next_year())).substitute(variables))
            assert result.returncode == said.startswith("Error"), f"{command}\n{result.stdout}\n{result.stderr}"
            if name:
                variables[name] = result.stdout.strip()
            elif result.returncode:
                assert said.strip() in result.stderr, command
            else:
                assert without_moments(result.stdout) == without_moments(said), command
            followed += 1
    assert followed > 20


def without_moments(text: str) -> str:
    """Return the text with the same word for each date with a time, which has no seconds if they are zero."""
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)? UTC", "MOMENT", text.strip())


def _next_year() -> str:
    """The start of a date half a year ahead or more, which no lease is too long for."""
    return f"{datetime.now(UTC).year + 1}-"


def follow(service: Standalone, guide: Path, *, at_least: int = 10) -> None:
    """Type every command of the guide; each does what the guide says."""
    followed = [(command, said) for command, said in commands(guide) if command.startswith(("tenure ", "openstack "))]
    assert len(followed) > at_least
    for command, said in followed:
        # A date that stands in the guide lies in the future, whenever the test is run.
        result = run(service, with_real_ids(service, command).replace("2027-", "2127-"))
        refused = said.startswith("Not enough")
        assert result.returncode == refused, f"{command}\n{result.stdout}\n{result.stderr}"
        if refused:
            printed, _, instead = result.stderr.partition(_INSTEAD)
            assert printed.split()[:-1] == said.split()[:-1], command  # but for the id of the request
            assert "tenure lease create" in instead, command
