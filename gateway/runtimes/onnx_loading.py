"""Sessions of ONNX Runtime from files, with the execution providers of an accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from gateway.domain.errors import VariantError
from gateway.domain.verdict import SessionBudget
from gateway.runtimes.onnx_plugins import add_plugin, plugin_remark
from gateway.runtimes.onnx_providers import NVIDIA_ACCELERATORS, load_cuda, providers, refuse_fallback


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
    session = _load_with(ort, file, options, wanted)
    refuse_fallback(session, budget, problem)
    return session, ()


def load(ort: ModuleType, file: Path, options: Any, wanted: Sequence[Any]) -> Any:
    """Return the session of a file with these providers. Raises VariantError."""
    try:
        return ort.InferenceSession(str(file), options, providers=wanted, enable_fallback=0)
    except error_types(ort) as error:
        raise VariantError(f"ONNX Runtime cannot open {file.name}: {error}") from error


def error_types(ort: ModuleType) -> tuple[type[Exception], ...]:
    """Return ONNX Runtime's exceptions, which have no common root but Exception."""
    own = [
        each
        for each in vars(ort.capi.onnxruntime_pybind11_state).values()
        if isinstance(each, type) and issubclass(each, Exception)
    ]
    return (*own, RuntimeError, ValueError, TypeError, MemoryError)


def _load_with(ort: ModuleType, file: Path, options: Any, wanted: Sequence[Any]) -> Any:
    """Load with the first provider that opens the model: TensorRT's fails if its libraries are absent.

    ONNX Runtime's own fallback would drop the options of the next provider, and so compute in TF32 (seen with 1.31.1
    on an H200: answers differ by 3e-4 of the largest element instead of 4e-7).
    """
    try:
        return load(ort, file, options, wanted)
    except VariantError:
        if len(wanted) <= 2:
            raise
    return _load_with(ort, file, options, wanted[1:])
