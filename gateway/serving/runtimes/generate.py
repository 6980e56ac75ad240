"""Generated inputs for models without a golden set: sizes of open dimensions, and values by datatype.

It is not known what a model accepts, so samples are tried in order until one is accepted. Each differs little from the
first; `sample` numbers them, and the same number always gives the same sample.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path

import numpy as np

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Datatype, Tensors
from gateway.common.domain.text_model import PARAMETERS, TEXT, is_generative
from gateway.common.domain.verdict import Verdict
from gateway.serving.domain.golden import first_row

SEED = 20
IMAGE_SIZES = (64, 224, 640, 32, 1, 8, 16, 3, 2)
"""Sizes of the open dimensions of models that take images, in pixels, by how often they fit."""
PLAIN_SIZES = (8, 1, 16, 3, 2, 64, 224, 640)
"""Sizes of other open dimensions.

1 is not the first: it hides rows that depend on each other (a reshape in place of a transpose, a cut to the longest row
of a run).
"""
INTEGERS = ("ids", "flags", "lengths", "rates")
"""Values of integer inputs: small token ids; 0 or 1; the size of the open dimensions; audio sample rates.

Ids come first: rows of zeros and ones alone are so alike that normalisation magnifies rounding a thousandfold (seen
with a file type classifier), which a joining proof cannot tell from rows that depend on each other.
"""
IDS_LIMIT = 100
RATES_HZ = (16_000, 8_000)
FLOATS = ("unit", "normal", "pixels")
"""Values of float inputs, row after row: 0 to 1; normal with deviation 1; 0 to 255.

