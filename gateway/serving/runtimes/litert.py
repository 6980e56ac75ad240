"""LiteRT (ai-edge-litert, or the older tflite-runtime if only that exists): CPU and Coral Edge TPU.

The only importer of both packages. A tensor with a scale is quantised here: if the manifest declares a float, it is
offered as FP32. If the manifest declares the graph's own integer type, it passes unchanged. Options of a ladder step:
`delegate` (xnnpack, none), CPU only.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from gateway.common.domain.errors import VariantError
from gateway.common.domain.inventory import CPU
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec, Variant
from gateway.common.domain.model_files import COPY_AGAIN
from gateway.common.domain.tensor import Array, Datatype, datatype_of
from gateway.common.domain.verdict import SessionBudget, Signature
from gateway.serving.domain.joining import UNREADABLE
from gateway.serving.domain.ports import RowProof, RowTensors, Session
from gateway.serving.runtimes.binding import Port
from gateway.serving.runtimes.installed import installed_package, require, unimportable
from gateway.serving.runtimes.litert_signatures import (
    Chosen,
    Details,
    SignatureGraph,
    choose,
    named_details,
    signature_graphs,
)
from gateway.serving.runtimes.opening import check_accelerator, existing, model_file, read_options
from gateway.serving.runtimes.session import bind

CORAL: Mapping[str, str] = {"coral-usb": "usb", "coral-pcie": "pci"}
CORAL_LIBRARY = "libedgetpu.so.1"
TRIED_ROWS = 2
PLAIN: Mapping[str, str] = {"delegate": "none"}
"""Options under which the interpreter lists the file's own operators, not those of a delegate."""
NOT_PARSED = "not a valid Flatbuffer"
ERRORS = (RuntimeError, ValueError, TypeError, MemoryError)


class LiteRtRuntime:
    """Runtime for .tflite files. Implements `gateway.serving.domain.ports.Runtime`."""

    name = "litert"

    def version(self) -> str:
        """Return the version of the installed package. Raises VariantError if neither is installed."""
        return require(self.name)

    def import_engine(self) -> None:
        """Import the package. Raises VariantError."""
        _engine()

    def devices(self, plugin: str = "") -> Sequence[str]:
        """Return "CPU", and "EDGETPU" if the Coral library finds one."""
        try:
            _edge_tpu(_engine(), {})
        except (ValueError, OSError):
            return ("CPU",)
        return ("CPU", "EDGETPU")

    def open(self, manifest: ModelManifest, variant: Variant, files: Path, budget: SessionBudget) -> Session:
        """Load, allocate, and try whether the graph accepts other row counts than its own. Raises VariantError."""
        check_accelerator(self.name, budget, (CPU, *CORAL))
        module = _engine()
        file = model_file(variant, files, ".tflite")
        make = _graph_maker(module, file, budget, variant.signature)
        graph = make()
        integers, any_rows = _integer_tensors(manifest, variant), False
        engine = LiteRtEngine(graph, integers)
        if manifest.batched and engine.fixed_rows:
            # Files are often exported with one row although the graph accepts any: a run with two decides.
            any_rows = budget.accelerator == CPU and engine.takes_rows(TRIED_ROWS)
            engine.close()
            engine = LiteRtEngine(make(), integers, any_rows=any_rows)
        engine.peer = lambda: LiteRtEngine(make(), integers, any_rows=any_rows)
        session = bind(engine, manifest, variant)
        session.remarks = tuple(filter(None, (graph.chosen.remark,)))
        return session

    def inspect(self, file: Path) -> Signature:
        """Return inputs and outputs under the names that `open` offers; quantised ones are FP32, as there."""
        engine = LiteRtEngine(_graph_maker(_engine(), existing(file), SessionBudget(), "")(), frozenset())
        signature = Signature(tuple(map(_spec, engine.inputs)), tuple(map(_spec, engine.outputs)))
        engine.close()
        return signature

    def prove_rows(self, variant: Variant, files: Path, tensors: RowTensors) -> RowProof:
        """Return that nothing is proved: the graph of a TFLite file is not followed."""
        return RowProof(reason="the graph of a TFLite file is not followed")

    def operators(self, variant: Variant, files: Path) -> frozenset[str]:
        """Return the operators of the graph that is served. Raises VariantError."""
        file = model_file(variant, files, ".tflite")
        graph = _graph_maker(_engine(), file, SessionBudget(options=PLAIN), variant.signature)()
        if graph.chosen.graph:
            return _operators_of(file, graph.chosen.graph)
        listed = getattr(graph.interpreter, "_get_ops_details", None)
        if listed is None:
            raise VariantError(f"this LiteRT cannot list the operators of {file.name}")
        return frozenset(each["op_name"] for each in listed())


