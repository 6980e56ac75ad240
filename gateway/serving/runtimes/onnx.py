"""ONNX Runtime: CPU everywhere, TensorRT and CUDA (or AMD's MIGraphX and ROCm) if the installed build has them.

The only importer of onnxruntime. Options of a ladder step: `graph_optimization` (disable, basic,
extended, all) and `providers` (execution providers separated by commas, the first choice first).
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np

from gateway.common.domain.errors import VariantError, lacks_memory
from gateway.common.domain.inventory import CPU
from gateway.common.domain.manifest import ModelManifest, TensorSpec, Variant
from gateway.common.domain.tensor import Array, Datatype, bfloat16_to_float32, float32_to_bfloat16
from gateway.common.domain.verdict import SessionBudget, Signature
from gateway.serving.domain.onnx_header import read_onnx_header
from gateway.serving.domain.ports import RowProof, RowTensors, Session
from gateway.serving.runtimes.binding import Port
from gateway.serving.runtimes.installed import require, unimportable
from gateway.serving.runtimes.onnx_arena import LARGE_BYTES, Arena
from gateway.serving.runtimes.onnx_plugins import HARDWARE, offered
from gateway.serving.runtimes.onnx_providers import GPU_PROVIDERS, error_types, load, load_for
from gateway.serving.runtimes.opening import check_accelerator, existing, model_file, read_options
from gateway.serving.runtimes.session import bind

if TYPE_CHECKING:
    import onnxruntime

NO_REPORTS = "ORT_DISABLE_TELEMETRY"
"""Environment variable that stops the usage reports of ONNX Runtime's wheels to their vendor.

Their client keeps its queue under ~/.cache. Only this variable, set before the import, stops it (seen with 1.31.1;
`disable_telemetry_events` comes too late).
"""

OPTIMIZATIONS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
FATAL_SEVERITY = 4
"""Log severity of ONNX Runtime's sessions, and of what it says outside them, such as of missing libraries.