No model accepts some of them and refuses others.
"""
EXTREME_SIZES = (0.0, 1e-6, 1e-3, 1e2, 3e4)
"""Factors of rows next to which other rows must keep their answers: silence, noise, an overflow of half precision."""
TEXTS = ("words", "numbers", "empty", "sentences")
"""Values of BYTES inputs."""
_WORDS: Mapping[str, Sequence[bytes]] = {
    "words": (b"edge", b"gateway", b"a", b"model", b"b", b"sensor", b"camera", b"c"),
    "numbers": (b"1", b"2", b"30", b"4", b"55", b"6", b"700", b"8"),
    "empty": (b"",),
    "sentences": (b"the first row", b"another row of words", b"a third one", b"and one more"),
}
_ASKED = {TEXT: b"The gateway", PARAMETERS: b'{"max_tokens": 4}'}
"""What a language model is asked: each further token takes as long as the last one of these."""
_NARROW = {"u1": 255, "i1": 127}
"""Largest value of integers that hold pixels."""


@dataclass(frozen=True, slots=True)
class InputKind:
    """Kind of one generated input: sizes of open dimensions and kinds of values.

    Sizes: of `first` dimensions, of those of the first input (`size`), and of the `others`. `zeros`: all numbers are 0.
    """

    first: int
    size: int
    others: int
    integers: str
    texts: str
    zeros: bool = False


def samples(manifest: ModelManifest) -> Iterator[InputKind]:
    """Yield the samples in the order in which they are tried. A first dimension that may count rows is 1: one row."""
    kinds = {spec.datatype.dtype.kind for spec in manifest.inputs}
    # First, size and others of the samples: all alike, the first input alone, and first dimensions as well.
    sizes = _sizes(manifest)
    found = [(1, size, others) for size in sizes for others in dict.fromkeys((size, 1))]
    shapes = found if manifest.batched else found + [(size, size, size) for size in sizes if size > 1]
    integers = INTEGERS if kinds & set("iu") else INTEGERS[:1]
    texts = TEXTS if "O" in kinds else TEXTS[:1]
    ranks = product(*(range(len(family)) for family in (shapes, integers, texts)))
    for shape, integer, text in sorted(ranks, key=lambda ranks: (sum(ranks), ranks)):
        yield InputKind(*shapes[shape], integers[integer], texts[text])
    yield InputKind(1, 1, 1, integers[0], texts[0], zeros=True)


def generated(manifest: ModelManifest, sample: InputKind, row: int = 0) -> dict[str, Array]:
    """Return the inputs of one run; another `row` gives other values of the same shapes."""
    random = np.random.default_rng((SEED, row))
    # Sizes of named dimensions: a name that any tensor has in first place is a first dimension.
    named = [(axis, name) for spec in manifest.inputs for axis, name in enumerate(spec.axes) if name]
    leading = {name for axis, name in named if axis == 0}
    sizes = {name: sample.first if name in leading else sample.size for _, name in named}
    shapes = [_shape(spec, sample, sizes, leads=index == 0) for index, spec in enumerate(manifest.inputs)]
    given = list(manifest.inputs)
    if is_generative(manifest):
        given = [replace(spec, default=_ASKED.get(spec.name, spec.default)) for spec in given]
    pairs = zip(given, shapes, strict=True)
    return {spec.name: _values(spec, shape, sample, random, row) for spec, shape in pairs}


def witness(manifest: ModelManifest, folder: Path, verdict: Verdict | None) -> Tensors | None:
    """Return an input that the model answered in its trial: it separates failing models from failing requests.

    It is the first row of the golden set, else the generated input that was accepted, else None.
    A golden set that cannot be read here, although the trial could, counts as none.
    """
    if manifest.golden is not None:
        try:
            with (folder / manifest.golden.file).open("rb") as stream:
                return first_row(stream, manifest)
        except (OSError, ConfigurationError):
            return None
    if verdict is None or verdict.sample is None:
        return None
    sample = next(islice(samples(manifest), verdict.sample, None), None)
    return generated(manifest, sample) if sample else None


def extreme_rows(manifest: ModelManifest, row: Tensors) -> tuple[list[dict[str, Array]], list[dict[str, Array]]]:
    """Return rows like `row` of very different size, and rows of NaN and infinity, for a model with floats.

    A NaN or infinity is left out where the manifest refuses it.
    """
    scaled = {spec.name for spec in manifest.inputs if row[spec.name].dtype.kind == "f" and spec.default is None}
    filled = {spec.name for spec in manifest.inputs if spec.name in scaled and not spec.finite}
    sizes = [_changed(row, scaled, size, 0.0) for size in EXTREME_SIZES] if scaled else []
    return sizes, [_changed(row, filled, 0.0, each) for each in (np.nan, np.inf)] if filled else []


def _changed(row: Tensors, names: Collection[str], factor: float, added: float) -> dict[str, Array]:
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            name: (array * factor + added).astype(array.dtype) if name in names else np.asarray(array)
            for name, array in row.items()
        }


def _sizes(manifest: ModelManifest) -> Sequence[int]:
    if all(ROWS not in spec.shape[1:] for spec in manifest.inputs) and manifest.batched:
        return (1,)
    if all(ROWS not in spec.shape for spec in manifest.inputs):
        return (1,)
    images = any(len(spec.shape) == 4 and ROWS in spec.shape[1:] for spec in manifest.inputs)
    return IMAGE_SIZES if images else PLAIN_SIZES


def _shape(spec: TensorSpec, sample: InputKind, sizes: Mapping[str, int], *, leads: bool) -> tuple[int, ...]:
    def size(axis: int, declared: int) -> int:
        if declared != ROWS:
            return declared
        if spec.axes and spec.axes[axis]:
            return sizes[spec.axes[axis]]
        if axis == 0:
            return sample.first
        return sample.size if leads else sample.others

    return tuple(size(axis, declared) for axis, declared in enumerate(spec.shape))


def _values(
    spec: TensorSpec, shape: tuple[int, ...], sample: InputKind, random: np.random.Generator, row: int
) -> Array:
    kind = spec.datatype.dtype.kind
    if spec.default is not None:
        return np.full(shape, spec.default, spec.datatype.dtype)
    if spec.datatype is Datatype.BYTES:
        words = _WORDS[sample.texts]
        array = np.empty(shape, object)
        array.ravel()[:] = [words[(row + index) % len(words)] for index in range(array.size)]
        return array
    if sample.zeros:
        return np.zeros(shape, spec.datatype.dtype)
    if kind == "f":
        return _floats(shape, FLOATS[row % len(FLOATS)], random).astype(spec.datatype.dtype)
    if kind in "iu":
        return _integers(spec, shape, sample, random).astype(spec.datatype.dtype)
    return random.integers(0, 2, shape).astype(spec.datatype.dtype)


def _floats(shape: tuple[int, ...], kind: str, random: np.random.Generator) -> Array:
    if kind == "normal":
        return np.asarray(random.standard_normal(shape))
    return np.asarray(random.random(shape)) * (255 if kind == "pixels" else 1)


def _integers(spec: TensorSpec, shape: tuple[int, ...], sample: InputKind, random: np.random.Generator) -> Array:
    if len(shape) == 4 and (bound := _NARROW.get(spec.datatype.dtype.str[1:])):
        return random.integers(0, bound + 1, shape)
    if sample.integers == "flags":
        return random.integers(0, 2, shape)
    if sample.integers == "ids" and len(shape) == 1 and sample.size > 1:  # they may also be the length of each row
        return random.integers(1, sample.size + 1, shape)
    if sample.integers == "ids":
        return random.integers(0, IDS_LIMIT, shape)
    if sample.integers == "rates":
        return np.asarray(random.choice(RATES_HZ, shape))
    return np.full(shape, max(sample.first, sample.size))
