"""Every command of the README and of the guides works, in the order of reading, on one service for a group of pages."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any

import pytest
from tenureclient import ReservationRequest

from tenure.cmd.standalone import parser
from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tests.support.forking import run_forked
from tests.support.simulated import SimulatedCloud
from tests.support.standalone import BIN, Standalone, standalone
from tests.support.waiting import COMMAND_SECONDS, patience

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
USERS = REPOSITORY / "docs" / "user"
OPERATIONS = REPOSITORY / "docs" / "operations"

#: Pages whose commands are typed by a test of another module.
TYPED_ELSEWHERE = {
    "docs/operations/install.md": "tests/cloud/test_install_guide.py",
    "docs/user/cli.md": "client/tests/test_docs.py",
    "examples/instruments/README.md": "tests/cmd/test_types_installed.py",
}
#: Pages whose commands no test types, and why.
NOT_TYPED = {
    "CONTRIBUTING.md": "make targets, of which CI runs those that check",
    "docs/contributor/client.md": "an outline of what the reader writes",
    "docs/contributor/drivers.md": "for a driver that the reader writes; its outlines are read by tests of drivers",
    "docs/contributor/operations.md": "an outline of what the reader writes",
    "docs/contributor/release-notes.md": "writes a release note",
    "docs/contributor/resource-types.md": "an outline of what the reader writes",
    "docs/contributor/testbed.md": "needs a real cloud",
    "docs/contributor/testing.md": "starts the tests themselves",
    "docs/contributor/types-by-others.md": "an outline of what the reader writes",
    "docs/operations/bare-metal.md": "needs Nova with nodes of Ironic",
    "docs/operations/default-leases.md": "needs Nova, and a deployed manager",
    "docs/operations/enforcement.md": "needs Keystone, and a filter that the reader writes",
    "docs/operations/performance.md": "the bench, whose short forms are run by tests/test_bench.py and others",
    "docs/operations/reserved-servers.md": "needs nova-api",
    "nova/README.md": "needs the services of Nova",
}
#: Commands between the lines of a page that are not typed, and why.
LINES_NOT_TYPED = {
    "openstack server add floating ip web-1 203.0.113.20": "the small OpenStack has no such action",
    "tenure lease prolong 'server NAME' --by 30d": "the name is the reader's",
}
#: The servers that their guide names.
_SERVERS = ("3f0c2a5e-6c0e-4f0e-9e0e-2f6d6f0c8b11", "9d1e7b3c-0a52-4c86-8f13-5b7e2d90c4a6")
#: A fenced block that can be run, and a command that is indented in place of that.
_BLOCK = re.compile(r"^```(?:console|python|sh)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
#: The description of the commands of a type, with their forms and an example of each.
_MANUAL = re.compile(r"^## Commands$.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^    ((?:tenure|openstack|curl|[A-Z]+=\$\() ?.*)$", re.MULTILINE)
#: The id of a reservation in a command.
_ID = re.compile(r"(?<!server_id=)\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


#: Text that `shlex` reads as a shell does.
_QUOTED = re.compile(r"'[^']*'")

#: Below it are the alternatives to a refused lease. Their dates depend on when the guide is followed.
_INSTEAD = "Possible instead:\n"

#: A command whose answer goes into a variable.
_ASSIGNMENT = re.compile(r"(\w+)=\$\((.*)\)")


def commands(text: str) -> list[tuple[str, str]]:
    """What is typed on a page, and what it says that comes back ("" where it does not say)."""
    typed = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
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


@dataclass
class Reader:
    """Types what pages say, one after the other, at one service; each command does what the page says."""

    service: Standalone
    #: Whether what is printed must be what the page shows, but for dates.
    is_exact: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    typed: set[str] = field(default_factory=set)

    def follow(self, page: Path, text: str | None = None) -> None:
        """Type all commands of a page, or of its text as it is at this service."""
        for command, said in commands(text or page.read_text()):
            if not command.startswith(("export ", "make ")):  # the environment is that of the service
                self.type(command, said)

    def type(self, command: str, said: str) -> None:
        name, assigned = found.groups() if (found := _ASSIGNMENT.fullmatch(command)) else ("", command)
        # A date that stands in a guide lies in the future, whenever the test is run.
        known = Template(assigned.replace("2027-", _next_year())).safe_substitute(self.variables)
        result = run(self.service, with_real_ids(self.service, known))
        is_refused = said.startswith(("Not enough", "Error"))
        assert result.returncode == is_refused, f"{command}\n{result.stdout}\n{result.stderr}"
        if name:
            self.variables[name] = result.stdout.strip()
        elif said.startswith("Not enough"):
            printed, _, instead = result.stderr.partition(_INSTEAD)
            assert printed.split()[:-1] == said.split()[:-1], command  # but for the id of the request
            assert "tenure lease create" in instead, command
        elif is_refused:
            assert said.strip() in result.stderr, command
        elif self.is_exact:
            assert without_moments(result.stdout) == without_moments(said), command
        elif said.startswith("+--"):
            assert _columns(result.stdout) == _columns(said), command


def _columns(table: str) -> list[str]:
    """Return the names of the columns of a table."""
    return table.splitlines()[1].split()


def pages() -> dict[str, str]:
    """Return the text of each page with commands or programs, by its path."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=REPOSITORY, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True
    )
    texts = {name: (REPOSITORY / name).read_text() for name in listed.stdout.splitlines()}
    return {name: text for name, text in texts.items() if _BLOCK.search(text) or name in TYPED_ELSEWHERE}


