"""Results of readers: models as they will be released, what was taken over, and what was not."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ROWS, Binding, SequenceBatching, TensorSpec
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.model_files import MODEL_STEM, NO_MODEL
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.verdict import Signature
from gateway.workshop.importing.source import Documents, SourceModel


class ImportOutcome(enum.Enum):
    """ImportOutcome of one fact of a source."""

    TAKEN = "taken over"
    LEFT_OUT = "left out"
    MISSING = "please add"


@dataclass(frozen=True, slots=True)
class ImportFinding:
    """A fact of a source (`what`), what became of it, and the value or the remedy."""

    outcome: ImportOutcome
    what: str
    text: str


def taken(what: str, text: object) -> ImportFinding:
    """Return a fact that was taken over."""
    return ImportFinding(ImportOutcome.TAKEN, what, str(text))


def left_out(what: str, text: str) -> ImportFinding:
    """Return a fact that has no counterpart, with the reason."""
    return ImportFinding(ImportOutcome.LEFT_OUT, what, text)


def to_add(what: str, text: str) -> ImportFinding:
    """Return a fact that the source does not tell, and how to add it."""
    return ImportFinding(ImportOutcome.MISSING, what, text)


@dataclass(frozen=True, slots=True)
class ImportedVariant:
    """Variant of a release: its model file and those to which it refers, by their paths in the source."""

    name: str
    file: str
    runtime: str
    precision: str
    others: tuple[str, ...] = ()
    bind: Mapping[str, Binding] = field(default_factory=dict)

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Return the accelerators of the runtime, as for bare models."""
        return RUNTIMES[self.runtime].accelerators


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """Release to write.

    `preprocess`: keys of `[input.preprocess]` by the name of the input. `task_options`: keys of `[task]`; None writes
    the task as text. `batch` False: the first dimension counts no rows.
    """

    name: str
    version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    variants: tuple[ImportedVariant, ...]
    labels: tuple[str, ...] = ()
    task: str = ""
    task_options: Mapping[str, Any] | None = None
    preprocess: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    batch: bool = True
    max_batch_rows: int = 0
    sequence: SequenceBatching | None = None
    findings: tuple[ImportFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportedPipeline:
    """Pipeline to write; `body` is its TOML after the version, `models` are the names of those that it runs.

    `files`: what is copied next to it, by paths in the source.
    """

    name: str
    version: str
    body: str
    models: tuple[str, ...] = ()
    findings: tuple[ImportFinding, ...] = ()
    variants: tuple[ImportedVariant, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SkippedModel:
    """Model, or version of one, that cannot be served here, with the reason and the remedy."""

    name: str
    version: str
    why: str


@dataclass(frozen=True, slots=True)
class ImportedSource:
    """Content of a source: the models and pipelines to write, and those that are skipped."""

    models: tuple[ImportedModel, ...]
    skipped: tuple[SkippedModel, ...] = ()
    pipelines: tuple[ImportedPipeline, ...] = ()

    @property
    def releases(self) -> tuple[ImportedModel | ImportedPipeline, ...]:
        """Return what is written."""
        return (*self.models, *self.pipelines)


def check_name(value: str, what: str, file: str = "") -> str:
    """Return a name of a model or version. Raises ConfigurationError with the remedy."""
    if not NAME_PATTERN.fullmatch(value):
        problem = (
            f"the {what} {value!r:.150} cannot be a folder's name: use 1 to 128 letters, digits, '.', '_' or '-', the "
            f"first a letter or digit; rename it, or import that model alone with --{what}"
        )
        raise ConfigurationError(problem, file=file)
    return value


def variant_of(model: SourceModel, name: str = "", bind: Mapping[str, Binding] | None = None) -> ImportedVariant:
    """Return the variant of a model file. Its name is runtime and precision unless given."""
    precision = model.precision or "fp32"
    return ImportedVariant(
        name or f"{model.runtime}-{precision}", model.path, model.runtime, precision, model.others, bind or {}
    )


def precision_finding(model: SourceModel) -> tuple[ImportFinding, ...]:
    """Return the remark on a file that does not tell its precision."""
    if model.precision:
        return ()
    advice = (
        f"{model.path} does not tell it, fp32 is assumed; correct it in [[variant]] if its weights are fp16 or int8"
    )
    return (to_add("precision", advice),)


def fitting_labels(
    labels: Sequence[str], outputs: Sequence[TensorSpec], what: str
) -> tuple[tuple[str, ...], tuple[ImportFinding, ...]]:
    """Return the labels if the number of classes of an output is theirs, or open; else none, and why."""
    if not labels:
        return (), (to_add("labels", "the source names none; add labels to manifest.toml if the model has classes"),)
    sizes = [spec.shape[-1] for spec in outputs if len(spec.shape) > 1]
    if len(labels) in sizes or ROWS in sizes or not sizes:
        return tuple(labels), (
            taken(what, f"labels: {len(labels)}, {', '.join(labels[:3])}{', …' * (len(labels) > 3)}"),
        )
    counts = " or ".join(map(str, sorted(set(sizes))))
    problem = f"names {len(labels)} classes, but the model has {counts}; add the right labels to manifest.toml"
    return (), (to_add(what, problem),)


def shapes(signature: Signature) -> tuple[ImportFinding, ...]:
    """Return the tensors as facts."""
    pairs = [("input", spec) for spec in signature.inputs] + [("output", spec) for spec in signature.outputs]
    return tuple(taken(f"{role} {spec.name}", f"{spec.datatype.label} {list(spec.shape)}") for role, spec in pairs)


NAME_LIMIT = 128


def only_model(documents: Documents) -> SourceModel:
    """Return the only model file of a source. Raises ConfigurationError if there is none, or several."""
    paths = sorted(documents.models)
    if not paths:
        raise ConfigurationError(NO_MODEL, file=documents.name)
    if len(paths) > 1:
        problem = f"holds several models: {', '.join(paths[:3])}; import each file alone"
        raise ConfigurationError(problem, file=documents.name)
    return documents.models[paths[0]]


def plain_name(text: str) -> tuple[str, tuple[ImportFinding, ...]]:
    """Return a name of a model made of any text, and the remark that it was changed."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text)
    name = re.sub(r"^[^A-Za-z0-9]+", "", name)[:NAME_LIMIT] or MODEL_STEM
    return name, () if name == text else (taken("name", f"{text:.80} becomes {name}; --name sets another"),)
