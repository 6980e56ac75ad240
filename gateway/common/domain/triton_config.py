"""Triton's `config.pbtxt` next to a bare model: the supported subset, and the reason to refuse any other field.

Source: model_config.proto of Triton's common repository, r26.06. A field that changes answers is applied or refused. A
field that changes only how Triton schedules its runs is accepted, and a remark says which setting replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import (
    CONTROLS,
    CORRID,
    LAYOUTS,
    ControlInput,
    SequenceBatching,
    StateTensors,
    StreamLimits,
)
from gateway.common.domain.manifest_toml import CONTROL_TYPES, CORRID_TYPES, IDLE_LIMIT_S, SEQUENCES_LIMIT
from gateway.common.domain.routing import version_order
from gateway.common.domain.runtimes import BY_BACKEND
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.text_format import Block, read_text_format

ROWS_LIMIT = 1_000_000
"""Largest max_batch_size: the rows of one request."""
DIMENSION_LIMIT = 2**31 - 1
VERSION_LIMIT = 2**63 - 1
PYTHON = "python"
"""Backend of models that are Python code."""

_DATATYPES: Mapping[str, Datatype] = {
    f"TYPE_{'STRING' if datatype is Datatype.BYTES else datatype.label}": datatype for datatype in Datatype
}

_REFUSED: Mapping[str, str] = {
    "ensemble_scheduling": "make a pipeline of it: edge-gateway models import",
    "batch_input": "send these inputs in the request",
    "batch_output": "remove it; every request gets its own rows",
    "model_operations": "custom operators are not loaded; export the model without them",
    "model_repository_agents": "copy the model's files into the model directory",
    "cc_model_filenames": "name one file with default_model_filename",
}
_REFUSED_OF_TENSOR: Mapping[str, str] = {
    "allow_ragged_batch": "pad the inputs to one shape",
    "is_shape_tensor": "it belongs to TensorRT plans; use the ONNX file",
    "is_non_linear_format_io": "it belongs to TensorRT plans; use the ONNX file",
}
_REFUSED_OF_SEQUENCES = dict.fromkeys(("iterative_sequence", "generative_sequence"), "every request has one answer")
_REMARKS: Mapping[str, str] = {
    "optimization": "the trials choose runtime, accelerator and threads",
    "model_warmup": "every model is tried with generated inputs before it serves",
    "model_metrics": "/metrics has its own buckets",
    "runtime": "the runtime that fits the model file runs it",
    "metric_tags": "/metrics labels models by name and version",
}


@dataclass(frozen=True, slots=True)
class ConfigTensor:
    """An input or output as the configuration describes it; `dims` and `reshape` without the batch dimension.

    `optional`: a request may leave it out, for which the model file has a value.
    """

    name: str
    datatype: Datatype
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    layout: str = ""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Versions to serve: the number of `latest` ones (0: not bounded), or the `specific` ones."""

    latest: int = 0
    specific: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """Run of a model in an ensemble: the ensemble's tensors by the names of the model's inputs and outputs."""

    model: str
    version: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TritonConfig:
    """Configuration as read. `max_batch_size` None: not stated. `runtime` "": not stated.

    `remarks`: fields that were accepted and have no effect here, each with its replacement. `joins`: it has
    dynamic_batching, which states that requests may share a run. `parameters` are the strings that ModelConfig repeats.
    `runs`: the instances on the processor, which are runs at a time here (0: not stated). `hidden`: inputs, and
    outputs, that no caller sees: states and controls of its `sequence`.
    """

    file: str
    runtime: str = ""
    max_batch_size: int | None = None
    inputs: tuple[ConfigTensor, ...] = ()
    outputs: tuple[ConfigTensor, ...] = ()
    label_filename: str = ""
    model_filename: str = ""
    versions: VersionPolicy = VersionPolicy()
    remarks: tuple[str, ...] = ()
    joins: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    runs: int = 0
    sequence: SequenceBatching | None = None
    hidden: tuple[tuple[ConfigTensor, ...], tuple[ConfigTensor, ...]] = ((), ())

    @property
    def batched(self) -> bool | None:
        """Return True if the first dimension counts rows, which Triton adds to `dims`; None if not stated."""
        if self.max_batch_size is None:
            return False if self.inputs or self.outputs else None
        return self.max_batch_size > 0

    def check_runtime(self, runtime: str) -> None:
        """Check that the model file is one for the backend. Raises ConfigurationError."""
        if self.runtime not in {"", runtime}:
            problem = f"names a backend for {self.runtime} files, but the model is one for {runtime}; make them agree"
            raise ConfigurationError(problem, file=self.file, key="backend")

    def unserved(self, versions: Sequence[str]) -> Sequence[str]:
        """Return the versions that the policy leaves out."""
        policy = self.versions
        if policy.specific:
            return [version for version in versions if version not in policy.specific]
        return sorted(versions, key=version_order)[: -policy.latest] if policy.latest else []

    def missing(self, versions: Sequence[str]) -> Mapping[str, str]:
        """Return the versions that the policy names and that are not among `versions`, with the problem."""
        absent = [version for version in self.versions.specific if version not in versions]
        where = PurePosixPath(self.file).name
        return dict.fromkeys(absent, f"is missing, and version_policy specific in {where} names it; add it there")


