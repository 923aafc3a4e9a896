"""``tenure-standalone`` as an operator starts it: first and second starts, refusals, and ends."""

from __future__ import annotations

import grp
import json
import os
import pwd
import resource
import socket
import sqlite3
import stat
import subprocess
import urllib.error
import urllib.request
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tenure.cmd.limits import LimitsError, read_limits
from tenure.drivers.simulated import Fault, FaultKind
from tests.support.forking import run_forked
from tests.support.simulated import SimulatedCloud
from tests.support.standalone import BIN, Standalone, standalone, start
from tests.support.waiting import patience, wait_for


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Start it in a way that cannot work; return its exit code and output. The process is forked."""
    return run_forked("tenure-standalone", *map(str, arguments), env=os.environ)


def run_installed(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Do the same as ``run`` with the program that is installed."""
    command = [str(BIN / "tenure-standalone"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(), check=False)


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


def hosts_of(service: Standalone) -> list[str]:
    status, answer = service.caller("admin").call("GET", "/os-hosts")
    assert status == 200, answer
    return [host["hypervisor_hostname"] for host in answer["hosts"]]


@pytest.mark.slow
def test_first_start_creates_everything_for_clients(tmp_path: Path):
    data_dir = tmp_path / "deep" / "data"
    data_dir.parent.mkdir()
    old = os.umask(0)  # secrets must stay unreadable whatever the operator's umask
    try:
        with standalone(data_dir, hosts=3) as service:
            assert {path.name for path in data_dir.iterdir()} >= {"tenure.db", "cloud.db", "tokens.yaml", "clouds.yaml"}
            assert mode(data_dir) == "0o700"
            assert {mode(path) for path in data_dir.iterdir() if path.is_file()} == {"0o600"}
            clouds = yaml.safe_load((data_dir / "clouds.yaml").read_text())["clouds"]
            users = {
                user["user_name"]: user for user in yaml.safe_load((data_dir / "tokens.yaml").read_text())["users"]
            }
            # Argparse takes a token that begins with "-" for an option, and not for the value of --os-token.
            assert all(user["token"].isalnum() for user in users.values())
            assert clouds == {
                f"tenure-{name}": {
                    "auth_type": "v3token",
                    "auth": {
                        "auth_url": service.url.removesuffix("/v1") + "/identity/v3",
                        "token": users[name]["token"],
                    },
                }
                for name in ("admin", "demo")
            }
            assert service.url.endswith("/v1")
            assert users["admin"]["project_id"] != users["demo"]["project_id"]
            assert users["admin"]["token"] != users["demo"]["token"]
            assert len(hosts_of(service)) == 3
            assert service.caller("demo").call("GET", "/os-hosts")[0] == 403
            assert service.stop() == 0
    finally:
        os.umask(old)


@pytest.mark.slow
def test_a_second_start_continues_with_the_data_of_the_first(tmp_path: Path):
    data_dir = tmp_path / "data"
    with standalone(data_dir, hosts=3) as service:
        tokens = (data_dir / "tokens.yaml").read_bytes()
        hosts = hosts_of(service)
        status, lease = service.caller().book(2, seconds=7200)  # the notice before its end is an hour away
        assert status == 201, lease
        running = service.caller().wait_for_status(lease["id"], "ACTIVE")
        assert service.stop() == 0
    with standalone(data_dir, hosts=3) as service:
        assert (data_dir / "tokens.yaml").read_bytes() == tokens
        assert hosts_of(service) == hosts
        assert service.caller().lease(lease["id"]) == running
        auth_url = yaml.safe_load((data_dir / "clouds.yaml").read_text())["clouds"]["tenure-demo"]["auth"]["auth_url"]
        assert auth_url == service.url.removesuffix("/v1") + "/identity/v3"
        assert service.caller().call("DELETE", f"/leases/{lease['id']}")[0] == 204
        assert service.stop() == 0


@pytest.mark.slow
def test_a_later_start_can_add_hosts(tmp_path: Path):
    with standalone(tmp_path / "data", hosts=2) as service:
        first = hosts_of(service)
        service.stop()
    with standalone(tmp_path / "data", hosts=4) as service:
        assert hosts_of(service)[:2] == first
        assert len(hosts_of(service)) == 4


@pytest.mark.slow
def test_unregistered_host_is_not_registered_again(tmp_path: Path):
    """Whether it has served or not; a start with more hosts adds only the new ones."""
    data_dir = tmp_path / "data"
    with standalone(data_dir, hosts=3) as service:
        status, lease = service.caller().book(1, seconds=7200)
        assert status == 201, lease
        service.caller().wait_for_status(lease["id"], "ACTIVE")
        admin = service.caller("admin")
        allocations = admin.call("GET", "/os-hosts/allocations")[1]["allocations"]
        [served] = [allocation["resource_id"] for allocation in allocations if allocation["reservations"]]
        assert service.caller().call("DELETE", f"/leases/{lease['id']}")[0] == 204
        unused = next(number for number in ("1", "2", "3") if number != served)
        for number in (served, unused):
            assert admin.call("DELETE", f"/os-hosts/{number}")[0] == 204
        left = hosts_of(service)
        assert len(left) == 1
        service.stop()
    with closing(sqlite3.connect(data_dir / "tenure.db")) as db:
        types = "SELECT resource_type FROM resources ORDER BY 1"
        assert db.execute(types).fetchall() == [("physical:host",), ("retired:physical:host",)]
    with standalone(data_dir, hosts=3) as service:
        assert hosts_of(service) == left
        service.stop()
    with standalone(data_dir, hosts=4) as service:
        assert hosts_of(service) == [*left, "sim-host-004"]
        status, answer = service.caller("admin").call("POST", "/os-hosts", {"name": f"sim-host-00{unused}"})
        assert status == 201, answer
        again = hosts_of(service)
        service.stop()
    with standalone(data_dir, hosts=4) as service:
        assert hosts_of(service) == again


@pytest.mark.slow
def test_no_secret_is_in_the_log(tmp_path: Path):
    with standalone(tmp_path / "data") as service:
        secret = service.token("demo")
        service.caller().book(1, seconds=60)
        service.stop()
        assert secret not in service.log
        assert "stopped" in service.log.splitlines()[-1]


@pytest.mark.slow
def test_sigterm_stops_the_service_cleanly(tmp_path: Path):
    """Exit code 0, nothing unexpected in the log, and nothing left to take up again at the next start."""
    with standalone(tmp_path / "data") as service:
        caller = service.caller()
        status, lease = caller.book(3, seconds=3600)
        assert status == 201, lease
        assert service.stop() == 0
        assert "stopped" in service.log.splitlines()[-1]
    with standalone(tmp_path / "data") as service:
        service.caller().wait_for_status(lease["id"], "ACTIVE")
        assert service.stop() == 0
        for word in ("Traceback", " ERROR ", "are taken up again"):
            assert word not in service.log


@pytest.mark.slow
def test_sigterm_stops_the_service_while_the_cloud_hangs(tmp_path: Path):
    """It stops within a limit, and the next process continues the work."""
    with standalone(tmp_path / "data") as service, SimulatedCloud(tmp_path / "data" / "cloud.db") as cloud:
        fault = cloud.inject(Fault(FaultKind.BLOCK, verb="ensure_started", count=None))
        status, lease = service.caller().book(1, seconds=3600)
        assert status == 201, lease
        service.caller().wait_for_status(lease["id"], "STARTING")
        assert service.stop() == 0
        assert "stopped while calls to the cloud were under way" in service.log
        cloud.clear_faults(fault)
        again = start(tmp_path / "data")
        try:
            again.caller().wait_for_status(lease["id"], "ACTIVE")
        finally:
            again.kill()


@pytest.mark.slow
def test_a_host_name_to_listen_on_opens_one_socket(tmp_path: Path):
    service = start(tmp_path / "data", command=(str(BIN / "tenure-standalone"), "--host", "localhost"))
    try:
        assert service.url.startswith("http://localhost:")
        assert service.caller().call("GET", "/leases") == (200, {"leases": []})
    finally:
        assert service.stop() == 0


@pytest.mark.slow
def test_a_port_in_use_is_named(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run_installed("--data-dir", tmp_path / "data", "--port", port)
    assert refused.returncode == 1
    assert f"tenure-standalone: cannot listen on 127.0.0.1:{port}: " in refused.stderr
    assert "Address already in use" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_an_address_that_is_not_ours_is_named(tmp_path: Path):
    refused = run("--data-dir", tmp_path / "data", "--port", 0, "--host", "192.0.2.1")
    assert refused.returncode == 1
    assert "tenure-standalone: cannot listen on 192.0.2.1:0: " in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_a_second_process_on_the_same_folder_is_refused(tmp_path: Path):
    """Two engines would take each other's events for left over."""
    with standalone(tmp_path / "data") as service:
        refused = run("--data-dir", tmp_path / "data", "--port", 0)
        assert refused.returncode == 1
        assert refused.stderr == (
            f"tenure-standalone: another tenure-standalone uses {tmp_path / 'data'}; choose another --data-dir\n"
        )
        status, answer = service.caller().book(1, seconds=60)
        assert status == 201, answer


def test_a_folder_that_is_a_file_is_named(tmp_path: Path):
    (tmp_path / "data").write_text("not a folder")
    refused = run("--data-dir", tmp_path / "data", "--port", 0)
    assert (refused.returncode, refused.stderr) == (
        1,
        f"tenure-standalone: cannot use {tmp_path / 'data'}: File exists\n",
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tenure.db", "cloud.db"])
def test_a_file_that_is_not_ours_is_refused_and_left_alone(tmp_path: Path, name: str):
    (tmp_path / name).write_text("a letter, not a database\n" * 100)
    refused = run("--data-dir", tmp_path, "--port", 0)
    assert refused.returncode == 1
    assert f"what is in {tmp_path} cannot be used" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert (tmp_path / name).read_text() == "a letter, not a database\n" * 100


@pytest.mark.slow
def test_data_of_a_newer_release_is_refused_and_unchanged(tmp_path: Path):
    with standalone(tmp_path / "data") as service:
        service.stop()
    with closing(sqlite3.connect(tmp_path / "data" / "tenure.db")) as db, db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
    refused = run("--data-dir", tmp_path / "data", "--port", 0)
    assert refused.returncode == 1
    last = refused.stderr.splitlines()[-1]
    assert last.startswith(
        f"tenure-standalone: what is in {tmp_path / 'data'} was written by a newer release of Tenure"
    )
    assert "'9999'" in last
    assert "Traceback" not in refused.stderr
    with closing(sqlite3.connect(tmp_path / "data" / "tenure.db")) as db:
        assert db.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [("users: []\n", 0o644, "has the mode 0644"), ("users: []\n", 0o600, "is not as it must be"),
     ("{", 0o600, "is neither YAML nor JSON")],
)  # fmt: skip
def test_a_token_file_that_cannot_be_used_is_named(tmp_path: Path, content: str, mode: int, said: str):
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(content)
    tokens.chmod(mode)
    refused = run("--data-dir", tmp_path, "--port", 0)
    assert refused.returncode == 1
    last = refused.stderr.splitlines()[-1]
    assert last.startswith(f"tenure-standalone: The token file {tokens} ")
    assert said in last
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "value"),
    [("--hosts", "0"), ("--hosts", "-1"), ("--hosts", "many"), ("--hosts", "1000000000"), ("--hosts", "1.5"),
     ("--port", "-1"), ("--port", "65536"), ("--port", "http")],
)  # fmt: skip
def test_invalid_number_is_refused_before_anything_is_created(tmp_path: Path, option: str, value: str):
    refused = run("--data-dir", tmp_path / "data", f"{option}={value}")
    assert refused.returncode == 2
    assert f"argument {option}: {value!r} is not a number from " in refused.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_an_unknown_type_is_refused_before_anything_is_created(tmp_path: Path):
    refused = run("--data-dir", tmp_path / "data", "--types", "physical:host, network.plugin")
    assert refused.returncode == 2
    assert "argument --types: there is no 'network.plugin', only flavor:instance, physical:host, " in refused.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_help_describes_the_options():
    shown = run_installed("--help")
    assert shown.returncode == 0
    for option in ("--host", "--port", "--data-dir", "--hosts", "--types"):
        assert option in shown.stdout


