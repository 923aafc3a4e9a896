"""Authentication by Keystone: keystonemiddleware, with a limit on the time that a request waits for it.

Needs libraries that a standalone service does not have.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from keystoneauth1.exceptions import ClientException
from keystonemiddleware.auth_token import AuthProtocol
from keystonemiddleware.opts import list_auth_token_opts
from oslo_config.cfg import ConfigOpts

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)

#: The defaults for the time-out of a request to Keystone and for the number of retries in [keystone_authtoken]: while
#: Keystone hangs, a request to this service is answered within ten seconds.
SECONDS = 4
RETRIES = 1

_AWAY = {
    "error": {
        "code": 503,
        "title": "Service Unavailable",
        "message": "The Keystone service is temporarily unavailable.",
    }
}


class KeystoneAuth:
    """Admits requests with a valid token of Keystone to ``app``, configured by ``[keystone_authtoken]``.

    Answers 401 to other requests, and 503 if Keystone cannot validate tokens at present.
    """

    def __init__(self, app: WSGIApplication, conf: ConfigOpts) -> None:
        ((group, options),) = list_auth_token_opts()
        conf.register_opts(options, group=group)
        conf.set_default("http_connect_timeout", SECONDS, group=group)  # the default of the middleware has no limit
        conf.set_default("http_request_max_retries", RETRIES, group=group)
        # The tokens include the catalogue, which this service does not need: Nova and other services may share the
        # token cache, and need it.
        self._middleware: WSGIApplication = AuthProtocol(app, {"oslo_config_config": conf})

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return self._middleware(environ, start_response)
        except ClientException as error:
            # The middleware answers 503 itself if it cannot connect to Keystone, but not if Keystone is silent or does
            # not accept the credentials of this service.
            LOG.critical("Keystone cannot check any token: %s: %s", type(error).__name__, error)
        body = json.dumps(_AWAY).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response("503 Service Unavailable", headers)
        return [body]
