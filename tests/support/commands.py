"""What commands of clients take and print."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any


def document(text: str) -> Any:
    """The JSON in what a command printed; python-blazarclient puts a sentence before some."""
    return json.loads(text[min(text.find(mark) for mark in "{[" if mark in text) :])


def in_minutes(minutes: int) -> str:
    """A moment so many minutes from now, as python-blazarclient takes it."""
    return f"{datetime.now(UTC) + timedelta(minutes=minutes):%Y-%m-%d %H:%M}"
