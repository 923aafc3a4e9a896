"""What mutants do to functions: each change takes a guard away, and nothing else."""

from __future__ import annotations

import ast

import pytest

from tools.code_changes import Inapplicable, changed

SOURCE = '''
def check(number, limit):
    """Refuse a number that is too large."""
    if number > limit:
        raise TooLarge(number)
    note(number)
    return number

class Store:
    def claim(self, seen, rows):
        statement = update(Row).where(Row.id == seen.id, Row.version == seen.version).values(version=seen.version + 1)
        free = [row for row in rows if row.owner is None]
        return statement if seen.is_free and not seen.is_old else free

    def due(self, now):
        return Row.ready_at <= now, is_oldest()
'''


def body_of(source: str, name: str) -> str:
    [found] = [node for node in ast.walk(ast.parse(source)) if getattr(node, "name", "") == name]
    assert isinstance(found, ast.FunctionDef)
    return "\n".join(ast.unparse(statement) for statement in found.body)


@pytest.mark.parametrize(
    ("function", "change", "old", "new"),
    [
        ("check", "skip TooLarge", "raise TooLarge(number)", "pass"),
        ("check", "skip note", "note(number)", "pass"),
        ("check", "never limit", "number > limit", "False"),
        ("check", "loosen", "number > limit", "number >= limit"),
        ("Store.claim", "drop version", ", Row.version == seen.version)", ")"),
        ("Store.claim", "drop is_old", "seen.is_free and (not seen.is_old)", "seen.is_free"),
        ("Store.claim", "always is_free", "seen.is_free and (not seen.is_old)", "True"),
        ("Store.claim", "always owner", "row.owner is None", "True"),
        ("Store.due", "drop is_oldest", "(Row.ready_at <= now, is_oldest())", "(Row.ready_at <= now,)"),
    ],
)
def test_change_is_made_in_the_function_only(function: str, change: str, old: str, new: str):
    name = function.rpartition(".")[2]
    before = body_of(SOURCE, name)
    assert before.count(old) == 1
    after = changed(SOURCE, function, change)
    assert body_of(after, name) == before.replace(old, new)
    for other in {"check", "claim", "due"} - {name}:
        assert body_of(after, other) == body_of(SOURCE, other)


@pytest.mark.parametrize(("change", "body"), [("return number + 1", "return number + 1"), ("return", "return")])
def test_body_can_be_replaced(change: str, body: str):
    assert body_of(changed(SOURCE, "check", change), "check") == body


@pytest.mark.parametrize(
    ("function", "change", "said"),
    [
        ("Store", "return", "Store is no function"),
        ("Store.release", "return", "there is no function Store.release"),
        ("check", "drop limit", "check has nothing to drop limit"),
        ("check", "replace it", "there is no change 'replace'"),
    ],
)
def test_change_that_does_not_fit_is_refused(function: str, change: str, said: str):
    with pytest.raises(Inapplicable, match=said):
        changed(SOURCE, function, change)