def read_config(text: str, file: str, model: str) -> TritonConfig:
    """Read a configuration; `file` is named in errors, `model` is the name that it must have.

    Raises ConfigurationError with the line for a field that is unknown or not for this model, UnofferedError for one
    that is not offered here.
    """
    top = read_text_format(text, file)
    top.refuse_any(_REFUSED)
    return _config(top, file, model)


def read_ensemble(text: str, file: str, model: str) -> tuple[TritonConfig, tuple[EnsembleStep, ...]] | None:
    """Read the configuration of an ensemble; None for another model. Raises as `read_config` does."""
    top = read_text_format(text, file)
    scheduling = top.block("ensemble_scheduling")
    if scheduling is None:
        return None
    if (platform := top.text("platform")) not in {"", "ensemble"}:
        top.refuse("platform", f"must be ensemble, as there is ensemble_scheduling, not {platform!r:.80}")
    top.refuse_any(_REFUSED)
    steps = tuple(map(_ensemble_step, scheduling.blocks("step")))
    scheduling.finish()
    return _config(top, file, model), steps


def read_python(text: str, file: str, model: str) -> TritonConfig | None:
    """Read the configuration of a model of Triton's Python backend; None for another one. Raises as `read_config`."""
    top = read_text_format(text, file)
    if top.text("backend") != PYTHON:
        return None
    top.refuse_any(_REFUSED)
    return _config(top, file, model)


def _ensemble_step(block: Block) -> EnsembleStep:
    if block.text("model_namespace"):
        block.not_offered("model_namespace", "is not offered here: a name is that of one model")
    model, version = block.text("model_name"), block.integer("model_version", low=-1, high=VERSION_LIMIT)
    if not model:
        block.refuse("model_name", "missing; name the model that the step runs")
    inputs, outputs = (dict(map(_mapped, block.blocks(key))) for key in ("input_map", "output_map"))
    block.finish()
    return EnsembleStep(model, "" if version in {None, -1} else str(version), inputs, outputs)


def _mapped(block: Block) -> tuple[str, str]:
    found = block.text("key"), block.text("value")
    block.finish()
    return found


