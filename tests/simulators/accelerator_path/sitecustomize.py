"""Row of the simulated accelerator's runtime, for the daemon and for all processes that it starts."""

from gateway.common.domain import runtimes

SIMULATED = runtimes.RuntimeSpec(
    "simulated",
    "tests.simulators.accelerator:SimulatedRuntime",
    (runtimes.Package("onnxruntime", ("onnxruntime",)),),
    "pip install onnxruntime",
    accelerators=("hailo-8",),
)
runtimes.RUNTIMES = {**runtimes.RUNTIMES, "simulated": SIMULATED}  # before any other module has read it
