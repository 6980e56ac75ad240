"""Every step of every device profile asks its runtime for something that the runtime understands."""

from pathlib import Path

import onnxruntime
import pytest

from gateway.common.domain.inventory import CPU
from gateway.common.domain.profile import read_profile
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.runtimes import litert, onnx, onnx_plugins, onnx_providers, openvino
from gateway.serving.runtimes.opening import check_accelerator

PROFILES = Path(__file__).resolve().parents[3] / "device_profiles"
ACCELERATORS = {
    "onnx": (CPU, *onnx_providers.GPU_PROVIDERS),
    "openvino": tuple(openvino.DEVICES),
    "litert": (CPU, *litert.CORAL),
    "llamacpp": (CPU,),
    "reference": (CPU,),
}
STEPS = [
    (file.stem, step)
    for file in sorted(PROFILES.glob("*.toml"))
    for step in read_profile(file.read_text(), file.name).ladder
]


class AnyBuild:
    """An onnxruntime that has all providers."""

    __version__ = onnxruntime.__version__

    @staticmethod
    def get_available_providers():
        return [*(name for names in onnx_providers.GPU_PROVIDERS.values() for name in names), "CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("profile", "step"), STEPS, ids=[f"{name}-{step.runtime}-{step.accelerator}" for name, step in STEPS]
)
def test_a_step_is_understood(profile, step):
    budget = SessionBudget(accelerator=step.accelerator, options=step.options)
    if step.accelerator not in ACCELERATORS[step.runtime]:
        assert RUNTIMES[step.runtime].plugins_on(step.accelerator), "neither the runtime nor a plugin can use it"
        assert step.accelerator in onnx_plugins.HARDWARE
        return
    check_accelerator(step.runtime, budget, ACCELERATORS[step.runtime])
    for precision in step.precisions:
        if step.runtime == "openvino":
            assert openvino.compile_options(budget, precision, "x86_64")
        elif step.runtime == "onnx":
            assert onnx.session_options(onnxruntime, budget)
            assert onnx_providers.providers(AnyBuild, budget, precision)
        else:
            assert step.options == {}