def _config(top: Block, file: str, model: str) -> TritonConfig:
    name = top.text("name")
    if name not in {"", model}:
        top.refuse("name", f"says {name!r:.150}, but the folder is called {model!r}; make them agree")
    outputs, labels = _outputs(top)
    instances = [_instances(block) for block in top.blocks("instance_group")]
    sequence, hidden, remarks = _sequence(block) if (block := top.block("sequence_batching")) else _NO_SEQUENCE
    config = TritonConfig(
        file=file,
        runtime=_runtime(top),
        max_batch_size=top.integer("max_batch_size", low=0, high=ROWS_LIMIT),
        inputs=_distinct(top, "input", map(_input, top.blocks("input"))),
        outputs=outputs,
        label_filename=labels,
        model_filename=_plain_name(top, "default_model_filename"),
        versions=_versions(top.block("version_policy")),
        joins="dynamic_batching" in top or sequence is not None,
        sequence=sequence,
        hidden=hidden,
        parameters=dict(map(_parameter, top.blocks("parameters"))),
        runs=sum(runs for runs, _ in instances),
        remarks=tuple(
            dict.fromkeys([*filter(None, (remark for _, remark in instances)), *_scheduling(top, model), *remarks])
        ),
    )
    top.finish()
    return config


_Sequence = tuple[SequenceBatching | None, tuple[tuple[ConfigTensor, ...], tuple[ConfigTensor, ...]], list[str]]
_NO_SEQUENCE: _Sequence = None, ((), ()), []


def _sequence(block: Block) -> _Sequence:
    """Return the sequences of a model, the tensors that no caller sees, and remarks."""
    block.refuse_any(_REFUSED_OF_SEQUENCES)
    idle_us = block.integer("max_sequence_idle_microseconds", low=0, high=int(IDLE_LIMIT_S * 1e6))
    left = [key for key in ("direct", "oldest") if block.skip(key)]
    states, controls = list[StateTensors](), list[ControlInput]()
    inputs, outputs = list[ConfigTensor](), list[ConfigTensor]()
    for each in block.blocks("control_input"):
        name = each.text("name")
        for control in each.blocks("control"):
            found, datatype = _control(control, name)
            controls.append(found)
            inputs.append(ConfigTensor(name, datatype, (1,)))
        each.finish()
    for each in block.blocks("state"):
        for key in ("use_same_buffer_for_input_output", "use_growable_memory"):
            each.skip(key)  # how Triton keeps it in memory
        states.append(StateTensors(each.text("input_name"), each.text("output_name")))
        datatype, dims = _datatype(each), each.integers("dims", low=-1, high=DIMENSION_LIMIT)
        for initial in each.blocks("initial_state"):
            if "data_file" in initial:
                initial.not_offered("data_file", "is not offered here; a state begins with zeros, or one value")
            if initial.integers("dims", low=1, high=DIMENSION_LIMIT) != tuple(max(1, size) for size in dims):
                initial.not_offered("dims", f"is offered as the sizes of the state, {list(dims)}, open ones as 1")
            for key in ("name", "data_type", "zero_data"):
                initial.skip(key)
            initial.finish()
        inputs.append(ConfigTensor(states[-1].input, datatype, dims))
        outputs.append(ConfigTensor(states[-1].output, datatype, dims))
        each.finish()
    block.finish()
    limits = StreamLimits(SEQUENCES_LIMIT, (idle_us or 1e6) / 1e6)  # Triton's default; it does not bound sequences
    remarks = [f"sequence_batching.{key} is not applied: all sequences run as they come, joined" for key in left]
    sequence = SequenceBatching(tuple(states), tuple(controls), limits)
    return sequence, (tuple(inputs), tuple(outputs)), remarks


def _control(block: Block, name: str) -> tuple[ControlInput, Datatype]:
    """Return a control, and the datatype of its input."""
    kind, named = block.word("kind").removeprefix("CONTROL_SEQUENCE_").lower(), block.word("data_type")
    if kind not in CONTROLS:
        block.refuse("kind", f"must be one of {', '.join(f'CONTROL_SEQUENCE_{each.upper()}' for each in CONTROLS)}")
    if kind == CORRID:
        if _DATATYPES.get(named) not in CORRID_TYPES:
            known = sorted(word for word, datatype in _DATATYPES.items() if datatype in CORRID_TYPES)
            block.refuse("data_type", f"must be one of {', '.join(known)}, not {named!r:.40}")
        block.finish()
        return ControlInput(name, kind), _DATATYPES[named]
    found = [(each, pair) for each in CONTROL_TYPES if (pair := block.numbers(f"{each.label.lower()}_false_true"))]
    block.finish()
    if len(found) != 1 or len(found[0][1]) != 2:
        block.refuse("kind", f"control {name!r:.150} needs one of int32_false_true, fp32_false_true, bool_false_true")
    datatype, (no, yes) = found[0]
    return ControlInput(name, kind, (no, yes)), datatype


