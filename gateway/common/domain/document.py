"""Strict reader of TOML documents: every key is taken by name and type; a key that is not taken is an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NoReturn

from gateway.common.domain.errors import ConfigurationError, suggest
from gateway.common.domain.python310 import tomllib
from gateway.common.domain.redaction import SECRET_SETTING, without_secrets

NUMBER_LIMIT = 1e300
"""Largest magnitude of an array's numbers: finite, and an integer that converts to float."""
KEY_PARTS_LIMIT = 100
"""Most parts of one dotted key.

The time of tomllib grows with their square: a key that fills 1 MiB would take half an hour.
"""
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{KEY_PARTS_LIMIT}}}")

_HEADER = re.compile(r"\s*(\[\[?)([\w.\"' -]+)\]\]?\s*(?:#.*)?$")
_STATEMENT = re.compile(rf"[ \t]*({_PART}(?:[ \t]*\.[ \t]*{_PART})*)[ \t]*=")
_SHOWN = re.compile(rf"\s*\[|{_STATEMENT.pattern[:-1]}[=:]")
"""Lines that an excerpt shows although the parser refuses them: others may be lines of a secret."""

_EXAMPLE = datetime(2031, 5, 9, 12, tzinfo=timezone.utc)
_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Source:
    """Configuration file: its name, its text and its values."""

    file: str
    text: str
    values: Mapping[str, Any]

    def holds(self, table: str, key: str) -> bool:
        """Return True if this file sets `key` of `table`, such as "mqtt.route[1]"."""
        found: Any = self.values
        for part in re.findall(r"[^.\[\]]+", f"{table}.{key}"):
            if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            elif isinstance(found, dict) and part in found:
                found = found[part]
            else:
                return False
        return True

    def line(self, table: str, key: str) -> int | None:
        """Return the line that sets `key` of `table`, or None: a wrong line would mislead."""
        setting = _setting(key)
        lines = [number for number, line in _lines(self.text) if setting.search(line)]
        if len(lines) > 1:
            tables = _tables(self.text)
            lines = [number for number in lines if tables[number - 1] == table]
        return lines[0] if len(lines) == 1 else None

    def error(self, problem: str, table: str, key: str, *, is_known: bool = True) -> ConfigurationError:
        """Return the refusal of `key` of `table` in this file; the value of an unknown key is not shown."""
        line = self.line(table, key) if key else None
        more = excerpt(self.text, line, key, is_known=is_known)
        return ConfigurationError(problem, file=self.file, table=table, key=key, line=line, excerpt=more)


def refusal(
    sources: Sequence[Source], problem: str, table: str = "", key: str = "", *, is_known: bool = True
) -> ConfigurationError:
    """Return the refusal of a setting, with the last file that sets it, else its table, else the first file."""
    lists, bracket, _ = table.partition("[")  # a list of a later file replaces the whole of earlier ones
    for wanted in ((lists, ""),) if bracket else ((table, key), (table, "")):
        for source in reversed(sources):
            if any(wanted) and source.holds(*wanted):
                return source.error(problem, table, key, is_known=is_known)
    if not sources:
        return ConfigurationError(problem, table=table, key=key)
    return sources[0].error(problem, table, key, is_known=is_known)


