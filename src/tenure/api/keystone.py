"""Authentication by Keystone: keystonemiddleware, with a bound on how long a request waits for it.

Needs the libraries of a deployment, which a standalone service does not have.
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

#: How long a request waits for Keystone each time, and how often it asks again, where [keystone_authtoken] does not say
#: it: a request that comes while Keystone hangs is answered within ten seconds.
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
    """Lets requests through to ``app`` that have a token of Keystone, as ``[keystone_authtoken]`` says.

    Answers 401 to others, and 503 where Keystone does not vouch for anybody right now.
    """

    def __init__(self, app: WSGIApplication, conf: ConfigOpts) -> None:
        ((group, options),) = list_auth_token_opts()
        conf.register_opts(options, group=group)
        conf.set_default("http_connect_timeout", SECONDS, group=group)  # without it, for ever
        conf.set_default("http_request_max_retries", RETRIES, group=group)
        # With the catalogue, which we do not need: Nova and others do, and read what we put into the cache of tokens
        # where they share it with us.
        self._middleware: WSGIApplication = AuthProtocol(app, {"oslo_config_config": conf})

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return self._middleware(environ, start_response)
        except ClientException as error:
            # The middleware takes a Keystone that it cannot connect to for one that is away, but not one that is
            # silent, nor one that cannot let the service itself in.
            LOG.critical("Keystone vouches for nobody: %s: %s", type(error).__name__, error)
        body = json.dumps(_AWAY).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response("503 Service Unavailable", headers)
        return [body]
