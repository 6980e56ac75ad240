"""Declaration of a pipeline, several models that answer as one: inputs, steps, outputs. Values.

The form is in docs/pages/reference/pipeline.md. What needs the manifests of the models is checked when they are known
(`gateway.serving.pipelines`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from keyword import kwlist

from gateway.common.domain.expressions import Expression
from gateway.common.domain.manifest import ROWS, Artifact, Golden, ModelManifest, StreamLimits, TensorSpec, Variant
from gateway.common.domain.tensor import Datatype

PIPELINE = "pipeline.toml"
"""Name of the file, in the folder of the version."""
RUNTIME = "pipeline"
"""Name of what runs it, in place of a runtime, and of its only variant."""
ROWS_LIMIT = 1_000
"""Most rows that one request may make of one of its rows: of tiles, of objects."""
REQUEST_ROWS_LIMIT = 10_000
"""Most rows of one step of one request: more than any step makes of one row, for all rows."""
PYTHON_MIB = 512
"""Data of a Python step's process unless it declares another bound; Python and numpy take about 60."""
ANSWER_KINDS = ("text", "number", "flag")
CODE_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
"""Names of inputs and outputs of Python code, which may be that of other servers."""
STATE = "state"
"""Parameter of the manifest of a pipeline that has steps with state."""
ASKS = "asks"
"""Parameter of the manifest of a pipeline that runs language models: their names."""
TOTALS, DURATIONS = "totals", "durations_s"
"""Parameters with the names of its outputs that are totals, and that are times, of `count` steps."""
IMAGE, TEXT = "image", "text"
"""Inputs that are no plain tensors: an encoded JPEG or PNG image, and a text in UTF-8."""
RESERVED = frozenset({"true", "false", "result", "task", *kwlist})


