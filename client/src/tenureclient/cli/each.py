"""Doing the same to several things: continue after errors, and report them at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from osc_lib import exceptions

from tenureclient.cli.report import describe
from tenureclient.errors import TenureError

T = TypeVar("T")


class Each:
    """Runs a function for several names, and collects the errors."""

    def __init__(self) -> None:
        self._failed: dict[str, str] = {}

    def do(self, names: Iterable[str], work: Callable[[str], T]) -> Mapping[str, T]:
        """Call ``work`` for each name without an earlier error; return the results by name."""
        done: dict[str, T] = {}
        for name in names:
            try:
                done[name] = work(name)
            except TenureError as error:
                self._failed[name] = describe(error)
        return done

    def complain(self, count: int, problem: str) -> None:
        """Raise ``CommandError`` if any of ``count`` names failed; ``problem`` completes "2 of 3 ..."."""
        lines = list(self._failed.values())
        if count > 1:
            named = [f"{name}: {reason}" for name, reason in self._failed.items()]
            lines = [f"{len(named)} of {count} {problem}:", *named]
        if self._failed:
            raise exceptions.CommandError("\n".join(lines))
