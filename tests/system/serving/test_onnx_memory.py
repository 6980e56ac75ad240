"""Memory of ONNX Runtime's sessions in a process with a bound: one large run keeps nothing that others need."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from gateway.common.domain.errors import VariantError, lacks_memory
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.runtimes import onnx_arena
from gateway.serving.runtimes.onnx import OnnxEngine, session_options

LIMIT_BYTES = 1000 << 20
KEPT_BYTES = 50 << 20
FLOATS = 150 << 20
"""Zeros of 600 MiB: below the bound, but not twice, nor where an arena doubles."""
GRAPHS = {
    "numbers": "(int64[k] shape) => (float[m] y) { y = ConstantOfShape(shape) }",
    "strings": "(int64[k] shape, string[2] s) => (float[m] y, string[2] t) "
    "{ y = ConstantOfShape(shape) t = Identity(s) }",
    "halves": "(int64[k] shape, bfloat16[2] s) => (float[m] y, bfloat16[2] t) "
    "{ y = ConstantOfShape(shape) t = Identity(s) }",
}
INPUTS = {"strings": np.array([b"a", b"b"], object), "halves": np.ones(2, np.float32)}


class Zeros:
    """A model that answers as many zeros as its caller wants."""

    def __init__(self, kind: str) -> None:
        graph = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {GRAPHS[kind]}')
        options = session_options(onnxruntime, SessionBudget())
        self.engine = OnnxEngine(onnxruntime.InferenceSession(graph.SerializeToString(), options))
        self._more = {"s": INPUTS[kind]} if kind in INPUTS else {}

    def answers(self, count: int) -> bool:
        outputs = self.engine.run(
            {"shape": np.array([count]), **self._more}, [port.name for port in self.engine.outputs]
        )
        return len(outputs[0]) == count


def data_bytes() -> int:
    """Return the size of this process's data, as the bound counts it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
    return int(line.split()[1]) << 10


def check(kind: str) -> None:
    """Check the bound, in a process of its own."""
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))
    one, other = Zeros(kind), Zeros("numbers")
    most = data_bytes() + KEPT_BYTES
    with pytest.raises(VariantError) as refused:
        one.answers(2**29)
    assert lacks_memory(refused.value.reason)
    assert one.answers(2**20)
    assert data_bytes() < most, "a run that failed keeps nothing"
    assert one.answers(FLOATS)
    assert other.answers(FLOATS), "what one model's run took is free for another's"
    assert other.answers(1)
    assert data_bytes() < most, "the run after a large one frees it"
    for used in range(700, 1000, 7):  # near the bound
        with suppress(VariantError):
            one.answers(used << 18)
    assert one.answers(FLOATS)
    one.engine.close()
    assert data_bytes() < most, "a model that was closed keeps nothing"


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "strings" else pytest.mark.long) for kind in GRAPHS]
)
def test_what_a_large_run_took_is_free_again(kind: str) -> None:
    call = f"from tests.system.serving.test_onnx_memory import check; check({kind!r})"
    subprocess.run([sys.executable, "-c", call], cwd=Path(__file__).parents[3], check=True)


def free_until_the_end() -> None:
    """Leave Python while the arena is freed again and again."""
    onnx_arena.FREE_AFTER_S = 0
    arena = onnx_arena.Arena(onnxruntime, ())
    arena.free_after([zeros := np.zeros(1)])
    del zeros
    threading.Thread(target=lambda: [arena._due.set() for _ in iter(int, 1)], daemon=True).start()
    time.sleep(0.2)


def test_a_process_ends_while_memory_is_freed() -> None:
    call = "from tests.system.serving.test_onnx_memory import free_until_the_end; free_until_the_end()"
    assert subprocess.run([sys.executable, "-c", call], cwd=Path(__file__).parents[3], check=False).returncode == 0
