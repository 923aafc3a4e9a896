"""The virt driver of the testbed's compute hosts: Nova's own fake driver.

Sized from the environment, so that hosts can differ from one another, and with the node's uuid kept in the state
directory, so that a host survives a restart. A server's image gets a few bytes, so that it is ready one day. Nova
loads drivers from its own package alone: this file is copied there.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

from nova.image import glance
from nova.virt import fake

#: What is in the image of a server: a sector of nothing.
_SECTOR = bytes(512)


class Driver(fake.FakeDriverWithoutFakeNodes):  # type: ignore[misc]  # Nova has no types
    """A host with as much of everything as the environment says."""

    vcpus = int(os.environ.get("FAKE_VCPUS", "8"))
    memory_mb = int(os.environ.get("FAKE_MEMORY_MB", "16384"))
    local_gb = int(os.environ.get("FAKE_LOCAL_GB", "200"))

    def snapshot(self, context: Any, instance: Any, image_id: str, update_task_state: Callable[..., None]) -> None:
        """As Nova's own does, which leaves the image without any data, and so never ready."""
        super().snapshot(context, instance, image_id, update_task_state)
        formats = {"disk_format": "raw", "container_format": "bare"}
        glance.API().update(context, image_id, formats, data=io.BytesIO(_SECTOR))