def _parameter(block: Block) -> tuple[str, str]:
    value = block.block("value")
    found = block.text("key"), value.text("string_value") if value else ""
    for part in filter(None, (value, block)):
        part.finish()
    return found


def _runtime(top: Block) -> str:
    found = ""
    for key in ("platform", "backend"):
        value = top.text(key)
        if value == PYTHON:
            top.not_offered(key, "'python' is not offered here; make a pipeline of it: edge-gateway models import")
        if value and value not in BY_BACKEND:
            offered = ", ".join(name for name in BY_BACKEND if name not in BY_BACKEND.values())
            top.not_offered(key, f"{value!r:.80} is not offered here; use one of {offered} with a file for it")
        if value and found not in {"", BY_BACKEND[value]}:
            top.refuse(key, "platform and backend contradict each other; remove one")
        found = BY_BACKEND.get(value, found)
    return found


def _input(block: Block) -> ConfigTensor:
    optional = block.flag("optional")
    layout = block.word("format").removeprefix("FORMAT_").replace("NONE", "")
    if layout not in {"", *LAYOUTS}:
        block.refuse("format", f"must be FORMAT_NONE, FORMAT_NCHW or FORMAT_NHWC, not {layout!r:.40}")
    tensor = replace(_tensor(block, layout), optional=optional)
    block.finish()
    return tensor


def _outputs(top: Block) -> tuple[tuple[ConfigTensor, ...], str]:
    """Return the outputs and the label file, which only one of them can have."""
    found: list[ConfigTensor] = []
    labels = ""
    for block in top.blocks("output"):
        named = _plain_name(block, "label_filename")
        if labels and named not in {"", labels}:
            block.not_offered("label_filename", f"only one label file is offered, and {labels} is named already")
        labels = labels or named
        found.append(_tensor(block, ""))
        block.finish()
    return _distinct(top, "output", found), labels


def _distinct(top: Block, key: str, tensors: Iterable[ConfigTensor]) -> tuple[ConfigTensor, ...]:
    """Return the tensors. Raises ConfigurationError if two have one name."""
    by_name: dict[str, ConfigTensor] = {}
    for tensor in tensors:
        if by_name.setdefault(tensor.name, tensor) is not tensor:
            top.refuse(key, f"describes {tensor.name!r:.150} twice; keep one")
    return tuple(by_name.values())


def _tensor(block: Block, layout: str) -> ConfigTensor:
    block.refuse_any(_REFUSED_OF_TENSOR)
    name = block.text("name")
    if not name:
        block.refuse("name", "missing; name the tensor as the model file does")
    datatype = _datatype(block)
    dims = block.integers("dims", low=-1, high=DIMENSION_LIMIT)
    if 0 in dims:
        block.refuse("dims", "a dimension must be positive, or -1 for any size")
    return ConfigTensor(name, datatype, dims, _reshape(block, dims), layout)


def _datatype(block: Block) -> Datatype:
    word = block.word("data_type")
    if word not in _DATATYPES:
        block.refuse("data_type", f"must be one of {', '.join(_DATATYPES)}, not {word!r:.40}")
    return _DATATYPES[word]


