"""Declaration of a model release: inputs, outputs, labels, variants, golden set. Pure values.

The TOML form (docs/pages/reference/manifest.md) is read by `gateway.common.domain.manifest_toml`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.common.domain.audio import AudioPreprocess
from gateway.common.domain.tensor import Datatype

PRECISIONS = ("fp32", "fp16", "bf16", "int8")
LAYOUTS = ("NCHW", "NHWC", "NCL", "NLC")
"""Axes by letter: N rows, C channels, H height, W width, L length."""
OWN_LAYOUTS = (*LAYOUTS, "LNC")
"""Layouts that a variant's own tensors may have. LNC is the default of recurrent networks: rows come second."""
LEVELS = ("unverified", "exercised", "proven")
"""Results of a trial, ascending: the variant opens; it ran on generated inputs; its golden set passed."""
INDEPENDENT = "independent"
"""Value of `rows`."""
ROWS = -1
"""A dimension whose size the caller chooses; in first place it counts batch rows."""


def fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Return True if `shape` is `wanted` with a size in place of every -1."""
    return len(shape) == len(wanted) and all(w in {ROWS, size} for size, w in zip(shape, wanted, strict=True))


IMAGE_FORMATS = ("jpeg", "png")
"""Formats of encoded images."""
FRAME_FORMATS = ("nv12", "i420", "yuyv")
"""Formats of raw frames of cameras: 4:2:0 in two or three planes, 4:2:2 packed. They have no header."""


@dataclass(frozen=True, slots=True)
class Preprocess:
    """Conversion of images to an input: decode, colour, resize (height, width), fit, (x·scale − mean) / std.

    Mean and standard deviation are per channel. `pad_value` (0 to 255) surrounds a letterbox; with `align` top-left it
    is right of the image and below it. A crop keeps the share `crop_share` (0 to 1) of the shorter side. `resample`
    names the filter of the resize. By `orientation`, encoded images are turned upright as their EXIF data tell, or left
    as they are stored. Raw frames have the size `frame` (height, width), both even, and colours by
    `color_matrix` (ITU-R BT.601 or BT.709) in `color_range`.
    """

    decode: tuple[str, ...]
    color: str = "rgb"
    resize: tuple[int, int] | None = None
    fit: str = "stretch"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    pad_value: int = 0
    align: str = "center"
    crop_share: float = 1.0
    resample: str = "bilinear"
    frame: tuple[int, int] | None = None
    color_matrix: str = "bt601"
    color_range: str = "limited"
    orientation: str = "upright"

    @property
    def channels(self) -> int:
        """Return the number of values per pixel."""
        return 1 if self.color == "gray" else 3


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as every client sees it. `layout` names the axes if they matter ("" otherwise).

    `axes` are the names that a bare model's file gives to its open dimensions ("" for one without). Dimensions of one
    name have one size. Empty if the file names none. `default` is the value of all elements of an input that a request
    leaves out (None: it must be sent); its dimensions are fixed but the first.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    layout: str = ""
    finite: bool = False
    preprocess: Preprocess | None = None
    postprocess: str = ""
    axes: tuple[str, ...] = ()
    audio: AudioPreprocess | None = None
    default: float | bytes | None = None

    @property
    def takes_encoded(self) -> bool:
        """Return True if the input declares how encoded images or recordings become its values."""
        return self.preprocess is not None or self.audio is not None


@dataclass(frozen=True, slots=True)
class Window:
    """Time-series input: windows of `size_rows` samples of `channels`; a new one begins every `hop_rows`."""

    channels: tuple[str, ...]
    size_rows: int
    hop_rows: int
    rate_hz: float


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of a variant: path relative to the manifest's folder, content digest, size."""

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Binding:
    """The variant's own name, layout and shape of one of the manifest's tensors.

    `shape` None: the same; else as many elements in other dimensions, at most the first of them open.
    """

    name: str
    layout: str = ""
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """One runtime × precision of a model. `accuracy` in 0..1, None if unknown. `needs` are CPU features.

    `signature` names the served signature of a TFLite file with several ("": the file's own default). `adapters`: those
    of its artifacts, by their names, with which a request may change the weights (LoRA).
    """

    name: str
    runtime: str
    precision: str
    artifacts: tuple[Artifact, ...]
    accelerators: tuple[str, ...] = ("cpu",)
    accuracy: float | None = None
    needs: tuple[str, ...] = ()
    bind: Mapping[str, Binding] = field(default_factory=dict)
    signature: str = ""
    adapters: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """Return the SHA-256 of the names and digests of its files."""
        files = sorted((artifact.path, artifact.sha256) for artifact in self.artifacts)
        return hashlib.sha256(repr(files).encode()).hexdigest()

    def binding(self, tensor: str) -> Binding:
        """Return the variant's binding of `tensor`; without one, the same name and no layout."""
        return self.bind.get(tensor) or Binding(tensor)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Tolerances.

    `agreement`: least share of rows with the same best class. `mean_abs`: largest mean absolute difference.
    """

    agreement: float = 0.99
    mean_abs: float = 0.02


@dataclass(frozen=True, slots=True)
class Golden:
    """Held-out inputs and their expected answers (an npz next to the manifest), with tolerances per runtime."""

    file: str
    sha256: str
    tolerance: Mapping[str, Tolerance] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits of the states that are kept: most streams or sequences (`keys`), and how long one may be idle.

    `keep_on_disk`: they go on after a restart of the gateway, which writes them to its folder of state.
    """

    keys: int = 1_000
    idle_s: float = 60.0
    keep_on_disk: bool = False