@dataclass(frozen=True, slots=True)
class LiteRtGraph:
    """Graph that is served: its interpreter, the details of its tensors as offered, and the chosen signature."""

    interpreter: Any
    inputs: Sequence[Details]
    outputs: Sequence[Details]
    chosen: Chosen


@dataclass(frozen=True, slots=True)
class LiteRtTensor:
    """Tensor of the interpreter. `scale` 0: not quantised, or passed as integers."""

    index: int
    dtype: np.dtype[Any]
    scale: float
    zero_point: int


class LiteRtEngine:
    """Engine over an interpreter. Implements `gateway.serving.runtimes.session.CompiledGraph`.

    Inputs are copied into the interpreter and outputs out of it, once each. Views of the interpreter's tensors would
    save the second copy, but block the next run as long as one of them exists. Another row count than that of the
    previous run costs a new allocation. `peer` makes another interpreter of the same file, with memory of its own.
    """

    peer: Callable[[], LiteRtEngine]

    def __init__(self, graph: LiteRtGraph, integers: frozenset[str], *, any_rows: bool = False) -> None:
        self._interpreter = graph.interpreter
        self._slots = {"in": _slots(graph.inputs, integers), "out": _slots(graph.outputs, integers)}
        self.inputs = _ports(graph.inputs, self._slots["in"], any_rows=any_rows)
        self.outputs = _ports(graph.outputs, self._slots["out"], any_rows=any_rows)
        self._declared = {each["name"]: tuple(map(int, each["shape"])) for each in graph.inputs}
        self._shapes: dict[str, tuple[int, ...]] = {}  # the first run allocates

    @property
    def fixed_rows(self) -> bool:
        """Return True if the file declares exactly one row."""
        return any(port.shape is not None and port.shape[:1] == (1,) for port in self.inputs)

    def takes_rows(self, rows: int) -> bool:
        """Run the graph once with `rows` rows of zeros. Return True if it accepted them and answered as many."""
        shapes = {port.name: (rows, *self._declared[port.name][1:]) for port in self.inputs}
        feeds = {port.name: np.zeros(shapes[port.name], port.datatype.dtype) for port in self.inputs}
        try:
            answers = self.run(feeds, [port.name for port in self.outputs])
        except VariantError:
            return False
        return all(answer.shape[:1] == (rows,) for answer in answers)

    def run(self, feeds: Mapping[str, Array], wanted: Sequence[str]) -> Sequence[Array]:
        """Return the `wanted` outputs as new arrays. Raises VariantError with the engine's message."""
        try:
            self._fit({name: array.shape for name, array in feeds.items()})
            for name, array in feeds.items():
                slot = self._slots["in"][name]
                self._interpreter.set_tensor(slot.index, quantise(array, slot))
            self._interpreter.invoke()
            slots = self._slots["out"]
            return [dequantise(self._interpreter.get_tensor(slots[name].index), slots[name]) for name in wanted]
        except ERRORS as error:
            raise VariantError(f"LiteRT failed: {_words(error)}") from error

    def cancel(self) -> bool:
        """Return False: LiteRT cannot end a run from Python."""
        return False

    def close(self) -> None:
        """Free the interpreter and, with it, its delegates."""
        self._interpreter = None

    def _fit(self, shapes: dict[str, tuple[int, ...]]) -> None:
        if shapes == self._shapes:
            return
        self._shapes = {}  # if the allocation fails, the next run allocates again
        for name, shape in shapes.items():
            self._interpreter.resize_tensor_input(self._slots["in"][name].index, shape)
        self._interpreter.allocate_tensors()
        self._shapes = shapes


