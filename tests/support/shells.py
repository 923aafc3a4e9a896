"""What each start of ``openstack`` and ``tenure`` finds out, found out once when this module is imported.

It takes most of the time of a command: the modules of all commands, of which OpenStackClient loads every one, the entry
points of all distributions, and which distribution a module comes from.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from importlib.metadata import entry_points

from cliff.command import _get_distributions_by_modules
from stevedore import _cache

#: How the groups of entry points with the commands and plugins of the shells begin.
_GROUPS = ("cliff.formatter.", "keystoneauth1.plugin", "openstack.")

#: The modules that choose by the environment, when they are imported, which commands there are.
_CHOOSING = ("tenureclient.osc", "openstackclient.common.clientmanager")

#: The folders of modules of a program that is installed, in which the entry points were read.
_PATH = tuple(folder for folder in sys.path if folder)


def choose_again() -> None:
    """Be as a shell is that starts in the environment of this process, which another process has forked."""
    sys.path[:] = _PATH
    for name in _CHOOSING:
        importlib.reload(sys.modules[name])


def _load() -> None:
    known = entry_points()
    modules = {
        point.module for group in known.groups if group.startswith(_GROUPS) for point in known.select(group=group)
    }
    for module in sorted({*modules, *_CHOOSING}):
        with suppress(Exception):  # whatever it is, the shells go on without this module, and say so
            importlib.import_module(module)
    _cache.get_group_all("openstack.cli.base", path=_PATH)
    _get_distributions_by_modules()


_load()