@dataclass(frozen=True, slots=True)
class StateTensors:
    """Output of a run that is the input of the next one of its sequence; all its elements are `initial` at first."""

    input: str
    output: str
    initial: float = 0.0


@dataclass(frozen=True, slots=True)
class ControlInput:
    """Input with a fact of the request: `kind` is one of CONTROLS. `false_true`: its values, but for `corrid`."""

    input: str
    kind: str
    false_true: tuple[float, float] = (0.0, 1.0)


CORRID = "corrid"
CONTROLS = ("start", "end", "ready", CORRID)
"""Kinds of control inputs, by Triton's names (CONTROL_SEQUENCE_…): CORRID is the request's `sequence_id`."""


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    """Model whose requests belong to sequences, with a state each. Callers do not see states and controls.

    `keep_state`: the states go on with another version of the model that says so and has equal states. `specs`: the
    inputs that `ModelManifest.seen` leaves out.
    """

    states: tuple[StateTensors, ...] = ()
    controls: tuple[ControlInput, ...] = ()
    limits: StreamLimits = StreamLimits()
    keep_state: bool = False
    specs: Mapping[str, TensorSpec] = field(default_factory=dict)

    @property
    def inputs(self) -> dict[str, None]:
        """Return the names of the inputs that no caller sends, in order."""
        return dict.fromkeys([each.input for each in self.states] + [each.input for each in self.controls])


@dataclass(frozen=True, slots=True)
class ModelManifest:
    """Model release: one name, one version, one set of tensors, many variants.

    `batch` states whether the first dimension of every tensor counts rows; None (bare models) leaves it to the trial.
    `task_options` are the keys of the table `[task]` except `kind`, which is `task`; None: there is no such table, and
    outputs are not interpreted. `answered` are the outputs of an answer whose request names none; empty: all.
    `require` is the least level of verification (one of LEVELS) that its owner demands, "" for the
    default. `max_batch_rows` bounds the rows of one request (0: the limit of the engine). `rows` is INDEPENDENT if the
    author declares that no row's answer depends on other rows of a run; "" leaves it to a proof. `parameters` are the
    strings that ModelConfig repeats for clients. `runs`: runs at a time as Triton's configuration demands them (0: the
    trial decides). `sequence` is for models with sequences: inputs and outputs include their states and controls.
    """

    name: str
    version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    variants: tuple[Variant, ...]
    task: str = ""
    task_options: Mapping[str, Any] | None = None
    labels: tuple[str, ...] = ()
    max_accuracy_loss: float = 0.01
    window: Window | None = None
    golden: Golden | None = None
    batch: bool | None = None
    require: str = ""
    max_batch_rows: int = 0
    rows: str = ""
    answered: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    runs: int = 0
    sequence: SequenceBatching | None = None

    @property
    def seen(self) -> ModelManifest:
        """Return the manifest as callers see it: without the states and controls of sequences."""
        if self.sequence is None:
            return self
        inputs = tuple(spec for spec in self.inputs if spec.name not in self.sequence.inputs)
        kept = [state.output for state in self.sequence.states]
        outputs = tuple(spec for spec in self.outputs if spec.name not in kept)
        sequence = replace(self.sequence, specs={spec.name: spec for spec in self.inputs if spec not in inputs})
        batch = self.batch if self.batched else False
        return replace(self, inputs=inputs, outputs=outputs, sequence=sequence, batch=batch)

    @property
    def batched(self) -> bool:
        """Return True if the first dimension of every tensor counts rows."""
        specs = self.inputs + self.outputs
        return self.batch is not False and bool(self.inputs) and all(spec.shape[:1] == (ROWS,) for spec in specs)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Return the names of the adapters, which all variants have."""
        return tuple(self.variants[0].adapters) if self.variants else ()

    @property
    def inspected(self) -> bool:
        """Return True if a runtime described the model (a bare file), not an author."""
        return self.batch is None

    @property
    def orientation(self) -> str:
        """Return how encoded images are read: `upright` or `stored`; "" for a model that takes none."""
        declared = (spec.preprocess for spec in self.inputs if spec.preprocess and not spec.preprocess.frame)
        return next((preprocess.orientation for preprocess in declared), "")

    def rows_limit(self, most: int) -> int:
        """Return the most rows that one request, or one run, may have if the engine allows `most`."""
        return min(most, self.max_batch_rows or most)

    def output(self, name: str) -> TensorSpec | None:
        """Return the output called `name`, or None."""
        return next((spec for spec in self.outputs if spec.name == name), None)

    def variant(self, name: str) -> Variant | None:
        """Return the variant called `name`, or None."""
        return next((variant for variant in self.variants if variant.name == name), None)

    def reference(self) -> Variant | None:
        """Return the reference of comparisons: the first fp32 variant with an accuracy, else the most accurate one."""
        measured = [variant for variant in self.variants if variant.accuracy is not None]
        exact = [variant for variant in measured if variant.precision == "fp32"]
        if exact:
            return exact[0]
        return max(measured, key=lambda variant: variant.accuracy or 0.0, default=None)
