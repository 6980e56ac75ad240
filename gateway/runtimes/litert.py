"""LiteRT (ai-edge-litert, or the older tflite-runtime where only it exists): CPU and Coral Edge TPU.

The only importer of both packages. A tensor with a scale is quantised here: where the manifest says a float it is
offered as FP32, where the manifest says the graph's own integer type it passes as it is. Options of a ladder step:
`delegate` (xnnpack, none), CPU only.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from gateway.domain.errors import VariantError
from gateway.domain.inventory import CPU
from gateway.domain.manifest import ROWS, ModelManifest, TensorSpec, Variant
from gateway.domain.ports import Session
from gateway.domain.tensor import Array, Datatype, datatype_of
from gateway.domain.verdict import Budget, Signature
from gateway.runtimes.binding import Port
from gateway.runtimes.installed import installed_package, require, unimportable
from gateway.runtimes.opening import check_accelerator, existing, model_file, read_options
from gateway.runtimes.session import bind

CORAL: Mapping[str, str] = {"coral-usb": "usb", "coral-pcie": "pci"}
CORAL_LIBRARY = "libedgetpu.so.1"
DEFAULT_SIGNATURE = "serving_default"
TRIED_ROWS = 2
PLAIN: Mapping[str, str] = {"delegate": "none"}
"""Options under which the interpreter lists the file's own operators, not those of a delegate."""
ERRORS = (RuntimeError, ValueError, TypeError, MemoryError)

_log = logging.getLogger(__name__)


class LiteRtRuntime:
    """`gateway.domain.ports.Runtime` for .tflite files."""

    name = "litert"

    def version(self) -> str:
        """Version of the installed package. Raises VariantError where neither is installed."""
        return require(self.name)

    def devices(self) -> Sequence[str]:
        """ "CPU", and "EDGETPU" where the Coral library finds one."""
        try:
            _edge_tpu(_engine(), {})
        except (ValueError, OSError):
            return ("CPU",)
        return ("CPU", "EDGETPU")

    def open(self, manifest: ModelManifest, variant: Variant, files: Path, budget: Budget) -> Session:
        """Load, allocate, and try whether the graph takes other row counts than its own. Raises VariantError."""
        check_accelerator(self.name, budget, (CPU, *CORAL))
        module = _engine()
        file = model_file(variant, files, ".tflite")
        make = _interpreter_maker(module, file, budget)
        interpreter = make()
        _tell_signatures(interpreter, file)
        engine = LiteRtEngine(interpreter, _integer_tensors(manifest, variant))
        if manifest.batched and engine.fixed_rows:
            # Files are often exported with one row although the graph takes any: what it does with two decides.
            tried = budget.accelerator == CPU and engine.takes_rows(TRIED_ROWS)
            engine.close()
            engine = LiteRtEngine(make(), _integer_tensors(manifest, variant), any_rows=tried)
        return bind(engine, manifest, variant)

    def inspect(self, file: Path) -> Signature:
        """Inputs and outputs by the file's own tensor names; quantised ones are FP32, as `open` will offer them."""
        engine = LiteRtEngine(_interpreter_maker(_engine(), existing(file), Budget())(), frozenset())
        signature = Signature(tuple(map(_spec, engine.inputs)), tuple(map(_spec, engine.outputs)))
        engine.close()
        return signature

    def operators(self, variant: Variant, files: Path) -> frozenset[str]:
        """Return the operators of the main graph. Raises VariantError."""
        interpreter = _interpreter_maker(_engine(), model_file(variant, files, ".tflite"), Budget(options=PLAIN))()
        listed = getattr(interpreter, "_get_ops_details", None)
        if listed is None:
            raise VariantError(f"this LiteRT cannot list the operators of {variant.artifacts[0].path}")
        return frozenset(each["op_name"] for each in listed())


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of the interpreter. `scale` 0: not quantised, or passed as the integers it holds."""

    index: int
    dtype: np.dtype[Any]
    scale: float
    zero_point: int


class LiteRtEngine:
    """`gateway.runtimes.session.Engine`. Inputs are copied into the interpreter and outputs out of it, once each.

    Views of the interpreter's tensors would save the second copy but block the next run for as long as anyone holds
    one. Another row count than that of the run before costs a new allocation.
    """

    def __init__(self, interpreter: Any, integers: frozenset[str], *, any_rows: bool = False) -> None:
        self._interpreter = interpreter
        incoming, outgoing = interpreter.get_input_details(), interpreter.get_output_details()
        self._slots = {role: _slots(details, integers) for role, details in (("in", incoming), ("out", outgoing))}
        self.inputs = _ports(incoming, self._slots["in"], any_rows=any_rows)
        self.outputs = _ports(outgoing, self._slots["out"], any_rows=any_rows)
        self._shapes = {each["name"]: tuple(map(int, each["shape"])) for each in incoming}

    @property
    def fixed_rows(self) -> bool:
        """Whether the file says one row, no more and no less."""
        return any(port.shape is not None and port.shape[:1] == (1,) for port in self.inputs)

    def takes_rows(self, rows: int) -> bool:
        """Run the graph once with `rows` rows of zeros; whether it took them and answered as many."""
        feeds = {port.name: np.zeros(self._sized(port, rows), port.datatype.dtype) for port in self.inputs}
        try:
            answers = self.run(feeds, [port.name for port in self.outputs])
        except VariantError:
            return False
        return all(answer.shape[:1] == (rows,) for answer in answers)

    def run(self, feeds: Mapping[str, Array], wanted: Sequence[str]) -> Sequence[Array]:
        """The `wanted` outputs as new arrays. Raises VariantError with the engine's own words."""
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
        self._shapes = {}  # should the allocation fail, the next run allocates again
        for name, shape in shapes.items():
            self._interpreter.resize_tensor_input(self._slots["in"][name].index, shape)
        self._interpreter.allocate_tensors()
        self._shapes = shapes

    def _sized(self, port: Port, rows: int) -> tuple[int, ...]:
        return (rows, *self._shapes.get(port.name, port.shape or ())[1:])


