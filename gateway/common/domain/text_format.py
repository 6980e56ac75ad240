"""Text format of Protocol Buffers, as in Triton's `config.pbtxt`: read into blocks, whose fields are taken by name.

Source: the text format specification of Protocol Buffers, without extensions, `Any`, and escapes \\u and \\U.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from gateway.common.domain.errors import ConfigurationError, UnofferedError

NESTING_LIMIT = 16
"""Most blocks inside each other. Triton's deepest field has 5."""
VALUES_LIMIT = 100_000
"""Most values of one file."""
DIGITS_LIMIT = 20
"""Most characters of an integer: 2**64 - 1 has 20."""

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n\f\v]+|\#[^\n]*)
    |(?P<string>"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\\\n]*(?:\\.[^'\\\n]*)*')
    |(?P<word>[A-Za-z_]\w*)
    |(?P<number>(?:-\s*)?[0-9.][\w.+-]*)
    |(?P<mark>[{}<>\[\]:,;])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\(?:x(?P<hex>[0-9A-Fa-f]{1,2})|(?P<octal>[0-7]{1,3})|(?P<one>.))")
_ESCAPES = dict(zip(b"abfnrtv?'\"\\", b"\a\b\f\n\r\t\v?'\"\\", strict=True))
_INTEGER = re.compile(r"-?(?:0[xX][0-9A-Fa-f]+|[0-9]+)")
_FLAGS = {"true": True, "True": True, "t": True, "1": True, "false": False, "False": False, "f": False, "0": False}
_CLOSING = {"{": "}", "<": ">"}


@dataclass(frozen=True, slots=True)
class Lexeme:
    """Piece of text: its kind (string, word, number, mark or end), its characters and its line."""

    kind: str
    text: str
    line: int


def read_text_format(text: str, file: str) -> Block:
    """Read `text`; `file` is named in errors. Raises ConfigurationError with the line."""
    return _TextParser(text, file).block("", 1, "", depth=0)


class Block:
    """Fields of one message. Take those that are known, by name and type, then call `finish`."""

    def __init__(self, file: str, name: str, line: int, fields: list[tuple[Lexeme, Lexeme | Block]]) -> None:
        self.file, self.name, self.line = file, name, line
        self._fields = fields
        self._lines = {name.text: name.line for name, _ in reversed(fields)}

    def __contains__(self, key: str) -> bool:
        return any(name.text == key for name, _ in self._fields)

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise ConfigurationError for the field `key`, or for the block if it has no such field."""
        self._fail(key, self._lines.get(key, self.line), problem)

    def not_offered(self, key: str, problem: str) -> NoReturn:
        """Raise UnofferedError for a field that is valid and not offered here."""
        raise UnofferedError(problem, file=self.file, table=self.name, key=key, line=self._lines.get(key, self.line))

    def text(self, key: str) -> str:
        """Take a string; return "" if it is absent."""
        return self._text(key, self._one(key, "string"))

    def word(self, key: str) -> str:
        """Take the name of an enumerated value; return "" if it is absent."""
        token = self._one(key, "word")
        return token.text if token else ""

    def flag(self, key: str) -> bool:
        """Take a truth value; return False if it is absent."""
        token = self._one(key, "word", "number")
        if token and token.text not in _FLAGS:
            self.refuse(key, f"must be true or false, not {token.text!r:.80}")
        return token is not None and _FLAGS[token.text]

    def integer(self, key: str, *, low: int, high: int) -> int | None:
        """Take an integer in [low, high]; return None if it is absent."""
        token = self._one(key, "number")
        return None if token is None else self._integer(key, token, low, high)

    def integers(self, key: str, *, low: int, high: int) -> tuple[int, ...]:
        """Take every integer of a repeated field."""
        return tuple(self._integer(key, token, low, high) for token in self._tokens(key, "number"))

    def numbers(self, key: str) -> tuple[float, ...]:
        """Take every number of a repeated field; a truth value is 0 or 1."""
        found = list[float]()
        for token in self._tokens(key, "number", "word"):
            try:
                found.append(float(_FLAGS.get(token.text, token.text)))
            except ValueError:
                self._fail(key, token.line, f"must be a number, not {token.text!r:.40}")
        return tuple(found)

    def block(self, key: str) -> Block | None:
        """Take a message; return None if it is absent."""
        found = self.blocks(key)
        if len(found) > 1:
            self.refuse(key, "is given twice; keep one")
        return found[0] if found else None

    def blocks(self, key: str) -> tuple[Block, ...]:
        """Take every message of a repeated field."""
        found = self._take(key)
        blocks = tuple(value for value in found if isinstance(value, Block))
        if len(blocks) != len(found):
            self._refuse_kind(key, found, "a block in braces")
        return blocks

    def skip(self, key: str) -> bool:
        """Take a field of any type; return True if it is there."""
        return bool(self._take(key))

    def refuse_any(self, refused: Mapping[str, str]) -> None:
        """Raise UnofferedError for fields that are known and not offered; `refused` holds the remedy of each."""
        for name, _ in self._fields:
            if name.text in refused:
                self.not_offered(name.text, f"is not offered here; {refused[name.text]}")

    def finish(self) -> None:
        """Refuse the first field that was not taken."""
        for name, _ in self._fields:
            self.refuse(name.text, "unknown field; correct its name or remove it")

    def _take(self, key: str) -> list[Lexeme | Block]:
        found = [value for name, value in self._fields if name.text == key]
        self._fields = [(name, value) for name, value in self._fields if name.text != key]
        return found

    def _tokens(self, key: str, *kinds: str) -> list[Lexeme]:
        found = self._take(key)
        tokens = [value for value in found if isinstance(value, Lexeme) and value.kind in kinds]
        if len(tokens) != len(found):
            self._refuse_kind(key, found, f"a {kinds[0]}")
        return tokens

    def _one(self, key: str, *kinds: str) -> Lexeme | None:
        tokens = self._tokens(key, *kinds)
        if len(tokens) > 1:
            self._fail(key, tokens[1].line, "is given twice; keep one")
        return tokens[0] if tokens else None

    def _text(self, key: str, token: Lexeme | None) -> str:
        if token is None:
            return ""
        try:
            return _ESCAPE.sub(_byte, token.text[1:-1].encode()).decode()
        except KeyError as error:
            self._fail(key, token.line, f"the escape \\{error.args[0]} is not read; write the character itself")
        except UnicodeDecodeError as error:
            self._fail(key, token.line, f"its escapes are not UTF-8: {error.reason}; write the characters themselves")

    def _integer(self, key: str, token: Lexeme, low: int, high: int) -> int:
        text = "".join(token.text.split())
        is_octal = text.lstrip("-").startswith("0") and text.lstrip("-").isdecimal()
        if not _INTEGER.fullmatch(text) or (is_octal and not set("89").isdisjoint(text)):
            self._fail(key, token.line, f"must be an integer, not {token.text!r:.40}")
        value = int(text, 8 if is_octal else 0) if len(text) <= DIGITS_LIMIT else high + 1
        if not low <= value <= high:
            self._fail(key, token.line, f"must lie between {low} and {high}, not {token.text:.40}")
        return value

    def _refuse_kind(self, key: str, found: list[Lexeme | Block], wanted: str) -> NoReturn:
        self._fail(key, found[0].line, f"must be {wanted}")

    def _fail(self, key: str, line: int, problem: str) -> NoReturn:
        raise ConfigurationError(problem, file=self.file, table=self.name, key=key, line=line)


def _byte(found: re.Match[bytes]) -> bytes:
    """Return the byte of an escape. Raises KeyError for an unknown one."""
    if found["one"]:
        value = _ESCAPES.get(found["one"][0], 256)
    else:
        value = int(found["hex"] or found["octal"], 16 if found["hex"] else 8)
    if value > 255:
        raise KeyError(found[0][1:].decode(errors="replace"))
    return bytes((value,))


class _TextParser:
    """Parser of one text: reads its tokens one after the other."""

    def __init__(self, text: str, file: str) -> None:
        self._text, self._file = text, file
        self._at, self._line, self._values = 0, 1, 0
        self._next = self._token()

    def block(self, name: str, line: int, end: str, *, depth: int) -> Block:
        """Read fields up to the mark `end`, or up to the end of the text if `end` is ""."""
        if depth > NESTING_LIMIT:
            self._fail(f"more than {NESTING_LIMIT} blocks lie inside each other")
        fields: list[tuple[Lexeme, Lexeme | Block]] = []
        while self._next.text != end or self._next.kind not in {"mark", "end"}:
            key = self._take("word", "a field's name")
            has_colon = self._skip(":")
            fields += [(key, value) for value in self._field(key, has_colon, depth)]
            self._skip(",;")
        self._advance()
        return Block(self._file, name, line, fields)

    def _field(self, key: Lexeme, has_colon: bool, depth: int) -> list[Lexeme | Block]:
        if not self._skip("["):
            return [self._value(key, has_colon, depth)]
        values: list[Lexeme | Block] = []
        while not self._skip("]"):
            values.append(self._value(key, has_colon, depth))
            if not self._skip(",") and self._next.text != "]":
                self._fail("a list needs ',' between its values and ']' at its end")
        return values

    def _value(self, key: Lexeme, has_colon: bool, depth: int) -> Lexeme | Block:
        self._values += 1
        if self._values > VALUES_LIMIT:
            self._fail(f"there are more than {VALUES_LIMIT} values")
        token = self._advance()
        if token.kind == "mark" and token.text in _CLOSING:
            return self.block(key.text, token.line, _CLOSING[token.text], depth=depth + 1)
        if token.kind not in {"string", "word", "number"}:
            self._fail(f"{key.text} has no value", token)
        if not has_colon:
            self._fail(f"{key.text} needs ':' before its value", token)
        while token.kind == self._next.kind == "string":
            token = Lexeme("string", f'"{token.text[1:-1]}{self._advance().text[1:-1]}"', token.line)
        return token

    def _take(self, kind: str, wanted: str) -> Lexeme:
        if self._next.kind != kind:
            self._fail(f"{wanted} is expected, not {repr(self._next.text)[:40] if self._next.text else 'the end'}")
        return self._advance()

    def _skip(self, marks: str) -> bool:
        found = self._next.kind == "mark" and self._next.text in marks
        if found:
            self._advance()
        return found

    def _advance(self) -> Lexeme:
        token, self._next = self._next, self._token()
        return token

    def _token(self) -> Lexeme:
        while self._at < len(self._text):
            found = _TOKEN.match(self._text, self._at)
            if found is None:
                line = self._text[self._at : self._at + 20].splitlines()[0]
                raise ConfigurationError(
                    f"not the text format of Protocol Buffers at {line!r}", file=self._file, line=self._line
                )
            self._at = found.end()
            token = Lexeme(found.lastgroup or "", found.group(), self._line)
            self._line += token.text.count("\n")
            if token.kind != "space":
                return token
        return Lexeme("end", "", self._line)

    def _fail(self, problem: str, token: Lexeme | None = None) -> NoReturn:
        raise ConfigurationError(problem, file=self._file, line=(token or self._next).line)
