"""Execution providers of ONNX Runtime by accelerator: sessions with them, their options and libraries, no fallback."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from gateway.common.domain.errors import VariantError
from gateway.common.domain.installation import HERE
from gateway.common.domain.inventory import CPU
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.runtimes.onnx_plugins import add_plugin, plugin_remark

NVIDIA_ACCELERATORS = ("nvidia-gpu", "nvidia-jetson-gpu")
_PREFER = HERE.preferring("WHEEL", "onnxruntime")
_NVIDIA_REMEDY = HERE.replacing("onnxruntime", "onnx-cuda")
GPU_PROVIDERS = RUNTIMES["onnx"].devices
"""Execution providers by accelerator, the first choice first."""
GPU_REMEDIES: Mapping[str, str] = {
    "nvidia-gpu": _NVIDIA_REMEDY,
    "nvidia-jetson-gpu": f"take NVIDIA's onnxruntime-gpu wheel for this JetPack and Python: {_PREFER}",
    "amd-gpu": f"take AMD's build of ONNX Runtime with MIGraphX: {_PREFER}",
}
LIBRARIES_CHARS = 500
"""Most characters that are told of libraries that cannot be loaded."""


def load_for(
    ort: ModuleType, file: Path, options: Any, budget: SessionBudget, precision: str
) -> tuple[Any, tuple[str, ...]]:
    """Return a session on the accelerator of the budget, with remarks. Raises VariantError if it would fall back."""
    if budget.provider:
        add_plugin(ort, options, budget, precision)
        session = load(ort, file, options, [])
        return session, (plugin_remark(session, budget.provider),)
    wanted = providers(ort, budget, precision)
    problem = load_cuda(ort) if budget.accelerator in NVIDIA_ACCELERATORS else ""
    session = load(ort, file, options, wanted)
    refuse_fallback(session, budget, problem)
    return session, ()


def load(ort: ModuleType, file: Path, options: Any, wanted: Sequence[Any]) -> Any:
    """Return the session of a file with the first provider that opens it: TensorRT's fails if its libraries are absent.

    ONNX Runtime's own fallback would drop the options of the next provider, and so compute in TF32 (seen with 1.31.1
    on an H200: answers differ by 3e-4 of the largest element instead of 4e-7). Raises VariantError.
    """
    while True:
        try:
            return ort.InferenceSession(str(file), options, providers=wanted, enable_fallback=0)
        except error_types(ort) as error:
            if len(wanted) <= 2:
                raise VariantError(f"ONNX Runtime cannot open {file.name}: {error}") from error
        wanted = wanted[1:]


@cache
def error_types(ort: ModuleType) -> tuple[type[Exception], ...]:
    """Return ONNX Runtime's exceptions, which have no common root but Exception."""
    own = [
        each
        for each in vars(ort.capi.onnxruntime_pybind11_state).values()
        if isinstance(each, type) and issubclass(each, Exception)
    ]
    return (*own, RuntimeError, ValueError, TypeError, MemoryError)


def providers(ort: ModuleType, budget: SessionBudget, precision: str) -> list[str | tuple[str, dict[str, str]]]:
    """Return execution providers for the budget's accelerator, best first. Raises VariantError if none is available."""
    if budget.accelerator == CPU:
        return ["CPUExecutionProvider"]
    known = GPU_PROVIDERS[budget.accelerator]
    wanted = [name.strip() for name in budget.options.get("providers", ",".join(known)).split(",")]
    available = ort.get_available_providers()
    found = [name for name in wanted if name in available and name in known]
    if not found:
        raise VariantError(
            f"ONNX Runtime {ort.__version__} offers {', '.join(available)}, but {budget.accelerator} needs one of "
            f"{', '.join(wanted)}",
            remedy=GPU_REMEDIES[budget.accelerator],
        )
    return [*((name, _provider_options(name, budget, precision)) for name in found), "CPUExecutionProvider"]


def _provider_options(name: str, budget: SessionBudget, precision: str) -> dict[str, str]:
    """Return the options of a provider. Precision is always set.

    Without it, CUDA would compute fp32 as TF32, and TensorRT would ignore int8 and fp16.
    """
    if name == "CUDAExecutionProvider":
        return {"device_id": "0", "use_tf32": "0"}
    if name == "MIGraphXExecutionProvider":
        return {"device_id": "0", "migraphx_fp16_enable": str(int(precision == "fp16"))}
    if name == "ROCMExecutionProvider":
        return {"device_id": "0"}
    options = {
        "device_id": "0",
        "trt_fp16_enable": str(int(precision in {"fp16", "int8"})),
        "trt_int8_enable": str(int(precision == "int8")),
    }
    # TensorRT builds an engine per range of shapes, which takes minutes. The trial's batches widen the range, and the
    # daemon loads the engine that the trial left in the cache.
    if budget.cache_dir:
        options |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": budget.cache_dir}
        options |= {"trt_timing_cache_enable": "1", "trt_timing_cache_path": budget.cache_dir}
    return options


@cache
def load_cuda(ort: ModuleType) -> str:
    """Load CUDA and cuDNN from NVIDIA's Python packages, or from the system. Return what ONNX Runtime says of failures.

    Its provider finds only libraries of the system, or loaded ones. Builds before 1.21 have no such function.
    """
    preload = getattr(ort, "preload_dlls", None)
    output = io.StringIO()
    if preload is not None:
        with contextlib.redirect_stdout(output):  # it prints, and a trial's stdout is its answer
            preload()
    return " ".join(output.getvalue().split())[:LIBRARIES_CHARS]


def refuse_fallback(session: Any, budget: SessionBudget, problem: str) -> None:
    """Raise VariantError if a session runs on the CPU only instead of the accelerator; `problem` says why."""
    used = session.get_providers()
    if budget.accelerator != CPU and not set(used) & set(GPU_PROVIDERS[budget.accelerator]):
        why = f": {problem}" if problem else ""
        raise VariantError(
            f"ONNX Runtime fell back to {', '.join(used)} instead of using {budget.accelerator}{why}",
            remedy="install the libraries that this onnxruntime was built for: "
            f"{GPU_REMEDIES[budget.accelerator]} (EG-410)",
        )
