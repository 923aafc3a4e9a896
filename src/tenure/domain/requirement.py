"""The property language: which resources a request can be served from.

An expression is JSON text. ``["==", "$gpu", "a100"]`` and ``["and", [...], [...]]`` are Blazar's language. This service
adds ``["or", [...], [...]]``, ``["not", [...]]`` and ``["in", "$rack", "r1", "r2"]``. The empty text and ``[]`` match
everything.

If value and property are both numbers, they are compared as numbers; everything else is compared as text, character by
character. For a resource that lacks the property, a comparison is false, even ``!=``; ``not`` of it is true.

The operators ``s==``, ``s!=``, ``s<``, ``s<=``, ``s>``, ``s>=``, ``<in>`` and ``<all-in>`` are those of Nova's extra
specs. They compare texts, also of numbers; ``<in>`` and ``<all-in>`` look for parts of the property's text.

``$cpu_info:vendor`` is the value ``vendor`` in the JSON text of the property ``cpu_info``, as Nova reads
``capabilities:cpu_info:vendor``. A property of that very name comes first. ``$aggregate_metadata:ssd`` has the values
of the key ``ssd`` in all aggregates of a host; a comparison holds if it holds for one of them.

``["==", "$trait:HW_CPU_X86_AVX2", "required"]`` asks for a trait, and ``"forbidden"`` for its absence.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

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


def _has_all(text: str, value: str) -> bool:
    return all(word in text for word in value.split())


#: The operators that compare texts, also of numbers.
_TEXT_OPERATORS: Mapping[str, Callable[[str, str], bool]] = {
    "s==": operator.eq,
    "s!=": operator.ne,
    "s>=": operator.ge,
    "s<=": operator.le,
    "s>": operator.gt,
    "s<": operator.lt,
    "<in>": operator.contains,
    "<all-in>": _has_all,
}
TEXT_OPERATORS = tuple(_TEXT_OPERATORS)
#: The operators that hold for one value only, or for all but one.
IDENTITY = frozenset({"==", "!=", "s==", "s!="})

#: The property with the metadata of a host's aggregates: the JSON text of the lists of values by key.
AGGREGATE_METADATA: Final = "aggregate_metadata"
_SEPARATOR: Final = ":"
#: The beginning of the names of traits in expressions, and the values that ask for one, or for its absence.
_TRAIT: Final = "trait:"
REQUIRED, FORBIDDEN = "required", "forbidden"
#: The beginning of the names of the properties that are amounts of classes.
_RESOURCES: Final = "resources:"
_TRAIT_NAME: Final = re.compile(r"[A-Z0-9_]{1,255}")


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

    @property
    def compares_texts(self) -> bool:
        """Whether values are compared as texts even if they are numbers."""
        return self.op in _TEXT_OPERATORS

    @property
    def container(self) -> str | None:
        """The name of the property whose JSON text has the value if no property has the whole name; else None."""
        root, separator, _ = self.name.partition(_SEPARATOR)
        return root if separator else None

    @property
    def reads(self) -> frozenset[str]:
        """The names of the properties that may have the value."""
        return frozenset({self.name} if self.container is None else {self.name, self.container})

    def matches(self, properties: Mapping[str, str]) -> bool:
        text = properties.get(self.name)
        if text is not None:
            return self._holds_for(text)
        container, _, path = self.name.partition(_SEPARATOR)
        text = properties.get(container)
        if text is None:
            return False
        if container == AGGREGATE_METADATA:
            return any(map(self._holds_for, _listed(text, path)))
        found = _nested(text, tuple(path.split(_SEPARATOR)))
        return found is not None and self._holds_for(found)

    def _holds_for(self, text: str) -> bool:
        if self.compares_texts:
            return _TEXT_OPERATORS[self.op](text, self.value)
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
        return tuple(leaf for leaf in _leaves(self) if isinstance(leaf, Comparison))

    @property
    def names(self) -> frozenset[str]:
        """The names of all properties that are read."""
        return frozenset(name for comparison in self.comparisons for name in comparison.reads)

    @property
    def size(self) -> int:
        """The number of its comparisons, traits and amounts, at any depth."""
        return sum(1 for _ in _leaves(self))


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


@dataclass(frozen=True, slots=True)
class HasTrait:
    """Holds for resources with the trait. For a single resource, ``trait:`` and the trait is a property."""

    trait: str

    def matches(self, properties: Mapping[str, str]) -> bool:
        return f"{_TRAIT}{self.trait}" in properties


@dataclass(frozen=True, slots=True)
class HasAmount:
    """Holds for resources with at least this much of a class. For a single resource, ``resources:`` and the class is
    a property.
    """

    resource_class: str
    amount: int

    def matches(self, properties: Mapping[str, str]) -> bool:
        amount = number_of(properties.get(f"{_RESOURCES}{self.resource_class}", ""))
        return amount is not None and amount >= self.amount


Term = Comparison | AnyOf | Not | HasTrait | HasAmount


class Language(Enum):
    """How much of the language a request may use."""

    BLAZAR = "comparisons and `and`"
    FULL = "`or`, `not` and `in` as well"


def trait_term(name: str, value: str) -> HasTrait | Not:
    """Return the term that requires or forbids a trait; raise ``ValueError`` for another value or an invalid name."""
    if value not in {REQUIRED, FORBIDDEN}:
        raise ValueError(f"a trait is {REQUIRED} or {FORBIDDEN}, and not {_shown(value)}.")
    if not _TRAIT_NAME.fullmatch(name):
        raise ValueError(f"{_shown(name)} is no trait: the names of traits have A-Z, 0-9 and _.")
    return HasTrait(name) if value == REQUIRED else Not(Expression((HasTrait(name),)))


def _leaves(expression: Expression) -> Iterator[Comparison | HasTrait | HasAmount]:
    for term in expression.terms:
        match term:
            case AnyOf(branches):
                for branch in branches:
                    yield from _leaves(branch)
            case Not(branch):
                yield from _leaves(branch)
            case _:
                yield term


@lru_cache(maxsize=1024)  # few hosts have a text of their own, and each is read for each value in it
def _nested(text: str, path: tuple[str, ...]) -> str | None:
    """Return the value at a path in a JSON text, as Nova compares it with extra specs; None if there is none.

    A text on the way is JSON text again. Nova compares the text by which Python prints the value.
    """
    value: object = text
    for name in path:
        if isinstance(value, str):
            value = _document(value)
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return None if value is None else str(value)


def _listed(text: str, key: str) -> tuple[str, ...]:
    """Return the values of a key in the metadata of aggregates."""
    document = _document(text)
    values = document.get(key) if isinstance(document, dict) else None
    return tuple(map(str, values)) if isinstance(values, list) else ()


@lru_cache(maxsize=256)
def _document(text: str) -> object:
    """Return the value of a JSON text; None if it is none."""
    try:
        return read_json(text)
    except InvalidParameter:
        return None


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
    if expression.size > MAX_COMPARISONS:
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
            values = values or [None]
            return (AnyOf(tuple(Expression((_comparison("==", name, value, language),)) for value in values)),)
    if len(parts) != 2:
        raise ValueError(f"a comparison has an operator, a property and a value, and {_shown(tree)} does not.")
    name, value = parts
    return (_comparison(op, name, value, language),)


def _comparison(op: object, key: object, value: object, language: Language) -> Comparison | HasTrait | Not:
    name = "==" if op == "=" else op
    known = OPERATORS if language is Language.BLAZAR else (*OPERATORS, *TEXT_OPERATORS)
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"there is no operator {_shown(op)}; there are {', '.join(known)}, and, or, not and in.")
    if not isinstance(key, str) or len(key) < 2 or key[0] != "$":
        raise ValueError(f'a property is named as text that begins with $, such as "$gpu", and {_shown(key)} is not.')
    if isinstance(value, bool | int | float):
        raise ValueError(f'values are texts, in quotes: "{_shown(value)}" in place of {_shown(value)}.')
    if not isinstance(value, str) or not value:
        raise ValueError(f"{_shown(value)} is no value: values are texts, in quotes, and not empty.")
    if key[1:].startswith(_TRAIT):
        if name != "==":
            raise ValueError(f"a trait is compared by ==, and not by {name}.")
        return trait_term(key[1:].removeprefix(_TRAIT), value)
    return Comparison(name, key[1:], value)


def _shown(value: object) -> str:
    """Return a value as JSON, as a refusal repeats it."""
    return json.dumps(value, ensure_ascii=False)[:_SHOWN]
