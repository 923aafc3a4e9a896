"""Whether the operators' guide was followed to its end since it, or what it copies from ``deploy``, last changed.

To follow it takes minutes. ``make test`` does so only where the digest in ``install_guide.followed`` is another one.
Once the guide can be followed again, ``python -m tests.cloud.followed`` writes the digest.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from tests.support.cloud import REPOSITORY

GUIDE = REPOSITORY / "docs" / "operations" / "install.md"
FOLLOWED = Path(__file__).with_name("install_guide.followed")


def digest() -> str:
    """Return a text that differs where the guide or a file of ``deploy`` does."""
    files = [GUIDE, *sorted(path for path in (REPOSITORY / "deploy").rglob("*") if path.is_file())]
    found = sha256()
    for path in files:
        found.update(str(path.relative_to(REPOSITORY)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def has_been_followed() -> bool:
    """Whether the guide was followed as it is now."""
    return FOLLOWED.exists() and FOLLOWED.read_text().strip() == digest()


if __name__ == "__main__":
    FOLLOWED.write_text(f"{digest()}\n")
