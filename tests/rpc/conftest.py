"""A manager that is reached over a message bus in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from oslo_config.cfg import ConfigOpts

from tenure.config import new_config, read_config
from tenure.rpc.client import RpcClient, remote_manager
from tenure.rpc.server import RpcServer
from tenure.services.manager import Manager
from tests.support.world import World, open_world


@dataclass
class Line:
    """The same manager, called directly and from afar."""

    world: World
    conf: ConfigOpts
    here: Manager
    there: Manager
    client: RpcClient


def in_memory(folder: Path) -> ConfigOpts:
    """The configuration of a bus that no other test uses."""
    file = folder / "tenure.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = fake://\n[manager]\nrpc_topic = {folder.name}\n")
    conf = new_config()
    read_config(conf, [], files=[file], prog="test")
    return conf


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    conf = in_memory(tmp_path)
    with open_world(f"sqlite:///{tmp_path / 'tenure.db'}") as world:
        here = world.service.manager
        server = RpcServer(conf, here, topic=conf.manager.rpc_topic, name="one", threads=4)
        server.start()
        client = RpcClient(conf, topic=conf.manager.rpc_topic)
        try:
            yield Line(world, conf, here, remote_manager(client), client)
        finally:
            server.stop()
