from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.credits import Credits, open_credits
from tests.support.world import World, open_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path) as world:
        yield world


@pytest.fixture
def credits() -> Iterator[Credits]:
    """A site's service that keeps accounts of leases."""
    with open_credits() as credits:
        yield credits
