"""The REST API for a WSGI server, such as uWSGI, gunicorn or mod_wsgi: ``tenure.cmd.wsgi:application``.

The configuration is ``tenure.conf`` in the folder that ``OS_TENURE_CONFIG_DIR`` names; the default is ``/etc/tenure``.
The module connects to nothing, so a server may import it before it forks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tenure.cmd.process import configure, show_metrics
from tenure.deployment import open_api

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class _ShowsMetrics:
    """Serves metrics from the first request on: in the process that serves requests, not in one that will fork."""

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app
        self._first = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if self._first.acquire(blocking=False):
            show_metrics(_CONF)
        return self._app(environ, start_response)


_CONF = configure([], prog="tenure-api")
application = _ShowsMetrics(open_api(_CONF))
