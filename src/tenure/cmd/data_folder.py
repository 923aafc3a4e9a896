"""Checks who may write to the folder of ``tenure-standalone``, and could replace its tokens."""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from pathlib import Path


def weakness_of(folder: Path) -> str | None:
    """Return who else may write to the folder, and the command that fixes it; None for a safe folder.

    The user's primary group may write to it: on systems where each user has a group, a umask of 002 is usual.
    """
    status = folder.stat()
    if status.st_uid != os.geteuid():
        owner, user = _user_name(status.st_uid), _user_name(os.geteuid())
        return (
            f"{folder} belongs to {owner}, who can replace tokens.yaml; start the service as {owner}, or "
            f"chown {user} {_quoted(folder)}"
        )
    if status.st_mode & stat.S_IWOTH:
        return f"anybody may write to {folder}, and replace tokens.yaml; chmod o-w {_quoted(folder)}"
    if status.st_mode & stat.S_IWGRP and status.st_gid != _primary_group():
        group = _group_name(status.st_gid)
        return f"the group {group} may write to {folder}, and replace tokens.yaml; chmod g-w {_quoted(folder)}"
    return None


def _primary_group() -> int:
    try:
        return pwd.getpwuid(os.geteuid()).pw_gid
    except KeyError:  # a container's user often has no entry
        return os.getegid()


def _user_name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


def _group_name(group_id: int) -> str:
    try:
        return grp.getgrgid(group_id).gr_name
    except KeyError:
        return str(group_id)


def _quoted(folder: Path) -> str:
    return shlex.quote(str(folder))
