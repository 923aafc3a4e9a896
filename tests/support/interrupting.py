"""What happens between a plan, or an exact search, and the transaction that follows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tenure.planning.exact import Answer, arrange
from tenure.planning.outcomes import Plan
from tenure.services.planning.planning import Planning

#: The exact search, as the service knows it.
ARRANGE = "tenure.services.planning.planning.arrange"


def after_planning(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> list[Plan]:
    """Let ``action`` happen after the next plan, before anything is written; return the list of all plans.

    What is planned in ``action`` is not interrupted.
    """
    original = Planning.plan
    plans: list[Plan] = []

    def plan(planning: Planning, *given: Any, **named: Any) -> Plan:
        found = original(planning, *given, **named)
        plans.append(found)
        if len(plans) == 1:
            action()
        return found

    monkeypatch.setattr(Planning, "plan", plan)
    return plans


def after_exact_searches(monkeypatch: pytest.MonkeyPatch, action: Callable[[Answer], object]) -> list[Answer]:
    """Let ``action`` happen after each exact search, before its answer is used; return the list of all answers."""
    answers: list[Answer] = []

    def search(*given: Any, **named: Any) -> Answer:
        found = arrange(*given, **named)
        answers.append(found)
        action(found)
        return found

    monkeypatch.setattr(ARRANGE, search)
    return answers


def before_exact_searches(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Let ``action`` happen in each exact search, before anything is searched."""

    def search(*given: Any, **named: Any) -> Answer:
        action()
        return arrange(*given, **named)

    monkeypatch.setattr(ARRANGE, search)


def without_exact_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each exact search end without an answer."""
    monkeypatch.setattr(ARRANGE, lambda *_given, **_named: Answer(None, is_proven=False))
