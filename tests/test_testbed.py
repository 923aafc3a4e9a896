"""The testbed's tools, on processes that are quick: the cloud itself is proven by tests/cloud."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed import processes
from testbed.processes import Process, TestbedError, known_names, pid_of, start_all, stop, wait_until_listening
from tests.support.cloud import REPOSITORY
from tests.support.waiting import patience

LISTEN = "import socket, time; server = socket.create_server(('127.0.0.1', {port})); time.sleep(600)"


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(processes, "PIDS", tmp_path / "pid")
    monkeypatch.setattr(processes, "LOG", tmp_path / "log")
    yield
    stop(known_names(), grace_seconds=1)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def python(code: str, *, name: str = "it", reads: tuple[Path, ...] = (), port: int | None = None) -> Process:
    return Process(name=name, command=[sys.executable, "-c", code], reads=reads, port=port)


def test_a_running_process_is_not_started_again(port: int):
    process = python(LISTEN.format(port=port), port=port)
    start_all([process])
    wait_until_listening([process])
    first = pid_of("it")
    start_all([process])
    assert pid_of("it") == first is not None


def test_a_process_with_a_changed_configuration_is_restarted(tmp_path: Path):
    config = tmp_path / "its.conf"
    config.write_text("colour = blue")
    process = python("import time; time.sleep(600)", reads=(config,))
    other = python("import time; time.sleep(600)", name="other")
    start_all([process, other])
    before = pid_of("it"), pid_of("other")
    config.write_text("colour = red")
    start_all([process, other])
    assert pid_of("it") not in {before[0], None}
    assert pid_of("other") == before[1]


def test_a_dead_process_is_started_again():
    process = python("import time; time.sleep(600)")
    start_all([process])
    died = pid_of("it")
    assert died is not None
    os.kill(died, signal.SIGKILL)
    os.waitid(os.P_PID, died, os.WEXITED | os.WNOWAIT)
    assert pid_of("it") is None
    start_all([process])
    assert pid_of("it") not in {died, None}


def test_a_reused_pid_is_left_alone():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stranger:
        try:
            processes.PIDS.mkdir()
            (processes.PIDS / "it").write_text(f"{stranger.pid} 1 0123456789abcdef")
            assert pid_of("it") is None
            stop(["it"])
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_process_that_ignores_sigterm_is_killed(port: int):
    process = python(
        f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {LISTEN.format(port=port)}", port=port
    )
    start_all([process])
    wait_until_listening([process])
    stop(["it"], grace_seconds=0.2)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    assert known_names() == []


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        with pytest.raises(TestbedError, match=f"somebody else listens on 127.0.0.1:{taken}"):
            start_all([python("pass", port=taken)])


def test_an_early_end_of_a_process_is_reported_at_once(tmp_path: Path, port: int):
    process = python("raise SystemExit('no such option')", port=port)
    start_all([process])
    with pytest.raises(TestbedError, match=r"it ended early: see .*/log/it\.log"):
        wait_until_listening([process])
    assert (tmp_path / "log/it.log").read_text() == "no such option\n"


def test_an_end_before_the_first_check_is_reported_too(monkeypatch: pytest.MonkeyPatch, port: int):
    def start_and_end(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started = subprocess.Popen[bytes](*args, **kwargs)
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
        return started

    process = python("raise SystemExit('no such option')", port=port)
    with monkeypatch.context() as context:
        context.setattr(processes, "subprocess", SimpleNamespace(Popen=start_and_end, DEVNULL=subprocess.DEVNULL))
        start_all([process])
    with pytest.raises(TestbedError, match="it ended early"):
        wait_until_listening([process])


def test_commands_of_the_cloud_fail_without_a_cloud(tmp_path: Path):
    environ = os.environ | {"TENURE_CLOUD_ROOT": str(tmp_path / "none")}
    command = [str(REPOSITORY / "testbed/cloud"), "status"]
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=patience())
    assert result.returncode == 1
    assert "the cloud is down" in result.stderr
