"""The HTTP server of our own programs: waitress, with bounds on what a client may take before its token is checked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from waitress.channel import HTTPChannel
from waitress.server import create_server

from tenure.api.bodies import MAX_BYTES

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

#: How many connections are open at a time. A new connection beyond that takes the place of the connection that has
#: waited longest for its client.
MAX_CONNECTIONS = 1000
#: For how long a request may arrive, from its first byte to its last, and for how long a connection may be idle.
REQUEST_SECONDS = 30
#: How often it is looked for connections whose time is over.
LOOK_SECONDS = 5
#: No headers are larger.
MAX_HEADER_BYTES = 64 * 1024
#: A body of this size or larger is refused with a 413 before it is read; a smaller one is kept, in a file, before its
#: token is checked. What is only a little too large for the API gets the answer of the API.
MAX_BODY_BYTES = MAX_BYTES + 64 * 1024


class Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection. A request that arrives byte by byte has no more time than others."""

    def __init__(self, server: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(server, *arguments, **named)
        self._began: float | None = None
        channels = server.active_channels.values()
        waiting = [channel for channel in channels if channel is not self and not channel.requests]
        if len(server.active_channels) > MAX_CONNECTIONS and waiting:
            min(waiting, key=lambda channel: channel.last_activity).will_close = True

    def received(self, data: bytes) -> bool:
        taken: bool = super().received(data)
        if self.request is None:
            self._began = None
        else:
            if self._began is None:
                self._began = time.time()
            self.last_activity = self._began
        return taken


def listen(app: WSGIApplication, *, host: str, port: int, threads: int, sockets: Any = None) -> Any:
    """Return a server of waitress that listens, and serves in its ``run``.

    ``sockets`` is the map of sockets that it waits for, the process's own unless given. Raises ``OSError`` and
    ``ValueError`` for an address that it cannot listen on.
    """
    server = create_server(
        app,
        map=sockets,
        host=host,
        port=port,
        ipv6=":" in host,  # a name stands for one address: one socket, one port
        threads=threads,
        ident="tenure",
        clear_untrusted_proxy_headers=True,
        connection_limit=MAX_CONNECTIONS + 100,  # those that are being closed are among them
        asyncore_use_poll=True,  # select knows 1024 files at most
        channel_timeout=REQUEST_SECONDS,
        cleanup_interval=LOOK_SECONDS,
        max_request_header_size=MAX_HEADER_BYTES,
        max_request_body_size=MAX_BODY_BYTES,
    )
    server.channel_class = Channel
    return server