#: The pages that the tests of this module follow.
TYPED_HERE = {
    "README.md",
    "client/README.md",
    "docs/api/README.md",
    "docs/operations/databases.md",
    "docs/operations/events.md",
    "docs/operations/standalone.md",
    *(f"docs/user/{name}.md" for name in ("booking", "instances", "laptop", "promises", "servers", "volumes")),
}


def test_each_page_with_commands_is_typed_or_says_why_not():
    assert pages().keys() == TYPED_HERE | TYPED_ELSEWHERE.keys() | NOT_TYPED.keys()
    assert all((REPOSITORY / module).exists() for module in TYPED_ELSEWHERE.values())


def test_no_command_of_a_guide_is_outside_the_blocks_that_are_typed():
    indented = {
        command
        for name in TYPED_HERE
        for command in _INDENTED.findall(_MANUAL.sub("", _FENCED.sub("", (REPOSITORY / name).read_text())))
    }
    assert indented == LINES_NOT_TYPED.keys()


@pytest.mark.slow
def test_a_newcomer_can_follow_the_readme_and_book_hosts(tmp_path: Path):
    """Beside what `make run` has started; but for the port, which another may have here."""
    typed = [command for command, _ in commands(README.read_text()) if not command.startswith("make ")]
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
        Reader(service).follow(USERS / "booking.md")
        [(request, _)] = commands((REPOSITORY / "docs" / "api" / "README.md").read_text())
        request = request.replace("$TOKEN", service.token("demo")).replace("http://127.0.0.1:1234/v1", service.url)
        shown = run(service, request.replace("curl ", "curl --silent --show-error --fail "))
        assert [lease["name"] for lease in json.loads(shown.stdout)["leases"]][:1] == ["bio-42"]


def test_make_run_serves_the_url_of_the_readme():
    said = next(command for command, _ in commands(README.read_text()) if command.startswith("make run"))
    assert f" http://127.0.0.1:{parser().get_default('port')}/v1 " in said
    environ = {"PATH": os.environ["PATH"]}  # nothing of a make that runs the tests
    command = ["make", "--no-print-directory", "-n", "run"]
    shown = subprocess.run(
        command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=patience(), check=True
    )
    assert shown.stdout.splitlines()[-1] == ".venv/bin/tenure-standalone --data-dir .run"


