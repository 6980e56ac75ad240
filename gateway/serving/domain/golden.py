"""Golden sets: held-out inputs with their expected answers, and the evaluation of a variant's answers.

File format: an npz without pickles whose keys are `input.<name>`, `output.<name>` (after the manifest's postprocess)
and, if true classes are known, `label` (int64 [rows]).
"""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.manifest import ModelManifest, TensorSpec, Tolerance
from gateway.common.domain.tensor import Array, Tensors

if TYPE_CHECKING:
    import zipfile

GOLDEN_LIMIT_BYTES = 256 * 2**20
"""Largest golden set once unpacked: it must fit into a small device's memory together with the model."""
PIECE = 2**20
"""Most values of which copies in float64 are made at a time."""


def _broken(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the exceptions of numpy and zipfile for damaged files (RuntimeError: encrypted or unknown compression)."""
    import zipfile  # 4 ms and 1 MiB of a start without golden sets

    return ValueError, OSError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error, *more


@dataclass(frozen=True, slots=True)
class GoldenSet:
    """Arrays by tensor name; the first dimension counts rows."""

    inputs: Tensors
    outputs: Tensors
    label: Array | None = None


@dataclass(frozen=True, slots=True)
class GoldenResult:
    """Result of a comparison with a golden set; `reason` explains it.

    `agreement` and `accuracy` are in 0..1. `accuracy_loss` is relative to the golden answers' own accuracy. Both
    accuracies are None without labels.
    """

    passed: bool
    agreement: float
    mean_abs: float
    accuracy: float | None
    reason: str
    accuracy_loss: float | None = None

    @property
    def words(self) -> str:
        """Return the result for people."""
        word, code = ("passed", "") if self.passed else ("failed", " (EG-310)")
        return f"{word} its golden set: {self.reason}{code}"


def read_golden(content: bytes, manifest: ModelManifest, file: str, limit_bytes: int = 0) -> GoldenSet:
    """Parse an npz with every input and output of the manifest. Raises ConfigurationError with `file`.

    `limit_bytes`: most bytes once unpacked; 0 is GOLDEN_LIMIT_BYTES.
    """
    try:
        arrays = _load(content, limit_bytes or GOLDEN_LIMIT_BYTES)
    except _broken() as error:
        raise ConfigurationError(f"not a golden set (npz without pickles): {error}", file=file) from error
    wanted = [f"input.{s.name}" for s in manifest.inputs] + [f"output.{s.name}" for s in manifest.outputs]
    for key in wanted:
        if key not in arrays:
            raise ConfigurationError(f"golden set lacks the array {key!r}; it holds {sorted(arrays)}", file=file)
        if arrays[key].size == 0:
            raise ConfigurationError(f"the golden set's array {key!r} is empty, so nothing could fail", file=file)
    return GoldenSet(
        {spec.name: arrays[f"input.{spec.name}"] for spec in manifest.inputs},
        {spec.name: arrays[f"output.{spec.name}"] for spec in manifest.outputs},
        arrays.get("label"),
    )


def input_key(arrays: Container[str], name: str) -> str | None:
    """Return the key of an input in an npz file: its name or, as in a golden set, `input.<name>`; None without it."""
    return next((key for key in (name, f"input.{name}") if key in arrays), None)


def first_row(stream: BinaryIO, manifest: ModelManifest) -> dict[str, Array]:
    """Return the inputs of the first run of a golden set, without reading the rest of it.

    Raises ConfigurationError if the set cannot be read.
    """
    import zipfile

    try:
        with zipfile.ZipFile(stream) as archive:
            return {spec.name: _first(archive, spec, rows=manifest.batched) for spec in manifest.inputs}
    except _broken(KeyError) as error:
        raise ConfigurationError(f"not a golden set (npz without pickles): {error}") from error


def _first(archive: zipfile.ZipFile, spec: TensorSpec, *, rows: bool) -> Array:
    """Return the first row of one input, with its row axis if `rows`; the whole array if its rank is the manifest's."""
    with archive.open(f"input.{spec.name}.npy") as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(member)
        whole = len(shape) == len(spec.shape) and not rows
        if dtype.hasobject or not shape:
            raise ValueError(f"input {spec.name!r} has no rows")
        wanted = shape if whole or fortran else shape[1:]  # in column order, the first row is spread over the array
        size = math.prod(wanted) * dtype.itemsize
        if size > GOLDEN_LIMIT_BYTES:
            raise ValueError(f"a row of input {spec.name!r} has {size} bytes, at most {GOLDEN_LIMIT_BYTES} are allowed")
        array = np.frombuffer(member.read(size), dtype).reshape(wanted, order="F" if fortran else "C")
    array = (array[0] if fortran and not whole else array).astype(spec.datatype.dtype, order="C")
    return array[np.newaxis] if rows else array


def compare_golden(
    golden: GoldenSet, answers: Tensors, tolerance: Tolerance, *, relative: bool = False
) -> GoldenResult:
    """Compare `answers` with the golden outputs: worst agreement and worst mean difference over all outputs.

    `relative`: as of `mean_difference`, for outputs of different units, which one tolerance bounds.
    """
    agreement, mean_abs = 1.0, 0.0
    for name, expected in golden.outputs.items():
        answer = answers[name]
        if answer.shape != expected.shape:
            reason = f"output {name!r} has shape {list(answer.shape)}, expected {list(expected.shape)}"
            return GoldenResult(False, 0.0, float("inf"), None, reason)
        agreement = min(agreement, (float(np.mean(agreeing(expected, answer))) if expected.size else 1.0))
        mean_abs = max(mean_abs, mean_difference(expected, answer, relative=relative))
    passed = agreement >= tolerance.agreement and mean_abs <= tolerance.mean_abs
    words = (
        f"agreement {agreement:.4f} (at least {tolerance.agreement:g}), "
        f"mean difference {mean_abs:.2g} (at most {tolerance.mean_abs:g})"
    )
    best, accuracy = _accuracy(golden, golden.outputs), _accuracy(golden, answers)
    loss = None if best is None or accuracy is None else best - accuracy
    return GoldenResult(passed, agreement, mean_abs, accuracy, words, loss)


def portions(manifest: ModelManifest, golden: GoldenSet, batch_rows: int) -> Iterator[dict[str, Array]]:
    """Yield golden inputs in the manifest's shapes: several rows, the whole array, or one row without its axis.

    Raises VariantError for a set without rows.
    """
    # In the datatype of the manifest: npz stores BYTES as fixed-width strings of bytes. Portion by portion: objects of
    # all rows take many times the memory of the set.
    dtypes = {spec.name: spec.datatype.dtype for spec in manifest.inputs}
    arrays = {name: golden.inputs[name] for name in dtypes}
    if is_one_run(manifest, golden):
        yield {name: array.astype(dtypes[name], copy=False) for name, array in arrays.items()}
        return
    rows = len(next(iter(arrays.values())))
    if rows == 0:
        raise VariantError("the golden set has no rows", remedy="write a golden set with at least one row")
    for start in range(0, rows, batch_rows if manifest.batched else 1):
        part = slice(start, start + batch_rows) if manifest.batched else start
        # a scalar stays an array
        yield {name: np.asarray(array[part]).astype(dtypes[name], copy=False) for name, array in arrays.items()}


def is_one_run(manifest: ModelManifest, golden: GoldenSet) -> bool:
    """Return True if the golden inputs are one run unchanged: there are no rows, and their rank is the manifest's."""
    return not manifest.batched and all(golden.inputs[spec.name].ndim == len(spec.shape) for spec in manifest.inputs)


def joined(manifest: ModelManifest, golden: GoldenSet, parts: Sequence[Tensors]) -> dict[str, Array]:
    """Return the answers to `portions` in the form of the golden outputs: rows one after the other."""
    join = np.concatenate if manifest.batched or is_one_run(manifest, golden) else np.stack
    return {spec.name: join([part[spec.name] for part in parts]) for spec in manifest.outputs}


def first_rows(golden: GoldenSet, manifest: ModelManifest, rows: int) -> GoldenSet:
    """Return the first rows of a set; all of it if its inputs are one run unchanged."""
    if is_one_run(manifest, golden):
        return golden
    inputs, outputs = ({name: array[:rows] for name, array in part.items()} for part in (golden.inputs, golden.outputs))
    return GoldenSet(inputs, outputs)


def _load(content: bytes, limit_bytes: int) -> dict[str, Array]:
    import zipfile

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
        if size > limit_bytes:
            raise ValueError(f"{size} bytes unpacked, at most {limit_bytes} are allowed")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        found = dict(arrays)
    for key, array in found.items():
        if not isinstance(array, np.ndarray):  # a member that is no .npy is returned as bytes
            raise ValueError(f"{key!r} is no array")  # noqa: TRY004  the content is wrong, not a caller's type
    return found


def _classes(array: Array) -> Array | None:
    """Return the best class of each row, or None if the output is no score vector. NaN is the worst score."""
    if array.ndim < 2 or array.shape[-1] < 2 or array.dtype.kind != "f":
        return None
    scores = np.where(np.isnan(array), -np.inf, array) if np.isnan(array).any() else array
    return np.asarray(scores.argmax(axis=-1))


def agreeing(expected: Array, answer: Array) -> Array:
    """Compare two outputs of one shape: by the best class of each row or, without classes, value by value."""
    classes = _classes(expected)
    if classes is not None:
        return np.asarray(classes == _classes(answer))
    if expected.dtype.kind == "f":
        near = np.empty(expected.size, bool)
        for part, of, to in _pieces(expected, answer):
            near[part] = np.isclose(to, of, rtol=1e-2, atol=1e-2, equal_nan=True)
        return near.reshape(expected.shape)
    return np.asarray(answer == expected)


def mean_difference(expected: Array, answer: Array, *, relative: bool = False) -> float:
    """Return the mean absolute difference of finite numbers; if `relative`, divided by their mean if that is above 1.

    It is 0 for datatypes that are not numeric. Places that are NaN in both, or the same infinity, are left out. It is
    infinite if other places are not finite, or if no place is.
    """
    if expected.size == 0 or expected.dtype.kind not in "fiu":
        return 0.0
    total, weight, count = 0.0, 0.0, 0
    for _, of, to in _pieces(expected, answer):
        wanted, given = of.astype(np.float64), to.astype(np.float64)
        finite = np.isfinite(wanted)
        if not finite.all():
            if not np.array_equal(wanted[~finite], given[~finite], equal_nan=True):
                return float("inf")
            wanted, given = wanted[finite], given[finite]
        total += float(np.abs(given - wanted).sum())
        weight += float(np.abs(wanted).sum())
        count += wanted.size
    scale = max(1.0, weight / max(1, count)) if relative else 1.0
    return total / count / scale if count and math.isfinite(total) else float("inf")


def _pieces(expected: Array, answer: Array) -> Iterator[tuple[slice, Array, Array]]:
    """Yield both arrays of one shape in pieces, with the place of each piece."""
    of, to = expected.reshape(-1), answer.reshape(-1)
    for start in range(0, of.size, PIECE):
        part = slice(start, start + PIECE)
        yield part, of[part], to[part]


def _accuracy(golden: GoldenSet, answers: Tensors) -> float | None:
    if golden.label is None:
        return None
    classes = _classes(next(iter(answers.values())))
    return None if classes is None else float(np.mean(classes == golden.label))
