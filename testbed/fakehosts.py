"""The virt driver of the testbed's compute hosts: Nova's own fake driver.

Sized from the environment, so that hosts can differ from one another, and with the node's uuid kept in the state
directory, so that a host survives a restart. Nova loads drivers from its own package alone: this file is copied there.
"""

from __future__ import annotations

import os

from nova.virt import fake


class Driver(fake.FakeDriverWithoutFakeNodes):  # type: ignore[misc]  # Nova has no types
    """A host with as much of everything as the environment says."""

    vcpus = int(os.environ.get("FAKE_VCPUS", "8"))
    memory_mb = int(os.environ.get("FAKE_MEMORY_MB", "16384"))
    local_gb = int(os.environ.get("FAKE_LOCAL_GB", "200"))
