"""Runtimes by name. A lookup imports the runtime's module; the module imports its engine when it is used."""

from __future__ import annotations

import importlib

from gateway.common.domain.errors import VariantError
from gateway.common.domain.runtimes import RUNTIMES
from gateway.serving.domain.ports import Runtime


def get_runtime(name: str) -> Runtime:
    """Return the runtime called `name`; its engine may still be missing. Raises VariantError for an unknown name."""
    spec = RUNTIMES.get(name)
    if spec is None:
        raise VariantError(f"there is no runtime called {name!r}", remedy=f"use one of {', '.join(RUNTIMES)}")
    module, _, attribute = spec.implementation.partition(":")
    runtime: Runtime = getattr(importlib.import_module(module), attribute)()
    return runtime
