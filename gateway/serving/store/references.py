"""Files to which model files refer: the external data of ONNX, the weights of OpenVINO IR."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Artifact, Variant
from gateway.common.domain.model_files import HEAD_BYTES, damage, inner_path, is_model
from gateway.common.domain.onnx_file import COMPILED, may_refer, read_onnx
from gateway.common.store.plain import file_digest, open_plain


def read_artifact(folder: Path, path: str) -> Artifact:
    """Return a file of `folder` with its digest and size. Raises OSError."""
    file = folder / path
    return Artifact(path, file_digest(file), file.stat().st_size)


def references(folder: Path, path: str) -> tuple[str, ...]:
    """Return the files, relative to `folder`, that the model file `path` of that folder refers to.

    Raises ConfigurationError if one is missing or outside the folder, also by a symbolic link, or if the model cannot
    be read to its end; OSError.
    """
    file = folder / path
    try:
        named = dict.fromkeys(inner_path(path, location) for location in _locations(file))
    except ValueError as error:
        raise ConfigurationError(str(error), file=str(file)) from None
    found = tuple(name for name in named if name != str(PurePosixPath(path)))
    for other in found:
        if not (folder / other).resolve().is_relative_to(file.parent.resolve()):
            problem = f"refers to {other}, a link that leads out of the model's folder; put the file itself there"
            raise ConfigurationError(problem, file=str(file))
        if not (folder / other).is_file():
            problem = f"refers to {other}, which is missing; put it next to the model, under that name"
            raise ConfigurationError(problem, file=str(file))
    return found


def check_references(variants: Iterable[Variant], folder: Path) -> None:
    """Check that every file to which a variant's models refer is among its artifacts.

    Raises ConfigurationError with the line to add to the manifest, or as `references` does; OSError.
    """
    for variant in variants:
        listed = {str(PurePosixPath(artifact.path)) for artifact in variant.artifacts}
        for artifact in variant.artifacts:
            for path in references(folder, artifact.path):
                if path not in listed:
                    absent = read_artifact(folder, path)
                    line = f'{{path = "{absent.path}", sha256 = "{absent.sha256}", bytes = {absent.size_bytes}}}'
                    problem = f"{artifact.path} refers to {path}, which is not among the artifacts; add {line}"
                    raise ConfigurationError(problem, file=str(folder), table=f"variant {variant.name}")


def _locations(file: Path) -> tuple[str, ...]:
    """Return the references of a model file, relative to its own folder. Raises ValueError, OSError."""
    if is_model(file.name):
        with open_plain(file) as stream:
            if problem := damage(stream.read(HEAD_BYTES)):
                raise ValueError(problem)
    if file.name.endswith(".onnx"):  # also a file called ".onnx", which has no suffix but which runtimes open
        with open_plain(file) as stream:
            if not may_refer(stream):
                return ()
            facts = read_onnx(stream)
        if COMPILED in facts.operators:
            raise ValueError(f"holds a compiled part ({COMPILED}), whose files cannot be checked; use the model itself")
        return facts.external
    weights = file.with_suffix(".bin")
    return (weights.name,) if file.suffix == ".xml" and weights.exists() else ()
