"""Files of calibration data: a file, or a folder with one folder for each class, of images, .npz, .csv or .jsonl."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec, fits
from gateway.common.domain.tensor import Array, Datatype
from gateway.common.store.plain import file_digest, read_plain
from gateway.serving.domain.golden import input_key
from gateway.serving.engine.images import decode_images
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.tasks.catalog import task_of
from gateway.serving.tasks.frame import Frame
from gateway.workshop.making.samples import (
    SampleSet,
    joined_samples,
    label_indices,
    read_limit,
    shape_problem,
    with_defaults,
)
from gateway.workshop.making.settings import CalibrationSettings
from gateway.workshop.making.table_files import read_table
from gateway.workshop.making.truth.cells import NAMES, fitting, read_array, read_flags
from gateway.workshop.making.truth.image_set import IMAGES, FoundTruth, ImageSet
from gateway.workshop.making.truth.images import MASKS, read_image_truth
from gateway.workshop.making.truth.kinds import TruthKind, truth_kind
from gateway.workshop.making.truth.label_table import TABLES

PICTURES = frozenset({".jpg", ".jpeg", ".png"})
ARRAYS, TABLE, REQUESTS = ".npz", ".csv", ".jsonl"
SUFFIXES = PICTURES | {ARRAYS, TABLE, REQUESTS}


@dataclass(frozen=True, slots=True)
class DataFile:
    """File of samples; `label` is the name of its folder, which is the class of its samples ("": not known)."""

    path: Path
    label: str = ""


@dataclass(frozen=True, slots=True)
class _Part:
    """Samples of one file: the name of the class of each, another truth of each (None: not known), places of images."""

    inputs: Mapping[str, Array]
    names: list[str] | None = None
    truth: list[Any] | None = None
    frames: tuple[Frame, ...] = ()


def read_samples(
    data: Path,
    manifest: ModelManifest,
    settings: CalibrationSettings,
    seed: int,
    advance: Callable[[], None],
    *,
    annotations: Path | None = None,
    in_order: bool = False,
) -> SampleSet:
    """Return samples of the model's inputs, drawn with `seed` if there are more than are needed; `in_order`: the first.

    `advance` is called after each file. `annotations` is the file or folder of the truth of images; None: it may be
    next to them. Raises ConfigurationError with the file and what to do.
    """
    every = data_files(data, settings)
    is_images = every[0].path.suffix.lower() in PICTURES
    if annotations is not None and not is_images:
        raise ConfigurationError(
            "--annotations is for images; tables and arrays have the truth in them", file=str(data)
        )
    limit, random = read_limit(manifest, settings), np.random.default_rng(seed)
    files = every

    def drawn(count: int) -> Array:
        return np.arange(limit) if in_order else np.sort(random.permutation(count)[:limit])

    if is_images and len(every) > limit:
        files = [every[index] for index in drawn(len(every))]
    parts = []
    for file in files:
        parts.append(_read(file, manifest, settings))
        advance()
    found = FoundTruth()
    if annotations is not None or (parts[0].frames and not any(part.names for part in parts)):
        sizes = [(frame.height, frame.width) for part in parts for frame in part.frames]
        images = ImageSet([file.path for file in files], sizes, [file.path for file in every], data, annotations)
        found = read_image_truth(images, manifest, settings)
    samples = _samples(files, parts, found, manifest, data)
    if is_images or len(samples) <= limit:
        return replace(samples, found=max(len(every), len(samples)))
    return samples.taken(drawn(len(samples)))


def data_files(data: Path, settings: CalibrationSettings) -> list[DataFile]:
    """Return the files of samples under `data`, all of one kind. Raises ConfigurationError."""
    if not data.exists():
        raise ConfigurationError("does not exist; name a file or a folder of samples", file=str(data))
    if not data.is_dir():
        return [DataFile(data)]
    paths = sorted(path for path in data.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    paths = [path for path in paths if not any(part.startswith(".") for part in path.relative_to(data).parts)]
    paths = _without_annotations(paths, data)
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


def _without_annotations(paths: Sequence[Path], data: Path) -> list[Path]:
    """Return the files that are samples: no table of labels next to images, no masks next to a folder `images`."""
    has_images = any(path.suffix.lower() in PICTURES for path in paths)
    places = {path: path.relative_to(data).parts[:-1] for path in paths}
    near = {parts[:at] for parts in places.values() for at, part in enumerate(parts) if part == IMAGES}
    return [
        path
        for path in paths
        if not (has_images and path.name in TABLES)
        and not any(part == MASKS and places[path][:at] in near for at, part in enumerate(places[path]))
    ]


def _kind(path: Path) -> str:
    suffix = path.suffix.lower()
    return "images" if suffix in PICTURES else suffix


def _read(file: DataFile, manifest: ModelManifest, settings: CalibrationSettings) -> _Part:
    """Return the samples of a file. Raises ConfigurationError."""
    readers = {"images": _read_image, ARRAYS: _read_arrays, TABLE: _read_table, REQUESTS: _read_requests}
    reader = readers.get(_kind(file.path))
    if reader is None:
        problem = f"is no file of samples by its suffix; name a {', '.join(sorted(SUFFIXES))} file"
        raise ConfigurationError(problem, file=str(file.path))
    try:
        part = reader(read_plain(file.path, settings.file_limit_bytes), manifest)
    except RequestError as error:
        raise ConfigurationError(error.message, file=str(file.path)) from error
    except (OSError, ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigurationError(f"cannot be used: {error}", file=str(file.path)) from error
    inputs = with_defaults(part.inputs, manifest)
    for spec in manifest.inputs:
        if problem := shape_problem(manifest, spec, inputs[spec.name]):
            raise ConfigurationError(problem, file=str(file.path))
    part, count = replace(part, inputs=inputs), len(next(iter(inputs.values())))
    is_class = truth_kind(manifest) in {TruthKind.CLASSES, TruthKind.FLAGS}
    return replace(part, names=[file.label] * count, truth=None) if file.label and is_class else part


def _read_image(content: bytes, manifest: ModelManifest) -> _Part:
    encoded = np.empty(1, object)
    encoded[0] = content
    if not manifest.variants and [each.datatype for each in manifest.inputs] == [Datatype.BYTES]:
        return _Part({manifest.inputs[0].name: encoded})  # a pipeline decodes it
    spec = next((spec for spec in manifest.inputs if spec.preprocess), None)
    if spec is None or any(other.default is None for other in manifest.inputs if other is not spec):
        raise ValueError(
            "the model takes no encoded images alone; add [input.preprocess] to its manifest, or give .npz"
        )
    array, frames = decode_images(encoded, spec, EngineSettings())
    return _Part({spec.name: array}, frames=frames)


def _read_arrays(content: bytes, manifest: ModelManifest) -> _Part:
    kind = truth_kind(manifest)
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        keys = {spec.name: key for spec in manifest.inputs if (key := input_key(arrays, spec.name))}
        for spec in manifest.inputs:
            if spec.name not in keys and (spec.default is None or not keys):
                raise ValueError(f"it holds no array {spec.name!r}; it holds {', '.join(arrays) or 'none'}")
        found = [spec for spec in manifest.inputs if spec.name in keys]
        inputs = {spec.name: arrays[keys[spec.name]].astype(spec.datatype.dtype, copy=False) for spec in found}
        truth = next((arrays[name] for name in NAMES.get(kind, ()) if name in arrays), None)
    if truth is None:
        return _Part(inputs)
    if kind is TruthKind.CLASSES:
        return _Part(inputs, [str(each) for each in truth.ravel().tolist()])
    return _Part(inputs, truth=read_array(kind, truth, len(next(iter(inputs.values())))))


def _read_table(content: bytes, manifest: ModelManifest) -> _Part:
    found = read_table(content, manifest)
    return _Part(found.inputs, found.names, found.truth)


def _read_requests(content: bytes, manifest: ModelManifest) -> _Part:
    return _Part(read_requests(content, manifest))


def _samples(
    files: Sequence[DataFile], parts: Sequence[_Part], found: FoundTruth, manifest: ModelManifest, data: Path
) -> SampleSet:
    """Join the samples of all files. Raises ConfigurationError if they do not belong together."""
    kind = truth_kind(manifest)
    try:
        inputs = joined_samples(part.inputs for part in parts)
        names = found.items if kind is TruthKind.CLASSES else None
        names = names or _joined([part.names for part in parts])
        truth = None if kind is TruthKind.CLASSES else found.items or _joined([part.truth for part in parts])
        if kind is TruthKind.FLAGS and names:
            truth, names = list(read_flags(names)), None
        if truth:
            task = task_of(manifest)
            truth = fitting(kind, truth, task.results[0].shape) if task else list(truth)
        labels = label_indices(names, manifest.labels) if names else None
    except ValueError as error:
        raise ConfigurationError(f"{error}", file=str(data)) from error
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.label}\0{file_digest(file.path)}\n".encode())
    count = len(next(iter(inputs.values())))
    frames = tuple(frame for part in parts for frame in part.frames)
    return SampleSet(
        inputs, labels, digest.hexdigest(), count, frames, None if truth is None else tuple(truth), tuple(found.remarks)
    )


def _joined(parts: Sequence[list[Any] | None]) -> list[Any] | None:
    """Return the truth of all files, None without any. Raises ValueError if only some of them have it."""
    known = [part for part in parts if part is not None]
    if known and len(known) < len(parts):
        raise ValueError("only some files have classes; give each a folder of its class or a column of labels, or none")
    return [each for part in known for each in part] or None


def read_requests(content: bytes, manifest: ModelManifest) -> dict[str, Array]:
    """Return the samples [samples, …] of all requests by input: their rows, or a request each if a model has no rows.

    Raises ValueError with the line.
    """
    parts = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                parts.append(_request_samples(json.loads(line), manifest))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
                words = str(error) if isinstance(error, ValueError) else "it is no body of an inference request"
                raise ValueError(f"line {number}: {words}") from error
    if not parts:
        raise ValueError("it has no requests")
    return joined_samples(parts)


def _request_samples(body: Mapping[str, Any], manifest: ModelManifest) -> dict[str, Array]:
    sent = {entry["name"]: entry for entry in body["inputs"]}
    arrays = {spec.name: _array(sent[spec.name], spec) for spec in manifest.inputs if spec.name in sent}
    if missing := next((spec.name for spec in manifest.inputs if spec.name not in sent and spec.default is None), ""):
        raise ValueError(f"the request has no input {missing!r}")
    if not manifest.batched:
        arrays = {name: array[np.newaxis] for name, array in arrays.items()}
    return with_defaults(arrays, manifest)


def _array(entry: Mapping[str, Any], spec: TensorSpec) -> Array:
    if "data" not in entry:
        raise ValueError(f"input {spec.name!r} has no data in JSON; record requests that clients send as JSON")
    if spec.datatype is Datatype.BYTES:
        raise ValueError(f"input {spec.name!r} takes texts, which are no calibration data")
    if entry["datatype"] != spec.datatype.label:
        raise ValueError(f"input {spec.name!r} has the datatype {entry['datatype']!r:.20}, not {spec.datatype.label}")
    array = np.asarray(entry["data"], spec.datatype.dtype).reshape(entry["shape"])
    if not fits(array.shape, spec.shape):
        raise ValueError(f"input {spec.name!r} has the shape {list(array.shape)}, expected {list(spec.shape)}")
    return array
