"""Different inputs for one model, each with the runtime's own answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tests.world.answers import Judgement, compare
from tests.world.direct import Direct, Port
from tests.world.entry import Array, Entry, Hint, Tensors

SIZES = (1, 2, 3, 5)
"""Sizes of open dimensions, by turns."""
RANDOM_OPERATORS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)
STATEFUL_OPERATORS = frozenset({"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"})
ANSWER_BYTES = 4 << 20
"""Longer answers are not asked for: shapes among the inputs can stand for any number of values."""
WORDS = (b"", b"a", b"Hello, world", "grüß".encode(), b"12", b"1.5", b"True", b"the quick brown fox")


@dataclass(frozen=True, slots=True)
class Ask:
    """Inputs and the runtime's answer."""

    inputs: Tensors
    expected: Tensors


@dataclass(frozen=True, slots=True)
class Asks:
    """Different requests to one model; `shapes_only` says why values cannot be compared ("": they can)."""

    asks: tuple[Ask, ...]
    shapes_only: str = ""


def make_asks(entry: Entry, direct: Direct, count: int, seconds: float, seed: int) -> Asks:
    """Return up to `count` different requests that the runtime accepts, in at most about `seconds`."""
    random = np.random.default_rng(seed)
    asks: list[Ask] = []
    end_s = time.monotonic() + seconds
    for inputs in _inputs(entry, direct, random, count * 2):
        ask = _ask(direct, inputs)
        if ask is not None:
            asks.append(ask)
        if len(asks) >= count or (time.monotonic() > end_s and asks):
            break
    return Asks(tuple(asks), _unrepeatable(direct, asks))


def _ask(direct: Direct, inputs: Tensors) -> Ask | None:
    """Return a request, or None where the runtime refuses the inputs, or answers longer than any client asks for."""
    try:
        expected = {name: np.array(array) for name, array in direct.run(inputs).items()}
    except Exception:  # noqa: BLE001  runtimes' exceptions share no root
        return None
    return Ask(inputs, expected) if sum(array.nbytes for array in expected.values()) <= ANSWER_BYTES else None


def _unrepeatable(direct: Direct, asks: list[Ask]) -> str:
    """Say why answers cannot be compared: the model draws random numbers, or keeps state between runs."""
    for kind, operators in (("random", RANDOM_OPERATORS), ("stateful", STATEFUL_OPERATORS)):
        if found := direct.operators & operators:
            return f"{kind}: {', '.join(sorted(found))}"
    for ask in asks[:3]:
        if compare(direct.run(ask.inputs), ask.expected) is Judgement.WRONG:
            return "two runs on the same input differ"
    return ""


def _inputs(entry: Entry, direct: Direct, random: np.random.Generator, count: int) -> Iterator[Tensors]:
    if not entry.cases:
        for turn in range(count):
            yield {port.name: _generated(port, entry.hints.get(port.name), turn, random) for port in direct.inputs}
        return
    base = {port.name: entry.cases[0].inputs[port.name] for port in direct.inputs}
    yield base
    for turn in range(1, count):
        rows = {port.name: _opened(port, base[port.name], turn, random) for port in direct.inputs}
        # Integers are often shapes, axes or indices: every other request keeps them as they were given.
        change = _shuffled if turn % 2 else _floats_shuffled
        yield {name: change(array, random) for name, array in rows.items()}


def _opened(port: Port, array: Array, turn: int, random: np.random.Generator) -> Array:
    """Return rows of `array` by chance, as many as `turn` says, where the first dimension is open."""
    if not port.shape or isinstance(port.shape[0], int) or not array.size:
        return array
    if array.ndim == 1 and array.dtype.kind in "iu":  # a shape of fifteen dimensions would take all memory
        return array
    sizes = (len(array), *(size * len(array) for size in SIZES[1:])) if turn % 3 == 0 else SIZES
    return array[random.integers(0, len(array), sizes[turn % len(sizes)])]


def _floats_shuffled(array: Array, random: np.random.Generator) -> Array:
    return _shuffled(array, random) if array.dtype.kind == "f" else array


def _shuffled(array: Array, random: np.random.Generator) -> Array:
    """Return the same values in another order; floats also scaled."""
    mixed = random.permutation(array.flatten()).reshape(array.shape)
    if array.dtype.kind == "f":
        mixed = mixed * random.uniform(0.5, 1.0, array.shape).astype(array.dtype)
    return np.asarray(mixed, array.dtype)


def _generated(port: Port, hint: Hint | None, turn: int, random: np.random.Generator) -> Array:
    hint = hint or Hint(high=1.0 if port.dtype.kind == "f" else 2.0)
    shape = hint.shapes[turn % len(hint.shapes)] if hint.shapes else _sized(port, turn)
    if port.dtype.kind == "O":
        return np.array(random.choice(np.array(WORDS, object), shape), object).reshape(shape)
    draw: Callable[[], Array] = (
        (lambda: random.uniform(hint.low, hint.high, shape))
        if port.dtype.kind == "f"
        else (lambda: random.integers(int(hint.low), max(int(hint.high), int(hint.low) + 1), shape))
    )
    return np.asarray(draw()).astype(port.dtype)


def _sized(port: Port, turn: int) -> tuple[int, ...]:
    """Return sizes of open dimensions: one per symbol, so that inputs that share a symbol agree."""
    return tuple(
        size if isinstance(size, int) and size >= 0 else SIZES[(turn + sum(str(size).encode())) % len(SIZES)]
        for size in port.shape
    )