def overlaid(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with those of `over`: tables are merged key by key, all others replace, lists included."""
    both = {key for key in over if isinstance(over[key], dict) and isinstance(values.get(key), dict)}
    return {**values, **over, **{key: overlaid(values[key], over[key]) for key in both}}


def excerpt(text: str, line: int | None, key: str, *, is_known: bool = True) -> str:
    """Return a line of `text` with its number and, below it, a marker of `key`; "" without a line.

    Secrets are withheld: all that follows a key that is not known, whose name may be a misspelt "password". No key is
    known in a line that is no TOML (`key` is "").
    """
    lines = text.splitlines()
    if line is None or not 0 < line <= len(lines):
        return ""
    whole = lines[line - 1].expandtabs(1)
    if not key and not _SHOWN.match(whole):
        return ""
    begin = 0 if is_known else found.start() if (found := _setting(key).search(whole)) else len(whole)
    end = (SECRET_SETTING if is_known and key else re.compile("[=:]")).search(whole, begin)
    shown = f"{without_secrets(whole[: end.end()])[:160]} …" if end else without_secrets(whole)[:160]
    found = _setting(key).search(shown) if key else None
    begin = shown.index(key.partition("[")[0], found.start()) if found else len(shown) - len(shown.lstrip())
    marker = "^" * len(key.partition("[")[0] if found else shown.strip())
    return f"{line:>5} | {shown}\n      | {' ' * begin}{marker}"


def read_document(text: str, file: str) -> Table:
    """Parse TOML `text`; `file` is named in errors. Raises as `parse_toml` does."""
    return Table(parse_toml(text, file), file=file, text=text)


def parse_toml(text: str, file: str, *, remedy: str = "join them") -> dict[str, Any]:
    """Parse TOML `text` to plain values; `file` is named in errors, `remedy` if something is written twice.

    Raises ConfigurationError with the line that the TOML parser reports.
    """
    if _LONG_KEY.search(text):
        raise ConfigurationError(f"not valid TOML here: a key has more than {KEY_PARTS_LIMIT} parts", file=file)
    try:
        return dict(tomllib.loads(text))
    except RecursionError:
        raise ConfigurationError("not valid TOML: nested too deeply", file=file) from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+)", str(error))
        line = int(found.group(1)) if found else None
        problem = ""
        twice = re.match(r"Cannot (declare|overwrite|mutate)|Duplicate", str(error))
        if twice:
            line, problem = _second(text, line, is_table=twice[1] == "declare")
        problem = f"{problem or f'not valid TOML: {error}'}{f'; {remedy}' if twice else ''} (EG-102)"
        raise ConfigurationError(problem, file=file, line=line, excerpt=excerpt(text, line, "")) from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise ConfigurationError(f"not valid TOML: {error}", file=file) from None


class Table:
    """TOML table. Take the known keys by type, then call `finish()`, which refuses the others."""

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        file: str,
        text: str = "",
        name: str = "",
        sources: Sequence[Source] = (),
    ) -> None:
        """Read `values` of one file with its text, or of several: `sources`, of which `file` is the first."""
        self.name = name
        self.file = file
        self._values = dict(values)
        self._asked: dict[str, None] = {}
        self._sources = sources or (Source(file, text, values),)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def take(self, key: str) -> Any:
        """Take a value of any type; return None if the key is absent."""
        return self._values.pop(key, None)

    def rest(self) -> dict[str, Any]:
        """Take all keys that were not taken yet, with their values."""
        rest, self._values = self._values, {}
        return rest

    def holds_table(self, key: str) -> bool:
        """Return True if the value of a key is a table."""
        return isinstance(self._values.get(key), dict)

    def remaining(self) -> tuple[str, ...]:
        """Return the keys that were not taken yet, in the order of the file."""
        return tuple(self._values)

    def text(self, key: str, default: str = _REQUIRED, *, among: tuple[str, ...] = ()) -> str:
        """Take a string. If `among` is given, the value must be one of it."""
        value: str = self._take(key, str, "a string", default)
        if among and value not in among:
            self.refuse(key, f"must be one of {', '.join(among)}, not {_value_text(value)}{suggest(value, among)}")
        return value

    def time(self, key: str, form: str) -> datetime:
        """Take a time in UTC; `form` is its format for `strptime`."""
        value = self.text(key)
        try:
            return datetime.strptime(value, form).replace(tzinfo=timezone.utc)
        except ValueError:
            self.refuse(key, f"must be a time in UTC as {_EXAMPLE.strftime(form)}, not {_value_text(value)}")

    def integer(self, key: str, default: int = _REQUIRED, *, low: int, high: int) -> int:
        """Take an integer in [low, high]."""
        return int(self._bounded(key, self._take(key, int, "an integer", default), low, high))

    def number(self, key: str, default: float = _REQUIRED, *, low: float, high: float) -> float:
        """Take an integer or float in [low, high]; NaN is refused."""
        return float(self._bounded(key, self._take(key, (int, float), "a number", default), low, high))

    def flag(self, key: str, default: bool = _REQUIRED) -> bool:
        """Take a boolean."""
        value: bool = self._take(key, bool, "true or false", default)
        return value

    def texts(self, key: str, default: tuple[str, ...] = _REQUIRED, *, among: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Take an array of strings. If `among` is given, each value must be one of it."""
        values = self._array(key, str, "strings", default)
        for value in values:
            if among and value not in among:
                self.refuse(key, f"must hold only {', '.join(among)}, not {_value_text(value)}{suggest(value, among)}")
        return values

    def integers(self, key: str, default: tuple[int, ...] = _REQUIRED) -> tuple[int, ...]:
        """Take an array of integers."""
        return self._array(key, int, "integers", default)

    def numbers(self, key: str, default: tuple[float, ...] = _REQUIRED) -> tuple[float, ...]:
        """Take an array of finite numbers."""
        return self._finite(key, self._array(key, (int, float), "numbers", default))

    def number_arrays(self, key: str) -> tuple[tuple[float, ...], ...]:
        """Take an array of arrays of finite numbers."""
        found = self._array(key, list, "arrays of numbers", _REQUIRED)
        for value in (value for values in found for value in values):
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                self.refuse(key, f"must be an array of arrays of numbers; one holds {_value_text(value)}")
        return tuple(self._finite(key, values) for values in found)

    def _finite(self, key: str, values: Iterable[Any]) -> tuple[float, ...]:
        for value in values:
            if not abs(value) <= NUMBER_LIMIT:  # NaN compares false
                self.refuse(key, f"must be an array of finite numbers; it holds {_value_text(value)}")
        return tuple(float(value) for value in values)

    def table(self, key: str, *, required: bool = False) -> Table | None:
        """Take a sub-table. Return None if it is absent and not required."""
        value = self._take(key, dict, "a table", _REQUIRED if required else None)
        return None if value is None else self._child(key, value)

    def tables(self, key: str) -> tuple[Table, ...]:
        """Take an array of tables; it is empty if the key is absent."""
        values = self._array(key, dict, "tables", ())
        return tuple(self._child(f"{key}[{index}]", value) for index, value in enumerate(values))

    def finish(self, known: Iterable[str] = (), elsewhere: Callable[[str], Sequence[str]] = lambda _key: ()) -> None:
        """Refuse every key that was not taken, with the closest of those asked for and `known`.

        `elsewhere` returns the tables that have a key of that name.
        """
        for key in self._values:
            others = " or ".join(f"[{table}]" for table in elsewhere(key))
            remedy = f"; it is a setting of {others}" if others else suggest(key, (*self._asked, *known))
            problem = f"unknown key{remedy or '; remove it or correct its spelling'} (EG-101)"
            raise refusal(self._sources, problem, self.name, key, is_known=False)

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise ConfigurationError for `key` of this table."""
        raise refusal(self._sources, problem, self.name, key)

    def _child(self, key: str, values: dict[str, Any]) -> Table:
        name = f"{self.name}.{key}" if self.name else key
        return Table(values, file=self.file, name=name, sources=self._sources)

    def _take(self, key: str, kind: type | tuple[type, ...], what: str, default: Any) -> Any:
        self._asked[key] = None
        if key not in self._values:
            if default is _REQUIRED:  # no line: a search could find another table's key
                file = refusal(self._sources, "", self.name).file
                raise ConfigurationError(f"missing; it must be {what}", file=file, table=self.name, key=key)
            return default
        value = self._values.pop(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.refuse(key, f"must be {what}, not {_value_text(value)} (EG-103)")
        return value

    def _array(self, key: str, kind: type | tuple[type, ...], what: str, default: Any) -> tuple[Any, ...]:
        values = self._take(key, (list, tuple), f"an array of {what}", default)
        for value in values:
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                self.refuse(key, f"must be an array of {what}; it holds {_value_text(value)}")
        return tuple(values)

    def _bounded(self, key: str, value: Any, low: float, high: float) -> Any:
        if not low <= value <= high:
            self.refuse(key, f"must be between {low} and {high}, not {_value_text(value)} (EG-104)")
        return value


def _setting(key: str) -> re.Pattern[str]:
    """Return the form of a line that sets `key`. In JSON a colon follows."""
    return re.compile(rf"""(?:^|[\s{{,.\["'])["']?{re.escape(key.partition("[")[0])}["']?\s*(?:=|\]|\.|:)""")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of `text` with their numbers, without comments."""
    return ((number, line) for number, line in enumerate(text.splitlines(), 1) if not line.lstrip().startswith("#"))


def _tables(text: str) -> list[str]:
    """Return the table of each line, such as "mqtt.route[1].channel[0]"; a header belongs to its own table."""
    found, table, counts = [], "", dict[str, int]()
    for line in text.splitlines():
        if header := _HEADER.match(line):
            parts = [part.strip(" \"'") for part in header.group(2).split(".")]
            name = ".".join(parts)
            if header.group(1) == "[[":
                counts = {known: n for known, n in counts.items() if not known.startswith(f"{name}.")}
                counts[name] = counts.get(name, -1) + 1
            prefixes = (".".join(parts[: n + 1]) for n in range(len(parts)))
            ends = [f"[{counts[prefix]}]" if prefix in counts else "" for prefix in prefixes]
            table = ".".join(part + end for part, end in zip(parts, ends, strict=True))
        found.append(table)
    return found


def _second(text: str, line: int | None, *, is_table: bool) -> tuple[int | None, str]:
    """Return the line of a table or setting that is written twice, and the problem ("": the first is not found).

    The parser reports the end of the second one.
    """
    rows, names = list(zip(text.splitlines(), _tables(text), strict=True)), list[tuple[str, str]]()
    for row, table in rows:  # names of the table or setting, and of the table that it is in
        statement = None if (header := _HEADER.match(row)) else _STATEMENT.match(row)
        parts = [part.strip("\"'") for part in re.findall(_PART, statement[1])] if statement else []
        names.append((table, "") if header else (".".join(filter(None, (table, *parts))) if parts else "", table))
    wants = _HEADER if is_table else _STATEMENT
    second = next((at for at in range((line or len(rows)) - 1, -1, -1) if names[at][0] and wants.match(rows[at][0])), 0)
    wanted = names[second][0]
    for first, (name, table) in enumerate(names[:second]):
        implied = is_table and name.startswith(f"{wanted}.") and _STATEMENT.match(rows[first][0])
        if name == wanted or (implied and not f"{table}.".startswith(f"{wanted}.")):
            named = re.sub(r"\[\d+\]", "", wanted)
            what = f"the table [{named}]" if is_table else f"the setting {named}"
            return second + 1, f"{what} is written twice, in lines {first + 1} and {second + 1}"
    return line, ""


def _value_text(value: object) -> str:
    """Return a value for an error message.

    Python writes no integer of more than 4,300 digits as decimals, and TOML has them in hexadecimal.
    """
    try:
        return f"{without_secrets(repr(value)):.80}"
    except ValueError:
        return "an integer of too many digits"
