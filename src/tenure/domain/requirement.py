"""The property language: which resources a request can be served from.

Blazar's language, as text of JSON: ``["==", "$gpu", "a100"]`` or ``["and", [...], [...]]``; the empty text and ``[]``
ask for nothing. A value that reads as a number is compared as a number with properties that are numbers; everything
else is compared as text, letter by letter. A resource that lacks the property never matches, not even with ``!=``.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tenure.domain.errors import InvalidParameter

#: How deep ``and`` may be nested, and how many comparisons one expression may hold.
MAX_DEPTH = 16
MAX_COMPARISONS = 64

_OPERATORS: Mapping[str, Callable[[float | str, float | str], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
OPERATORS = tuple(_OPERATORS)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One property held against one value."""

    op: str
    name: str
    value: str

    @property
    def number(self) -> float | None:
        """The value as a number, where it is one."""
        return number_of(self.value)

    def matches(self, properties: Mapping[str, str]) -> bool:
        text = properties.get(self.name)
        if text is None:
            return False
        wanted, found = self.number, number_of(text)
        if wanted is None:
            return _OPERATORS[self.op](text, self.value)
        if found is None:
            return self.op == "!="
        return _OPERATORS[self.op](found, wanted)


@dataclass(frozen=True, slots=True)
class Expression:
    """A conjunction of comparisons; without any it matches everything."""

    comparisons: tuple[Comparison, ...] = ()

    def matches(self, properties: Mapping[str, str]) -> bool:
        return all(comparison.matches(properties) for comparison in self.comparisons)

    def __and__(self, other: Expression) -> Expression:
        return Expression(self.comparisons + other.comparisons)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(comparison.name for comparison in self.comparisons)


def number_of(text: str) -> float | None:
    """``text`` as a finite number, or None. Digits, sign, point and exponent only: no blanks, no ``nan``."""
    if not text or text[0] not in "+-.0123456789" or text[-1] not in ".0123456789" or not text.isascii():
        return None
    if "_" in text:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def parse_expression(text: str, *, field: str) -> Expression:
    """Read an expression of the property language.

    Raises ``InvalidParameter`` (with Blazar's words ``Malformed requirements``) for anything else.
    """
    if not text.strip():
        return Expression()
    try:
        tree = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise InvalidParameter(f"Malformed requirements {text}", field=field) from None
    if tree == []:
        return Expression()
    malformed = InvalidParameter(f"Malformed requirements {tree!r}", field=field)
    try:
        comparisons = tuple(_flatten(tree, depth=0))
    except (ValueError, RecursionError):
        raise malformed from None
    if len(comparisons) > MAX_COMPARISONS:
        raise InvalidParameter(
            f"Malformed requirements: more than {MAX_COMPARISONS} comparisons in one expression", field=field
        )
    return Expression(comparisons)


def _flatten(tree: object, *, depth: int) -> Iterator[Comparison]:
    if not isinstance(tree, list) or len(tree) < 2 or depth > MAX_DEPTH:
        raise ValueError
    if tree[0] == "and":
        for branch in tree[1:]:
            yield from _flatten(branch, depth=depth + 1)
        return
    if len(tree) != 3 or not all(isinstance(part, str) for part in tree):
        raise ValueError
    op, key, value = tree
    op = "==" if op == "=" else op
    if op not in _OPERATORS or len(key) < 2 or key[0] != "$" or not value:
        raise ValueError
    if "\0" in key + value:
        raise ValueError  # no database keeps it
    (key + value).encode()  # nor half a character; UnicodeEncodeError is a ValueError
    yield Comparison(op, key[1:], value)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)