@pytest.mark.slow
def test_databases_of_earlier_releases_are_closed_to_others(tmp_path: Path):
    with standalone(tmp_path / "data"):
        pass
    for database in (tmp_path / "data").glob("*.db"):
        database.chmod(0o644)
    with standalone(tmp_path / "data"):
        assert {mode(path) for path in (tmp_path / "data").glob("*.db*")} == {"0o600"}


def test_world_writable_folder_is_refused(tmp_path: Path):
    data = tmp_path / "a folder"
    data.mkdir()
    data.chmod(0o777)
    refused = run("--port", 0, "--data-dir", data)
    assert refused.returncode == 1
    assert "anybody may write to" in refused.stderr
    assert f"chmod o-w '{data}'" in refused.stderr
    assert list(data.iterdir()) == []


def primary_group() -> int:
    """The group that the files of this user get."""
    return pwd.getpwuid(os.geteuid()).pw_gid


def test_group_writable_folder_is_refused(tmp_path: Path):
    """Its members could replace tokens.yaml by a file of their own name and mode."""
    groups = [1] if os.geteuid() == 0 else [group for group in os.getgroups() if group != primary_group()]
    if not groups:
        pytest.skip("only root can make a folder of a group that it is no member of")
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, -1, groups[0])
    data.chmod(0o770)
    refused = run("--port", 0, "--data-dir", data)
    assert refused.returncode == 1
    assert f"the group {grp.getgrgid(groups[0]).gr_name} may write to {data}" in refused.stderr
    assert f"chmod g-w {data}" in refused.stderr
    assert list(data.iterdir()) == []


