"""Closures: what a nested function does is hard to follow, and the services once had 14 per 1,000 lines."""

from __future__ import annotations

from pathlib import Path

from tools.closures import closures_in, closures_per_1000_lines

SERVICES = Path(__file__).parents[1] / "src" / "tenure" / "services"


def test_functions_in_functions_and_lambdas_are_counted():
    assert closures_in("def f(): ...\nclass A:\n    def g(self): ...") == 0
    assert closures_in("def f():\n    def g():\n        def h(): ...") == 2
    assert closures_in("class A:\n    async def f(self):\n        return lambda: lambda: 1") == 2
    assert closures_in("KEY = lambda each: each.id") == 1
    assert closures_in("def f():\n    class A:\n        def g(self): ...") == 0


def test_services_have_few_closures():
    sources = [path.read_text() for path in SERVICES.rglob("*.py")]
    assert len(sources) > 50
    assert closures_per_1000_lines(sources) <= 5
