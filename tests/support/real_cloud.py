"""Bring up the testbed's cloud for the tests that need it, and take it down again.

Only as root on Debian, as the testbed asks for. ``TENURE_TEST_CLOUD=0`` forbids it; then, and where it is not possible,
the tests find no cloud and are left out, which they say themselves.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.cloud import OPENRC, REPOSITORY
from tests.support.debian import reason_not_to_install

UP_SECONDS = 30 * 60
DOWN_SECONDS = 5 * 60


class CloudFailed(Exception):
    """The testbed did not come up."""


@contextmanager
def real_cloud() -> Iterator[str | None]:
    """Have the testbed's cloud up until the end of the block; leave it up if it was up before.

    Yields None, or the reason why no cloud is brought up here.

    :raises CloudFailed: if it does not come up; then it is down again
    """
    was_up = OPENRC.exists()
    refusal = None if was_up else _reason_not_to_bring_up()
    if refusal is not None:
        yield refusal
        return
    try:
        _testbed("up", seconds=UP_SECONDS)
        yield None
    finally:
        if not was_up:
            _testbed("down", seconds=DOWN_SECONDS)


def _reason_not_to_bring_up() -> str | None:
    if os.environ.get("TENURE_TEST_CLOUD") == "0":
        return "TENURE_TEST_CLOUD=0"
    return reason_not_to_install()


def _testbed(command: str, *, seconds: float) -> None:
    try:
        subprocess.run(
            [REPOSITORY / "testbed" / "cloud", command], check=True, stdin=subprocess.DEVNULL, timeout=seconds
        )
    except subprocess.SubprocessError as error:
        raise CloudFailed(str(error)) from error