Errors are raised, too: on stderr, each bad request would add a line to the daemon's log.
"""
T = TypeVar("T")
_MAKING = threading.Lock()
BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16

DATATYPES: Mapping[str, Datatype] = {
    "tensor(bool)": Datatype.BOOL,
    "tensor(uint8)": Datatype.UINT8,
    "tensor(uint16)": Datatype.UINT16,
    "tensor(uint32)": Datatype.UINT32,
    "tensor(uint64)": Datatype.UINT64,
    "tensor(int8)": Datatype.INT8,
    "tensor(int16)": Datatype.INT16,
    "tensor(int32)": Datatype.INT32,
    "tensor(int64)": Datatype.INT64,
    "tensor(float16)": Datatype.FP16,
    "tensor(float)": Datatype.FP32,
    "tensor(double)": Datatype.FP64,
    "tensor(bfloat16)": Datatype.BF16,
    "tensor(string)": Datatype.BYTES,
}
MAPS = frozenset({"seq(map(int64,tensor(float)))", "seq(map(string,tensor(float)))"})
"""Types of the outputs of ZipMap: the score of each class by its name, in one map for each row."""


class OnnxRuntime:
    """Runtime for .onnx files. Implements `gateway.serving.domain.ports.Runtime`."""

    name = "onnx"

    def version(self) -> str:
        """Return the version of the installed distribution. Raises VariantError if it is absent or installed twice."""
        return require(self.name)

    def import_engine(self) -> None:
        """Import the package. Raises VariantError."""
        _engine()

    def devices(self, plugin: str = "") -> Sequence[str]:
        """Return the execution providers of the installed build, or the accelerators that a plugin offers."""
        return offered(_engine(), plugin) if plugin else tuple(_engine().get_available_providers())

    def open(self, manifest: ModelManifest, variant: Variant, files: Path, budget: SessionBudget) -> Session:
        """Load and optimise. Raises VariantError, also if a GPU provider would silently fall back to the CPU."""
        check_accelerator(self.name, budget, tuple(HARDWARE) if budget.provider else (CPU, *GPU_PROVIDERS))
        file = model_file(variant, files, ".onnx")
        ort = _engine()
        session, remarks = load_for(ort, file, session_options(ort, budget), budget, variant.precision)
        bound = {variant.binding(spec.name).name for spec in manifest.inputs if not manifest.batched}
        optional = [each for each in session.get_overridable_initializers() if each.name in bound]
        engine = OnnxEngine(session, _classes(file, session), optional)
        opened = bind(engine, manifest, variant, lends=engine.lends)
        opened.remarks = remarks
        return opened

    def inspect(self, file: Path) -> Signature:
        """Return inputs and outputs as the graph declares them; named and unknown dimensions are −1."""
        ort = _engine()
        budget = SessionBudget(options={"graph_optimization": "disable"})
        session = load(ort, existing(file), session_options(ort, budget), ["CPUExecutionProvider"])
        classes, outputs = _classes(file, session), _carried(session.get_outputs())
        optional = [_spec(each) for each in session.get_overridable_initializers() if each.type in DATATYPES]
        inputs, carried = map(_spec, session.get_inputs()), (_spec(each, classes) for each in outputs)
        return Signature(tuple(inputs), tuple(carried), tuple(with_defaults(file, optional)))

    def prove_rows(self, variant: Variant, files: Path, tensors: RowTensors) -> RowProof:
        """Follow the rows through the graph of the file. Raises VariantError."""
        from gateway.serving.domain.onnx_graph import read_onnx_graph
        from gateway.serving.domain.rows.proof import prove_rows

        return prove_rows(_read(variant, files, read_onnx_graph), tensors)

    def operators(self, variant: Variant, files: Path) -> frozenset[str]:
        """Return the operators of the graph, of its subgraphs and functions. Raises VariantError."""
        from gateway.common.domain.onnx_file import read_onnx

        return _read(variant, files, read_onnx).operators


def _read(variant: Variant, files: Path, read: Callable[[BinaryIO], T]) -> T:
    file = model_file(variant, files, ".onnx")
    try:
        with file.open("rb") as stream:
            return read(stream)
    except (OSError, ValueError) as error:
        raise VariantError(f"the graph of {file.name} cannot be read: {error}") from error


class OnnxEngine:
    """Engine over an ONNX Runtime session. Implements `gateway.serving.runtimes.session.CompiledGraph`.

    Outputs are new arrays at each run, unless `lends` is set.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, classes: Sequence[str] = (), optional: Sequence[Any] = ()
    ) -> None:
        outputs = _carried(session.get_outputs())
        self.inputs, self.outputs = _ports([*session.get_inputs(), *optional]), _ports(outputs, classes)
        self._session: Any = session
        self._errors = error_types(_engine())
        self._options = _engine().RunOptions()
        self._arena = _arena()
        has_maps = any(each.type in MAPS for each in outputs)
        self._run = _plan_run(session, self.inputs, self.outputs, classes, has_maps=has_maps)
        self.lends = any(port.datatype is Datatype.BF16 for port in self.inputs + self.outputs)

    def run(self, feeds: Mapping[str, Array], wanted: Sequence[str]) -> Sequence[Array]:
        """Return the `wanted` outputs. Raises VariantError with the engine's message.

        A run that lacks memory is repeated once, after the arena was freed.
        """
        arena = self._arena
        if arena.full:
            arena.free()
        try:
            outputs = self._run(wanted, feeds, self._options)
        except self._errors as error:
            failure = self._failure(error)
            if not lacks_memory(failure.reason):
                raise failure from error
            arena.free()
            try:
                outputs = self._run(wanted, feeds, self._options)
            except self._errors as again:
                raise self._failure(again) from again
        for output in outputs:
            if output.nbytes >= LARGE_BYTES:
                arena.free_after(outputs)
                break
        return outputs

    def cancel(self) -> bool:
        """Set the flag that ONNX Runtime reads before each node, including those of a loop's body."""
        self._options.terminate = True
        return True

    def peer(self) -> OnnxEngine:
        """Return an engine of the same session, which allows several runs at a time, each with options of its own."""
        peer = copy(self)
        peer._options = _engine().RunOptions()
        return peer

    def close(self) -> None:
        """Free the session's memory, once no peer uses it any more."""
        self._session = self._run = None  # type: ignore[assignment]
        self._arena.free()

    def _failure(self, error: Exception) -> VariantError:
        self._options.terminate = False  # it stays set, and would end every following run
        return VariantError(f"ONNX Runtime failed: {str(error) or type(error).__name__}")


