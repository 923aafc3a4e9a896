"""``tenure-standalone`` on a disk that takes no writes: from the start, or since a while."""

from __future__ import annotations

import http.client
import os
import resource
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.standalone import BIN, Caller, standalone
from tests.support.waiting import patience, wait_for

STANDALONE = str(BIN / "tenure-standalone")
#: The superuser may write to any folder, unless these capabilities are gone.
ORDINARY = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.getuid() == 0 else ()


def health_of(caller: Caller) -> tuple[int, str]:
    """Return the status and the text of the health check."""
    connection = http.client.HTTPConnection("127.0.0.1", caller.port, timeout=patience())
    try:
        connection.request("GET", "/healthcheck")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def run_ordinary(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command with the rights of an ordinary user over the files of the superuser."""
    return subprocess.run([*ORDINARY, *command], capture_output=True, text=True, timeout=patience(), check=False)


@pytest.mark.slow
def test_disk_that_is_full_for_a_while_costs_no_answered_lease(tmp_path: Path):
    data_dir = tmp_path / "data"
    with standalone(data_dir, hosts=3) as service:
        caller = service.caller()
        _, hard = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
        answered = [caller.book(1, seconds=7200, delay=3600)[1]["id"] for _ in range(2)]
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (0, hard))
        for _ in range(3):
            status, refusal = caller.book(1, seconds=60, delay=7200)
            assert status == 503, refusal
            assert refusal["error_message"]
        status, refusal = caller.call("DELETE", f"/leases/{answered[0]}")
        assert status == 503, refusal
        wait_for("an unwell service", lambda: health_of(caller)[0] == 503)
        assert "file" in health_of(caller)[1]
        assert [caller.lease(lease_id)["status"] for lease_id in answered] == ["PENDING", "PENDING"]
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        wait_for("a service that is well", lambda: health_of(caller)[0] == 200)
        status, lease = caller.book(1, seconds=3600)
        assert status == 201, lease
        caller.wait_for_status(lease["id"], "ACTIVE")
        answered.append(lease["id"])
        service.kill()
    with standalone(data_dir, hosts=3) as service:
        status, answer = service.caller().call("GET", "/leases")
        assert status == 200
        assert sorted(lease["id"] for lease in answer["leases"]) == sorted(answered)


@pytest.mark.slow
def test_start_in_a_folder_that_cannot_be_written_to_says_so(tmp_path: Path):
    data_dir = tmp_path / "data"
    command = [STANDALONE, "--port", "0", "--hosts", "1", "--data-dir", str(data_dir)]
    data_dir.mkdir(mode=0o500)
    refused = run_ordinary(command)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.splitlines()[-1] == f"tenure-standalone: cannot use {data_dir}: it cannot be written to"
    data_dir.chmod(0o700)
    with standalone(data_dir, hosts=1) as service:
        assert service.caller().book(1, seconds=3600, delay=3600)[0] == 201
        assert service.stop() == 0
    data_dir.chmod(0o500)
    try:
        refused = run_ordinary(command)
    finally:
        data_dir.chmod(0o700)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.splitlines()[-1] == f"tenure-standalone: cannot use {data_dir}: it cannot be written to"
    with standalone(data_dir, hosts=1) as service:
        assert len(service.caller().call("GET", "/leases")[1]["leases"]) == 1
