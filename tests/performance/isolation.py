"""Cost of sessions in worker processes, and what callers see when these misbehave.

`python tests/performance/isolation.py cost [RUNS]` runs models in this process and in a worker by turns: time of a run,
CPU time of this thread and of the worker. `primitives [ROUNDS]` measures ways to wake another process. `memory` shows
what a worker takes with each runtime. `recovery` lets a daemon's model misbehave in each way, and shows what a caller
got, and the time from that answer to the next good one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnx.helper as make
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from gateway.common.domain.manifest import ModelManifest, TensorSpec  # noqa: E402
from gateway.common.domain.tensor import Datatype  # noqa: E402
from gateway.common.domain.verdict import SessionBudget  # noqa: E402
from gateway.serving.domain.isolation import WorkerPolicy  # noqa: E402
from gateway.serving.runtimes.catalog import get_runtime  # noqa: E402
from gateway.serving.runtimes.isolated import IsolatedSession  # noqa: E402
from tests.simulators import faulty, models  # noqa: E402
from tests.simulators.daemon import QUIET, SHORT_TRIALS, running  # noqa: E402

FUTEX = {"x86_64": 202, "aarch64": 98}
FRAMES = {"tiny: 16 B": (4,), "150 KB": (224, 224, 3), "2.7 MB": (720, 1280, 3)}
NO_SPARE = WorkerPolicy(spare=False)


def frames(folder: Path, shape: tuple[int, ...], whole: bool) -> ModelManifest:
    """Write a model that returns its input, or the first value of it, which takes next to no time."""
    x = make.make_tensor_value_info("x", onnx.TensorProto.UINT8, shape)
    y = make.make_tensor_value_info("y", onnx.TensorProto.UINT8, shape if whole else (1,) * len(shape))
    axes = list(range(len(shape)))
    consts = [
        make.make_tensor(name, onnx.TensorProto.INT64, [len(shape)], values)
        for name, values in (("b", [0] * len(shape)), ("e", [1] * len(shape)), ("a", axes))
    ]
    node = make.make_node("Identity", ["x"], ["y"]) if whole else make.make_node("Slice", ["x", "b", "e", "a"], ["y"])
    graph = make.make_graph([node], "g", [x], [y], [] if whole else consts)
    made = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)])
    made.ir_version = 8
    (folder / "onnx").mkdir(parents=True)
    file = folder / "onnx" / "model.onnx"
    onnx.save(made, file)
    specs = [(TensorSpec("x", Datatype.UINT8, shape),), (TensorSpec("y", Datatype.UINT8, tuple(y_shape(y))),)]
    variant = models.Variant("onnx", "onnx", "int8", (models._artifact(folder, file),))
    return ModelManifest("frames", "1", *specs, (variant,), batch=False)


def y_shape(value: Any) -> list[int]:
    return [each.dim_value for each in value.type.tensor_type.shape.dim]


def cpu_ns(pid: int) -> int:
    return time.clock_gettime_ns(~pid << 3 | 2)


def cost(runs: int) -> None:
    print(
        f"{'input':12} {'output':8} {'where':11} {'median µs':>9} {'least µs':>9} {'CPU µs':>8} {'worker CPU µs':>13}"
    )
    for name, shape in FRAMES.items():
        for whole in (False, True):
            with tempfile.TemporaryDirectory() as text:
                folder = Path(text)
                manifest = frames(folder, shape, whole)
                variant, budget = manifest.variants[0], SessionBudget()
                inside = get_runtime("onnx").open(manifest, variant, folder, budget)
                isolated = IsolatedSession(manifest, variant, lambda f=folder: nullcontext(f), budget, NO_SPARE)
                assert isolated.keeper.active is not None
                pid = isolated.keeper.active.pid
                x = {"x": np.random.default_rng(1).integers(0, 255, shape, np.uint8)}
                times: dict[str, list[float]] = {"in process": [], "worker": []}
                cpu = dict.fromkeys(times, 0)
                own = 0
                for _ in range(20):
                    for where, session in (("in process", inside), ("worker", isolated)):
                        for _ in range(20):
                            session.run(x)
                        began_cpu, began_own = time.thread_time_ns(), cpu_ns(pid)
                        for _ in range(runs // 20):
                            began = time.perf_counter()
                            session.run(x)
                            times[where].append(time.perf_counter() - began)
                        cpu[where] += time.thread_time_ns() - began_cpu
                        own += cpu_ns(pid) - began_own if where == "worker" else 0
                for where, taken in times.items():
                    its = f"{own / len(taken) / 1e3:13.1f}" if where == "worker" else ""
                    print(
                        f"{name:12} {'whole' if whole else 'a value':8} {where:11} {median(taken) * 1e6:9.1f} "
                        f"{min(taken) * 1e6:9.1f} {cpu[where] / len(taken) / 1e3:8.1f} {its}"
                    )
                isolated.close()
                inside.close()
        taken = []
        copy = np.empty_like(x["x"])
        for _ in range(200):
            began = time.perf_counter()
            copy[...] = x["x"]
            taken.append(time.perf_counter() - began)
        print(f"{name:12} {'':8} {'a copy':11} {median(taken) * 1e6:9.1f} {min(taken) * 1e6:9.1f}")


def primitives(rounds: int) -> None:  # noqa: C901  one way after the other
    """Print the time of a wake-up of another process and back."""
    libc = ctypes.CDLL(None)
    words = mmap.mmap(-1, 4096)
    ask, answer = (ctypes.c_uint32.from_buffer(words, offset) for offset in (0, 64))
    number, all_seen = FUTEX[platform.machine()], list[list[int]]()

    def futex_pair(mine: Any, theirs: Any) -> tuple[Callable[[], None], Callable[[], None]]:
        seen = [0]
        all_seen.append(seen)

        def wait() -> None:
            while mine.value == seen[0]:
                libc.syscall(number, ctypes.byref(mine), 0, seen[0], None, None, 0)
            seen[0] = mine.value

        def wake() -> None:
            theirs.value += 1
            libc.syscall(number, ctypes.byref(theirs), 1, 1, None, None, 0)

        return wait, wake

    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (r1, w1), (r2, w2), e1, e2 = os.pipe(), os.pipe(), os.eventfd(0), os.eventfd(0)
    buffer = bytearray(64)
    ways: Mapping[str, tuple[tuple[Callable[[], Any], Callable[[], Any]], tuple[Callable[[], Any], Callable[[], Any]]]]
    ways = {
        "socket pair, SEQPACKET": (
            (lambda: a.recv_into(buffer), lambda: a.send(b"0123456789")),
            (lambda: b.recv_into(buffer), lambda: b.send(b"0123456789")),
        ),
        "two pipes": (
            (lambda: os.read(r2, 16), lambda: os.write(w1, b"0123456789")),
            (lambda: os.read(r1, 16), lambda: os.write(w2, b"0123456789")),
        ),
        "two eventfds": (
            (lambda: os.eventfd_read(e2), lambda: os.eventfd_write(e1, 1)),
            (lambda: os.eventfd_read(e1), lambda: os.eventfd_write(e2, 1)),
        ),
        "futex in shared memory": (futex_pair(answer, ask), futex_pair(ask, answer)),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    cpu = dict.fromkeys(ways, 0.0)
    for _ in range(5):
        for name, ((wait, wake), (their_wait, their_wake)) in ways.items():
            ask.value = answer.value = 0
            for seen in all_seen:
                seen[0] = 0
            pid = os.fork()
            if not pid:
                for _ in range(rounds):
                    their_wait()
                    their_wake()
                os._exit(0)
            began_cpu = time.thread_time()
            for _ in range(rounds):
                began = time.perf_counter()
                wake()
                wait()
                found[name].append(time.perf_counter() - began)
            cpu[name] += time.thread_time() - began_cpu
            os.waitpid(pid, 0)
    for name, taken in found.items():
        print(
            f"{name:24} median {median(taken) * 1e6:6.1f} µs, least {min(taken) * 1e6:6.1f} µs, "
            f"CPU {cpu[name] / len(taken) * 1e6:5.1f} µs here"
        )


def memory() -> None:
    print(f"{'runtime':10} {'start s':>8} {'PSS MiB':>8}")
    for runtime in ("onnx", "openvino", "litert", "reference"):
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            manifest = models.write_variant(folder, models.dense(), runtime)
            began = time.monotonic()
            session = IsolatedSession(
                manifest, manifest.variants[0], lambda f=folder: nullcontext(f), SessionBudget(), NO_SPARE
            )
            took = time.monotonic() - began
            session.run({"x": np.ones((1, 4), np.float32)})
            assert session.keeper.active is not None
            print(f"{runtime:10} {took:8.2f} {session.keeper.active.measured() / 2**20:8.1f}")
            session.close()


FAULTS = (
    *("crashes", "aborts", "exits", "hangs", "loops", "leaks", "other shape", "answers garbage", "forks", "is killed"),
    "kill -9",
)
CONFIG = QUIET + SHORT_TRIALS + '[limits]\nrun_limit_s = 3.0\n[isolation]\nmodels = ["faulty"]\nmemory_mib = 400\n'


def asked(client: triton.InferenceServerClient, fault: str) -> str:
    """Return what a caller got in place of an answer, or ""."""
    x = faulty.asking(fault)["x"]
    tensor = triton.InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)
    try:
        client.infer("faulty", [tensor])
    except InferenceServerException as error:
        return f"{error.status().removeprefix('StatusCode.')}: {error.message()}"
    return ""


def recovery() -> None:
    print(f"{'fault':16} {'spare':5} {'next good answer, ms':>20}   what its caller got")
    for spare in (True, False):
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            faulty.write_release(folder / "models")
            config, environ = CONFIG + ("" if spare else "spare = false\n"), faulty.given_to(folder / "site")
            with (
                running(folder / "gw", models=folder / "models", config=config, environ=environ) as daemon,
                triton.InferenceServerClient(daemon.grpc) as client,
            ):
                for fault in FAULTS:
                    time.sleep(6.0)  # until the spare is there, and no pause is due
                    while words := asked(client, "good"):
                        time.sleep(0.1)
                    if fault == "kill -9":
                        os.kill(worker_of(daemon.pid), 9)
                    else:
                        for _ in range(8 if fault == "leaks" else 1):
                            words = asked(client, fault) or words
                    began = time.perf_counter()
                    while asked(client, "good"):
                        pass
                    took = (time.perf_counter() - began) * 1e3
                    print(f"{fault:16} {'yes' if spare else 'no':5} {took:20.1f}   {words[:150] or 'its answer'}")


def worker_of(pid: int) -> int:
    """Return the oldest worker of a daemon."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            is_child = int(file.read_text().rpartition(")")[2].split()[1]) == pid
            if is_child and "worker_child" in (file.parent / "cmdline").read_text():
                found.append(int(file.parent.name))
    return min(found)


if __name__ == "__main__":
    kind, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4000
    {"cost": lambda: cost(count), "primitives": lambda: primitives(count), "memory": memory, "recovery": recovery}[
        kind
    ]()
