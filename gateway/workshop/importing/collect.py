"""Reading of a source from the disk: bounded, and never outside its folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.model_files import is_hidden, is_model
from gateway.common.domain.onnx_file import read_onnx
from gateway.common.domain.runtimes import BY_SUFFIX
from gateway.common.store.plain import open_plain
from gateway.serving.domain.onnx_header import OnnxHeader, read_onnx_header
from gateway.serving.runtimes.settings import TrialSettings
from gateway.serving.runtimes.trial import inspect_file
from gateway.serving.store.references import references
from gateway.workshop.importing.source import Documents, SourceModel


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """Limits for reading a source."""

    document_limit_bytes: int = 1_048_576  # a configuration or a file of labels that is larger is refused
    yaml_limit_bytes: int = 262_144  # the same for YAML, whose parser takes about 10 s for each MiB
    entries_limit: int = 10_000  # most files and folders of a source
    depth_limit: int = 12  # most folders inside each other
    models_limit: int = 200  # most model files of a source: a process opens each


NAMES = frozenset({"MLmodel", "config.pbtxt", "config.json", "preprocessor_config.json", "metadata.yaml", "model.py"})
"""Names of documents that readers use."""
LABEL_SUFFIXES = frozenset({".txt", ".csv", ".labels", ".names"})
Report = Callable[[str, int, int], None]
"""Function of the model file that is opened next, its place and the number of all."""


def source_files(source: Path, settings: ImportSettings) -> tuple[Path, list[str]]:
    """Return the folder of a source and its files, relative to it; a single file is a source of one.

    Raises ConfigurationError for links that lead out of it, and for limits that are exceeded.
    """
    if source.is_file():
        return source.parent, [source.name]
    if not source.is_dir():
        raise ConfigurationError("does not exist; name a folder or a model file", file=str(source))
    try:
        found = []
        for path in _walk(source, source, settings.depth_limit):
            found.append(path.relative_to(source).as_posix())
            if len(found) > settings.entries_limit:
                problem = f"holds more than {settings.entries_limit} files; name the folder of the models only"
                raise ConfigurationError(problem, file=str(source))
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror or error}", file=str(source)) from error
    return source, found


def _walk(folder: Path, root: Path, depth: int) -> Iterator[Path]:
    """Yield the plain files below `folder`, without hidden ones."""
    if depth == 0:
        raise ConfigurationError("lies too deep in folders; name the folder of the models only", file=str(folder))
    for entry in sorted(folder.iterdir()):
        if is_hidden(entry.name):
            continue
        if entry.is_symlink():
            _check_link(entry, root)
        if entry.is_dir():
            yield from _walk(entry, root, depth - 1)
        elif entry.is_file():
            yield entry


def _check_link(entry: Path, root: Path) -> None:
    """Check that a link leads to a file of the source. Raises ConfigurationError."""
    target = entry.resolve()
    if target.is_dir():
        raise ConfigurationError("is a link to a folder; put the folder itself there", file=str(entry))
    if not target.is_relative_to(root.resolve()):
        problem = "is a link that leads out of the source; copy the source with its files (cp -rL), and import the copy"
        raise ConfigurationError(problem, file=str(entry))


async def collect(source: Path, settings: ImportSettings, trial: TrialSettings, report: Report) -> Documents:
    """Return a source as values; a process of its own opens each model file. Raises as `source_files` does."""
    documents = await asyncio.to_thread(read_documents, source, settings)
    folder = source_folder(source)
    paths = [path for path in sorted(documents.files) if is_model(path)]
    if len(paths) > settings.models_limit:
        problem = f"holds {len(paths)} model files, at most {settings.models_limit} are read; import parts of it"
        raise ConfigurationError(problem, file=str(source))
    models = {}
    for place, path in enumerate(paths):
        report(path, place, len(paths))
        models[path] = await _model(folder, path, trial)
    return replace(documents, models=models)


def source_folder(source: Path) -> Path:
    """Return the folder of a source: itself, or that of a single file."""
    return source.parent if source.is_file() else source


def read_documents(source: Path, settings: ImportSettings) -> Documents:
    """Return a source without the description of its model files. Raises as `source_files` does."""
    folder, files = source_files(source, settings)
    texts: dict[str, str] = {}
    unread: dict[str, str] = {}
    for path in filter(_is_document, files):
        try:
            texts[path] = _text(folder / path, settings)
        except ConfigurationError as error:
            unread[path] = error.problem
    name = source.resolve().name if source.is_dir() else source.stem
    return Documents(name, frozenset(files), texts, unread)


def _is_document(path: str) -> bool:
    name = PurePosixPath(path).name
    return name in NAMES or PurePosixPath(name).suffix in LABEL_SUFFIXES


def _text(file: Path, settings: ImportSettings) -> str:
    is_yaml = file.suffix == ".yaml" or file.name == "MLmodel"
    limit_bytes = settings.yaml_limit_bytes if is_yaml else settings.document_limit_bytes
    try:
        with open_plain(file) as stream:
            content = stream.read(limit_bytes + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror or error}") from error
    if len(content) > limit_bytes:
        raise ConfigurationError(f"has more than {limit_bytes} bytes, which is all that is read; shorten it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8: {error}; convert it") from None


async def _model(folder: Path, path: str, trial: TrialSettings) -> SourceModel:
    """Return a model file with what it tells, or with the problem."""
    file, runtime = folder / path, BY_SUFFIX[PurePosixPath(path).suffix]
    header, operators = OnnxHeader(), frozenset[str]()
    try:
        others = tuple(str(PurePosixPath(path).parent / name) for name in references(file.parent, file.name))
        if runtime == "onnx":
            with open_plain(file) as stream:
                header, operators = read_onnx_header(stream), read_onnx(stream).operators
        signature = await inspect_file(runtime, file.absolute(), trial)
    except ConfigurationError as error:
        return SourceModel(path, runtime, problem=error.problem)
    except (VariantError, ValueError, OSError) as error:
        return SourceModel(path, runtime, header=header, operators=operators, problem=str(error))
    return SourceModel(path, runtime, signature, others, header, operators)
