"""Cost of a step with Python code beside the same function in the gateway's process: time of a request, CPU, memory.

`python tests/performance/python_step.py [REQUESTS]` prints, for small arrays and for a frame of 2.7 MB, the median and
the least time of a request, CPU of the gateway and of the code's process a request, and the process's resident memory.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from gateway.common.domain.tensor import Array, Datatype  # noqa: E402
from gateway.serving.pipelines.settings import PipelineSettings  # noqa: E402
from gateway.serving.pipelines.target import open_pipeline  # noqa: E402
from tests.simulators.pipelines import PipelineRig, spec  # noqa: E402

CODE = "class Step:\n    def run(self, x):\n        return x + 1\n"
PIPELINE = '[input]\nx = "{kind}"\n[[step]]\nname = "s"\n{step}\nof = "x"\n{outputs}[output]\ny = "s.y"\n'
FORMS = {
    "FP32[4]": np.ones((1, 4), np.float32),
    "FP32[1000]": np.ones((1, 1000), np.float32),
    "UINT8[720, 1280, 3]": np.ones((1, 720, 1280, 3), np.uint8),
}


async def measured(kind: str, x: Array, requests: int) -> None:
    rig = PipelineRig()
    rig.repository._open_pipeline = partial(open_pipeline, settings=PipelineSettings(python=True))
    shape, datatype = x.shape[1:], Datatype.UINT8 if x.dtype == np.uint8 else Datatype.FP32
    specs = [(spec(name, *shape, datatype=datatype),) for name in "xy"]
    rig.model("m", lambda of: {"y": of["x"] + 1}, *specs)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "step.py").write_text(CODE)
        outputs = f'outputs = {{ y = "{kind}" }}\n'
        steps = {"in process": ('model = "m"', ""), "Python step": ('python = "step.py"', outputs)}
        for name, (step, made) in steps.items():
            text = PIPELINE.format(kind=kind, step=step, outputs=made)
            rig.pipeline(text, name.replace(" ", ""), Path(folder))
        await rig.begin()
        times: dict[str, list[float]] = {name: [] for name in steps}
        cpu = dict.fromkeys(steps, 0.0)
        for _ in range(10):  # by turns, so that noise is that of both
            for name in steps:
                for _ in range(20):
                    await rig.ask({"x": x}, "y", name=name.replace(" ", ""))
                began_cpu = time.process_time()
                for _ in range(requests // 10):
                    began = time.perf_counter()
                    await rig.ask({"x": x}, "y", name=name.replace(" ", ""))
                    times[name].append(time.perf_counter() - began)
                cpu[name] += time.process_time() - began_cpu
        (worker,) = rig.target("Pythonstep")._workers.values()
        assert worker._process is not None
        status = Path(f"/proc/{worker._process.popen.pid}/status").read_text()
        memory = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
        for name in steps:
            own = f"{worker.row_cpu_ns / 1000:7.1f}" if name == "Python step" else "      –"
            figures = (
                f"{median(times[name]) * 1e6:9.1f} {min(times[name]) * 1e6:9.1f} {cpu[name] / requests * 1e6:9.1f}"
            )
            print(f"{kind:22} {name:12} {figures} {own}   {int(memory) / 1024:.0f} MiB")
        await rig.repository.close()


if __name__ == "__main__":
    print(f"{'input':22} {'step':12} {'median µs':>9} {'least µs':>9} {'CPU µs':>9} {'its CPU':>7}   its memory")
    for of_kind, array in FORMS.items():
        asyncio.run(measured(of_kind, array, int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
