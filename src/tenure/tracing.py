"""Which request is being served, for the log and for the services that are called on its behalf."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: The id of the request that is served in this thread, in OpenStack's form (``req-`` and a UUID); None outside one.
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
#: The id that the caller gave to everything that his request causes, in the same form.
GLOBAL_REQUEST_ID: ContextVar[str | None] = ContextVar("global_request_id", default=None)


def new_request_id() -> str:
    """An id that no request has had."""
    return f"req-{uuid.uuid4()}"


@contextmanager
def traced(request_id: str | None, global_request_id: str | None = None) -> Iterator[None]:
    """Serve a request: what is logged and called until the end of the block belongs to it."""
    own, of_all = REQUEST_ID.set(request_id), GLOBAL_REQUEST_ID.set(global_request_id)
    try:
        yield
    finally:
        REQUEST_ID.reset(own)
        GLOBAL_REQUEST_ID.reset(of_all)


def id_for_services() -> str | None:
    """The id that services are called with: what the caller gave, else that of the request; None outside one."""
    return GLOBAL_REQUEST_ID.get() or REQUEST_ID.get()


class TraceFilter(logging.Filter):
    """Writes the ids of the request into every log record, where oslo.log's formats expect them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(record, "request_id", None):
            record.request_id = REQUEST_ID.get()
            record.global_request_id = GLOBAL_REQUEST_ID.get()
        return True
