"""The plugin of OpenStackClient: ``openstack reservation ...``.

OpenStackClient loads this module by the entry point group ``openstack.cli.extension`` and takes the
commands from the group ``openstack.<API_NAME>.v<version>``. python-blazarclient uses the same option and
the same command names. If both simply registered them, argparse would refuse the second option, and the
order of directories on the disk would decide whose commands are found. So the rule is fixed here:

* alone, this client has all commands;
* beside python-blazarclient, that client keeps its option and its commands. This client adds the commands
  that it lacks;
* with ``OS_RESERVATION_CLIENT=tenure`` in the environment, this client has all of its commands. They include
  all of python-blazarclient's.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from osc_lib import clientmanager, exceptions

from tenureclient.client import Client

API_VERSION_OPTION = "os_reservation_api_version"
DEFAULT_API_VERSION = "1"

_OPTION = "--os-reservation-api-version"
_OTHER_CLIENT = "blazarclient.osc.plugin"


_FORCED = os.environ.get("OS_RESERVATION_CLIENT", "").lower() == "tenure"
#: Whether the other client is installed.
_BESIDE = any(
    plugin.module == _OTHER_CLIENT for plugin in importlib.metadata.entry_points(group="openstack.cli.extension")
)

# It must not be "reservation": OpenStackClient keeps one client for each name, and the commands of
# python-blazarclient need theirs.
API_NAME = "tenure_additions" if _BESIDE and not _FORCED else "tenure"


def make_client(
    instance: clientmanager.ClientManager,
    *,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
) -> Client:
    """Return a client with the credentials and the settings of the command line."""
    return Client(
        instance.session,
        endpoint_override=instance.get_configuration().get("reservation_endpoint_override"),
        interface=instance.interface,
        region_name=instance.region_name,
        clock=clock,
        sleep=sleep,
    )


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the option for the version, unless python-blazarclient adds it."""
    if not _BESIDE:
        parser.add_argument(
            _OPTION,
            metavar="<reservation-api-version>",
            default=os.environ.get("OS_RESERVATION_API_VERSION", ""),
            help=f"Reservation API version, default={DEFAULT_API_VERSION} (Env: OS_RESERVATION_API_VERSION)",
        )
    elif _FORCED:
        _load_commands_last()
    return parser


def check_api_version(version: str) -> bool:
    """Accept every version of the first API; the client negotiates the microversion with the server."""
    if version.split(".")[0] != "1":
        raise exceptions.CommandError(f"There is no reservation API version {version}; set {_OPTION} to 1.")
    return True


def _load_commands_last() -> None:
    """Move this plugin to the end, since the last plugin with a command of a given name wins.

    The list is replaced instead of changed, because OpenStackClient is iterating over it.
    """
    manager = sys.modules.get("openstackclient.common.clientmanager")
    plugins = getattr(manager, "PLUGIN_MODULES", None)
    this = sys.modules[__name__]
    if manager is not None and isinstance(plugins, list) and this in plugins:
        vars(manager)["PLUGIN_MODULES"] = [*(plugin for plugin in plugins if plugin is not this), this]
