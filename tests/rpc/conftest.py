"""A manager that is reached over a message bus in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from oslo_config.cfg import ConfigOpts

from tenure.config import new_config, read_config
from tenure.rpc.client import RpcClient, remote_manager
from tenure.rpc.server import RpcServer
from tenure.services.manager import Manager
from tests.api.conftest import admin, new
from tests.api.rig import Api, open_api
from tests.support.world import World, open_world

#: The API's stories that are also run over RPC.
__all__ = ["admin", "new"]


@dataclass
class Line:
    """The same manager, called directly and from afar."""

    world: World
    here: Manager
    there: Manager


def in_memory(folder: Path) -> ConfigOpts:
    """The configuration of a bus that no other test uses."""
    file = folder / "tenure.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = fake://\n[manager]\nrpc_topic = {folder.name}\n")
    conf = new_config()
    read_config(conf, [], files=[file], prog="test")
    return conf


@contextmanager
def over_the_bus(conf: ConfigOpts, manager: Manager) -> Iterator[Manager]:
    """The same manager, called from afar."""
    server = RpcServer(conf, manager, topic=conf.manager.rpc_topic, name="one", threads=4)
    server.start()
    try:
        yield remote_manager(RpcClient(conf, topic=conf.manager.rpc_topic))
    finally:
        server.stop()


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    with (
        open_world(tmp_path) as world,
        over_the_bus(in_memory(tmp_path), world.service.manager) as there,
    ):
        yield Line(world, world.service.manager, there)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """The API as a member of a project calls it, at 1.0, over managers that are reached by RPC."""
    with open_api(tmp_path, reach=partial(over_the_bus, in_memory(tmp_path))) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("api")
    with open_api(folder, reach=partial(over_the_bus, in_memory(folder))) as opened:
        yield opened


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path) as opened:
        yield opened
