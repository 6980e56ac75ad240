"""Child process that makes one variant: a tool may crash, print, or take much memory.

`python -m gateway.workshop.making.quantizer_child`: reads a job as JSON from stdin, writes files, and ends with 0;
else the last line on stderr is the reason.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from gateway.common.domain.tensor import Array, Tensors
from gateway.workshop.making.quantize_litert import write_litert_dynamic_int8, write_litert_int8
from gateway.workshop.making.quantize_onnx import write_onnx_int8
from gateway.workshop.making.quantize_openvino import write_openvino_fp16, write_openvino_int8

Writer = Callable[[Path, "StoredRuns", Path], None]
WRITERS: Mapping[str, Writer] = {
    "onnx-int8": write_onnx_int8,
    "openvino-bf16": write_openvino_fp16,
    "openvino-fp16": write_openvino_fp16,
    "openvino-int8": write_openvino_int8,
    "litert-int8": write_litert_int8,
    "litert-dynamic-int8": write_litert_dynamic_int8,
}
"""Function that writes a variant, by its name."""


@dataclass(frozen=True, slots=True)
class QuantizerJob:
    """Variant to make: its name in `WRITERS`, the float model, the file to write.

    `runs`: files of arrays [runs, …] by the model's own names of its inputs, the dimension of rows included.
    """

    writer: str
    source: str
    target: str
    runs: Mapping[str, str]
    seed: int

    def encode(self) -> bytes:
        """Return the job as JSON."""
        return json.dumps(asdict(self)).encode()


class StoredRuns(Sequence[Tensors]):
    """Inputs of runs in files that are mapped into memory as they are read."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._arrays: dict[str, Array] = {name: np.load(file, mmap_mode="r") for name, file in files.items()}

    def __len__(self) -> int:
        return min((len(array) for array in self._arrays.values()), default=0)

    def __getitem__(self, index: int) -> Tensors:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return {name: np.array(array[index]) for name, array in self._arrays.items()}

    def __iter__(self) -> Iterator[Tensors]:
        return (self[index] for index in range(len(self)))


def main() -> int:
    """Make one variant. Return 1 with the reason on stderr if the tool fails."""
    job = QuantizerJob(**json.load(sys.stdin))
    os.dup2(2, 1)  # tools print their progress on stdout
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    random.seed(job.seed)
    np.random.seed(job.seed)  # noqa: NPY002 - tools draw from numpy's global state
    try:
        WRITERS[job.writer](Path(job.source), StoredRuns(job.runs), Path(job.target))
    except Exception as error:  # noqa: BLE001 - the process boundary: any error of a tool is the answer
        sys.stderr.write(f"\n{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
