"""Doing the same to several things: all that can be done is done, and the rest is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from osc_lib import exceptions

from tenureclient.cli.report import describe
from tenureclient.errors import TenureError

T = TypeVar("T")


class Each:
    """What came of doing something to each of several things, by the names that the user gave."""

    def __init__(self) -> None:
        self._failed: dict[str, str] = {}

    def do(self, names: Iterable[str], work: Callable[[str], T]) -> Mapping[str, T]:
        """Call ``work`` with each name that has not failed before; the results of those that it works for."""
        done: dict[str, T] = {}
        for name in names:
            try:
                done[name] = work(name)
            except TenureError as error:
                self._failed[name] = describe(error)
        return done

    def complain(self, count: int, what: str) -> None:
        """Raise ``CommandError`` where any of ``count`` things failed; ``what`` says what they are not."""
        lines = list(self._failed.values())
        if count > 1:
            named = [f"{name}: {reason}" for name, reason in self._failed.items()]
            lines = [f"{len(named)} of {count} {what}:", *named]
        if self._failed:
            raise exceptions.CommandError("\n".join(lines))
