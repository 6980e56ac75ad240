"""Files of calibration data: a file, or a folder with one folder for each class, of images, .npz or .csv."""

from __future__ import annotations

import csv
import hashlib
import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gateway.domain.errors import ConfigurationError, RequestError
from gateway.domain.manifest import ModelManifest
from gateway.domain.tensor import Array
from gateway.engine.images import decode_images
from gateway.engine.settings import EngineSettings
from gateway.store.plain import file_digest, open_plain
from gateway.workshop.samples import SampleSet, joined_samples, label_indices, read_limit, sample_shape, shape_problem
from gateway.workshop.settings import CalibrationSettings

IMAGES = frozenset({".jpg", ".jpeg", ".png"})
ARRAYS, TABLE = ".npz", ".csv"
SUFFIXES = IMAGES | {ARRAYS, TABLE}
LABEL_COLUMNS = ("label", "class", "target")
"""Names of the column of a table, or of the array of an .npz, that has the class of each sample."""
_TIMES = ("time", "timestamp", "date", "datetime", "index", "id")
"""Names of columns that are no values of a model."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """File of samples; `label` is the name of its folder, which is the class of its samples ("": not known)."""

    path: Path
    label: str = ""


@dataclass(frozen=True, slots=True)
class _Part:
    """Samples of one file, with the name of the class of each (None: not known)."""

    inputs: dict[str, Array]
    names: list[str] | None


def read_samples(
    data: Path, manifest: ModelManifest, settings: CalibrationSettings, seed: int, advance: Callable[[], None]
) -> SampleSet:
    """Return samples of the model's inputs, drawn with `seed` if there are more than are needed.

    `advance` is called after each file. Raises ConfigurationError with the file and what to do.
    """
    files = data_files(data, settings)
    is_images = files[0].path.suffix.lower() in IMAGES
    limit, random = read_limit(manifest, settings), np.random.default_rng(seed)
    found = len(files)
    if is_images and len(files) > limit:
        files = [files[index] for index in np.sort(random.permutation(len(files))[:limit])]
    parts = []
    for file in files:
        parts.append(_read(file, manifest, settings))
        advance()
    samples = _samples(files, parts, manifest, data)
    if is_images or len(samples) <= limit:
        return SampleSet(samples.inputs, samples.labels, samples.digest, max(found, len(samples)))
    return samples.taken(np.sort(random.permutation(len(samples))[:limit]))


def data_files(data: Path, settings: CalibrationSettings) -> list[DataFile]:
    """Return the files of samples under `data`, all of one kind. Raises ConfigurationError."""
    if not data.exists():
        raise ConfigurationError("does not exist; name a file or a folder of samples", file=str(data))
    if not data.is_dir():
        return [DataFile(data)]
    paths = sorted(path for path in data.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    paths = [path for path in paths if not any(part.startswith(".") for part in path.relative_to(data).parts)]
    if not paths:
        raise ConfigurationError(f"holds no samples; put {', '.join(sorted(SUFFIXES))} files there", file=str(data))
    if len(paths) > settings.files_limit:
        raise ConfigurationError(f"holds more than {settings.files_limit} files; name a smaller folder", file=str(data))
    kinds = {_kind(path) for path in paths}
    if len(kinds) > 1:
        raise ConfigurationError(f"mixes {' and '.join(sorted(kinds))}; name a folder of one kind", file=str(data))
    folders = [path.relative_to(data).parts for path in paths]
    classes = {parts[0] if len(parts) > 1 else "" for parts in folders}
    if len(classes) == 1:  # a single folder is no class
        return [DataFile(path) for path in paths]
    return [DataFile(path, parts[0] if len(parts) > 1 else "") for path, parts in zip(paths, folders, strict=True)]


def _kind(path: Path) -> str:
    suffix = path.suffix.lower()
    return "images" if suffix in IMAGES else suffix


def _read(file: DataFile, manifest: ModelManifest, settings: CalibrationSettings) -> _Part:
    """Return the samples of a file. Raises ConfigurationError."""
    readers = {"images": _read_image, ARRAYS: _read_arrays, TABLE: _read_table}
    reader = readers.get(_kind(file.path))
    if reader is None:
        problem = f"is no file of samples by its suffix; name a {', '.join(sorted(SUFFIXES))} file"
        raise ConfigurationError(problem, file=str(file.path))
    try:
        part = reader(_content(file.path, settings), manifest)
    except RequestError as error:
        raise ConfigurationError(error.message, file=str(file.path)) from error
    except (OSError, ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigurationError(f"cannot be used: {error}", file=str(file.path)) from error
    for spec in manifest.inputs:
        if problem := shape_problem(manifest, spec, part.inputs[spec.name]):
            raise ConfigurationError(problem, file=str(file.path))
    count = len(next(iter(part.inputs.values())))
    return _Part(part.inputs, [file.label] * count) if file.label else part


def _content(path: Path, settings: CalibrationSettings) -> bytes:
    with open_plain(path) as stream:
        content = stream.read(settings.file_limit_bytes + 1)
    if len(content) > settings.file_limit_bytes:
        raise ValueError(f"it has more than {settings.file_limit_bytes} bytes; divide it")
    return content


def _read_image(content: bytes, manifest: ModelManifest) -> _Part:
    spec = next((spec for spec in manifest.inputs if spec.preprocess), None)
    if spec is None or len(manifest.inputs) > 1:
        raise ValueError(
            "the model takes no encoded images alone; add [input.preprocess] to its manifest, or give .npz"
        )
    encoded = np.empty(1, object)
    encoded[0] = content
    return _Part({spec.name: decode_images(encoded, spec, EngineSettings())[0]}, None)


def _read_arrays(content: bytes, manifest: ModelManifest) -> _Part:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        names = {spec.name: _stored(arrays, spec.name) for spec in manifest.inputs}
        inputs = {
            spec.name: arrays[names[spec.name]].astype(spec.datatype.dtype, copy=False) for spec in manifest.inputs
        }
        label = next((arrays[name] for name in LABEL_COLUMNS if name in arrays), None)
    return _Part(inputs, None if label is None else [str(each) for each in label.ravel().tolist()])


def _stored(arrays: np.lib.npyio.NpzFile, name: str) -> str:
    """Return the key of an input's array: its name, or as in a golden set. Raises ValueError."""
    key = next((key for key in (name, f"input.{name}") if key in arrays), None)
    if key is None:
        raise ValueError(f"it holds no array {name!r}; it holds {', '.join(arrays) or 'none'}")
    return key


