"""Table of runtimes: everything that must be known about one before its engine is imported.

A new runtime is a file in `gateway/serving/runtimes/` that implements `Runtime` (`domain/ports.py` there), and an
entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gateway.common.domain.installation import HERE
from gateway.common.domain.inventory import CPU


@dataclass(frozen=True, slots=True)
class Package:
    """Import package and the distributions that provide it, the preferred one first."""

    module: str
    distributions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plugin:
    """Provider of ONNX Runtime in a package of its own, whose `module` has `get_library_path`."""

    provider: str
    module: str
    distributions: tuple[str, ...]
    accelerators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RuntimeSpec:
    """Declaration of a runtime.

    `implementation`: `module:class` of the `Runtime`. `packages`: any one of them is enough. `remedy`: command if none
    is installed. `suffixes`: files that are models of this runtime without a manifest, which may run on the
    `accelerators`. `devices`: names in the runtime's own list by kind of accelerator, where these are not the kind's.
    `exclusive`: accelerators that only one process at a time can hold with this runtime. `plugins`: providers that may
    be added. `triton_backends`: names in Triton's config.pbtxt. `has_signatures`: a file may hold several graphs.
    `has_adapters`: a variant may have some. `runs`: runs at a time that the engine joins by itself (0: each takes cores
    of its own). `isolated`: its sessions serve from worker processes, always.
    """

    name: str
    implementation: str
    packages: tuple[Package, ...]
    remedy: str
    suffixes: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = (CPU,)
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exclusive: tuple[str, ...] = ()
    plugins: tuple[Plugin, ...] = ()
    triton_backends: tuple[str, ...] = ()
    has_signatures: bool = False
    has_adapters: bool = False
    runs: int = 0
    isolated: bool = False

    def lists(self, kind: str) -> tuple[str, ...]:
        """Return the names by which the runtime lists accelerators of `kind`; none if it cannot use them."""
        own = self.devices.get(kind, (kind,) if kind in self.accelerators else ())
        return own if kind in own or not self.plugins_on(kind) else (*own, kind)

    def plugin(self, provider: str) -> Plugin:
        """Return the plugin of a provider."""
        return next(plugin for plugin in self.plugins if plugin.provider == provider)

    def plugins_on(self, kind: str) -> tuple[Plugin, ...]:
        """Return the plugins that may run models on accelerators of `kind`."""
        return tuple(plugin for plugin in self.plugins if kind in plugin.accelerators)


_NVIDIA = ("TensorrtExecutionProvider", "CUDAExecutionProvider")

_TENSORRT_RTX = ("onnxruntime-ep-nv-tensorrt-rtx-cu13", "onnxruntime-ep-nv-tensorrt-rtx-cu12")
_ONNX_PLUGINS = tuple(
    Plugin(f"{name}ExecutionProvider", module, distributions, accelerators)
    for name, module, distributions, accelerators in (
        ("OpenVINO", "onnxruntime_ep_openvino", ("onnxruntime-ep-openvino",), (CPU, "intel-gpu", "intel-npu")),
        ("QNN", "onnxruntime_qnn", ("onnxruntime-qnn",), ("qualcomm-dsp",)),
        ("NvTensorRTRTX", "onnxruntime_ep_nv_tensorrt_rtx", _TENSORRT_RTX, ("nvidia-gpu",)),
        ("MIGraphX", "onnxruntime_ep_migraphx", ("onnxruntime-ep-migraphx",), ("amd-gpu",)),
        ("WebGpu", "onnxruntime_ep_webgpu", ("onnxruntime-ep-webgpu",), ("intel-gpu", "nvidia-gpu", "amd-gpu")),
    )
)
_SPECS = (
    RuntimeSpec(
        "onnx",
        "gateway.serving.runtimes.onnx:OnnxRuntime",
        (Package("onnxruntime", ("onnxruntime", "onnxruntime-gpu", "onnxruntime-migraphx", "onnxruntime-rocm")),),
        f"{HERE.adding('onnx')} (for NVIDIA GPUs: {HERE.adding('onnx-cuda')})",
        (".onnx",),
        (CPU, "nvidia-gpu", "nvidia-jetson-gpu", "amd-gpu", "intel-gpu", "intel-npu", "qualcomm-dsp"),
        {
            "nvidia-gpu": _NVIDIA,
            "nvidia-jetson-gpu": _NVIDIA,
            "amd-gpu": ("MIGraphXExecutionProvider", "ROCMExecutionProvider"),
        },
        plugins=_ONNX_PLUGINS,
        triton_backends=("onnxruntime", "onnxruntime_onnx", "onnx"),
    ),
    RuntimeSpec(
        "openvino",
        "gateway.serving.runtimes.openvino:OpenVinoRuntime",
        (Package("openvino", ("openvino",)),),
        HERE.adding("openvino"),
        (".xml",),
        (CPU, "intel-gpu", "intel-npu"),
        {"intel-gpu": ("GPU",), "intel-npu": ("NPU",)},
        triton_backends=("openvino",),
    ),
    RuntimeSpec(
        "litert",
        "gateway.serving.runtimes.litert:LiteRtRuntime",
        (Package("ai_edge_litert", ("ai-edge-litert",)), Package("tflite_runtime", ("tflite-runtime",))),
        HERE.adding("litert"),
        (".tflite",),
        devices={"coral-usb": ("EDGETPU",), "coral-pcie": ("EDGETPU",)},
        exclusive=("coral-usb", "coral-pcie"),
        triton_backends=("armnn_tflite", "litert"),
        has_signatures=True,
    ),
    RuntimeSpec(
        "llamacpp",
        "gateway.serving.runtimes.llamacpp:LlamaCppRuntime",
        (Package("xllamacpp", ("xllamacpp",)),),
        HERE.adding("llamacpp"),
        (".gguf",),
        has_adapters=True,
        runs=4,
        isolated=True,
    ),
    RuntimeSpec(
        "reference",
        "gateway.serving.runtimes.reference:ReferenceRuntime",
        (Package("numpy", ("numpy",)),),
        HERE.adding(""),
    ),
)
RUNTIMES: Mapping[str, RuntimeSpec] = MappingProxyType({spec.name: spec for spec in _SPECS})
"""Every runtime by its name."""
BY_SUFFIX: Mapping[str, str] = MappingProxyType({suffix: spec.name for spec in _SPECS for suffix in spec.suffixes})
"""Name of the runtime by the suffix of a model file."""
BY_BACKEND: Mapping[str, str] = MappingProxyType({name: spec.name for spec in _SPECS for name in spec.triton_backends})
"""Name of the runtime by Triton's backend or platform."""
