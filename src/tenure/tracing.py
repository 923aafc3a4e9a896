"""The ids of the current request, for the log and for calls to other services."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: The id of the request that this thread serves, in OpenStack's form (``req-`` and a UUID); None outside a request.
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
#: The id that the caller has given to everything that the request causes, in the same form.
GLOBAL_REQUEST_ID: ContextVar[str | None] = ContextVar("global_request_id", default=None)


def new_request_id() -> str:
    """Return a new request id."""
    return f"req-{uuid.uuid4()}"


@contextmanager
def traced(request_id: str | None, global_request_id: str | None = None) -> Iterator[None]:
    """Set the ids for all logs and calls in this block."""
    own, of_all = REQUEST_ID.set(request_id), GLOBAL_REQUEST_ID.set(global_request_id)
    try:
        yield
    finally:
        REQUEST_ID.reset(own)
        GLOBAL_REQUEST_ID.reset(of_all)


def id_for_services() -> str | None:
    """Return the id for calls to services: the caller's, else that of the request; None outside a request."""
    return GLOBAL_REQUEST_ID.get() or REQUEST_ID.get()


class TraceFilter(logging.Filter):
    """Adds the request ids to every log record, under the names of oslo.log's formats."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(record, "request_id", None):
            record.request_id = REQUEST_ID.get()
            record.global_request_id = GLOBAL_REQUEST_ID.get()
        return True
