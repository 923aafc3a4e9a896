"""The message bus."""

from __future__ import annotations

import sys

import oslo_messaging
from oslo_config.cfg import ConfigOpts


def rpc_transport(conf: ConfigOpts) -> oslo_messaging.RPCTransport:
    """What operations travel on, as the operator has configured it. Connects to nothing."""
    _complete(conf)
    return oslo_messaging.get_rpc_transport(conf)


def notification_transport(conf: ConfigOpts) -> oslo_messaging.NotificationTransport:
    """What notifications travel on, as the operator has configured it. Connects to nothing."""
    _complete(conf)
    return oslo_messaging.get_notification_transport(conf)


#: Options of oslo.messaging by group, and the module that has them under the group's name.
_UNREGISTERED = {
    "oslo_messaging_metrics": "oslo_messaging._metrics.client",
    "oslo_messaging_tracing": "oslo_messaging._tracing.client",
}


def _complete(conf: ConfigOpts) -> None:
    """Let the configuration know options that oslo.messaging reads from the configuration that it is given.

    It registers them with the global one only; not every release has them.
    """
    for group, module in _UNREGISTERED.items():
        conf.register_opts(getattr(sys.modules.get(module), group, ()), group=group)