def quantise(array: Array, slot: Slot) -> Array:
    """Real numbers as the slot's integers: nearest, clipped to the type's range; NaN becomes its least value."""
    if not slot.scale:
        return array
    bounds = np.iinfo(slot.dtype)
    with np.errstate(over="ignore"):  # what overflows becomes infinite, and is clipped below
        scaled = np.rint(array / slot.scale)
    scaled += slot.zero_point
    np.fmax(scaled, bounds.min, out=scaled)  # unlike clip, fmax and fmin leave no NaN behind
    np.fmin(scaled, bounds.max, out=scaled)
    return scaled.astype(slot.dtype)


def dequantise(array: Array, slot: Slot) -> Array:
    """The slot's integers as float32."""
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


def _interpreter_maker(module: ModuleType, file: Path, budget: Budget) -> Callable[[], Any]:
    known = {"delegate": ("xnnpack", "none")} if budget.accelerator == CPU else {}
    options = read_options("litert", budget, known)
    # Read, not mapped: a file that is overwritten in place would otherwise end the daemon by SIGBUS.
    arguments: dict[str, Any] = {"model_content": file.read_bytes(), "num_threads": budget.threads}
    if options.get("delegate") == "none":
        arguments["experimental_op_resolver_type"] = module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    if budget.accelerator in CORAL:
        arguments["experimental_delegates"] = [_coral(module, CORAL[budget.accelerator])]

    def make() -> Any:
        try:
            interpreter = module.Interpreter(**arguments)
            _check_signature(interpreter, file)
            interpreter.allocate_tensors()
        except ERRORS as error:
            raise VariantError(f"LiteRT cannot open {file.name}: {_words(error)}") from error
        return interpreter

    return make


def _check_signature(interpreter: Any, file: Path) -> None:
    """Refuse a file whose default signature is not its first graph, the only one that runs."""
    if _signatures(interpreter).get(DEFAULT_SIGNATURE, 0) != 0:
        raise VariantError(
            f"{file.name}: the signature {DEFAULT_SIGNATURE} is not the file's first graph, the only one that runs",
            remedy=f"convert the model with {DEFAULT_SIGNATURE} as its first or only signature",
        )


def _tell_signatures(interpreter: Any, file: Path) -> None:
    """Log which signatures of a file are not served."""
    if left := [key for key, graph in _signatures(interpreter).items() if graph]:
        _log.warning("%s: not served: signatures %s; convert each to a file of its own", file, ", ".join(left))


def _signatures(interpreter: Any) -> dict[str, int]:
    """Return the graph of each signature, by name."""
    runners = {key: interpreter.get_signature_runner(key) for key in interpreter.get_signature_list()}
    return {key: int(getattr(runner, "_subgraph_index", 0)) for key, runner in runners.items()}


def _coral(module: ModuleType, device: str) -> Any:
    try:
        return _edge_tpu(module, {"device": device})
    except (ValueError, OSError) as error:
        raise VariantError(
            f"the Edge TPU library {CORAL_LIBRARY} cannot be used: {_words(error)}",
            remedy="install libedgetpu1-std, plug the Coral in, and give this user access to it",
            transient=True,  # one process per TPU: it may be another's at this moment
        ) from error


def _edge_tpu(module: ModuleType, options: Mapping[str, str]) -> Any:
    """The delegate. Raises OSError without the library, ValueError without a device."""
    ctypes.CDLL(CORAL_LIBRARY)  # asked first: a delegate without its library complains on stderr when it is deleted
    return module.load_delegate(CORAL_LIBRARY, options)


def _integer_tensors(manifest: ModelManifest, variant: Variant) -> frozenset[str]:
    """The graph's names of tensors that the manifest itself calls integers."""
    specs = manifest.inputs + manifest.outputs
    return frozenset(variant.binding(spec.name).name for spec in specs if spec.datatype.dtype.kind in "iu")


def _slots(details: Sequence[Mapping[str, Any]], integers: frozenset[str]) -> dict[str, Slot]:
    return {each["name"]: _slot(each, raw=each["name"] in integers) for each in details}


def _slot(detail: Mapping[str, Any], *, raw: bool) -> Slot:
    scale, zero_point = detail["quantization"]
    dtype = np.dtype(detail["dtype"])
    quantised = dtype.kind in "iu" and not raw
    return Slot(int(detail["index"]), dtype, float(scale) if quantised else 0.0, int(zero_point))


def _ports(details: Sequence[Mapping[str, Any]], slots: Mapping[str, Slot], *, any_rows: bool) -> tuple[Port, ...]:
    return tuple(_port(each, slots[each["name"]], any_rows=any_rows) for each in details)


def _port(detail: Mapping[str, Any], slot: Slot, *, any_rows: bool) -> Port:
    try:
        datatype = Datatype.FP32 if slot.scale else datatype_of(slot.dtype)
    except KeyError:
        raise VariantError(f"tensor {detail['name']!r} is {slot.dtype}, which this runtime cannot exchange") from None
    shape = tuple(map(int, detail.get("shape_signature", detail["shape"])))
    if len(shape) != len(detail["shape"]):
        shape = tuple(map(int, detail["shape"]))  # files without a signature of their own give an empty one
    if any_rows and shape[:1] == (1,):
        shape = (ROWS, *shape[1:])
    return Port(detail["name"], datatype, shape)


def _spec(port: Port) -> TensorSpec:
    return TensorSpec(port.name, port.datatype, port.shape or ())


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
