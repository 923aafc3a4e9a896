"""Conditions on resources as people write them, and the expression that the API takes.

The language, from the weakest binding to the strongest::

    condition   = alternative { "or" alternative }
    alternative = term { "and" term }
    term        = "not" term | "(" condition ")" | comparison
    comparison  = name operator value | name "in" value { "," value }
    operator    = "=" | "==" | "!=" | ">=" | "<=" | ">" | "<"

A value ends before ``and`` or ``or`` as a word, before a bracket that closes an open one, and at the end. In
double or single quotes it may be anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress

from tenureclient.sizes import UnreadableSize, parse_size
from tenureclient.wire import JsonValue

CONDITION_FORMS = (
    "vcpus>=8, memory_mb>64g, gpu=v100, rack!=r2, 'rack in r1,r2', 'not gpu=v100', 'gpu=a100 or gpu=v100',"
    " 'vcpus>=4 and (gpu=a100 or gpu=v100)'"
)

_NAME = re.compile(r"\s*([^\s=!<>()\"',]+)\s*")
_OPERATOR = re.compile(r"(==|!=|>=|<=|=|>|<)\s*(?![=<>])")
_WORD = {word: re.compile(rf"\s*{word}(?![^\s(])", re.IGNORECASE) for word in ("and", "or", "not", "in")}
_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
#: The end of an unquoted value, if no bracket or comma ends it earlier.
_NEXT = re.compile(r"\s(?:and|or)(?=[\s(])|\s(?:and|or)$", re.IGNORECASE)
#: Operators that mean ``and`` and ``or`` in other languages, and comparison operators.
_UNLIKELY, _SIGN = re.compile(r"&&|\|\|"), re.compile(r"[=!<>]")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+", re.ASCII)
_ORDER = frozenset({">=", "<=", ">", "<"})


class UnreadableCondition(ValueError):
    """The text is neither a condition (property, comparison, value) nor several joined conditions."""


def conditions_to_json(conditions: Iterable[str]) -> str:
    """Return the expression that holds if all conditions hold; an empty text without conditions.

    A condition may also be an expression of the API, as JSON text. Raises ``UnreadableCondition``.
    """
    terms: list[JsonValue] = [_expression(condition) or _Reader(condition).read() for condition in conditions]
    if not terms:
        return ""
    return json.dumps(terms[0] if len(terms) == 1 else ["and", *terms])


def conditions_from_json(expression: str) -> list[str]:
    """Return conditions of which all hold if the expression holds; each in its short form if it has one."""
    whole = _expression(expression)
    if whole is None:
        return [expression]
    terms = whole[1:] if whole[0] == "and" else [whole]
    return [_short_form(term) for term in terms]


def _short_form(term: JsonValue) -> str:
    match term:
        case [str(operator), str(name), str(value)] if name.startswith("$"):
            short = f"{name[1:]}{'=' if operator == '==' else operator}{value}"
            with suppress(UnreadableCondition):
                if json.loads(conditions_to_json([short])) == term:
                    return short
    return json.dumps(term)


def _expression(text: str) -> list[JsonValue] | None:
    """Return the expression of the API that a text is; None if it is another text."""
    if not text.lstrip().startswith("["):
        return None
    try:
        expression = json.loads(text)
    except ValueError:
        return None
    return expression if isinstance(expression, list) else None


class _Reader:
    """Reads one condition from beginning to end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> list[JsonValue]:
        expression = self._read_joined("or")
        if self._text[self._at :].strip():
            raise self._unreadable()
        return expression

    def _read_joined(self, word: str) -> list[JsonValue]:
        """Read terms joined by this word; a single term is returned as it is."""
        terms: list[list[JsonValue]] = []
        while not terms or self._match(_WORD[word]):
            terms.append(self._read_joined("and") if word == "or" else self._term())
        return [word, *terms] if len(terms) > 1 else terms[0]

    def _term(self) -> list[JsonValue]:
        if self._match(_WORD["not"]):
            return ["not", self._term()]
        if self._match(re.compile(r"\s*\(")):
            inside = self._read_joined("or")
            if not self._match(re.compile(r"\s*\)")):
                raise self._unreadable()
            return inside
        return self._comparison()

    def _comparison(self) -> list[JsonValue]:
        match = self._match(_NAME)
        if match is None or match[1].lower() in _WORD:
            raise self._unreadable()
        name = match[1].removeprefix("$")
        if self._match(_WORD["in"]):
            values = [self._value(name, listed=True)]
            while self._match(re.compile(r"\s*,")):
                values.append(self._value(name, listed=True))
            return ["in", f"${name}", *values]
        operator = self._match(_OPERATOR)
        if operator is None:
            raise self._unreadable()
        symbol = "==" if operator[1] == "=" else operator[1]
        return [symbol, f"${name}", self._value(name, ordered=symbol in _ORDER)]

    def _value(self, name: str, *, listed: bool = False, ordered: bool = False) -> str:
        """Read the next value. In a list it ends at the next comma."""
        if quoted := self._match(re.compile(rf"\s*(?:{_QUOTED.pattern})(?=\s*(?:$|[,)]|\s(?:and|or)\b))")):
            return quoted[1] if quoted[1] is not None else quoted[2]
        begin, open_here = self._at, 0
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "(":
                open_here += 1
            elif character == ")":
                if not open_here:
                    break
                open_here -= 1
            elif (character == "," and listed) or _NEXT.match(self._text, self._at):
                break
            self._at += 1
        value = self._text[begin : self._at].strip()
        if not value or value[0] in "\"'" or _UNLIKELY.search(value) or (listed and _SIGN.search(value)):
            raise self._unreadable()
        return self._in_units(name, value, ordered=ordered)

    def _in_units(self, name: str, value: str, *, ordered: bool) -> str:
        """Return a number as the property stores it: in its unit, without thousands commas."""
        if _GROUPED.fullmatch(value):
            return value.replace(",", "")
        unit = {"mb": "m", "gb": "g"}.get(name.rpartition("_")[2])
        if unit is None or not (ordered or value[:1].isdigit()):
            return value
        with suppress(ValueError):
            float(value)
            return value
        try:
            return str(parse_size(unit)(value))
        except UnreadableSize as error:
            raise UnreadableCondition(f"'{self._text}': {error}") from None

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match the pattern at the current position and, if it matches, move behind it."""
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _unreadable(self) -> UnreadableCondition:
        return UnreadableCondition(
            f"'{self._text}' is not a condition; write it like {CONDITION_FORMS}. A value with 'and',"
            " 'or' or brackets in it is put in quotes."
        )
