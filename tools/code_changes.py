"""Changes of one function that mutants make: they name the function and what is done to it, not its text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

#: The calls whose arguments are conditions that must all hold, or of which one must.
CONDITIONS: Final = frozenset({"where", "and_", "or_", "filter"})


class Inapplicable(Exception):
    """Raised when a change does not fit the code. The text says why."""


def changed(source: str, function: str, change: str) -> str:
    """Return the source of a module with a change of one function.

    ``function`` is its qualified name. ``change`` is a verb and its argument, see ``VERBS``. Raises ``Inapplicable`` if
    there is no such function or verb, or nothing to change.
    """
    verb, _, argument = change.partition(" ")
    if verb not in VERBS:
        raise Inapplicable(f"there is no change {verb!r}; there are {', '.join(VERBS)}")
    tree = ast.parse(source)
    if not VERBS[verb](_find(tree, function), argument):
        raise Inapplicable(f"{function} has nothing to {change}")
    return ast.unparse(ast.fix_missing_locations(tree))


def _find(tree: ast.AST, name: str) -> ast.FunctionDef:
    found: ast.AST = tree
    for part in name.split("."):
        inside = (node for node in ast.walk(found) if isinstance(node, ast.FunctionDef | ast.ClassDef))
        named = [node for node in inside if node.name == part and node is not found]
        if not named:
            raise Inapplicable(f"there is no function {name}")
        found = named[0]
    if not isinstance(found, ast.FunctionDef):
        raise Inapplicable(f"{name} is no function")
    return found


def _return(function: ast.FunctionDef, value: str) -> bool:
    """``return VALUE``: the function does nothing else."""
    function.body = [ast.Return(ast.parse(value, mode="eval").body if value else None)]
    return True


def _skip(function: ast.FunctionDef, names: str) -> bool:
    """``skip NAME``: statements that only call NAME are left out, and so are those that raise it."""
    return _visit(function, _Skip(names.split()))


def _never(function: ast.FunctionDef, names: str) -> bool:
    """``never NAME``: conditions of branches, loops and comprehensions that mention NAME do not hold."""
    return _visit(function, _Decide(names.split(), False))


def _always(function: ast.FunctionDef, names: str) -> bool:
    """``always NAME``: conditions of branches, loops and comprehensions that mention NAME hold."""
    return _visit(function, _Decide(names.split(), True))


def _drop(function: ast.FunctionDef, names: str) -> bool:
    """``drop NAME``: conditions that mention NAME, beside others that are combined with them, are left out."""
    return _visit(function, _Drop(names.split()))


def _loosen(function: ast.FunctionDef, _: str) -> bool:
    """``loosen``: what must be less, or greater, may be equal."""
    return _visit(function, _Loosen())


VERBS: Final[dict[str, Callable[[ast.FunctionDef, str], bool]]] = {
    "return": _return,
    "skip": _skip,
    "never": _never,
    "always": _always,
    "drop": _drop,
    "loosen": _loosen,
}


class _Change(ast.NodeTransformer):
    """A change at each place that it fits; ``names`` are those that the place mentions."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self.names = frozenset(names)
        self.made = False

    def _mentions(self, node: ast.AST) -> bool:
        return any(_name_of(inside) in self.names for inside in ast.walk(node))

    def _instead(self, node: ast.AST) -> ast.AST:
        self.made = True
        return node


def _visit(function: ast.FunctionDef, change: _Change) -> bool:
    change.generic_visit(function)
    return change.made


def _name_of(node: ast.AST) -> str | None:
    """Return the name that a node has itself: of a variable, an attribute, or the content of a text."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Constant(value=str() as text):
            return text
    return None


class _Skip(_Change):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        called = isinstance(node.value, ast.Call) and _name_of(node.value.func) in self.names
        return self._instead(ast.Pass()) if called else node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return self._instead(ast.Pass()) if error is not None and _name_of(error) in self.names else node


class _Decide(_Change):
    def __init__(self, names: Collection[str], value: bool) -> None:
        super().__init__(names)
        self._value = value

    def visit(self, node: ast.AST) -> Any:
        super().visit(node)
        if isinstance(node, ast.If | ast.IfExp | ast.While) and self._mentions(node.test):
            node.test = ast.Constant(self._value)
            self.made = True
        if isinstance(node, ast.comprehension):
            decided = [ast.Constant(self._value) if self._mentions(test) else test for test in node.ifs]
            self.made |= decided != node.ifs
            node.ifs = decided
        return node


class _Drop(_Change):
    def _without(self, conditions: Sequence[ast.expr]) -> list[ast.expr]:
        rest = [condition for condition in conditions if not self._mentions(condition)]
        if not rest:
            return list(conditions)
        self.made |= len(rest) < len(conditions)
        return rest

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        node.values = self._without(node.values)
        return node if len(node.values) > 1 else node.values[0]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if _name_of(node.func) in CONDITIONS:
            node.args = self._without(node.args)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Tuple):
            node.value.elts = self._without(node.value.elts)
        return node


class _Loosen(_Change):
    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        looser = {ast.Lt: ast.LtE, ast.Gt: ast.GtE}
        self.made |= any(type(operator) in looser for operator in node.ops)
        node.ops = [looser.get(type(operator), type(operator))() for operator in node.ops]
        return node
