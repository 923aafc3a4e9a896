"""The message bus."""

from __future__ import annotations

import sys

import oslo_messaging
from oslo_config.cfg import ConfigOpts


class Misconfigured(Exception):
    """The operator's configuration of the message bus cannot work; the text names the option, but not its value."""


#: Errors that a library raises for an invalid address. Their texts may quote the password.
_NO_ADDRESS = (oslo_messaging.InvalidTransportURL, oslo_messaging.DriverLoadFailure, ValueError)


def rpc_transport(conf: ConfigOpts) -> oslo_messaging.RPCTransport:
    """Return the configured transport of operations. Connects to nothing. Raises ``Misconfigured``."""
    _register_missing_options(conf)
    try:
        return oslo_messaging.get_rpc_transport(conf)
    except _NO_ADDRESS:
        raise _invalid_address("DEFAULT") from None


def notification_transport(conf: ConfigOpts) -> oslo_messaging.NotificationTransport:
    """Return the configured transport of notifications. Connects to nothing. Raises ``Misconfigured``."""
    _register_missing_options(conf)
    try:
        return oslo_messaging.get_notification_transport(conf)
    except _NO_ADDRESS:
        apart = conf.oslo_messaging_notifications.transport_url  # the default is the transport of operations
        raise _invalid_address("oslo_messaging_notifications" if apart else "DEFAULT") from None


def _invalid_address(group: str) -> Misconfigured:
    return Misconfigured(
        f"[{group}] transport_url is no address of a message bus, such as rabbit://user:password@host:5672/; "
        "in a password, write @ : / ? # as %40 %3A %2F %3F %23"
    )


#: Options of oslo.messaging: the group, and the module that registers them.
_UNREGISTERED = {
    "oslo_messaging_metrics": "oslo_messaging._metrics.client",
    "oslo_messaging_tracing": "oslo_messaging._tracing.client",
}


def _register_missing_options(conf: ConfigOpts) -> None:
    """Register options that oslo.messaging reads from the configuration that it gets.

    It registers them only with the global configuration. Not every release has them.
    """
    for group, module in _UNREGISTERED.items():
        conf.register_opts(getattr(sys.modules.get(module), group, ()), group=group)