@pytest.mark.slow
def test_a_folder_of_the_own_group_is_taken(tmp_path: Path):
    """On Debian each user has a group of their own, which may write to their files."""
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, -1, primary_group())
    data.chmod(0o775)
    with standalone(data) as service:
        assert service.caller("demo").call("GET", "/leases")[0] == 200


def test_a_folder_of_another_user_is_refused(tmp_path: Path):
    data = Path("/usr")
    if os.geteuid() == 0:
        data = tmp_path / "data"
        data.mkdir(mode=0o700)
        os.chown(data, 1, -1)
    refused = run("--port", 0, "--data-dir", data)
    assert refused.returncode == 1
    owner = pwd.getpwuid(data.stat().st_uid).pw_name
    assert f"{data} belongs to {owner}, who can replace tokens.yaml" in refused.stderr
    assert not (data / "lock").exists()


@pytest.mark.slow
def test_tokens_are_not_written_into_existing_files(tmp_path: Path):
    """If another user has created a readable file where the service writes, that user reads no tokens."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("clouds.new", "clouds.yaml", "tokens.new"):
        (data / name).touch(mode=0o644)
    with standalone(data), (data / "clouds.new").open() as mine:
        assert mine.read() == ""
        assert mode(data / "clouds.yaml") == "0o600"


@pytest.mark.slow
def test_unknown_role_is_reported(tmp_path: Path):
    data = tmp_path / "data"
    with standalone(data):
        pass
    tokens = data / "tokens.yaml"
    tokens.write_text(tokens.read_text().replace("- reader", "- raeder"))
    refused = run("--port", 0, "--data-dir", data)
    assert refused.returncode == 1
    assert "the role raeder, which is none of admin, member, reader" in refused.stderr


@pytest.mark.slow
def test_a_member_may_list_leases(tmp_path: Path):
    data = tmp_path / "data"
    with standalone(data):
        pass
    tokens = data / "tokens.yaml"
    users = yaml.safe_load(tokens.read_text())
    users["users"][1]["roles"] = ["member"]
    tokens.write_text(yaml.safe_dump(users))
    with standalone(data) as service:
        assert service.caller("demo").call("GET", "/leases")[0] == 200


@pytest.mark.slow
def test_default_leases_need_their_type(tmp_path: Path):
    done = run("--data-dir", tmp_path / "data", "--types", "physical:host", "--default-leases", "7")
    assert (done.returncode, done.stdout) == (1, "")
    assert "--default-leases needs virtual:server among --types" in done.stderr


def test_the_line_for_clients_has_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with standalone(Path("a data folder")) as service:
        assert service.process.stdout is not None
        line = service.process.stdout.readline().rstrip()
    assert line == f"clients: export OS_CLIENT_CONFIG_FILE='{tmp_path}/a data folder/clouds.yaml' OS_CLOUD=tenure-demo"


@pytest.mark.slow
def test_projects_have_limits_that_the_operator_sets(tmp_path: Path):
    data = tmp_path / "data"
    with standalone(data) as service:
        year = 366 * 24 * 3600
        assert service.caller("demo").book(seconds=year + 60)[0] == 400
        status, lease = service.caller("demo").book(2, seconds=year - 120)
        assert status == 201, lease
        path = f"/leases/{lease['id']}"
        assert service.caller("demo").call("DELETE", path)[0] in {200, 204}
        # Resources of an ending lease still count.
        wait_for("the lease to be gone", lambda: service.caller("demo").call("GET", path)[0] == 404)
    limits = yaml.safe_load((data / "limits.yaml").read_text())
    assert limits["limits"]["hosts"] > 0
    (data / "limits.yaml").write_text(yaml.safe_dump({"longest_lease_days": -1, "limits": {"hosts": 1}}))
    with standalone(data) as service:
        assert service.caller("demo").book(1, seconds=2 * year)[0] == 201
        status, refusal = service.caller("demo").book(1, seconds=60)
        assert status in {403, 409, 413}, refusal
        assert service.caller("admin").book(1, seconds=60)[0] == 201


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("limits: {hosts: 1}", "longest_lease_days"),
        ("{longest_lease_days: 1, limits: {elephants: 1}}", "limits elephants, which there is not"),
        ("{longest_lease_days: 1, limits: {hosts: many}}", "limits.hosts"),
        (":", "limits.yaml"),
        ("longest_lease_days: 1\nlimits:\n  hosts: 1\n  hosts: 50\n", "limits.yaml, line 4: 'hosts' is there already"),
    ],
)
def test_invalid_limits_are_reported(tmp_path: Path, text: str, words: str):
    data = tmp_path / "data"
    data.mkdir()
    (data / "limits.yaml").write_text(text)
    refused = run("--port", 0, "--data-dir", data)
    assert refused.returncode == 1
    assert words in refused.stderr


def test_limits_are_written_whole_or_not_at_all(tmp_path: Path):
    """A half written file would keep every later start from serving."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        with pytest.raises(LimitsError, match=r"limits\.yaml cannot be written"):
            read_limits(tmp_path, ["hosts"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "limits.yaml").exists()
    names = ["leases", "hosts", "instances", "floating_ips", "volumes", "servers"]
    assert read_limits(tmp_path, names).longest_lease == timedelta(days=366)
    assert [path.name for path in tmp_path.iterdir()] == ["limits.yaml"]


@pytest.mark.slow
def test_an_interrupted_delivery_is_completed_at_the_next_start(tmp_path: Path):
    data = tmp_path / "data"
    with standalone(data) as service:
        status, lease = service.caller("demo").book(seconds=3600)
        assert status == 201
        wait_for("the message to be delivered", lambda: _delivered(data, lease["id"]))
    with closing(sqlite3.connect(data / "tenure.db")) as database:
        again = "UPDATE outbox SET delivered_at = NULL, attempts = 1, ready_at = ?"
        later = datetime.now(UTC) + timedelta(seconds=50)  # as if the delivery had just begun, or failed once
        database.execute(f"{again} WHERE lease_id = ?", (f"{later:%Y-%m-%d %H:%M:%S.%f}", lease["id"]))
        database.commit()
    assert not _delivered(data, lease["id"])
    with standalone(data):
        wait_for("the message to be delivered again", lambda: _delivered(data, lease["id"]), seconds=20)


def _delivered(data: Path, lease_id: str) -> bool:
    """Whether every message about the lease was delivered."""
    with closing(sqlite3.connect(data / "tenure.db")) as database:
        rows = database.execute("SELECT delivered_at FROM outbox WHERE lease_id = ?", (lease_id,)).fetchall()
    return bool(rows) and all(moment is not None for (moment,) in rows)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["tenure.db", "tenure.db-wal"])
