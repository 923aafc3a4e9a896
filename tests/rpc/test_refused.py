"""A message bus that refuses the login: an account, a password or a virtual host that is not there yet."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from oslo_config.cfg import ConfigOpts

from tenure.config import new_config, read_config
from tenure.domain.errors import Unavailable
from tenure.rpc import serving
from tenure.rpc.client import RpcClient, remote_manager
from tenure.rpc.listener import NovaListener
from tenure.rpc.server import RpcServer
from tests.rpc.test_busy import Slow, manager_of
from tests.support.deployment import write_config
from tests.support.refusing import RefusingBus, refusing_bus
from tests.support.waiting import patience, wait_for
from tests.support.world import OWNER


@pytest.fixture
def bus() -> Iterator[RefusingBus]:
    with refusing_bus() as serving:
        yield serving


@pytest.fixture
def conf(tmp_path: Path, bus: RefusingBus) -> ConfigOpts:
    made = new_config()
    read_config(made, [], files=[write_config(tmp_path / "t.conf", {"DEFAULT": {"transport_url": bus.url}})], prog="t")
    return made


def assert_one_line_each(caplog: pytest.LogCaptureFixture, bus: RefusingBus) -> None:
    ours = [record for record in caplog.records if record.name.startswith("tenure")]
    assert 2 <= len(ours) <= bus.logins + 1
    assert all(record.exc_info is None and "\n" not in record.getMessage() for record in ours)
    assert all("ACCESS_REFUSED" in record.getMessage() for record in ours)
    assert "secret-0815" not in caplog.text


@pytest.mark.slow
def test_manager_retries_the_bus_until_accepted_or_stopped(
    conf: ConfigOpts, bus: RefusingBus, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    server = RpcServer(conf, manager_of(Slow()), topic="t", name="one", threads=2)
    starting = threading.Thread(target=server.start, daemon=True)
    starting.start()
    bus.wait_for_logins(3)
    assert server.stop(seconds=patience())
    starting.join(patience())
    assert not starting.is_alive()
    assert_one_line_each(caplog, bus)


@pytest.mark.slow
def test_nova_listener_retries_the_bus_until_accepted_or_stopped(
    conf: ConfigOpts, bus: RefusingBus, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    listener = NovaListener(conf, lambda _host, _health: None, topics=["t"], exchange="nova")
    listener.start()
    bus.wait_for_logins(3)
    listener.stop()
    wait_for("the listener to end", lambda: not is_listening())
    assert_one_line_each(caplog, bus)


def test_a_stop_does_not_wait_for_the_next_attempt(
    conf: ConfigOpts, bus: RefusingBus, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    limit = patience(10)
    monkeypatch.setattr(serving, "FIRST_PAUSE_SECONDS", 3 * limit)
    server = RpcServer(conf, manager_of(Slow()), topic="t", name="one", threads=2)
    starting = threading.Thread(target=server.start, daemon=True)
    starting.start()
    listener = NovaListener(conf, lambda _host, _health: None, topics=["t"], exchange="nova")
    listener.start()
    wait_for("both pauses", lambda: caplog.text.count("the next attempt comes in") == 2)
    assert server.stop(limit)
    listener.stop(limit)
    starting.join(limit)
    assert not starting.is_alive()
    wait_for("the listener to end", lambda: not is_listening(), seconds=10)


def is_listening() -> bool:
    return any(thread.name == "tenure-nova-listener" for thread in threading.enumerate())


def test_caller_gets_unavailable_without_a_bus(conf: ConfigOpts, bus: RefusingBus, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    far = remote_manager(RpcClient(conf, topic="t"))
    for number in range(1, 4):
        with pytest.raises(Unavailable):
            far.leases.delete(OWNER, "a lease")
        bus.wait_for_logins(number)  # it counts when it has answered
    with pytest.raises(Unavailable):
        far.health()
    assert_one_line_each(caplog, bus)