@dataclass(frozen=True, slots=True)
class PipelineInput:
    """Input of a pipeline. `kind` is `image`, `text` or `tensor`; `shape` is that of one row, without the rows."""

    name: str
    kind: str
    datatype: Datatype = Datatype.BYTES
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TextQuestion:
    """Question to a language model, besides the text of a row: an instruction, and the form of the answer.

    `answer`: fields by name, each one of ANSWER_KINDS or the texts that it may be; none: the answer is a plain text.
    """

    system: str
    max_tokens: int
    adapter: str
    answer: Mapping[str, str | tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStep:
    """Run of a model. `inputs`: expression by the model's input; the key "" is its only one. `question`: it is asked.

    Rows for which `when` is false are skipped; their values are those of the step `otherwise`, or absent. A run that
    fails, or takes longer than `deadline_s` (0: what the request has left), has the values of `fallback`; None: the
    request fails. `version` "" is the version that the model's name leads to.
    """

    name: str
    model: str
    version: str
    inputs: Mapping[str, Expression]
    when: Expression | None = None
    otherwise: str = ""
    deadline_s: float = 0.0
    fallback: Mapping[str, float | str | bool] | None = None
    question: TextQuestion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonStep(ModelStep):
    """Run of a class in a `file` of the release, in a process of its own, which has the outputs that are declared.

    `model` names no model but this step. `files`: others that its code reads. `parameters` are for the class. `batch`
    False: it runs for one row at a time, without the dimension of rows. `stream`: it gets the stream of each request,
    and those of a stream in their order.
    """

    file: str
    entry: str
    outputs: tuple[PipelineInput, ...]
    files: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    memory_mib: int = PYTHON_MIB
    batch: bool = True
    stream: bool = False


@dataclass(frozen=True, slots=True)
class RuleStep:
    """Columns computed from others."""

    name: str
    columns: Mapping[str, Expression]


@dataclass(frozen=True, slots=True)
class SelectStep:
    """Rows of `source` for which `where` holds, the `top` first of them by `by`, descending (0: all)."""

    name: str
    source: str
    where: Expression | None = None
    by: Expression | None = None
    top: int = 0


@dataclass(frozen=True, slots=True)
class MergeStep:
    """Objects of several steps, or of all tiles, as one list; with `nms_iou` > 0 without those that overlap more."""

    name: str
    sources: tuple[str, ...]
    nms_iou: float = 0.0


@dataclass(frozen=True, slots=True)
class TileStep:
    """Tiles of `size` (height, width) pixels that cover an image; neighbours share `overlap` (0 to 0.9) of a side."""

    name: str
    image: Expression
    size: tuple[int, int]
    overlap: float = 0.0


@dataclass(frozen=True, slots=True)
class MatchStep:
    """Nearest entry, by cosine similarity, of a `gallery` (a file of the version's folder) to the vectors `of`.

    An entry with less than `least` similarity is none: its label is `unknown`.
    """

    name: str
    gallery: str
    of: Expression
    least: float = 0.5
    unknown: str = "unknown"


@dataclass(frozen=True, slots=True)
class TrackStep:
    """Objects of `source` that are followed from frame to frame of a stream.

    Scores from `high` on are matched first, then those from `low` on. An object is forgotten after `lost` frames.
    """

    name: str
    source: str
    high: float = 0.5
    low: float = 0.1
    lost: int = 30


Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class CountStep:
    """Objects of `source`, which are followed, that cross lines and are in zones: places in shares of an `image`."""

    name: str
    source: str
    image: str
    lines: Mapping[str, tuple[Point, ...]]
    zones: Mapping[str, tuple[Point, ...]]

    @property
    def columns(self) -> list[str]:
        """Return the names of its columns: four for each line, two for each zone."""
        of_lines = [f"{line}_{way}" for line in self.lines for way in ("in", "out", "in_total", "out_total")]
        return of_lines + [f"{zone}{part}" for zone in self.zones for part in ("", "_s")]

    @property
    def totals(self) -> list[str]:
        """Return the names of the columns that only grow."""
        return [f"{line}_{way}_total" for line in self.lines for way in ("in", "out")]

    @property
    def durations(self) -> list[str]:
        """Return the names of the columns with times."""
        return [f"{zone}_s" for zone in self.zones]


@dataclass(frozen=True, slots=True)
class WindowStep:
    """Windows of the last `size` values `of` a stream; a new one is complete every `hop` values.

    Each row is one value, or several if its first size is open.
    """

    name: str
    of: Expression
    size: int
    hop: int


Step = ModelStep | RuleStep | SelectStep | MergeStep | TileStep | MatchStep | TrackStep | CountStep | WindowStep
Output = Expression | Mapping[str, Expression]
"""Value of an output: an expression, or one object for each row of a step, with expressions by key."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Pipeline as its author declares it. A step reads inputs and earlier steps only: there are no cycles."""

    name: str
    version: str
    inputs: tuple[PipelineInput, ...]
    steps: tuple[Step, ...]
    outputs: Mapping[str, Output]
    text: str = ""
    file: str = ""
    golden: Golden | None = None
    state: StreamLimits | None = None

    @property
    def galleries(self) -> tuple[str, ...]:
        """Return the galleries that it reads, each once."""
        return tuple(dict.fromkeys(step.gallery for step in self.steps if isinstance(step, MatchStep)))

    @property
    def python(self) -> tuple[PythonStep, ...]:
        """Return the steps that run code of the release."""
        return tuple(step for step in self.steps if isinstance(step, PythonStep))

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files of its release besides itself, each once: galleries, code, and what that reads."""
        code = [file for step in self.python for file in (step.file, *step.files)]
        return tuple(dict.fromkeys((*self.galleries, *code)))

    @property
    def models(self) -> tuple[tuple[str, str], ...]:
        """Return name and version ("": any) of each model that it runs, once."""
        models = (step for step in self.steps if isinstance(step, ModelStep) and not isinstance(step, PythonStep))
        named = ((step.model, step.version) for step in models)
        return tuple(dict.fromkeys(named))


def pipeline_manifest(pipeline: Pipeline, artifacts: tuple[Artifact, ...]) -> ModelManifest:
    """Return what stands for a pipeline among releases: its inputs, the names of its outputs, and one variant.

    The variant's `artifacts` are its files. Types of outputs are those of the models, which are not known here.
    """
    inputs = tuple(TensorSpec(each.name, each.datatype, (ROWS, *each.shape)) for each in pipeline.inputs)
    names = [
        f"{name}.{key}" if key else name
        for name, output in pipeline.outputs.items()
        for key in ([""] if isinstance(output, Expression) else output)
    ]
    outputs = tuple(TensorSpec(name, Datatype.BYTES, (ROWS,)) for name in names)
    variant = Variant(RUNTIME, RUNTIME, "none", artifacts)
    return ModelManifest(pipeline.name, pipeline.version, inputs, outputs, (variant,), golden=pipeline.golden)


def keeps_state(manifest: ModelManifest) -> bool:
    """Return True for a pipeline with state, and for a model with sequences."""
    return manifest.sequence is not None or (not manifest.variants and STATE in manifest.parameters)
