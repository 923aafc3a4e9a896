"""What tests of several processes need beside a database: a message bus."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import pytest
from kombu.connection import Connection
from kombu.exceptions import OperationalError

from tests.conftest import NOTHING_LEFT_OUT
from tests.support.site import RABBITMQ_URL
from tests.support.waiting import patience

#: Names a RabbitMQ in place of the testbed's, as ``rabbit://user:password@host:port/``.
VARIABLE = "TENURE_TEST_RABBITMQ"


@pytest.fixture(scope="session")
def message_bus() -> str:
    """The URL of a RabbitMQ. Without one the test is skipped, or fails if nothing may be left out."""
    url = os.environ.get(VARIABLE) or urlsplit(RABBITMQ_URL)._replace(scheme="rabbit").geturl()
    try:
        with Connection(urlsplit(url)._replace(scheme="amqp").geturl(), connect_timeout=patience()) as bus:
            bus.connect()
    except (OSError, OperationalError) as error:
        reason = f"no RabbitMQ answers ({error}): `make cloud` starts one, or name one in {VARIABLE}"
        if os.environ.get(NOTHING_LEFT_OUT) == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return url