def quantise(array: Array, slot: LiteRtTensor) -> Array:
    """Convert real numbers to the slot's integers: nearest, clipped to the type's range; NaN becomes its minimum."""
    if not slot.scale:
        return array
    bounds = np.iinfo(slot.dtype)
    with np.errstate(over="ignore"):  # an overflow becomes infinite, and is clipped below
        scaled = np.rint(array / slot.scale)
    scaled += slot.zero_point
    np.fmax(scaled, bounds.min, out=scaled)  # unlike clip, fmax and fmin remove NaN
    np.fmin(scaled, bounds.max, out=scaled)
    return scaled.astype(slot.dtype)


def dequantise(array: Array, slot: LiteRtTensor) -> Array:
    """Convert the slot's integers to float32."""
    if not slot.scale:
        return array
    real = array.astype(np.float32)
    real -= np.float32(slot.zero_point)
    real *= np.float32(slot.scale)
    return real


def _engine() -> ModuleType:
    require("litert")
    package = installed_package("litert")
    assert package is not None  # noqa: S101 - require() has just found it
    try:
        module: ModuleType = importlib.import_module(f"{package.module}.interpreter")
    except ImportError as error:
        raise unimportable("litert", error) from error
    return module


def _graph_maker(module: ModuleType, file: Path, budget: SessionBudget, signature: str) -> Callable[[], LiteRtGraph]:
    known = {"delegate": ("xnnpack", "none")} if budget.accelerator == CPU else {}
    options = read_options("litert", budget, known)
    # Read, not mapped: overwriting a mapped file in place would end the daemon by SIGBUS.
    arguments: dict[str, Any] = {"model_content": file.read_bytes(), "num_threads": budget.threads}
    if options.get("delegate") == "none":
        arguments["experimental_op_resolver_type"] = module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    if budget.accelerator in CORAL:
        arguments["experimental_delegates"] = [_coral(module, CORAL[budget.accelerator])]

    def make() -> LiteRtGraph:
        try:
            interpreter = module.Interpreter(**arguments)
            graph = _graph(interpreter, choose(signature_graphs(interpreter), signature))
            _allocate(graph)
        except ERRORS as error:
            remedy = COPY_AGAIN if NOT_PARSED in str(error) else ""
            raise VariantError(f"LiteRT cannot open {file.name}: {_words(error)}", remedy=remedy) from error
        return graph

    return make


def _graph(interpreter: Any, chosen: Chosen) -> LiteRtGraph:
    inputs: Mapping[str, Details] = {}
    outputs: Mapping[str, Details] = {}
    runs = interpreter
    if chosen.key:
        runner = interpreter.get_signature_runner(chosen.key)  # an interpreter with a runner does not run itself
        inputs, outputs = runner.get_input_details(), runner.get_output_details()
        runs = SignatureGraph(runner) if chosen.graph else interpreter
    return LiteRtGraph(
        runs,
        named_details(runs.get_input_details(), inputs, named=chosen.named),
        named_details(runs.get_output_details(), outputs, named=chosen.named),
        chosen,
    )


def _allocate(graph: LiteRtGraph) -> None:
    """Allocate at the declared sizes. A graph with open ones may fail here: its runs set the sizes."""
    try:
        graph.interpreter.allocate_tensors()
    except ERRORS:
        if not any(ROWS in _shape(each) for each in graph.inputs):
            raise


