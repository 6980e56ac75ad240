"""Runtime whose model answers y = 2 · x, and misbehaves as the first value of its input says: for worker processes.

`given_to(folder)` returns variables with which every process of the gateway knows it, as if it were in the table.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Artifact, ModelManifest, TensorSpec, Variant
from gateway.common.domain.tensor import Array, Datatype
from gateway.common.domain.verdict import SessionBudget, Signature
from gateway.serving.domain.ports import RowProof, Session
from gateway.serving.runtimes.binding import Port
from gateway.serving.runtimes.opening import model_file
from gateway.serving.runtimes.session import bind

ROOT = Path(__file__).resolve().parents[2]
SITE = """
from gateway.common.domain import runtimes
packages = (runtimes.Package("numpy", ("numpy",)),)
spec = runtimes.RuntimeSpec("faulty", "tests.simulators.faulty:FaultyRuntime", packages, "")
runtimes.RUNTIMES = {**runtimes.RUNTIMES, "faulty": spec}
"""
MANIFEST = """
schema = 1
name = "faulty"
version = "1"
[[input]]
name = "x"
datatype = "FP32"
shape = [-1, 3]
[[output]]
name = "y"
datatype = "FP32"
shape = [-1, 3]
[[variant]]
name = "faulty"
runtime = "faulty"
precision = "fp32"
artifacts = [{path = "model.faulty", sha256 = "%s", bytes = 2}]
"""
CONTENT = b"2\n"
X, Y = (TensorSpec(name, Datatype.FP32, (-1, 3)) for name in "xy")
KEPT = list[Array]()


def given_to(folder: Path) -> dict[str, str]:
    """Return the variables of a process that knows the runtime."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(SITE)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def write_release(models: Path) -> ModelManifest:
    """Write the release of the model into a folder of models. Return its manifest."""
    folder = models / "faulty" / "1"
    folder.mkdir(parents=True)
    (folder / "model.faulty").write_bytes(CONTENT)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    (folder / "manifest.toml").write_text(MANIFEST % sha256)
    variant = Variant("faulty", "faulty", "fp32", (Artifact("model.faulty", sha256, len(CONTENT)),))
    return ModelManifest("faulty", "1", (X,), (Y,), (variant,), batch=True)


def _sockets() -> list[int]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
                found.append(int(entry.name))
    return found


def _said(content: bytes) -> None:
    for descriptor in _sockets():
        os.write(descriptor, content)


def _kept() -> None:
    KEPT.append(np.ones(8 * 2**20))  # 64 MiB


def _printed() -> None:
    for _ in range(100):
        os.write(1, b"x" * 100_000)


def _looped() -> None:
    while True:
        pass


FAULTS: Mapping[str, Callable[[], object]] = {
    "good": lambda: None,
    "hangs": lambda: time.sleep(3600),
    "loops": _looped,
    "crashes": lambda: ctypes.string_at(0),
    "aborts": os.abort,
    "exits": lambda: os._exit(3),
    "leaks": _kept,
    "forks": os.fork,
    "executes": lambda: os.execv(sys.executable, [sys.executable, "-c", ""]),  # noqa: S606
    "answers itself": lambda: _said(b"\1\0\0\0\0\0\0\0\0"),
    "answers garbage": lambda: _said(b"{]" * 1000),
    "answers twice": lambda: [_said(b"\1\0\0\0\0\0\0\0\3[1, 2, 3]"), None],
    "prints": _printed,
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "lacks memory": lambda: np.ones(2**40),
    "closes its sockets": lambda: [os.close(each) for each in _sockets()],
    "opens a socket": lambda: __import__("socket").socket(),
    "writes a file": lambda: Path("/tmp/edge-gateway-written").write_text("x"),
    "raises": lambda: 1 / 0,
    "other shape": lambda: None,
    "other type": lambda: None,
    "not a number": lambda: None,
    "sleeps": lambda: time.sleep(0.3),
    "sleeps long": lambda: time.sleep(3.0),
}
"""What the model does before it answers, by name. The input's first value selects by number."""
NUMBERS = {name: float(number) for number, name in enumerate(FAULTS)}


def asking(fault: str, rows: int = 1) -> dict[str, Array]:
    """Return an input that leads to a fault."""
    x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    x[0, 0] = NUMBERS[fault]
    return {"x": x}


class FaultyRuntime:
    """Runtime for .faulty files. Implements `gateway.serving.domain.ports.Runtime`."""

    name = "faulty"

    def version(self) -> str:
        return "1"

    def import_engine(self) -> None:
        pass

    def devices(self, plugin: str = "") -> Sequence[str]:
        return ("CPU",)

    def open(self, manifest: ModelManifest, variant: Variant, files: Path, budget: SessionBudget) -> Session:
        if model_file(variant, files, ".faulty").read_bytes() != CONTENT:
            raise VariantError("the file is damaged")
        return bind(_Faulty(), manifest, variant)

    def inspect(self, file: Path) -> Signature:
        return Signature((X,), (Y,))

    def prove_rows(self, variant: Variant, files: Path, tensors: object) -> RowProof:
        return RowProof()

    def operators(self, variant: Variant, files: Path) -> frozenset[str]:
        return frozenset({"Mul"})


class _Faulty:
    inputs = (Port("x", Datatype.FP32, (-1, 3)),)
    outputs = (Port("y", Datatype.FP32, (-1, 3)),)

    def run(self, feeds: Mapping[str, Array], wanted: Sequence[str]) -> Sequence[Array]:
        x = feeds["x"]
        number = x[0, 0] if x.size else 0.0
        name = next((name for name, each in NUMBERS.items() if each == number), "good")
        FAULTS[name]()
        if name == "other shape":
            return [np.ones((2, 7), np.float32)]
        if name == "other type":
            return [np.ones(x.shape, np.int64)]
        return [np.full_like(x, np.nan) if name == "not a number" else x * 2]

    def cancel(self) -> bool:
        return False

    def peer(self) -> _Faulty:
        return self

    def close(self) -> None:
        pass