def session_options(ort: ModuleType, budget: SessionBudget) -> onnxruntime.SessionOptions:
    """Return the options of every session: the budget's threads, none of them spinning while idle."""
    known: dict[str, Sequence[str]] = {"graph_optimization": tuple(OPTIMIZATIONS), "providers": ()}
    level = read_options("onnx", budget, known).get("graph_optimization", "all")
    options = ort.SessionOptions()
    options.intra_op_num_threads = budget.threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, OPTIMIZATIONS[level])
    options.log_severity_level = FATAL_SEVERITY
    # Idle threads of ONNX Runtime spin by default and burn a core each (gateway/ARCHITECTURE.md, "Invariants").
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # In the arena, weights of a closed session could stay as part of a region that others use.
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    options.add_session_config_entry(*_arena().option)
    return options


@cache
def _engine() -> ModuleType:
    require("onnx")
    os.environ.setdefault(NO_REPORTS, "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise unimportable("onnx", error) from error
    onnxruntime.set_default_logger_severity(FATAL_SEVERITY)
    module: ModuleType = onnxruntime
    return module


def _arena() -> Arena:
    """Return the arena of the process. Models may be opened on several threads."""
    with _MAKING:
        return _made_arena()


@cache
def _made_arena() -> Arena:
    return Arena(_engine(), error_types(_engine()))


def _carried(outputs: Sequence[Any]) -> Sequence[Any]:
    """Return the outputs that the protocol can carry. Raises VariantError if there are none, with the first type."""
    found = [each for each in outputs if each.type in DATATYPES or each.type in MAPS]
    return found or [each for each in outputs if _datatype(each)]


def _classes(file: Path, session: Any) -> tuple[str, ...]:
    """Return the names of a classifier's classes in the order of its scores, if an output needs them."""
    if not any(each.type in MAPS for each in session.get_outputs()):
        return ()
    try:
        with file.open("rb") as stream:
            return read_onnx_header(stream).classes
    except (OSError, ValueError) as error:
        raise VariantError(f"the classes of {file.name} cannot be read: {error}") from error


def _ports(arguments: Sequence[Any], classes: Sequence[str] = ()) -> tuple[Port, ...]:
    return tuple(Port(each.name, _datatype(each), _shape(each, classes)) for each in arguments)


def _datatype(argument: Any) -> Datatype:
    if argument.type in MAPS:
        return Datatype.FP32
    try:
        return DATATYPES[argument.type]
    except KeyError:
        raise VariantError(
            f"tensor {argument.name!r} is {argument.type}, which no Open Inference Protocol datatype can carry",
            remedy="export the model with plain tensors",
        ) from None


def _shape(argument: Any, classes: Sequence[str]) -> tuple[int, ...]:
    if argument.type in MAPS:
        return (-1, len(classes) or -1)
    return tuple(size if isinstance(size, int) and size >= 0 else -1 for size in argument.shape)


def _spec(argument: Any, classes: Sequence[str] = ()) -> TensorSpec:
    axes, shape = tuple(size if isinstance(size, str) else "" for size in argument.shape), _shape(argument, classes)
    return TensorSpec(argument.name, _datatype(argument), shape, axes=axes if any(axes) else ())


Run = Callable[[Sequence[str], Mapping[str, Array], Any], Sequence[Array]]
"""Function of wanted outputs, feeds and run options."""


def _plan_run(
    session: Any, inputs: Sequence[Port], outputs: Sequence[Port], classes: Sequence[str], *, has_maps: bool
) -> Run:
    """Return the call that runs a session: the plain one, or one that converts strings, maps and bfloat16."""
    datatypes = {port.datatype for port in (*inputs, *outputs)}
    # ONNX Runtime's Python wrapper checks on each run what `bind` checked once. If a provider fails, it silently uses
    # another one.
    compiled = getattr(session, "_sess", None)
    run: Run = session.run if compiled is None else compiled.run
    if not has_maps and not datatypes & {Datatype.BYTES, Datatype.BF16}:
        return run
    if Datatype.BF16 not in datatypes:
        return lambda wanted, feeds, options: _run_objects(run, feeds, wanted, options, classes)
    if has_maps or Datatype.BYTES in datatypes:
        raise VariantError("ONNX Runtime's Python interface cannot mix strings or maps with bfloat16 in one graph")
    halves = frozenset(port.name for port in (*inputs, *outputs) if port.datatype is Datatype.BF16)
    return lambda wanted, feeds, options: _run_values(session, feeds, wanted, halves, options)


def _run_objects(
    run: Callable[..., Any], feeds: Mapping[str, Array], wanted: Sequence[str], options: Any, classes: Sequence[str]
) -> list[Array]:
    """Run with ONNX strings, which are UTF-8, and maps. Raises UnicodeDecodeError, a ValueError, for other bytes."""
    fed = {name: _mapped(array, bytes.decode) if array.dtype.kind == "O" else array for name, array in feeds.items()}
    return [_carriable(answer, classes) for answer in run(wanted, fed, options)]


def _carriable(answer: Array | list[dict[Any, float]], classes: Sequence[str]) -> Array:
    """Return an answer as an array: maps become rows of scores, in the order of `classes` if these are their keys.

    ONNX Runtime sorts the keys of a map, whatever the order of the classes in the file.
    """
    if not isinstance(answer, list):
        return _mapped(answer, str.encode) if answer.dtype.kind == "O" else answer
    keys = {str(key): key for key in (answer[0] if answer else ())}
    names = classes if not keys or keys.keys() == set(classes) else tuple(keys)
    rows = [[row[keys[name]] for name in names] for row in answer]
    return np.array(rows, np.float32).reshape(len(rows), len(names))


def _mapped(array: Array, convert: Callable[[Any], Any]) -> Array:
    mapped = np.empty(array.size, object)
    mapped[:] = [convert(element) for element in array.ravel().tolist()]
    return mapped.reshape(array.shape)


def _run_values(
    session: Any, feeds: Mapping[str, Array], wanted: Sequence[str], halves: frozenset[str], options: Any
) -> list[Array]:
    """Run with bfloat16, which numpy lacks: two-byte values are passed in by ONNX type and read by address."""
    from onnxruntime import OrtValue

    fed = {
        name: OrtValue.ortvalue_from_numpy_with_onnx_type(float32_to_bfloat16(array), BFLOAT16)
        if name in halves
        else OrtValue.ortvalue_from_numpy(array)
        for name, array in feeds.items()
    }
    answers = session.run_with_ort_values(wanted, fed, options)
    return [_bfloat16(value) if name in halves else value.numpy() for name, value in zip(wanted, answers, strict=True)]


def _bfloat16(value: Any) -> Array:
    shape = tuple(value.shape())
    bits = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    return bfloat16_to_float32(np.frombuffer(bits, "<u2")).reshape(shape)


def with_defaults(file: Path, specs: Iterable[TensorSpec]) -> Iterator[TensorSpec]:
    """Yield those of the inputs whose initializer has one value in all its elements, with that value.

    An input with an initializer may be left out (IR version 4). Of larger initializers (`INTEGERS_LIMIT`,
    `FLOATS_LIMIT`) the values are not read, and of a damaged file none.
    """
    if not (specs := tuple(specs)):
        return
    try:
        with file.open("rb") as stream:
            from gateway.serving.domain.onnx_graph import read_onnx_graph

            constants = read_onnx_graph(stream).graph.constants
    except (OSError, ValueError):
        return
    for spec in specs:
        numbers = constants[spec.name].numbers if spec.name in constants else None
        if numbers and len(set(numbers)) == 1:
            yield replace(spec, default=float(numbers[0]))
