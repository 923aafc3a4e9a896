"""The same question for each operation of the manager: does a project that floods it keep another's booking waiting?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tenure.domain.actor import Actor
from tenure.domain.errors import Busy
from tenure.domain.request import FlexibleRequest, LeaseRequest, Window
from tenure.services.lanes import Lanes
from tenure.services.manager import OPERATIONS, Manager, in_lanes
from tests.support.waiting import patience, wait_for
from tests.support.world import NOW, OWNER, STRANGER

HOUR = timedelta(hours=1)
PLAIN = LeaseRequest("plain", NOW, NOW + HOUR)
FLEXIBLE = FlexibleRequest("flexible", ((),), Window(HOUR), None, None)
#: More than any lane has room for of one project.
MANY = 100


@dataclass
class Stuck:
    """Services that never finish what a project asks for, and do at once what others ask for."""

    of: str
    go_on: threading.Event = field(default_factory=threading.Event)
    done: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._carry_out

    def _carry_out(self, actor: Actor, *_positional: Any, **_named: Any) -> None:
        if actor.project_id == self.of:
            assert self.go_on.wait(patience())
        self.done.append(actor.project_id)


def flood(threads: ThreadPoolExecutor, call: Callable[[], object]) -> None:
    """Call from many threads; return once everything that the lane has room for runs or waits."""
    answers = [threads.submit(call) for _ in range(MANY)]
    wait_for(
        lambda: "a call that is refused",
        lambda: any(answer.done() and isinstance(answer.exception(), Busy) for answer in answers),
    )


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        *(pytest.param(name, (), id=name) for name in sorted(OPERATIONS - {"health", "leases.create"})),
        pytest.param("leases.create", (PLAIN,), id="leases.create"),
        pytest.param("leases.create", (FLEXIBLE,), id="leases.create, flexible"),
    ],
)
def test_a_flood_of_a_project_does_not_keep_another_from_booking(operation: str, arguments: tuple[Any, ...]):
    stuck = Stuck(OWNER.project_id)
    manager = in_lanes(Manager.of(lambda _name: stuck, lambda: ()), Lanes())
    service, _, verb = operation.partition(".")
    call = getattr(getattr(manager, service), verb)
    with ThreadPoolExecutor(MANY) as threads:
        try:
            flood(threads, partial(call, OWNER, *arguments))
            manager.leases.create(STRANGER, PLAIN)
            assert stuck.done == [STRANGER.project_id]
        finally:
            stuck.go_on.set()
