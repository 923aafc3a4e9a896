from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.services.notifications.outbox import Message
from tests.support.engines import Checkpoints, rebuild
from tests.support.world import World, open_world


@pytest.fixture
def checkpoints() -> Checkpoints:
    """The named points of ``world``'s events."""
    return Checkpoints()


@pytest.fixture
def world(tmp_path: Path, checkpoints: Checkpoints) -> Iterator[World]:
    with open_world(tmp_path, checkpoint=checkpoints) as world:
        yield world


@pytest.fixture
def messages(world: World) -> list[Message]:
    """The messages that ``world`` has delivered, in order."""
    messages: list[Message] = []
    rebuild(world, sink=messages.append)
    return messages
