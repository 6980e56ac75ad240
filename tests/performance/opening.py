"""Cost of private copies (decision 0036): time and peak memory of an opening, with copies and of the files themselves.

`python -m tests.performance.opening [MIB] [PASSES]`; each opening in a process of its own, both kinds in turn.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from gateway.common.domain.manifest import Artifact, ModelManifest, TensorSpec, Variant
from gateway.common.domain.tensor import DATATYPES
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.assembly import _open_session
from gateway.serving.runtimes.catalog import get_runtime

MIB = 2**20
KINDS = ("files", "copies")


def make_model(folder: Path, size_mib: int) -> int:
    """Write a matrix product of about this size. Return the width of its input."""
    width = int((size_mib * MIB / 4) ** 0.5)
    weights = numpy_helper.from_array(np.ones((width, width), np.float32), "w")
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, width]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ports[:1], ports[1:], [weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, str(folder / "m.onnx"))
    return width


def opened(kind: str, folder: Path, width: int) -> dict[str, float]:
    """Open once in this process. Return milliseconds and the peak in MiB."""
    content = (folder / "m.onnx").read_bytes()
    artifact = Artifact("m.onnx", hashlib.sha256(content).hexdigest(), len(content))
    del content
    x, y = (TensorSpec(name, DATATYPES["FP32"], (-1, width)) for name in "xy")
    manifest = ModelManifest("opened", "1", (x,), (y,), (Variant("only", "onnx", "fp32", (artifact,)),))
    runtime = get_runtime("onnx")
    runtime.devices()  # its library is loaded
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak (proc(5))
    began_s = time.perf_counter()
    how = _open_session if kind == "copies" else runtime.open
    session = how(manifest, manifest.variants[0], folder, SessionBudget(threads=1))
    took_s = time.perf_counter() - began_s
    session.close()
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert peak
    return {"ms": 1000 * took_s, "peak_mib": int(peak[1]) / 1024}


def main(size_mib: int = 119, passes: int = 5) -> None:
    """Print medians of both kinds."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as name:
        width = make_model(Path(name), size_mib)
        for kind in KINDS * passes:
            command = [sys.executable, "-m", "tests.performance.opening", kind, name, str(width)]
            found[kind].append(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))
    for kind, runs in found.items():
        ms, peak = (statistics.median(run[key] for run in runs) for key in ("ms", "peak_mib"))
        print(f"{kind:7} {size_mib} MiB: {ms:.0f} ms, peak {peak:.0f} MiB (medians of {passes})")


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in KINDS:
        print(json.dumps(opened(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
    else:
        main(*map(int, sys.argv[1:]))
