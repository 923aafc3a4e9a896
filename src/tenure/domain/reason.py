"""Why something is as it is: what the owner of a lease may read, and what is for operators."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: No text that is stored is longer.
_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is as it is.

    ``text`` is the owner's: it names no reservation, lease or server of another project, no host that the owner may not
    see, no storage pool, and nothing that an unexpected error says. ``detail`` is the whole text, for administrators
    and the log; None where ``text`` is all there is to say. As a string it is the whole text.
    """

    text: str
    detail: str | None = None

    def __str__(self) -> str:
        return self.text if self.detail is None else self.detail

    def __add__(self, more: str) -> Reason:
        """The same reason with a sentence behind it that everyone may read."""
        return Reason(f"{self.text}{more}", None if self.detail is None else f"{self.detail}{more}")

    def after(self, before: str) -> Reason:
        """The same reason with a sentence before it that everyone may read."""
        return Reason(f"{before}{self.text}", None if self.detail is None else f"{before}{self.detail}")

    def cut(self) -> Reason:
        """The same reason, no longer than what is stored."""
        return Reason(self.text[:_LONGEST], None if self.detail is None else self.detail[:_LONGEST])


def reason_from(text: str | None, detail: str | None) -> Reason | None:
    """The reason that was stored as these two, None where there is none."""
    return None if text is None else Reason(text, detail)


def together(reasons: Iterable[Reason]) -> Reason | None:
    """Several reasons as one, each sentence once; None for none."""
    found = tuple(dict.fromkeys(reasons))
    if not found:
        return None
    text = "; ".join(dict.fromkeys(reason.text for reason in found))
    detail = "; ".join(dict.fromkeys(map(str, found)))
    return Reason(text, None if detail == text else detail)
