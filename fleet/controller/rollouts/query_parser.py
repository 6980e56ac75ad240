"""The target query language: text to query and back.

    query      = and { "or" and }
    and        = not { "and" not }
    not        = "not" not | "(" query ")" | "all" | comparison
    comparison = field ( "=" | "!=" ) value
               | field [ "not" ] "in" "(" value { "," value } ")"
               | "version." slot ( "<" | "<=" | ">" | ">=" ) value
    field      = "id" | "site" | "profile" | "tag" | "accelerator" | "slot" | "version." slot
    value      = word | quoted        word: letters, digits and . _ - + : / @ * ?
    quoted     = '"' { any character, `\\"` and `\\\\` for `"` and `\\` } '"'

In the values of `=`, `!=` and `in`, `*` stands for any characters and `?` for one. Words are case-sensitive;
keywords are in lower case, and must be quoted as values.
`tag = lobby and not (site in (berlin, "san jose") or version.meter-reader >= 2)`
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

from fleet.controller.rollouts.query import FIELDS, VERSION, All, And, FieldMatch, Not, Operator, Or, Query, is_glob
from gateway.common.domain.release_paths import is_slot

QUERY_LIMIT_CHARS = 4096
DEPTH_LIMIT = 32
"""Depth of nested parentheses and `not`."""
VALUE_LIMIT_CHARS = 128
GLOBS_LIMIT = 32
"""Values with `*` or `?` in a query: each is compared with every device, repeatedly."""
RESERVED = frozenset({"and", "or", "not", "in", "all"})
_QUERIES_CACHED = 256
_WORD = re.compile(r"[A-Za-z0-9._+:/@*?-]+")
_TOKEN = re.compile(
    r"""\s*(?:(?P<word>[A-Za-z0-9._+:/@*?-]+)|(?P<quoted>"(?:[^"\\]|\\["\\])*")|(?P<sign><=|>=|!=|[=<>(),]))"""
)


class QueryError(ValueError):
    """Error in a query, and its position: `position` counts characters from 0."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"at character {position + 1}: {problem}")
        self.problem = problem
        self.position = position


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


@lru_cache(maxsize=_QUERIES_CACHED)
def parse(text: str) -> Query:
    """Read a query. Raise QueryError."""
    if len(text) > QUERY_LIMIT_CHARS:
        raise QueryError(f"the query has {len(text)} characters, at most {QUERY_LIMIT_CHARS} are read", 0)
    parser = _QueryParser(_tokens(text))
    query = parser.either(0)
    parser.end()
    return query


def query_text(query: Query) -> str:
    """Return a query as text that reads back as the same query."""
    if isinstance(query, All):
        return "all"
    if isinstance(query, FieldMatch):
        values = [_value_text(value) for value in query.values]
        if len(values) == 1:
            return f"{query.field} {query.operator.value} {values[0]}"
        negation = "not " if query.operator is Operator.UNEQUAL else ""
        return f"{query.field} {negation}in ({', '.join(values)})"
    if isinstance(query, Not):
        return f"not {_inner(query.part)}"
    joint = " and " if isinstance(query, And) else " or "
    return joint.join(_inner(part) for part in query.parts)


def _inner(part: Query) -> str:
    return query_text(part) if isinstance(part, (All, FieldMatch, Not)) else f"({query_text(part)})"


def _value_text(value: str) -> str:
    if _WORD.fullmatch(value) and value not in RESERVED:
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _tokens(text: str) -> list[_Token]:
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None or found.lastgroup is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            problem = "this quotation does not end" if text[start] == '"' else f"{text[start]!r} means nothing here"
            raise QueryError(problem, start)
        kind, start = found.lastgroup, found.start(found.lastgroup)
        tokens.append(_Token(kind, found.group(kind), start))
        position = found.end()
    return [*tokens, _Token("end", "", len(text))]


class _QueryParser:
    """Recursive descent parser; every method reads what its name says and leaves the rest."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = self._globs = 0

    def either(self, depth: int) -> Query:
        parts = [self._both(depth)]
        while self._take("or"):
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def end(self) -> None:
        if self._here.kind != "end":
            self._fail("expected 'and', 'or' or the end")

    def _both(self, depth: int) -> Query:
        parts = [self._single(depth)]
        while self._take("and"):
            parts.append(self._single(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _single(self, depth: int) -> Query:
        if depth >= DEPTH_LIMIT:
            self._fail(f"nested more than {DEPTH_LIMIT} deep")
        if self._take("not"):
            return Not(self._single(depth + 1))
        if self._take("("):
            inner = self.either(depth + 1)
            self._expect(")")
            return inner
        if self._take("all"):
            return All()
        token = self._here
        slot = token.text.removeprefix(VERSION) if token.text.startswith(VERSION) else ""
        if token.kind != "word" or not (token.text in FIELDS or is_slot(slot)):
            self._fail(f"expected one of {', '.join(FIELDS)}, version.<slot>, 'not', 'all' or '('")
        self._next += 1
        name = token.text
        negated = self._take("not")
        if negated or self._here.text == "in":
            self._expect("in")
            self._expect("(")
            values = [self._value()]
            while self._take(","):
                values.append(self._value())
            self._expect(")")
            return FieldMatch(name, Operator.UNEQUAL if negated else Operator.EQUAL, tuple(values))
        sign = self._here
        if sign.kind != "sign" or sign.text not in {operator.value for operator in Operator}:
            self._fail("expected '=', '!=', 'in' or, of a version, '<', '<=', '>', '>='")
        operator = Operator(sign.text)
        if operator not in {Operator.EQUAL, Operator.UNEQUAL} and not name.startswith(VERSION):
            self._fail(f"{name} has no order; only version.<slot> has")
        self._next += 1
        return FieldMatch(name, operator, (self._value(),))

    def _value(self) -> str:
        token = self._here
        if token.kind not in {"word", "quoted"} or (token.kind == "word" and token.text in RESERVED):
            self._fail("expected a value: a word, or anything in double quotes")
        value = token.text if token.kind == "word" else re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL)
        if len(value) > VALUE_LIMIT_CHARS:
            self._fail(f"a value has at most {VALUE_LIMIT_CHARS} characters, this one {len(value)}")
        self._globs += is_glob(value)
        if self._globs > GLOBS_LIMIT:
            self._fail(f"at most {GLOBS_LIMIT} values of a query may hold '*' or '?'")
        self._next += 1
        return value

    @property
    def _here(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, text: str) -> bool:
        token = self._here
        taken = token.kind in {"word", "sign"} and token.text == text
        self._next += taken
        return taken

    def _expect(self, text: str) -> None:
        if not self._take(text):
            self._fail(f"expected {text!r}")

    def _fail(self, problem: str) -> NoReturn:
        token = self._here
        found = f", not {token.text!r:.80}" if token.kind != "end" else ", not the end"
        raise QueryError(problem + found, token.position)