@pytest.mark.slow
def test_guides_of_single_types_can_be_followed_one_after_the_other(tmp_path: Path):
    """Of instances and addresses, of servers, and of volumes; with the servers that their guide names."""
    servers = (USERS / "servers.md").read_text()
    with standalone(tmp_path / "data", hosts=parser().get_default("hosts")) as service:
        reader = Reader(service)
        reader.follow(USERS / "instances.md")
        with closing(SimulatedCloud(str(tmp_path / "data" / "cloud.db"))) as cloud:
            cloud.world.add_host("general")
            for named in _SERVERS:
                servers = servers.replace(named, cloud.world.instances.boot("demo-project", "2"))
        reader.follow(USERS / "servers.md", servers)
        reader.follow(USERS / "volumes.md")


@pytest.mark.slow
def test_the_guide_of_promises_can_be_followed(tmp_path: Path):
    with standalone(tmp_path / "data", hosts=parser().get_default("hosts")) as service:
        Reader(service).follow(USERS / "promises.md")


@pytest.mark.slow
def test_the_guide_of_a_cloud_on_a_laptop_can_be_followed(tmp_path: Path):
    """Word by word: a host, a server by hint, a stranger, a snapshot, a server that gives way, a server for later.

    Then an operator looks at its lease, as the page of events says, and purges the database.
    """
    with standalone(tmp_path / "data", hosts=parser().get_default("hosts")) as service:
        Reader(service, is_exact=True).follow(USERS / "laptop.md")
        reader = Reader(service)
        reader.follow(OPERATIONS / "events.md")
        (tmp_path / "tenure.conf").write_text(f"[database]\nconnection = sqlite:///{tmp_path}/data/tenure.db\n")
        for command, _ in commands((OPERATIONS / "databases.md").read_text()):
            reader.type(command.replace("tenure-manage ", f"tenure-manage --config-dir {tmp_path} "), "")


@pytest.mark.slow
def test_an_operator_can_follow_the_page_of_standalone(tmp_path: Path):
    """What it starts is started already; it is stopped where its folder is copied."""
    with standalone(tmp_path / "try", hosts=2) as service:
        reader = Reader(service)
        for command, _ in commands((OPERATIONS / "standalone.md").read_text()):
            typed = command.replace("/tmp/tenure-try", f"{tmp_path}/try").replace(
                "/tmp/tenure.copy", f"{tmp_path}/copy"
            )
            typed = typed.replace(".venv/bin/", "").replace("http://127.0.0.1:45765", service.url.removesuffix("/v1"))
            if typed.startswith("cp ") and service.process.poll() is None:
                service.stop()
            if not typed.startswith(("make ", "export ", "tenure-standalone ")):
                reader.type(typed, "")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Support for InfluxDB")  # openstacksdk's own
def test_the_programs_of_the_library_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """At a real service, as `lab` in the reader's clouds.yaml; but for the test with the server for tests."""
    text = (REPOSITORY / "client" / "README.md").read_text()
    first, requests, soonest, in_tests = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    with standalone(tmp_path / "data", hosts=16):
        clouds = (tmp_path / "data" / "clouds.yaml").read_text()
        (tmp_path / "clouds.yaml").write_text(clouds.replace("tenure-demo:", "lab:"))
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "clouds.yaml"))
        known: dict[str, Any] = {"network_id": PUBLIC_NETWORK}
        exec(first, known)
        assert known["lease"].status == "ACTIVE"
        for line in requests.splitlines():
            assert isinstance(eval(line, known), ReservationRequest), line
        exec(soonest, known)
        known["book_as_soon_as_possible"](known["client"])
        assert [lease.status for lease in known["client"].leases.list()] == ["ACTIVE", "PENDING"]
    exec(in_tests, known)
    known["test_my_code"]()


def without_moments(text: str) -> str:
    """Return the text with the same word for each date with a time, which has no seconds if they are zero."""
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)? UTC", "MOMENT", text.strip())


def _next_year() -> str:
    """The start of a date half a year ahead or more, which no lease is too long for."""
    return f"{datetime.now(UTC).year + 1}-"
