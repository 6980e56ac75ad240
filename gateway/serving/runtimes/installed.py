"""Installed engines, by the names of their packages' metadata: no engine is imported here."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from gateway.common.domain.errors import VariantError
from gateway.common.domain.installation import HERE
from gateway.common.domain.runtimes import RUNTIMES, Package
from gateway.common.domain.verdict import PluginStatus, RuntimeStatus

ALLOW_TELEMETRY = "EDGE_GATEWAY_ALLOW_OPENVINO_TELEMETRY"
"""Environment variable: "1" permits OpenVINO although a package that reports usage to its vendor is installed."""


def conflict() -> str:
    """Return the problem if both ONNX Runtime distributions are installed in one folder, or ""."""
    both = [found[0] for name in ("onnxruntime", "onnxruntime-gpu") if (found := _distribution(name))]
    if len(both) == len(set(both)):
        return ""
    return "onnxruntime and onnxruntime-gpu are both installed and overwrite each other's files"


def telemetry() -> str:
    """Return the problem if OpenVINO would report usage to its vendor without permission, or ""."""
    if not _version("openvino-telemetry") or os.environ.get(ALLOW_TELEMETRY) == "1":
        return ""
    return "openvino-telemetry is installed, which reports usage to its vendor"


REINSTALL = f"{HERE.replacing('onnxruntime onnxruntime-gpu', 'onnx')} (for NVIDIA GPUs: {HERE.adding('onnx-cuda')})"
_OBSTACLES: Mapping[str, tuple[Callable[[], str], str]] = {
    "onnx": (conflict, REINSTALL),
    "openvino": (telemetry, f"{HERE.pip} uninstall openvino-telemetry (or set {ALLOW_TELEMETRY}=1 to allow it)"),
}
"""Problem and remedy of an installed runtime that must not be imported, by its name."""


def installed_package(name: str) -> Package | None:
    """Return the first installed package of runtime `name`, or None."""
    return next((package for package in RUNTIMES[name].packages if importlib.util.find_spec(package.module)), None)


def installed_version(name: str) -> RuntimeStatus:
    """Return the version of runtime `name`, or the problem and its remedy.

    It is cheap enough for the daemon's start.
    """
    spec = RUNTIMES.get(name)
    if spec is None:
        known = ", ".join(RUNTIMES)
        return RuntimeStatus(name, problem=f"there is no runtime called {name!r}", remedy=f"use one of {known}")
    package = installed_package(name)
    if package is None:
        modules = " or ".join(each.module for each in spec.packages)
        return RuntimeStatus(
            name, problem=f"the Python package {modules} is not installed", remedy=f"{spec.remedy} (EG-409)"
        )
    module = importlib.util.find_spec(package.module)
    found = [each for each in map(_distribution, package.distributions) if each is not None]
    # A folder that precedes may have another build of it (packaging/README.md, "Jetson").
    read = [each for each in found if module and str(module.origin).startswith(f"{each[0]}/")]
    version = (read or found)[0][1] if found else "unknown"
    if name in _OBSTACLES and (problem := _OBSTACLES[name][0]()):
        return RuntimeStatus(name, version, problem, _OBSTACLES[name][1])
    plugins = {
        plugin.provider: PluginStatus(next(filter(None, map(_version, plugin.distributions)), "unknown"))
        for plugin in spec.plugins
        if importlib.util.find_spec(plugin.module)
    }
    return RuntimeStatus(name, version, plugins=plugins)


def require(name: str) -> str:
    """Return the version of runtime `name`.

    Raises VariantError (problem, remedy) if it must not or cannot be imported.
    """
    status = installed_version(name)
    if status.problem or status.version is None:
        raise VariantError(f"runtime {name} cannot be used: {status.problem}", remedy=status.remedy)
    return status.version


def unimportable(name: str, error: ImportError) -> VariantError:
    """Return the error of an installed engine that fails to import (a broken or foreign wheel)."""
    return VariantError(f"runtime {name} is installed but cannot be imported: {error}", remedy=RUNTIMES[name].remedy)


def _distribution(name: str) -> tuple[str, str] | None:
    """Return the folder and the version of a distribution, by the name of its metadata's folder; None if there is none.

    importlib.metadata takes 30 ms for this: it imports parsers of mail, CSV and archives.
    """
    folders = tuple((folder, Path(folder).stat().st_mtime_ns) for folder in filter(os.path.isdir, sys.path))
    return _distributions(folders).get(name.replace("-", "_"))


@lru_cache(maxsize=1)
def _distributions(folders: tuple[tuple[str, int], ...]) -> Mapping[str, tuple[str, str]]:
    """Return folder and version of all distributions in folders with these times of change; the first one precedes."""
    found: dict[str, tuple[str, str]] = {}
    for folder, _ in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".dist-info", ".egg-info")):
                    name, _, version = entry.name.rpartition(".")[0].partition("-")
                    found.setdefault(name.lower(), (folder, version.partition("-")[0] or "unknown"))
    return found


def _version(name: str) -> str | None:
    found = _distribution(name)
    return found[1] if found else None