def _read_table(content: bytes, manifest: ModelManifest) -> _Part:
    """Read rows of numbers: a sample each or, for an input [rows, steps, channels], windows one after the other."""
    rows = [row for row in csv.reader(io.StringIO(content.decode("utf-8-sig"))) if row]
    if not rows:
        raise ValueError("it has no rows")
    header = [] if any(map(_is_number, rows[0])) else [cell.strip() for cell in rows.pop(0)]
    place = _class_column(header, rows)
    classes = None if place is None else [row[place].strip() for row in rows]
    if len(manifest.inputs) > 1 and all(spec.name in header for spec in manifest.inputs):
        columns = {spec.name: _numbers(rows, [header.index(spec.name)]) for spec in manifest.inputs}
        inputs = {
            spec.name: columns[spec.name].reshape(-1, *([1] * len(sample_shape(manifest, spec))))
            for spec in manifest.inputs
        }
        return _Part({spec.name: inputs[spec.name].astype(spec.datatype.dtype) for spec in manifest.inputs}, classes)
    if len(manifest.inputs) > 1:
        raise ValueError(f"its columns must be called {', '.join(spec.name for spec in manifest.inputs)}")
    return _one_input(rows, header, classes, place, manifest)


def _class_column(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int | None:
    """Return the place of the column of classes: by its name or, without names, the only one that is no number."""
    names = [cell.lower() for cell in header]
    if header or not rows:
        return next((names.index(name) for name in LABEL_COLUMNS if name in names), None)
    words = [place for place, cell in enumerate(rows[0]) if not _is_number(cell)]
    return words[0] if len(words) == 1 else None


def _one_input(
    rows: list[list[str]], header: list[str], classes: list[str] | None, place: int | None, manifest: ModelManifest
) -> _Part:
    spec = manifest.inputs[0]
    shape = sample_shape(manifest, spec)
    if not 1 <= len(shape) <= 2 or shape[-1] < 1:
        raise ValueError(f"a table gives samples [columns] or [steps, channels], not {list(shape)}; give .npz")
    values = _numbers(rows, _columns(header, place, len(rows[0]) if rows else 0, shape[-1], manifest))
    if len(shape) == 2:
        steps = shape[0] if shape[0] > 0 else len(values)
        count = len(values) // steps if steps else 0
        if not count:
            raise ValueError(f"it has {len(values)} rows, fewer than one window of {shape[0]}")
        values = values[: count * steps].reshape(count, steps, -1)
        classes = classes and [
            Counter(classes[at * steps : (at + 1) * steps]).most_common(1)[0][0] for at in range(count)
        ]
    return _Part({spec.name: values.astype(spec.datatype.dtype)}, classes)


def _columns(header: Sequence[str], place: int | None, there: int, wanted: int, manifest: ModelManifest) -> list[int]:
    """Return the columns of the values: the channels of the manifest's window, else all but classes and times."""
    channels = manifest.window.channels if manifest.window else ()
    if channels and all(channel in header for channel in channels):
        return [header.index(channel) for channel in channels]
    left_out = {place} | {at for at, name in enumerate(header) if name.lower() in _TIMES}
    columns = [at for at in range(there) if at not in left_out]
    if len(columns) != wanted:
        raise ValueError(
            f"it has {len(columns)} columns of values ({', '.join(header) or 'without names'}), but the model takes "
            f"{wanted}; a column of classes is called {' or '.join(LABEL_COLUMNS)}"
        )
    return columns


def _numbers(rows: Sequence[Sequence[str]], columns: Sequence[int]) -> Array:
    for number, row in enumerate(rows, 1):
        if len(row) <= max(columns) or not all(_is_number(row[place]) for place in columns):
            raise ValueError(f"row {number} has no number in each of its {len(columns)} columns: {','.join(row)!r:.80}")
    return np.array([[float(row[place]) for place in columns] for row in rows], np.float64)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _samples(files: Sequence[DataFile], parts: Sequence[_Part], manifest: ModelManifest, data: Path) -> SampleSet:
    """Join the samples of all files. Raises ConfigurationError if they do not belong together."""
    known = [part.names for part in parts if part.names is not None]
    if len(known) not in {0, len(parts)}:
        problem = "only some files have classes; give each a folder of its class or a column of labels, or none"
        raise ConfigurationError(problem, file=str(data))
    try:
        labels = label_indices([name for names in known for name in names], manifest.labels) if known else None
        inputs = joined_samples(part.inputs for part in parts)
    except ValueError as error:
        raise ConfigurationError(f"{error}", file=str(data)) from error
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.label}\0{file_digest(file.path)}\n".encode())
    return SampleSet(inputs, labels, digest.hexdigest(), len(next(iter(inputs.values()))))
