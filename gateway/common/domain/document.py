"""Strict reader of TOML documents: every key is taken by name and type; a key that is not taken is an error."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any, NoReturn

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.python310 import tomllib

NUMBER_LIMIT = 1e300
"""Largest magnitude of an array's numbers: finite, and an integer that converts to float."""
KEY_PARTS_LIMIT = 100
"""Most parts of one dotted key.

The time of tomllib grows with their square: a key that fills 1 MiB would take half an hour.
"""
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{KEY_PARTS_LIMIT}}}")

_EXAMPLE = datetime(2031, 5, 9, 12, tzinfo=timezone.utc)
_REQUIRED: Any = object()


def read_document(text: str, file: str) -> Table:
    """Parse TOML `text`; `file` is named in errors. Raises as `parse_toml` does."""
    return Table(parse_toml(text, file), file=file, text=text)


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """Parse TOML `text` to plain values; `file` is named in errors.

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
        raise ConfigurationError(f"not valid TOML: {error} (EG-102)", file=file, line=line) from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise ConfigurationError(f"not valid TOML: {error}", file=file) from None


class Table:
    """TOML table. Take the known keys by type, then call `finish()`, which refuses the others."""

    def __init__(self, values: dict[str, Any], *, file: str, text: str = "", name: str = "") -> None:
        self.name = name
        self.file = file
        self._values = dict(values)
        self._text = text

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
            self.refuse(key, f"must be one of {', '.join(among)}, not {_value_text(value)}")
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
                self.refuse(key, f"must hold only {', '.join(among)}, not {_value_text(value)}")
        return values

    def integers(self, key: str, default: tuple[int, ...] = _REQUIRED) -> tuple[int, ...]:
        """Take an array of integers."""
        return self._array(key, int, "integers", default)

    def numbers(self, key: str, default: tuple[float, ...] = _REQUIRED) -> tuple[float, ...]:
        """Take an array of finite numbers."""
        values = self._array(key, (int, float), "numbers", default)
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

    def finish(self) -> None:
        """Refuse every key that was not taken."""
        for key in self._values:
            self.refuse(key, "unknown key; remove it or correct its spelling (EG-101)")

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise ConfigurationError for `key` of this table."""
        # The line is told only if exactly one line sets the key: a wrong line would mislead. In JSON a colon follows.
        bare = re.escape(key.partition("[")[0])
        setting = re.compile(rf"""(?:^|[\s{{,.\["'])["']?{bare}["']?\s*(?:=|\]|\.|:)""")
        lines = [number for number, line in enumerate(self._text.splitlines(), 1) if setting.search(line)]
        line = lines[0] if len(lines) == 1 else None
        raise ConfigurationError(problem, file=self.file, table=self.name, key=key, line=line)

    def _child(self, key: str, values: dict[str, Any]) -> Table:
        name = f"{self.name}.{key}" if self.name else key
        return Table(values, file=self.file, text=self._text, name=name)

    def _take(self, key: str, kind: type | tuple[type, ...], what: str, default: Any) -> Any:
        if key not in self._values:
            if default is _REQUIRED:  # no line: a search could find another table's key
                raise ConfigurationError(f"missing; it must be {what}", file=self.file, table=self.name, key=key)
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


def _value_text(value: object) -> str:
    """Return a value for an error message.

    Python writes no integer of more than 4,300 digits as decimals, and TOML has them in hexadecimal.
    """
    try:
        return f"{value!r:.80}"
    except ValueError:
        return "an integer of too many digits"
