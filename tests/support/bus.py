"""The message bus of tests and measurements, if none is named: that of the testbed."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

#: Names a RabbitMQ in place of the testbed's, as ``rabbit://user:password@host:port/``.
VARIABLE = "TENURE_TEST_RABBITMQ"

#: The address, as the services take it.
RABBITMQ_URL = os.environ.get(VARIABLE) or "rabbit://guest:guest@127.0.0.1:5672/"


def amqp(url: str) -> str:
    """Return the address of a message bus as kombu takes it."""
    return urlsplit(url)._replace(scheme="amqp").geturl()
