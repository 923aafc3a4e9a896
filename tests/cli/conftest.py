from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.standalone import Standalone, standalone


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Standalone]:
    with standalone(tmp_path / "data") as running:
        yield running
