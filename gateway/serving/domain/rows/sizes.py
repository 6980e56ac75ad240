"""Sizes of dimensions: polynomials with integer coefficients in the number of rows and in sizes without rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

ROWS_SYMBOL = "B"
"""Symbol of the number of rows of a run, which is at least 1."""
TERMS_LIMIT = 64
"""Most terms of a polynomial; the size of a real graph has fewer than ten."""
DEGREE_LIMIT, BITS_LIMIT = 16, 256
"""Most symbols in a term, and most bits of its coefficient: one that is squared again and again has no end."""

Monomial: TypeAlias = tuple[str, ...]


class DependentRowsError(Exception):
    """No rule shows that rows stay independent; the text says why. `operator`: where, if not where it is caught."""

    def __init__(self, reason: str, operator: str = "") -> None:
        super().__init__(reason)
        self.operator = operator


@dataclass(frozen=True, slots=True)
class Size:
    """Polynomial: a coefficient for each product of symbols. Supports +, −, × and comparison with integers."""

    terms: tuple[tuple[Monomial, int], ...]

    @property
    def constant(self) -> int | None:
        """Return the number, or None if it has symbols."""
        if not self.terms:
            return 0
        (symbols, factor), *more = self.terms
        return None if symbols or more else factor

    @property
    def has_rows(self) -> bool:
        """Return True if it depends on the number of rows."""
        return any(ROWS_SYMBOL in symbols for symbols, _ in self.terms)

    @property
    def is_integer(self) -> bool:
        """Return True if it is an integer whatever its symbols are: no symbol stands for a fraction."""
        return not any(symbol.startswith(FRACTION) for symbols, _ in self.terms for symbol in symbols)

    @property
    def is_positive(self) -> bool:
        """Return True if it is at least 1 for every size: no symbol may be negative, and a term is positive."""
        if any(factor < 0 for _, factor in self.terms):
            return False
        if any(symbol.startswith((FRACTION, NUMBER)) for symbols, _ in self.terms for symbol in symbols):
            return False
        return any(set(symbols) <= {ROWS_SYMBOL} for symbols, _ in self.terms)

    def __add__(self, other: Size | int) -> Size:
        """Return the sum."""
        return _size([*self.terms, *size(other).terms])

    def __mul__(self, other: Size | int) -> Size:
        """Return the product."""
        return _size((tuple(sorted(left + right)), a * b) for left, a in self.terms for right, b in size(other).terms)

    def __sub__(self, other: Size | int) -> Size:
        """Return the difference."""
        return self + size(other) * -1

    __radd__, __rmul__ = __add__, __mul__

    def divided(self, by: Size) -> Size | None:
        """Return the exact quotient, or None if it is not a polynomial with integer coefficients."""
        quotient, rest = ZERO, self
        lead = by.terms[-1] if by.terms else None
        for _ in range(TERMS_LIMIT):
            if not rest.terms:
                return quotient
            part = lead and _term_quotient(rest.terms[-1], lead)
            if not part:
                return None
            step = Size((part,))
            quotient, rest = quotient + step, rest - step * by
        return None


FRACTION, NUMBER, DIMENSION = "f", "n", "d"
"""First letters of the symbols without rows: any number, any integer, an integer of 0 or more."""


def _size(terms: Iterable[tuple[Monomial, int]]) -> Size:
    total: dict[Monomial, int] = {}
    for symbols, factor in terms:
        total[symbols] = total.get(symbols, 0) + factor
    if len(total) > TERMS_LIMIT:
        raise DependentRowsError(f"a size with more than {TERMS_LIMIT} terms")
    if any(len(symbols) > DEGREE_LIMIT or factor.bit_length() > BITS_LIMIT for symbols, factor in total.items()):
        raise DependentRowsError("a size is too large")
    kept = [(symbols, factor) for symbols, factor in total.items() if factor]
    return Size(tuple(sorted(kept, key=lambda term: (len(term[0]), term[0]))))


def _term_quotient(term: tuple[Monomial, int], by: tuple[Monomial, int]) -> tuple[Monomial, int] | None:
    symbols = list(term[0])
    for symbol in by[0]:
        if symbol not in symbols:
            return None
        symbols.remove(symbol)
    return None if term[1] % by[1] else (tuple(symbols), term[1] // by[1])


def size(value: Size | int) -> Size:
    """Return a number as a size."""
    return value if isinstance(value, Size) else Size((((), value),) if value else ())


ZERO, ONE, ROWS = size(0), size(1), Size((((ROWS_SYMBOL,), 1),))


def product(sizes: Iterable[Size]) -> Size:
    """Return the product, 1 for none."""
    total = ONE
    for each in sizes:
        total *= each
    return total


class Symbols:
    """Factory of symbols. Equal expressions get the same symbol."""

    def __init__(self) -> None:
        self._known: dict[object, Size] = {}

    def symbol(self, kind: str, *expression: object) -> Size:
        """Return the symbol of an expression whose value has no rows. Raises DependentRowsError if it has some."""
        if any(isinstance(part, Size) and part.has_rows for part in expression):
            raise DependentRowsError("a size is computed from the number of rows")
        key = (kind, *expression)
        if key not in self._known:
            self._known[key] = Size((((f"{kind}{len(self._known)}",), 1),))
        return self._known[key]

    def dimension(self, *expression: object) -> Size:
        """Return the symbol of a size of 0 or more. Raises as `symbol` does."""
        return self.symbol(DIMENSION, *expression)
