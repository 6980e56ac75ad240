"""Values that the proof computes with: a tensor's shape, the axis of its rows, and its numbers if it holds sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from gateway.serving.domain.rows.graph import Attribute, Constant, Graph, Node
from gateway.serving.domain.rows.sizes import FRACTION, ONE, ROWS, DependentRowsError, Size, Symbols, size

Numbers: TypeAlias = npt.NDArray[np.object_]
"""Array of sizes."""
Shape: TypeAlias = tuple[Size, ...]
NUMBERS_LIMIT = 256
"""Most elements of a tensor of sizes."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Division of the axis of rows: groups, and entries of each row in a group.

    Several groups come from a merge of the axis before the rows with theirs, as attention with time first does.
    """

    outer: Size = ONE
    inner: Size = ONE


SINGLE = Entries()
"""One entry for each row."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor.

    `axis` is the axis of the rows: it has `entries.outer` groups of rows × `entries.inner` entries. Row i owns block i
    of each group, and nothing else. None: the same for every number of rows and for the data of every row. `shape`
    None: the rank is not known, only without rows. `numbers`: its elements, which may count rows; then it has no axis.
    `floats`: they are of a type with fractions.
    """

    shape: Shape | None = None
    axis: int | None = None
    entries: Entries = SINGLE
    numbers: Numbers | None = None
    floats: bool = False

    @property
    def rank(self) -> int:
        """Return the number of dimensions. Raises DependentRowsError if it is not known."""
        return len(self.sizes)

    @property
    def sizes(self) -> Shape:
        """Return the shape. Raises DependentRowsError if it is not known."""
        if self.shape is None:
            raise DependentRowsError("the rank of an input is not known")
        return self.shape

    @property
    def elements(self) -> list[Size]:
        """Return its numbers in row-major order; none if they are not known."""
        return [] if self.numbers is None else list(cast("Iterable[Size]", self.numbers.flat))

    @property
    def single(self) -> Size | None:
        """Return its first number, or None if it is not known."""
        return next(iter(self.elements), None)

    @property
    def counts_rows(self) -> bool:
        """Return True if its numbers depend on the number of rows."""
        return any(number.has_rows for number in self.elements)


@dataclass(frozen=True, slots=True)
class Blocked:
    """A tensor for which rows are not independent, with the first operator that ended the proof, and why."""

    operator: str
    reason: str


@dataclass(slots=True)
class TensorScope:
    """Names and their values in a graph and the graphs around it."""

    values: dict[str, Value | Blocked]
    outer: TensorScope | None = None

    def find(self, name: str) -> Value | Blocked:
        """Return the value of a name. Raises DependentRowsError if nothing has that name."""
        scope: TensorScope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise DependentRowsError(f"no tensor is called {name!r:.80}")


Body: TypeAlias = Callable[[Graph, Mapping[str, Value]], "list[Value]"]
"""Function that follows a graph in an attribute, with values for its inputs, and returns its outputs."""


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An operator with its inputs, as its rule sees it. `inputs` has None where one is left out.

    It is part of the expressions of sizes that only its data decide: calls of a function have their own.
    """

    node: Node
    inputs: Sequence[Value | None]
    opset: int
    symbols: Symbols
    body: Body
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def __getitem__(self, index: int) -> Value:
        """Return an input that is data. Raises DependentRowsError if it is left out, or counts rows."""
        return without_rows(self.sizes(index))

    def sizes(self, index: int) -> Value:
        """Return an input that may hold sizes. Raises DependentRowsError if it is left out."""
        found = self.get(index)
        if found is None:
            raise DependentRowsError(f"its input {index} is missing")
        return found

    def get(self, index: int) -> Value | None:
        """Return an input, or None if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def shared(self, index: int, role: str) -> Value | None:
        """Return an input that must be the same for every row. Raises DependentRowsError if it is not."""
        found = self.get(index)
        if found is not None and (found.axis is not None or found.counts_rows):
            raise DependentRowsError(f"its {role} depends on the rows")
        return found

    def numbers(self, index: int, attribute: str = "", *, role: str) -> list[Size] | None:
        """Return a list of sizes from an input or, in earlier opsets, from an attribute; None if it is left out.

        Raises DependentRowsError if the numbers are not known.
        """
        if attribute in self.attributes:
            found = self.attributes[attribute]
            return [_number(self.symbols, each) for each in (found if isinstance(found, tuple) else (found,))]
        value = self.get(index)
        if value is None:
            return None
        if value.numbers is None:
            raise DependentRowsError(f"its {role} is not known before it runs")
        return value.elements

    def integers(self, index: int, attribute: str = "", *, role: str) -> list[int] | None:
        """Return constants as `numbers` does. Raises DependentRowsError if one of them is not constant."""
        found = self.numbers(index, attribute, role=role)
        if found is None:
            return None
        constants = [each.constant for each in found]
        if any(each is None for each in constants):
            raise DependentRowsError(f"its {role} is not constant")
        return [each for each in constants if each is not None]

    def integer(self, name: str, default: int) -> int:
        """Return an attribute that is an integer."""
        found = self.attributes.get(name, default)
        return found if isinstance(found, int) else default

    def text(self, name: str, default: str = "") -> str:
        """Return an attribute that is a text."""
        found = self.attributes.get(name, default)
        return found if isinstance(found, str) else default

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """Return an attribute that is an axis, counted from the left."""
        return from_left(self.integer(name, default), rank)

    def graph(self, name: str) -> Graph:
        """Return an attribute that is a graph. Raises DependentRowsError."""
        found = self.attributes.get(name)
        if not isinstance(found, Graph):
            raise DependentRowsError(f"its {name} is missing")
        return found


Rule: TypeAlias = Callable[[Operation], "list[Value]"]
"""Rule of an operator: the values of its outputs. Raises DependentRowsError."""


def from_left(axis: int, rank: int) -> int:
    """Return an axis counted from the left. Raises DependentRowsError if there is none."""
    if not -rank <= axis < max(rank, 1):
        raise DependentRowsError(f"axis {axis} of {rank} dimensions")
    return axis % rank if rank else 0


def constant_value(symbols: Symbols, constant: Constant) -> Value:
    """Return a constant's value."""
    if constant.numbers is None:
        return Value(tuple(map(size, constant.shape)))
    numbers = array_of([_number(symbols, each) for each in constant.numbers])
    return numbered(numbers.reshape(constant.shape), floats=constant.floats)


