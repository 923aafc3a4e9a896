"""The stories of ``tests/api/test_reservations.py`` once more, with a message bus between the API and the manager."""

import pytest

from tests.api.test_reservations import *  # noqa: F403

pytestmark = [pytest.mark.slow, pytest.mark.long]