def _operators_of(file: Path, graph: int) -> frozenset[str]:
    """Return the operators of a graph by its number, as the file's own table lists them. Raises VariantError."""
    try:
        schema = importlib.import_module("ai_edge_litert.schema_py_generated")
    except ImportError as error:
        raise VariantError(f"this LiteRT cannot list the operators of {file.name}") from error
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    model = schema.Model.GetRootAs(file.read_bytes(), 0)
    chosen, codes = model.Subgraphs(graph), []
    for index in range(chosen.OperatorsLength()):
        code = model.OperatorCodes(chosen.Operators(index).OpcodeIndex())
        codes.append(max(code.BuiltinCode(), code.DeprecatedBuiltinCode()))
    return frozenset(names.get(code, UNREADABLE) for code in codes)


def signature_names(file: Path) -> tuple[str, dict[str, str]]:
    """Return the key of the signature that is served ("": none), and its names of inputs by the names offered here.

    Raises VariantError. The file is opened in this process.
    """
    interpreter = _engine().Interpreter(model_content=file.read_bytes())
    chosen = choose(signature_graphs(interpreter), "")
    if not chosen.key:
        return "", {}
    inputs = interpreter.get_signature_runner(chosen.key).get_input_details()
    own = {int(each["index"]): str(key) for key, each in inputs.items()}
    return chosen.key, {each["name"]: own[int(each["index"])] for each in _graph(interpreter, chosen).inputs}


def _coral(module: ModuleType, device: str) -> Any:
    try:
        return _edge_tpu(module, {"device": device})
    except (ValueError, OSError) as error:
        raise VariantError(
            f"the Edge TPU library {CORAL_LIBRARY} cannot be used: {_words(error)}",
            remedy="install libedgetpu1-std, plug the Coral in, and give this user access to it",
            transient=True,  # one process per TPU: another one may use it now
        ) from error


def _edge_tpu(module: ModuleType, options: Mapping[str, str]) -> Any:
    """Return the delegate. Raises OSError without the library, ValueError without a device."""
    ctypes.CDLL(CORAL_LIBRARY)  # loaded first: a delegate without its library prints errors when it is deleted
    return module.load_delegate(CORAL_LIBRARY, options)


def _integer_tensors(manifest: ModelManifest, variant: Variant) -> frozenset[str]:
    """Return the graph's names of tensors that the manifest declares as integers."""
    specs = manifest.inputs + manifest.outputs
    return frozenset(variant.binding(spec.name).name for spec in specs if spec.datatype.dtype.kind in "iu")


def _slots(details: Sequence[Mapping[str, Any]], integers: frozenset[str]) -> dict[str, LiteRtTensor]:
    return {
        each["name"]: _slot(each, raw=not integers.isdisjoint((each["name"], *each["aliases"]))) for each in details
    }


def _slot(detail: Mapping[str, Any], *, raw: bool) -> LiteRtTensor:
    scale, zero_point = detail["quantization"]
    dtype = np.dtype(detail["dtype"])
    quantised = dtype.kind in "iu" and not raw
    return LiteRtTensor(int(detail["index"]), dtype, float(scale) if quantised else 0.0, int(zero_point))


def _ports(
    details: Sequence[Mapping[str, Any]], slots: Mapping[str, LiteRtTensor], *, any_rows: bool
) -> tuple[Port, ...]:
    return tuple(_port(each, slots[each["name"]], any_rows=any_rows) for each in details)


def _port(detail: Mapping[str, Any], slot: LiteRtTensor, *, any_rows: bool) -> Port:
    try:
        datatype = Datatype.FP32 if slot.scale else datatype_of(slot.dtype)
    except KeyError:
        raise VariantError(f"tensor {detail['name']!r} is {slot.dtype}, which this runtime cannot exchange") from None
    shape = _shape(detail)
    if any_rows and shape[:1] == (1,):
        shape = (ROWS, *shape[1:])
    return Port(detail["name"], datatype, shape, detail["aliases"])


def _shape(detail: Details) -> tuple[int, ...]:
    shape = tuple(map(int, detail.get("shape_signature", detail["shape"])))
    if len(shape) != len(detail["shape"]):
        return tuple(map(int, detail["shape"]))  # a file that declares no open dimensions gives an empty one
    return shape


def _spec(port: Port) -> TensorSpec:
    return TensorSpec(port.name, port.datatype, port.shape or ())


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