def array_of(sizes: Sequence[Size]) -> Numbers:
    """Return a vector of sizes."""
    numbers = np.empty(len(sizes), object)
    numbers[:] = sizes
    return numbers


def numbered(numbers: Numbers, *, floats: bool = False) -> Value:
    """Return a tensor of sizes. Those that are too many are not kept. Raises DependentRowsError if they count rows."""
    value = Value(tuple(map(size, numbers.shape)), numbers=numbers, floats=floats)
    return value if few(numbers.shape) else like(without_rows(value))


def few(shape: Sequence[int | None]) -> bool:
    """Return True if a shape is known and has so few elements that they are computed."""
    return None not in shape and prod(each or 0 for each in shape) <= NUMBERS_LIMIT


def without_rows(value: Value) -> Value:
    """Return a value that does not count rows. Raises DependentRowsError if it does."""
    if value.counts_rows:
        raise DependentRowsError("it computes with the number of rows")
    return value


def rowed(shape: Shape, axis: int | None, entries: Entries = SINGLE) -> Value:
    """Return a tensor with rows on `axis` (None: without). Raises DependentRowsError if another axis counts rows."""
    if any(each.has_rows for place, each in enumerate(shape) if place != axis):
        raise DependentRowsError("the number of rows is the size of another axis")
    if axis is not None and shape[axis] != ROWS * entries.outer * entries.inner:
        raise DependentRowsError("the size of the axis of rows is not that of its inputs")
    return Value(shape, axis, entries)


def like(value: Value) -> Value:
    """Return a tensor of the same shape and rows, with other elements."""
    return Value(value.shape, value.axis, value.entries)


def _number(symbols: Symbols, number: Any) -> Size:
    if isinstance(number, float) and not number.is_integer():  # infinity and NaN are no integers either
        return symbols.symbol(FRACTION, repr(number))
    if not isinstance(number, int | float):
        raise DependentRowsError("an attribute is not a number")
    return size(int(number))


def apart(value: Value, axes: Sequence[int]) -> None:
    """Check that an operator over `axes` keeps rows apart. Raises DependentRowsError."""
    if value.axis in axes:
        raise DependentRowsError("it works along the axis of rows")


def rows_first(value: Value) -> None:
    """Check that rows, if there are any, are on the first axis. Raises DependentRowsError."""
    if value.axis not in {None, 0}:
        raise DependentRowsError("its rows are not on the first axis")
