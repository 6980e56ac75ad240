"""Files of quantization: variants that were made before, the child process that makes one, and their publication."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import signal
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.installation import HERE
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.common.domain.python310 import SAFE_PATH
from gateway.common.files.durable import make_folder, temporary, write_file
from gateway.common.terminal.program import EXTRAS
from gateway.serving.runtimes.child import child_environment
from gateway.serving.store.releases import MANIFEST
from gateway.workshop.making.choices import VariantKind
from gateway.workshop.making.quantizer_child import QuantizerJob
from gateway.workshop.making.samples import SampleSet, own_runs

CACHE = ".quantized"
"""Hidden folder in a version's folder: variants that were made, so that a repetition keeps them."""
RECORD = "record.json"
COMMAND = (sys.executable, SAFE_PATH, "-m", "gateway.workshop.making.quantizer_child")
LAST_WORDS_CHARS = 400
"""Most characters of a tool's error that are told."""
FILES = {"onnx": "model.onnx", "openvino": "model.xml", "litert": "model.tflite"}
"""Name of the file to open, by runtime."""


@dataclass(frozen=True, slots=True)
class QuantizeRecord:
    """Record of what this command wrote into a version before: digests of golden sets, names of variants."""

    golden: tuple[str, ...] = ()
    made: tuple[str, ...] = ()


class ToolError(Exception):
    """Failure of a tool to make a variant."""


def check_tools(kinds: Iterable[VariantKind]) -> None:
    """Check that the packages of the tools are installed. Raises ConfigurationError with the command to do it."""
    for kind in kinds:
        for package in kind.packages:
            if importlib.util.find_spec(package) is None:
                extra = EXTRAS.get(package, kind.runtime)
                problem = f"{kind.name} needs the Python package {package}, which is not installed; "
                raise ConfigurationError(f"{problem}{HERE.adding(extra)}, or leave it out with --only")


def read_record(folder: Path) -> QuantizeRecord:
    """Return what this command wrote before. An absent or damaged record is empty: all variants are an author's."""
    try:
        found = json.loads((folder / CACHE / RECORD).read_text())
        return QuantizeRecord(tuple(map(str, found["golden"])), tuple(map(str, found["made"])))
    except (OSError, ValueError, KeyError, TypeError):
        return QuantizeRecord()


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Yield an empty folder next to the kept variants, which is removed at the end. Raises OSError."""
    make_folder(folder / CACHE, mode=None)
    place = temporary(folder / CACHE)
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def variant_key(kind: VariantKind, source: Variant, manifest: ModelManifest, calibration: SampleSet, seed: int) -> str:
    """Return the digest of everything on which a variant depends: source, data, settings, versions of the tools."""
    versions = {name: _version(name) for name in kind.packages}
    facts = (kind, source.content, manifest.inputs, calibration.digest, len(calibration), seed, versions)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def store_runs(manifest: ModelManifest, source: Variant, samples: SampleSet, folder: Path) -> dict[str, str]:
    """Write calibration samples in the source's own names and layouts; return the file by input. Raises OSError."""
    folder.mkdir(exist_ok=True)
    files = {}
    for index, (name, array) in enumerate(own_runs(manifest, source, samples)):
        file = folder / f"{index}.npy"
        np.save(file, array, allow_pickle=False)
        files[name] = str(file)
    return files


async def make_variant(job: QuantizerJob, place: Path) -> bool:
    """Make the variant of a job, whose `target` is the name of a file in the new folder `place`.

    Return True if the folder was there already. Raises ToolError, OSError.
    """
    with _new_folder(place) as staged:
        if staged is not None:
            await _ask_child(replace(job, target=str(staged / job.target)))
    return staged is None


@contextmanager
def _new_folder(place: Path) -> Iterator[Path | None]:
    """Yield an empty folder that becomes `place` at the end of the block; None if `place` is there."""
    if place.is_dir():
        yield None
        return
    staged = temporary(place.parent)
    staged.mkdir()
    try:
        yield staged
        staged.rename(place)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


async def _ask_child(job: QuantizerJob) -> None:
    """Run a job in a child process, which ends with this one. Raises ToolError with the last line that it wrote."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=child_environment(str(os.cpu_count() or 1)),
        start_new_session=True,
    )
    try:
        _, output = await process.communicate(job.encode())
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        words = (output.decode("utf-8", "replace").strip().splitlines() or ["nothing"])[-1]
        signalled = f"ended by {signal.Signals(-process.returncode).name}; " if process.returncode < 0 else ""
        raise ToolError(f"{signalled}{words[:LAST_WORDS_CHARS]}")


def link_file(source: Path, target: Path) -> None:
    """Make `target` the same file as `source`, as a link if the disk permits, else as a copy. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = temporary(target.parent)
    try:
        try:
            staged.hardlink_to(source.resolve())
        except OSError:
            shutil.copyfile(source, staged)
        staged.replace(target)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True)
class ReleaseEdit:
    """Changes of a version: files at `paths` of the folder `staged`, the text of the manifest, what is recorded.

    `dropped` are names of variants whose folders are removed.
    """

    staged: Path
    paths: tuple[str, ...]
    text: str
    record: QuantizeRecord
    dropped: tuple[str, ...] = ()


def publish(folder: Path, publication: ReleaseEdit) -> None:
    """Put the files into the version, then its manifest; until that is replaced, the release is the former one.

    Raises OSError.
    """
    for path in publication.paths:
        link_file(publication.staged / path, folder / path)
    write_file(folder / CACHE / RECORD, json.dumps(asdict(publication.record)).encode())
    manifest = folder / MANIFEST
    write_file(manifest, publication.text.encode(), manifest.stat().st_mode & 0o777)
    for name in publication.dropped:
        shutil.rmtree(folder / name, ignore_errors=True)


def forget_others(folder: Path, kept: Collection[str]) -> None:
    """Remove variants of other data or settings from the kept ones."""
    for entry in (folder / CACHE).iterdir():
        if entry.is_dir() and entry.name not in kept:
            shutil.rmtree(entry, ignore_errors=True)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return ""
