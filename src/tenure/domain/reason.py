"""Reasons of a status: a text for the owner of a lease, and details for operators."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: The maximum length of a stored text, in characters.
_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason of a status.

    ``text`` is for the owner. It names no reservation, lease or server of another project, no host that the owner may
    not see, no storage pool, and no text of an unexpected error. ``detail`` is the full text for administrators and
    the log; None if ``text`` is complete. ``str()`` gives the full text.
    """

    text: str
    detail: str | None = None

    def __str__(self) -> str:
        return self.text if self.detail is None else self.detail

    def __add__(self, more: str) -> Reason:
        """Append text that everyone may read."""
        return Reason(f"{self.text}{more}", None if self.detail is None else f"{self.detail}{more}")

    def after(self, before: str) -> Reason:
        """Return the reason with text before it that everyone may read."""
        return Reason(f"{before}{self.text}", None if self.detail is None else f"{before}{self.detail}")

    def cut(self) -> Reason:
        """Return the reason, cut to the stored length."""
        return Reason(self.text[:_LONGEST], None if self.detail is None else self.detail[:_LONGEST])


def reason_from(text: str | None, detail: str | None) -> Reason | None:
    """Return the reason that is stored in these two columns; None if there is none."""
    return None if text is None else Reason(text, detail)


def together(reasons: Iterable[Reason]) -> Reason | None:
    """Join reasons into one that has each sentence once; None without reasons."""
    distinct = tuple(dict.fromkeys(reasons))
    if not distinct:
        return None
    text = "; ".join(dict.fromkeys(reason.text for reason in distinct))
    detail = "; ".join(dict.fromkeys(map(str, distinct)))
    return Reason(text, None if detail == text else detail)
