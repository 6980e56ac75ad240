"""Runtimes by name, resolved late: naming one imports its module, and the module imports its engine only when used.

A new runtime is one file and one line here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from gateway.domain.errors import VariantError
from gateway.domain.ports import Runtime

CATALOG: Mapping[str, str] = {
    "onnx": "gateway.runtimes.onnx:OnnxRuntime",
    "openvino": "gateway.runtimes.openvino:OpenVinoRuntime",
    "litert": "gateway.runtimes.litert:LiteRtRuntime",
    "reference": "gateway.runtimes.reference:ReferenceRuntime",
}


def get_runtime(name: str) -> Runtime:
    """The runtime called `name`; its engine may still be missing. Raises VariantError for an unknown name."""
    place = CATALOG.get(name)
    if place is None:
        raise VariantError(f"there is no runtime called {name!r}", remedy=f"use one of {', '.join(CATALOG)}")
    module, _, attribute = place.partition(":")
    runtime: Runtime = getattr(importlib.import_module(module), attribute)()
    return runtime
