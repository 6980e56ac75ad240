"""Costs of tensors' bytes: shared memory copied and in place, JSON: `python -m tests.performance.memory`.

examples:
  python -m tests.performance.memory
  python -m tests.performance.memory --runs 200
"""

from __future__ import annotations

import argparse
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.domain.infer import InferResponse
from gateway.serving.frontends.oip_json_answers import STEP_ELEMENTS, encode_response
from gateway.serving.frontends.placement import RegionSpan
from gateway.serving.frontends.regions import Regions, Registrant
from gateway.serving.frontends.settings import SharedMemorySettings
from tests.simulators.segments import folder

FRAME_BYTES = 2_764_800
"""A camera frame of 1280 x 720 pixels."""
WHO = Registrant("camera", uid=os.getuid())


def measured(runs: int) -> dict[str, float]:
    """Return the median µs of each cost."""
    with folder() as shm:
        regions = Regions(SharedMemorySettings(allowed=True), shm)
        _register(regions, shm)
        step = np.random.default_rng(1).random(STEP_ELEMENTS).astype("<f4")
        answer = InferResponse("m", "1", "", {"y": Tensor(Datatype.FP32, step)})
        return {
            "frame in a segment, copied": _median_us(lambda: _read(regions, "copied"), runs),
            "frame in a sealed memfd, in place": _median_us(lambda: _read(regions, "sealed"), runs),
            f"{STEP_ELEMENTS} FP32 as JSON": _median_us(lambda: encode_response(answer), runs),
        }


def _register(regions: Regions, shm: Path) -> None:
    (shm / "frame").write_bytes(bytes(FRAME_BYTES))
    regions.register(WHO, "copied", "/frame", 0, FRAME_BYTES)
    memory = os.memfd_create("frame", os.MFD_ALLOW_SEALING)
    os.pwrite(memory, bytes(FRAME_BYTES), 0)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    regions.register_sealed(WHO, "sealed", memory, FRAME_BYTES, lambda: None)
    os.close(memory)


def _read(regions: Regions, region: str) -> None:
    assert len(regions.raw(WHO.caller, RegionSpan(region, FRAME_BYTES), Datatype.UINT8)) == FRAME_BYTES


def _median_us(act: Callable[[], object], runs: int) -> float:
    laps_ns = []
    for _ in range(runs):
        began_ns = time.perf_counter_ns()
        act()
        laps_ns.append(time.perf_counter_ns() - began_ns)
    return median(laps_ns) / 1e3


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="runs of each, of which the median is printed")
    for what, cost_us in measured(parser.parse_args().runs).items():
        print(f"{what:36} {cost_us:8.1f} µs")


if __name__ == "__main__":
    main()
