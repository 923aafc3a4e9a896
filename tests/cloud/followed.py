"""Whether the operators' guide was followed to its end since its commands and files, or ``deploy``, last changed.

To follow it takes minutes. ``make test`` does so only if the digest in ``install_guide.followed`` is another one.
Once the guide can be followed again, ``python -m tests.cloud.followed`` writes the digest.
"""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

from tests.support.cloud import REPOSITORY

GUIDE = REPOSITORY / "docs" / "operations" / "install.md"
FOLLOWED = Path(__file__).with_name("install_guide.followed")


def digest() -> str:
    """Return a text that differs if a block of the guide that is typed or copied, or a file of ``deploy``, does."""
    found = sha256()
    for block in re.findall(r"^```.*?^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE):
        found.update(block.encode() + b"\0")
    for path in sorted(path for path in (REPOSITORY / "deploy").rglob("*") if path.is_file()):
        found.update(str(path.relative_to(REPOSITORY)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def has_been_followed() -> bool:
    """Whether the guide was followed as it is now."""
    return FOLLOWED.exists() and FOLLOWED.read_text().strip() == digest()


if __name__ == "__main__":
    FOLLOWED.write_text(f"{digest()}\n")
