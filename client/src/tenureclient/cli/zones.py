"""The name of a time zone, as the server needs it."""

from __future__ import annotations

import os
from datetime import tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from tenureclient.moments import UnreadableMoment, zone_of

_LOCAL_ZONE = Path("/etc/localtime")
_DATABASE = "/zoneinfo/"


def name_of_zone(zone: tzinfo | None) -> str | None:
    """Return the zone's name in the time zone database; None if it has none. None is the machine's zone."""
    if isinstance(zone, ZoneInfo):
        return zone.key
    if zone is not None:
        return None
    given = os.environ.get("TZ")
    if given is not None:
        return _known(given.removeprefix(":") or "UTC")
    _, _, name = os.path.realpath(_LOCAL_ZONE).partition(_DATABASE)
    return _known(name) if name else None


def _known(name: str) -> str | None:
    try:
        return zone_of(name).key
    except UnreadableMoment:
        return None