def test_deleted_database_takes_no_bookings(tmp_path: Path, lost: str):
    """A booking in a deleted file would be lost at the next start."""
    with standalone(tmp_path / "data") as service:
        demo = service.caller()
        assert demo.book(seconds=3600, delay=3600)[0] == 201
        assert health_of(service)[0] == 200
        (service.data_dir / lost).unlink()
        assert demo.book(seconds=3600, delay=7200)[0] == 503
        assert_unwell(service, because=f"{lost} was deleted")


@pytest.mark.slow
def test_deleted_cloud_is_unwell(tmp_path: Path):
    """What is started in a deleted cloud would be lost at the next start."""
    with standalone(tmp_path / "data") as service:
        assert health_of(service)[0] == 200
        (service.data_dir / "cloud.db").unlink()
        assert_unwell(service, because="cloud.db was deleted")
        status, lease = service.caller().book(seconds=3600)
        assert status == 503 or lease["status"] != "ACTIVE"


def health_of(service: Standalone) -> tuple[int, Any]:
    """Return the status and the document of the health check."""
    try:
        with urllib.request.urlopen(service.url.removesuffix("/v1") + "/healthcheck", timeout=patience()) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def assert_unwell(service: Standalone, *, because: str) -> None:
    status, health = health_of(service)
    reasons = [part["reason"] for part in health["parts"] if not part["well"]]
    assert (status, len(reasons)) == (503, 1), health
    assert because in reasons[0]
