"""OpenVINO: CPU, Intel GPU and Intel NPU. The only importer of openvino; precision is always set.

Options of a ladder step on the CPU: `cores` (any, performance, efficiency).
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from types import ModuleType
from typing import Any

from gateway.common.domain.errors import VariantError
from gateway.common.domain.inventory import CPU
from gateway.common.domain.manifest import ModelManifest, TensorSpec, Variant
from gateway.common.domain.model_files import COPY_AGAIN
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.tensor import Array, Datatype
from gateway.common.domain.verdict import SessionBudget, Signature
from gateway.serving.domain.openvino_graph import read_openvino_graph
from gateway.serving.domain.ports import RowProof, RowTensors, Session
from gateway.serving.domain.rows.graph import ModelGraph
from gateway.serving.domain.rows.proof import prove_rows
from gateway.serving.runtimes.binding import Port
from gateway.serving.runtimes.installed import require, unimportable
from gateway.serving.runtimes.opening import check_accelerator, existing, model_file, read_options
from gateway.serving.runtimes.session import bind

DEVICES = {CPU: "CPU"} | {kind: name for kind, (name,) in RUNTIMES["openvino"].devices.items()}
CORES: Mapping[str, str] = {"any": "ANY_CORE", "performance": "PCORE_ONLY", "efficiency": "ECORE_ONLY"}

HINTS: Mapping[str, Mapping[str, str]] = {
    "CPU": {"fp32": "f32", "fp16": "f32", "bf16": "bf16", "int8": "f32"},
    "GPU": {"fp32": "f32", "fp16": "f16", "int8": "f16"},
    "NPU": {"fp16": "f16", "int8": "f16"},
}
"""INFERENCE_PRECISION_HINT by device and the variant's precision: the type of computations that are not int8.

Without it, the CPU plugin selects bf16 if the CPU has it, and the GPU plugin fp16 for fp32 models. An x86 CPU
computes an fp16 file in fp32. The NPU has no fp32: such variants are refused rather than rounded.
"""

DATATYPES: Mapping[str, Datatype] = {
    "boolean": Datatype.BOOL,
    "u8": Datatype.UINT8,
    "u16": Datatype.UINT16,
    "u32": Datatype.UINT32,
    "u64": Datatype.UINT64,
    "i8": Datatype.INT8,
    "i16": Datatype.INT16,
    "i32": Datatype.INT32,
    "i64": Datatype.INT64,
    "f16": Datatype.FP16,
    "f32": Datatype.FP32,
    "f64": Datatype.FP64,
    "bf16": Datatype.BF16,
}
COMPUTED_IN: Mapping[str, str] = {"bf16": "f32", "f64": "f32", "i64": "i32", "u64": "i32"}
ERRORS = (RuntimeError, ValueError, TypeError)


class OpenVinoRuntime:
    """Runtime for OpenVINO IR (.xml with .bin). Implements `gateway.serving.domain.ports.Runtime`."""

    name = "openvino"

    def version(self) -> str:
        """Return the version of the installed package. Raises VariantError if it is absent or would report usage."""
        return require(self.name)

    def import_engine(self) -> None:
        """Import the package. Raises VariantError."""
        _engine()

    def devices(self, plugin: str = "") -> Sequence[str]:
        """Return the devices that the plugins list."""
        with signal_stack_kept():
            return tuple(_engine().Core().available_devices)

    def open(self, manifest: ModelManifest, variant: Variant, files: Path, budget: SessionBudget) -> Session:
        """Read and compile. Raises VariantError."""
        check_accelerator(self.name, budget, tuple(DEVICES))
        device = DEVICES[budget.accelerator]
        configuration = compile_options(budget, variant.precision, platform.machine())
        ov = _engine()
        file = model_file(variant, files, ".xml")
        core = ov.Core()
        if device != DEVICES[CPU] and not _lists(core, device):
            problem = f"OpenVINO lists no device {device}"
            raise VariantError(problem, remedy="see edge-gateway doctor", transient=True)  # it may come back
        model = _read(core, file)
        if device == "NPU":
            _fix_rows(model, variant)
        try:
            model = _exchangeable(ov, model)
            with signal_stack_kept():
                compiled = core.compile_model(model, device, configuration)
        except ERRORS as error:
            raise VariantError(f"OpenVINO cannot compile {file.name} for {device}: {_words(error)}") from error
        return bind(OpenVinoEngine(ov, compiled, _ports(model.inputs), _ports(model.outputs)), manifest, variant)

    def inspect(self, file: Path) -> Signature:
        """Return inputs and outputs of the file unchanged; dynamic dimensions are −1."""
        if file.suffix != ".xml":  # any other suffix starts the converters of other frameworks
            raise VariantError(f"{file.name} is not an OpenVINO IR file (.xml)")
        model = _read(_engine().Core(), existing(file))
        return Signature(tuple(map(_spec, _ports(model.inputs))), tuple(map(_spec, _ports(model.outputs))))

    def prove_rows(self, variant: Variant, files: Path, tensors: RowTensors) -> RowProof:
        """Follow the rows through the graph of the file, as ONNX's operators. Raises VariantError."""
        return prove_rows(row_graph(variant, files), tensors)

    def operators(self, variant: Variant, files: Path) -> frozenset[str]:
        """Return the operators of the graph, without those in bodies of loops. Raises VariantError."""
        model = _read(_engine().Core(), model_file(variant, files, ".xml"))
        return frozenset(node.get_type_name() for node in model.get_ops())


