"""Plugins of ONNX Runtime: execution providers in packages of their own, registered in the process that uses them.

Registration loads the vendor's libraries, so this process registers only the plugin of a variant that it opens, after
that variant's trial in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

from gateway.common.domain.errors import VariantError
from gateway.common.domain.installation import HERE
from gateway.common.domain.inventory import CPU
from gateway.common.domain.runtimes import RUNTIMES, Plugin
from gateway.common.domain.verdict import SessionBudget

HARDWARE: Mapping[str, tuple[tuple[str, ...], int | None]] = {
    CPU: (("CPU",), None),
    "intel-gpu": (("GPU",), 0x8086),
    "intel-npu": (("NPU",), 0x8086),
    "nvidia-gpu": (("GPU",), 0x10DE),
    "amd-gpu": (("GPU",), 0x1002),
    "qualcomm-dsp": (("NPU", "CPU"), None),  # on Linux, Qualcomm's provider offers its DSP as the processor
}
"""Types of ONNX Runtime's hardware devices, and the vendor's PCI id, by kind of accelerator."""
RECORD = ("session.record_ep_graph_assignment_info", "1")
"""Entry of the session options that lets a session tell which provider runs which nodes."""
_REGISTERING = threading.Lock()


def offered(ort: ModuleType, provider: str) -> Sequence[str]:
    """Register a plugin and return the accelerators that it offers here. Raises VariantError."""
    plugin = RUNTIMES["onnx"].plugin(provider)
    return tuple(kind for kind in plugin.accelerators if _devices(ort, plugin, kind))


def add_plugin(ort: ModuleType, options: Any, budget: SessionBudget, precision: str) -> None:
    """Let a session run on the budget's plugin. Raises VariantError if it offers no device for the accelerator."""
    devices = _devices(ort, RUNTIMES["onnx"].plugin(budget.provider), budget.accelerator)
    if not devices:
        problem = f"{budget.provider} offers no {budget.accelerator} on this device"
        raise VariantError(problem, remedy="see edge-gateway doctor, or remove the plugin's package")
    options.add_session_config_entry(*RECORD)
    options.add_provider_for_devices(devices[:1], _options(budget, precision))


def plugin_remark(session: Any, provider: str) -> str:
    """Return how many nodes run on the plugin, for people. Raises VariantError if none does."""
    parts = [(part.ep_name, len(part.get_nodes())) for part in session.get_provider_graph_assignment_info()]
    own = sum(count for name, count in parts if name == provider)
    if not own:
        raise VariantError(f"no node of the graph runs on {provider}: ONNX Runtime fell back to the CPU")
    return f"{provider} runs {own} of {sum(count for _, count in parts)} nodes"


def _options(budget: SessionBudget, precision: str) -> dict[str, str]:
    """Return the options of a plugin. Precision is always set: OpenVINO would compute in bf16 or fp16 otherwise."""
    if budget.provider == "QNNExecutionProvider":
        return {"backend_type": "htp", "enable_htp_fp16_precision": str(int(precision == "fp16"))}
    if budget.provider != "OpenVINOExecutionProvider":
        return {}
    from gateway.serving.runtimes.openvino import DEVICES, HINTS  # with its table of operators: only where it is used

    device = DEVICES[budget.accelerator]
    if precision not in HINTS[device]:
        raise VariantError(f"OpenVINO's {device} has no {precision}", remedy="serve another variant on it")
    threads = {"INFERENCE_NUM_THREADS": str(budget.threads)} if device == DEVICES[CPU] else {}
    return {"load_config": json.dumps({device: {"INFERENCE_PRECISION_HINT": HINTS[device][precision]} | threads})}


def _devices(ort: ModuleType, plugin: Plugin, kind: str) -> Sequence[Any]:
    types, vendor = HARDWARE[kind]
    with _REGISTERING:
        _register(ort, plugin)
    return [
        each
        for each in ort.get_ep_devices()
        if each.ep_name == plugin.provider
        and each.device.type.name in types
        and vendor in {None, each.device.vendor_id}
    ]


@cache
def _register(ort: ModuleType, plugin: Plugin) -> None:
    """Register the library of a plugin, once in a process. Raises VariantError."""
    remedy = f"install other versions of both, or {HERE.pip} uninstall {' '.join(plugin.distributions)}"
    try:
        _ = ort.InferenceSession.get_provider_graph_assignment_info  # ONNX Runtime 1.24 or newer
        library = importlib.import_module(plugin.module).get_library_path()
        ort.register_execution_provider_library(plugin.provider, library)
    except Exception as error:  # a boundary: errors of a vendor's package have no common root
        words = " ".join(str(error).split()) or type(error).__name__
        problem = f"{plugin.provider} cannot be registered with ONNX Runtime {ort.__version__}: {words}"
        raise VariantError(problem, remedy=remedy) from error
