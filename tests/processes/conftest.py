"""What tests of several processes need beside a database: a message bus."""

from __future__ import annotations

import os

import pytest
from kombu.connection import Connection
from kombu.exceptions import OperationalError

from tests.conftest import NOTHING_LEFT_OUT
from tests.support.bus import RABBITMQ_URL, VARIABLE, amqp
from tests.support.waiting import patience


@pytest.fixture(scope="session")
def message_bus() -> str:
    """The URL of a RabbitMQ. Without one the test is skipped, or fails if nothing may be left out."""
    try:
        with Connection(amqp(RABBITMQ_URL), connect_timeout=patience()) as bus:
            bus.connect()
    except (OSError, OperationalError) as error:
        reason = f"no RabbitMQ answers ({error}): `make cloud` starts one, or name one in {VARIABLE}"
        if os.environ.get(NOTHING_LEFT_OUT) == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return RABBITMQ_URL
