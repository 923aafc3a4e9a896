"""The HTTP server of our own programs: waitress, with limits on what a client can use before its token is checked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from waitress.channel import HTTPChannel
from waitress.server import create_server

from tenure.api.bodies import MAX_BYTES

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

#: The maximum number of open connections. A new connection beyond that replaces the one that has waited longest for its
#: client.
MAX_CONNECTIONS = 1000
#: How long a request may take to arrive, and how long a connection may be idle, in seconds.
REQUEST_SECONDS = 30
#: How often to look for connections that have timed out, in seconds.
LOOK_SECONDS = 5
#: The maximum size of the headers, in bytes.
MAX_HEADER_BYTES = 64 * 1024
#: A body of this size or larger, in bytes, is refused with a 413 before it is read. A smaller one is stored in a file
#: before its token is checked; if it is too large for the API, the API itself refuses it.
MAX_BODY_BYTES = MAX_BYTES + 64 * 1024


class Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection. A request that arrives byte by byte gets no more time than others."""

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
    """Return a listening waitress server; its ``run`` serves.

    ``sockets`` is the map of sockets that it polls; by default the process's own. Raises ``OSError`` and
    ``ValueError`` for an address that it cannot listen on.
    """
    server = create_server(
        app,
        map=sockets,
        host=host,
        port=port,
        ipv6=":" in host,  # a name means one address: one socket, one port
        threads=threads,
        ident="tenure",
        clear_untrusted_proxy_headers=True,
        connection_limit=MAX_CONNECTIONS + 100,  # connections that are being closed count, too
        asyncore_use_poll=True,  # select supports 1024 files at most
        channel_timeout=REQUEST_SECONDS,
        cleanup_interval=LOOK_SECONDS,
        max_request_header_size=MAX_HEADER_BYTES,
        max_request_body_size=MAX_BODY_BYTES,
        channel_request_lookahead=1,  # it reads while it serves, so that it notices that a client has disconnected
    )
    server.channel_class = Channel
    return server
