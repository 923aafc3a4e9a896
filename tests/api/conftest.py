"""The API, new for each test or shared by tests without changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.rig import Api, open_api


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """The API for a member of a project, at 1.0, with four free hosts."""
    with open_api(tmp_path) as opened:
        yield opened


@pytest.fixture
def admin(api: Api) -> Api:
    """The API for an administrator, at 1.0."""
    return api.using("admin")


@pytest.fixture
def new(api: Api) -> Api:
    """The API for a member of a project, at 1.2."""
    return api.using(version="1.2")


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with open_api(tmp_path_factory.mktemp("api")) as opened:
        yield opened