class OpenVinoEngine:
    """Engine over an OpenVINO request. Implements `gateway.serving.runtimes.session.CompiledGraph`.

    Writable inputs are shared with the engine, read-only ones copied. Outputs are views of the request's own tensors:
    lent until the next run.
    """

    def __init__(self, ov: ModuleType, compiled: Any, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._tensor = ov.Tensor
        self._compiled, self._request = compiled, compiled.create_infer_request()
        self._input_index = {port.name: index for index, port in enumerate(inputs)}
        self._output_index = {port.name: index for index, port in enumerate(outputs)}

    def run(self, feeds: Mapping[str, Array], wanted: Sequence[str]) -> Sequence[Array]:
        """Return the `wanted` outputs. Raises VariantError with the engine's message."""
        request = self._request
        try:
            for name, array in feeds.items():
                # shared_memory requires a writable array, although inference only reads it
                tensor = self._tensor(array, shared_memory=array.flags.writeable)
                request.set_input_tensor(self._input_index[name], tensor)
            request.infer()
            return [request.get_output_tensor(self._output_index[name]).data for name in wanted]
        except ERRORS as error:
            raise VariantError(f"OpenVINO failed: {_words(error)}") from error

    def cancel(self) -> bool:
        """Return False: OpenVINO ends a run between the nodes of the outermost graph at best, not within a loop."""
        return False

    def peer(self) -> OpenVinoEngine:
        """Return an engine of another request of the same compiled model, in a stream of its own."""
        peer = copy(self)
        try:
            peer._request = self._compiled.create_infer_request()
        except ERRORS as error:
            raise VariantError(f"OpenVINO makes no further request: {_words(error)}") from error
        return peer

    def close(self) -> None:
        """Free the request and, with the last one, the compiled model."""
        self._compiled = self._request = None


def row_graph(variant: Variant, files: Path) -> ModelGraph:
    """Return the graph with all names of the ports of inputs and outputs. Raises VariantError if it cannot be read."""
    file = model_file(variant, files, ".xml")
    try:
        with file.open("rb") as xml, file.with_suffix(".bin").open("rb") as weights:
            return read_openvino_graph(xml, weights)
    except (OSError, ValueError) as error:
        raise VariantError(f"the graph of {file.name} cannot be read: {error}") from error


def compile_options(budget: SessionBudget, precision: str, machine: str) -> dict[str, str]:
    """Return the options of `compile_model`. Raises VariantError if the device cannot compute in `precision`."""
    device = DEVICES[budget.accelerator]
    known = {"cores": tuple(CORES)} if device == "CPU" else {}
    chosen = read_options("openvino", budget, known)
    options = {"INFERENCE_PRECISION_HINT": _hint(device, precision, machine), "NUM_STREAMS": str(budget.runs)}
    if device == "CPU":
        return options | {
            "INFERENCE_NUM_THREADS": str(budget.threads * budget.runs),
            "ENABLE_HYPER_THREADING": "YES",  # the budget sets the thread count; the plugin must not lower it
            "ENABLE_CPU_PINNING": "NO",  # pinned sessions would all use the same first core
            "SCHEDULING_CORE_TYPE": CORES[chosen.get("cores", "any")],
        }
    options["PERFORMANCE_HINT"] = "LATENCY"
    if device == "NPU":
        del options["NUM_STREAMS"]  # the NPU plugin derives it from the performance hint
    return options | ({"CACHE_DIR": budget.cache_dir} if budget.cache_dir else {})


def _hint(device: str, precision: str, machine: str) -> str:
    if (device, precision, machine) == ("CPU", "fp16", "aarch64"):
        return "f16"  # ARM cores with asimdhp compute in f16; on those without it the plugin falls back to f32
    try:
        return HINTS[device][precision]
    except KeyError:
        known = ", ".join(HINTS[device])
        raise VariantError(
            f"OpenVINO's {device} does not compute in {precision}; it does in {known}",
            remedy="give the model a variant of another precision",
        ) from None


def _engine() -> ModuleType:
    require("openvino")
    try:
        import openvino
    except ImportError as error:
        raise unimportable("openvino", error) from error
    module: ModuleType = openvino
    return module


def _lists(core: Any, device: str) -> bool:
    with signal_stack_kept():
        return any(listed.partition(".")[0] == device for listed in core.available_devices)


def _read(core: Any, file: Path) -> Any:
    try:
        core.set_property({"ENABLE_MMAP": False})  # overwriting a mapped file in place ends the process by SIGBUS
        return core.read_model(str(file))
    except ERRORS as error:
        remedy = f"if its .xml or .bin may be damaged, {COPY_AGAIN}; else convert the model for this OpenVINO"
        raise VariantError(f"OpenVINO cannot read {file.name}: {_words(error)}", remedy=remedy) from error


def _fix_rows(model: Any, variant: Variant) -> None:
    """Set fixed shapes of one row, because the NPU compiles no others. The session runs a batch row by row."""
    shapes = {}
    for index, port in enumerate(_ports(model.inputs)):
        if port.shape is None or -1 in port.shape[1:]:
            raise VariantError(
                f"variant {variant.name}: the NPU needs fixed shapes, but {port.name!r} has {list(port.shape or ())}",
                remedy="export the model with fixed sizes; only the first dimension may be open",
            )
        shapes[index] = [1, *port.shape[1:]] if port.shape[:1] == (-1,) else list(port.shape)
    model.reshape(shapes)


def _exchangeable(ov: ModuleType, model: Any) -> Any:
    """Exchange tensors of types that plugins or numpy lack in the type of the computation, converted in the graph.

    Measured on 2026.4: the CPU plugin wraps a 64-bit integer beyond 32 bits, and returns an infinite double as
    3.4e38, both without an error. With i32, the binding refuses an integer that does not fit.
    """
    steps, changed = ov.preprocess.PrePostProcessor(model), False
    for place, nodes in ((steps.input, model.inputs), (steps.output, model.outputs)):
        for index, node in enumerate(nodes):
            target = COMPUTED_IN.get(node.get_element_type().get_type_name())
            if target is not None:
                place(index).tensor().set_element_type(getattr(ov.Type, target))
                changed = True
    return steps.build() if changed else model


def _ports(nodes: Sequence[Any]) -> tuple[Port, ...]:
    return tuple(map(_port, nodes))


def _port(node: Any) -> Port:
    names = sorted(node.get_names()) or [node.get_node().get_friendly_name()]
    label = node.get_element_type().get_type_name()
    if label not in DATATYPES:
        raise VariantError(f"tensor {names[0]!r} is {label}, which this runtime cannot exchange")
    shape = node.get_partial_shape()
    sizes = None if shape.rank.is_dynamic else tuple(-1 if each.is_dynamic else each.get_length() for each in shape)
    return Port(names[0], DATATYPES[label], sizes, tuple(names[1:]))


def _spec(port: Port) -> TensorSpec:
    return TensorSpec(port.name, port.datatype, port.shape or ())


def _words(error: Exception) -> str:
    """Return the last informative line of an error: OpenVINO begins with its source files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
    return (kept or lines or [type(error).__name__])[-1]


class SignalStack(ctypes.Structure):
    """Struct `stack_t` of Linux."""

    _fields_ = (("ss_sp", ctypes.c_void_p), ("ss_flags", ctypes.c_int), ("ss_size", ctypes.c_size_t))


@contextmanager
def signal_stack_kept() -> Iterator[None]:
    """Restore this thread's alternate signal stack (sigaltstack(2)) after a library was loaded, which replaces it.

    OpenVINO's CPU plugin (2026.4) leaves 20 KiB to the thread that loads it. If a CPU has AMX, a signal's frame takes
    11 KiB: if two arrive together, such as SIGTERM and SIGCHLD, the second does not fit, and Linux ends the process
    ("overflowed sigaltstack"). Python's handlers (SA_ONSTACK) run there; the thread's own stack has enough space.
    """
    sigaltstack, before = ctypes.CDLL(None).sigaltstack, SignalStack()
    sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        sigaltstack(ctypes.byref(before), None)