def _reshape(block: Block, dims: tuple[int, ...]) -> tuple[int, ...] | None:
    inner = block.block("reshape")
    if inner is None:
        return None
    shape = inner.integers("shape", low=-1, high=DIMENSION_LIMIT)
    inner.finish()
    if -1 in dims or -1 in shape:
        block.not_offered("reshape", "is offered for fixed dims only; give dims as the model file has them")
    if _product(shape) != _product(dims):
        block.refuse("reshape", f"{list(shape)} holds another number of elements than dims {list(dims)}")
    return shape


def _product(shape: Sequence[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _plain_name(block: Block, key: str) -> str:
    value = block.text(key)
    if value and (PurePosixPath(value).name != value or value in {".", ".."} or not value.isprintable()):
        block.refuse(key, f"must be the name of a file in the same folder, not {value!r:.150}")
    return value


def _versions(block: Block | None) -> VersionPolicy:
    if block is None:
        return VersionPolicy()
    latest, specific, everything = block.block("latest"), block.block("specific"), block.block("all")
    block.finish()
    if sum(choice is not None for choice in (latest, specific, everything)) > 1:
        block.refuse("", "latest, specific and all exclude each other; keep one")
    if latest is not None:
        count = latest.integer("num_versions", low=1, high=VERSION_LIMIT) or 1
        latest.finish()
        return VersionPolicy(latest=count)
    if specific is None:
        return VersionPolicy()
    versions = tuple(map(str, specific.integers("versions", low=0, high=VERSION_LIMIT)))
    if not versions:
        specific.refuse("versions", "missing; name the versions to serve, or remove version_policy")
    specific.finish()
    return VersionPolicy(specific=versions)


def _scheduling(top: Block, model: str) -> list[str]:
    """Return remarks on fields that state only how Triton runs a model."""
    remarks = [f"{key} is not applied: {why}" for key, why in _REMARKS.items() if top.skip(key)]
    readers: Mapping[str, Callable[[Block], str]] = {
        "dynamic_batching": lambda block: _joining(block, model),
        "response_cache": _cache,
        "model_transaction_policy": _transactions,
    }
    for key, read in readers.items():
        remarks += [remark for block in top.blocks(key) if (remark := read(block))]
    return remarks


def _instances(block: Block) -> tuple[int, str]:
    """Return the instances of a group that are runs at a time here (0: not stated), and a remark on what is left."""
    count = block.integer("count", low=0, high=ROWS_LIMIT) or 0
    kind = block.word("kind").removeprefix("KIND_")
    block.text("name")
    block.integers("gpus", low=0, high=ROWS_LIMIT)
    known = ("profile", "passive", "secondary_devices", "host_policy", "rate_limiter")
    left = [f"instance_group.{key}" for key in known if block.skip(key)]
    block.finish()
    if kind not in {"", "AUTO", "CPU", "MODEL"}:
        count, left = 0, ["instance_group"]
    what = "the trials choose the accelerator and its sessions ([selection])"
    return count, f"{', '.join(left)} is not applied: {what}" if left else ""


def _joining(block: Block, model: str) -> str:
    delay_us = block.integer("max_queue_delay_microseconds", low=0, high=VERSION_LIMIT)
    known = (
        "preferred_batch_size",
        "preserve_ordering",
        "priority_levels",
        "default_priority_level",
        "default_queue_policy",
        "priority_queue_policy",
    )
    others = [key for key in known if block.skip(key)]
    block.finish()
    queue = f'[[limits.queue]] model = "{model}"'
    wait = [f"max_queue_delay_microseconds (set delay_us = {delay_us} in {queue})"] if delay_us else []
    left = wait + [f"{key} (see {queue})" for key in others]
    return f"dynamic_batching is not applied: {', '.join(left)}" if left else ""


def _cache(block: Block) -> str:
    enabled = block.flag("enable")
    block.finish()
    return "response_cache is not applied: every request is run" if enabled else ""


def _transactions(block: Block) -> str:
    if block.flag("decoupled"):
        block.not_offered("decoupled", "is not offered here: only language models answer in parts; remove it")
    block.finish()
    return ""
