"""The property language: which resources a request can be served from.

An expression is JSON text. ``["==", "$gpu", "a100"]`` and ``["and", [...], [...]]`` are Blazar's language. This service
adds ``["or", [...], [...]]``, ``["not", [...]]`` and ``["in", "$rack", "r1", "r2"]``. The empty text and ``[]`` match
everything.

If value and property are both numbers, they are compared as numbers; everything else is compared as text, character by
character. For a resource that lacks the property, a comparison is false, even ``!=``; ``not`` of it is true.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from tenure.domain.errors import InvalidParameter, MalformedRequirements
from tenure.domain.json_text import read_json

#: Limits of an expression: its nesting, and its number of comparisons. Each value of ``in`` counts as a comparison.
MAX_DEPTH = 16
MAX_COMPARISONS = 64
#: How many characters of a value a refusal repeats.
_SHOWN = 100

_OPERATORS: Mapping[str, Callable[[float | str, float | str], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
OPERATORS = tuple(_OPERATORS)
#: The operators that ask for more or for less of something.
ORDER = frozenset({">=", ">", "<=", "<"})


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of a property with a value."""

    op: str
    name: str
    value: str

    @property
    def number(self) -> float | None:
        """The value as a number; None if it is not a number."""
        return number_of(self.value)

    def matches(self, properties: Mapping[str, str]) -> bool:
        text = properties.get(self.name)
        if text is None:
            return False
        required, number = self.number, number_of(text)
        if required is None:
            return _OPERATORS[self.op](text, self.value)
        if number is None:
            return self.op == "!="
        return _OPERATORS[self.op](number, required)


@dataclass(frozen=True, slots=True)
class Expression:
    """Terms that must all hold; without terms it matches everything."""

    terms: tuple[Term, ...] = ()

    def matches(self, properties: Mapping[str, str]) -> bool:
        return all(term.matches(properties) for term in self.terms)

    def __and__(self, other: Expression) -> Expression:
        return Expression(self.terms + other.terms)

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """All comparisons, at any depth."""
        return tuple(_comparisons(self))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(comparison.name for comparison in self.comparisons)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Holds if one of the expressions holds."""

    branches: tuple[Expression, ...]

    def matches(self, properties: Mapping[str, str]) -> bool:
        return any(branch.matches(properties) for branch in self.branches)


@dataclass(frozen=True, slots=True)
class Not:
    """Holds if the expression does not hold, also if the property is missing."""

    branch: Expression

    def matches(self, properties: Mapping[str, str]) -> bool:
        return not self.branch.matches(properties)


Term = Comparison | AnyOf | Not


class Language(Enum):
    """How much of the language a request may use."""

    BLAZAR = "comparisons and `and`"
    FULL = "`or`, `not` and `in` as well"


def _comparisons(expression: Expression) -> Iterator[Comparison]:
    for term in expression.terms:
        match term:
            case Comparison():
                yield term
            case AnyOf(branches):
                for branch in branches:
                    yield from _comparisons(branch)
            case Not(branch):
                yield from _comparisons(branch)


def number_of(text: str) -> float | None:
    """Return ``text`` as a finite number, or None. Only digits, sign, point and exponent may occur."""
    if not text or text[0] not in "+-.0123456789" or text[-1] not in ".0123456789" or not text.isascii():
        return None
    if "_" in text:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@lru_cache(maxsize=256)  # a request may have the same expression a hundred times
def parse_expression(text: str, *, field: str, language: Language = Language.FULL) -> Expression:
    """Read an expression of the property language.

    Raises ``MalformedRequirements`` (with Blazar's words ``Malformed requirements``) for anything else.
    """
    if not text.strip():
        return Expression()
    try:
        tree = read_json(text, subject="the text")
    except InvalidParameter as error:
        raise MalformedRequirements(text, error.message, field=field) from None
    if tree == []:
        return Expression()
    try:
        expression = Expression(_terms(tree, language, depth=0))
    except ValueError as error:
        raise MalformedRequirements(repr(tree), str(error), field=field) from None
    if len(expression.comparisons) > MAX_COMPARISONS:
        raise InvalidParameter(
            f"Malformed requirements: more than {MAX_COMPARISONS} comparisons in one expression", field=field
        )
    return expression


def _terms(tree: object, language: Language, *, depth: int) -> tuple[Term, ...]:
    """Return the terms of a tree; raise ``ValueError``, with the reason for the user, if it is no expression."""
    if not isinstance(tree, list) or len(tree) < 2:
        raise ValueError(f'an expression looks like ["==", "$gpu", "a100"], and {_shown(tree)} does not.')
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels.")
    op, *parts = tree
    if op == "and":
        return tuple(term for part in parts for term in _terms(part, language, depth=depth + 1))
    if language is Language.FULL:
        if op == "or":
            return (AnyOf(tuple(Expression(_terms(part, language, depth=depth + 1)) for part in parts)),)
        if op == "not":
            if len(parts) != 1:
                raise ValueError(f'"not" has a single expression, and here {len(parts)}.')
            return (Not(Expression(_terms(parts[0], language, depth=depth + 1))),)
        if op == "in":
            name, *values = parts
            return (AnyOf(tuple(Expression((_comparison("==", name, value),)) for value in values or [None])),)
    if len(parts) != 2:
        raise ValueError(f"a comparison has an operator, a property and a value, and {_shown(tree)} does not.")
    return (_comparison(op, *parts),)


def _comparison(op: object, key: object, value: object) -> Comparison:
    name = "==" if op == "=" else op
    if not isinstance(name, str) or name not in _OPERATORS:
        raise ValueError(f"there is no operator {_shown(op)}; there are {', '.join(_OPERATORS)}, and, or, not and in.")
    if not isinstance(key, str) or len(key) < 2 or key[0] != "$":
        raise ValueError(f'a property is named as text that begins with $, such as "$gpu", and {_shown(key)} is not.')
    if isinstance(value, bool | int | float):
        raise ValueError(f'values are texts, in quotes: "{_shown(value)}" in place of {_shown(value)}.')
    if not isinstance(value, str) or not value:
        raise ValueError(f"{_shown(value)} is no value: values are texts, in quotes, and not empty.")
    return Comparison(name, key[1:], value)


def _shown(value: object) -> str:
    """Return a value as JSON, as a refusal repeats it."""
    return json.dumps(value, ensure_ascii=False)[:_SHOWN]
