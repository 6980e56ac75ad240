"""Python code of pipelines in real processes, next to models: rows, conditions, images, golden sets, replacements."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import threading
import time
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.domain.infer import END, START
from gateway.serving.engine import openings, versions
from gateway.serving.pipelines import python_process, python_steps
from gateway.serving.pipelines.python_process import take
from gateway.serving.pipelines.settings import PipelineSettings
from gateway.serving.pipelines.target import open_pipeline
from tests.simulators.images_made import encoded
from tests.simulators.pipelines import PipelineRig, arrays, asked, spec

pytestmark = pytest.mark.asyncio
CHAIN = """
[input]
x = "FP32[3]"
[[step]]
name = "m"
model = "model"
of = "x"
[[step]]
name = "code"
python = "step.py"
inputs = { y = "m.y", total = "m.y[0] + m.y[1]" }
outputs = { z = "FP32[3]", word = "text", pid = "INT64[]" }
%s
[output]
z = "code.z"
word = "code.word"
pid = "code.pid"
"""
CODE = """
import os, time
class Step:
    seen = []
    def run(self, y, total):
        if (y > 1000).any(): os.abort()
        if (y > 100).any(): time.sleep(float(y.max()) / 1000)
        self.seen.append(len(y))
        return {"z": y + total[:, None], "word": [f"é{v:g}" for v in total], "pid": [os.getpid()] * len(y)}
"""
ON = PipelineSettings(python=True)


class PythonRig(PipelineRig):
    """Rig whose pipelines may run Python code."""

    def __init__(self, settings: PipelineSettings = ON, **changes: Any) -> None:
        super().__init__(**changes)
        self.repository._open_pipeline = partial(open_pipeline, settings=settings)
        self.model("model", lambda of: {"y": of["x"] * 2}, (spec("x", 3),), (spec("y", 3),))


async def served(folder: Path, text: str, code: str = CODE, **changes: Any) -> PythonRig:
    (folder / "step.py").write_text(code)
    rig = PythonRig(**changes)
    rig.pipeline(text, folder=folder)
    await rig.begin()
    return rig


async def test_it_answers_next_to_models(tmp_path: Path) -> None:
    rig = await served(tmp_path, CHAIN % "")
    for rows in (1, 2, 9):
        x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
        answer = await rig.ask({"x": x})
        y = x * 2
        total = y[:, 0].astype(np.float64) + y[:, 1]
        np.testing.assert_allclose(answer["z"], y + total[:, None], rtol=1e-6)
        assert answer["word"].tolist() == [f"é{value:g}".encode() for value in total]
    assert rig.target().counted(1).steps["code"].row_cpu_ns >= 0
    await rig.repository.close()


async def test_it_is_off_unless_it_is_set(tmp_path: Path) -> None:
    rig = await served(tmp_path, CHAIN % "", settings=PipelineSettings())
    assert "runs Python code (step.py), which is off here" in rig.reason()
    assert "[pipelines] python = true" in rig.reason()
    await rig.repository.close()


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("class Step:\n  pass", "class Step has no method run"),
        ("import socket\nsocket.socket()", "PermissionError"),
        ("import os\nos._exit(7)", "ended by itself (exit 7)"),
        ("import os\nos.abort()", "died by SIGABRT"),
        ("open('/etc/passwd', 'a')", "PermissionError"),
    ],
)
async def test_code_that_does_not_start_refuses_the_pipeline(tmp_path: Path, code: str, problem: str) -> None:
    rig = await served(tmp_path, CHAIN % "", code)
    assert problem in rig.reason(), rig.reason()
    await rig.repository.close()


async def test_rows_are_skipped_and_a_fallback_answers(tmp_path: Path) -> None:
    rig = await served(tmp_path, CHAIN % 'when = "m.y[0] > 0"')
    answer = await rig.ask({"x": np.array([[1, 1, 1], [-1, 1, 1], [2, 0, 0]], np.float32)})
    assert answer["word"].tolist() == ["é4".encode(), b"", "é4".encode()]
    await rig.repository.close()
    rig = await served(tmp_path, CHAIN % 'fallback = { z = 7.0, word = "none", pid = 0 }')
    answer = await rig.ask({"x": np.full((1, 3), 5000, np.float32)})  # it aborts
    assert (answer["z"].tolist(), answer["word"].tolist()) == ([[7, 7, 7]], [b"none"])
    assert rig.target().ready
    await rig.repository.close()


async def test_a_run_that_ends_its_process_is_refused_and_the_next_process_answers(tmp_path: Path) -> None:
    rig = await served(tmp_path, CHAIN % "")
    first = (await rig.ask({"x": np.ones((1, 3))}))["pid"]
    with pytest.raises(RequestError, match=r"step 'code': step.py died by SIGABRT") as failed:
        await rig.ask({"x": np.full((1, 3), 5000.0)})
    assert failed.value.fault is Fault.INTERNAL
    assert failed.value.in_run
    with pytest.raises(RequestError, match=r"the process of step\.py is away: died by SIGABRT") as away:
        await rig.ask({"x": np.ones((1, 3))})
    assert (away.value.fault, away.value.retry_after_s) == (Fault.UNAVAILABLE, 0.1)
    assert not rig.target().ready
    while not rig.target().ready:
        await asyncio.sleep(0.02)
    assert (await rig.ask({"x": np.ones((1, 3))}))["pid"] != first
    await rig.repository.close()


async def test_a_run_beyond_its_limit_is_ended_and_a_caller_that_leaves_ends_none(tmp_path: Path) -> None:
    rig = await served(tmp_path, CHAIN % "", run_limit_s=0.5)
    first = (await rig.ask({"x": np.ones((1, 3))}))["pid"]
    late = asked({"x": np.full((1, 3), 100.0)}, deadline_ns=time.monotonic_ns() + 50_000_000)  # it sleeps for 0.2 s
    with pytest.raises(RequestError) as expired:
        await rig.engine.infer(late)
    assert expired.value.fault is Fault.EXPIRED
    assert (await rig.ask({"x": np.ones((1, 3))}))["pid"] == first
    with pytest.raises(RequestError, match=r"\[limits\] run_limit_s, 0.5 s") as ended:
        await rig.ask({"x": np.full((1, 3), 400.0)})
    assert ended.value.fault is Fault.EXPIRED
    await rig.repository.close()


async def test_callers_take_turns_at_one_process(tmp_path: Path) -> None:
    rig = await served(tmp_path, CHAIN % "")
    slow = [rig.ask({"x": np.full((1, 3), 55.0)}, caller="many") for _ in range(8)]
    begun = [asyncio.create_task(each) for each in slow]
    await asyncio.sleep(0.05)
    other = asyncio.create_task(rig.ask({"x": np.ones((1, 3))}, caller="one"))
    await other
    assert sum(each.done() for each in begun) <= 4
    await asyncio.gather(*begun)
    await rig.repository.close()


FRAMES = """
[input]
image = "image"
[[step]]
name = "code"
python = "step.py"
of = "image"
outputs = { mean = "FP32[3]", size = "INT32[2]" }
[output]
mean = "code.mean"
size = "code.size"
"""
SEES = """
class Step:
    def run(self, frames):
        assert frames.dtype == "uint8" and frames.flags.writeable
        return {"mean": frames.mean(axis=(1, 2)), "size": [frames.shape[1:3]] * len(frames)}
"""


async def test_images_come_as_pixels_each_in_its_size(tmp_path: Path) -> None:
    rig = await served(tmp_path, FRAMES, SEES)
    red, green = np.zeros((40, 60, 3), np.uint8), np.zeros((720, 1280, 3), np.uint8)
    red[..., 0], green[..., 1] = 200, 100
    given = np.array([encoded(red), encoded(green)], object)
    answer = await rig.ask({"image": given})
    assert answer["size"].tolist() == [[40, 60], [720, 1280]]
    np.testing.assert_allclose(answer["mean"], [[200, 0, 0], [0, 100, 0]], atol=3)
    await rig.repository.close()


EVERY = """
[input]
a = "%s[-1, 2]"
[[step]]
name = "code"
python = "step.py"
of = "a"
outputs = { a = "%s[-1, 2]" }
batch = %s
[output]
a = "code.a"
"""


@pytest.mark.parametrize("batch", ["true", "false"])
@pytest.mark.parametrize("datatype", [each for each in Datatype if each is not Datatype.BYTES])
async def test_every_datatype_goes_and_comes(tmp_path: Path, datatype: Datatype, batch: str) -> None:
    label = datatype.label
    rig = await served(tmp_path, EVERY % (label, label, batch), "class Step:\n  def run(self, a): return a")
    for shape in ((1, 1, 2), (3, 5, 2), (2, 300_000, 2)):
        a = np.random.default_rng(1).integers(0, 2, shape).astype(datatype.dtype)
        request = asked({"a": a})
        request.inputs["a"].datatype = datatype
        answer = arrays(await rig.engine.infer(request))["a"]
        np.testing.assert_array_equal(answer, a)
        assert answer.dtype == datatype.dtype
    await rig.repository.close()


async def test_what_is_larger_than_the_arrays_is_refused(tmp_path: Path) -> None:
    rig = await served(tmp_path, EVERY % ("FP64", "FP64", "true"), "class Step:\n  def run(self, a): return a")
    with pytest.raises(RequestError) as refused:
        await rig.engine.infer(typed(np.zeros((1, 9_000_000, 2))))
    assert refused.value.fault is Fault.TOO_LARGE
    await rig.repository.close()


async def test_a_golden_set_runs_the_code(tmp_path: Path) -> None:
    x = np.random.default_rng(3).normal(size=(10, 3)).astype(np.float32)
    text = CHAIN % ""
    text = text.replace('pid = "code.pid"\n', "").replace('word = "code.word"\n', "")
    for wrong in (0, 1):
        z = x * 2 + (x[:, :1] + x[:, 1:2]) * 2 + wrong
        np.savez(tmp_path / "golden.npz", **{"input.x": x, "output.z": z})  # type: ignore[arg-type]
        digest = hashlib.sha256((tmp_path / "golden.npz").read_bytes()).hexdigest()
        rig = await served(tmp_path, f'{text}[golden]\nfile = "golden.npz"\nsha256 = "{digest}"\n')
        if wrong:
            assert "golden" in rig.reason()
        else:
            assert rig.target().placement.level == "proven"
        await rig.repository.close()


async def test_a_model_with_other_types_begins_the_code_again(tmp_path: Path) -> None:
    rig = await served(tmp_path, CHAIN % "")
    first = (await rig.ask({"x": np.ones((1, 3))}))["pid"]
    changed = spec("y", 3, datatype=Datatype.FP64)
    rig.model("model", lambda of: {"y": of["x"] * 4.0}, (spec("x", 3),), (changed,), digest="d2")
    await rig.begin()
    for _ in range(200):
        try:
            answer = await rig.ask({"x": np.ones((1, 3))})
        except RequestError as error:
            if error.fault is not Fault.UNAVAILABLE:
                raise
            await asyncio.sleep(0.02)
        else:
            break
    assert answer["pid"] != first
    assert answer["z"].tolist() == [[12, 12, 12]]
    await rig.repository.close()


async def test_a_process_that_closes_what_it_prints_to_costs_no_turns_of_the_loop(tmp_path: Path) -> None:
    rig = await served(tmp_path, FRAMES, "import os\nos.close(1)\nos.close(2)\n" + SEES)
    (worker,) = rig.target()._workers.values()
    assert worker._process is not None
    while worker._process.read_prints():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    with pytest.raises(KeyError):
        asyncio.get_running_loop()._selector.get_key(worker._process.prints)  # type: ignore[attr-defined]
    await rig.repository.close()


async def test_without_a_thread_a_large_run_is_refused_and_the_next_one_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await served(tmp_path, EVERY % ("FP64", "FP64", "true"), "class Step:\n  def run(self, a): return a")

    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    (worker,) = rig.target()._workers.values()
    with monkeypatch.context() as patched:
        patched.setattr(worker._context.preparing, "submit_for", none)
        with pytest.raises(RequestError, match="gets no thread") as refused:
            await rig.engine.infer(typed(np.zeros((1, 90_000, 2))))
    assert refused.value.fault is Fault.OVERLOADED
    answer = arrays(await rig.engine.infer(typed(np.ones((1, 90_000, 2)))))["a"]
    assert answer.sum() == 180_000
    await rig.repository.close()


async def test_rows_of_several_shapes_without_a_batch_say_what_to_do(tmp_path: Path) -> None:
    code = "class Step:\n  def run(self, a): return a[: int(a[0, 0])]"
    rig = await served(tmp_path, EVERY % ("FP64", "FP64", "false"), code)
    words = r"step 'code': .*step\.py: .*several shapes in output a \(\[1, 2\] and \[2, 2\]\); fill them up"
    with pytest.raises(RequestError, match=words):
        await rig.engine.infer(typed(np.array([[[1.0, 0], [0, 0]], [[2, 0], [0, 0]]])))
    await rig.repository.close()


@pytest.mark.parametrize("call", ["ftruncate", "pipe", "pidfd_open"])
async def test_a_process_that_cannot_be_made_keeps_no_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    rig = await served(tmp_path, CHAIN % "")
    (worker,) = rig.target()._workers.values()

    def fails(*_: object) -> int:
        raise OSError(24, "Too many open files")

    def open_here() -> list[str]:
        return sorted(each.name for each in Path("/proc/self/fd").iterdir())

    before = open_here()
    with monkeypatch.context() as patched:
        patched.setattr(os, call, fails)
        for _ in range(2):
            with pytest.raises(OSError, match="Too many"):
                python_process.PythonProcess(worker.step)
    assert open_here() == before
    await rig.repository.close()


async def test_a_process_ends_if_its_gateway_ended_before_it_asked_to_end_with_it(tmp_path: Path) -> None:
    rig = await served(tmp_path, CHAIN % "")
    (worker,) = rig.target()._workers.values()
    process = python_process.PythonProcess(worker.step)
    process.control.send(json.dumps({**worker._document(), "gateway": 1, "source_bytes": 0}).encode())
    assert await asyncio.to_thread(process.popen.wait) == 1
    assert process.control.recv(100) == b""
    process.control.close()
    await rig.repository.close()


FLOODS = """
import os, socket
class Step:
    def run(self, a):
        if a[0, 0, 0]:
            control = next(each for each in map(socket_of, range(3, 64)) if each is not None)
            said = (2).to_bytes(8, "little") + b'{"outputs": [[[1, 300000, 2], 4800000]]}'
            for _ in range(500): control.send(said)
        return a
def socket_of(place):
    try:
        found = socket.socket(fileno=os.dup(place))
        found.getpeername()
        return found
    except OSError:
        return None
"""


async def test_a_second_answer_of_a_run_ends_the_process_and_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await served(tmp_path, EVERY % ("FP64", "FP64", "true"), FLOODS)
    begun, taken = threading.Event(), list[object]()

    def slow(*of: Any) -> dict[str, Tensor]:
        taken.append(of)
        begun.wait(20)
        return take(*of)

    await rig.engine.infer(typed(np.zeros((1, 1, 2))))
    monkeypatch.setattr(python_steps, "take", slow)
    with pytest.raises(RequestError, match=r"sent what is no answer \(ValueError: no run is under way\)"):
        await rig.engine.infer(typed(np.ones((1, 1, 2))))
    begun.set()
    assert len(taken) <= 1
    await rig.repository.close()


async def test_a_large_answer_is_freed_without_a_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await served(tmp_path, EVERY % ("FP64", "FP64", "true"), "class Step:\n  def run(self, a): return a")
    made = list[weakref.ref[Any]]()

    def noted(*of: Any) -> dict[str, Tensor]:
        outputs = take(*of)
        made.extend(weakref.ref(each.array) for each in outputs.values())
        return outputs

    monkeypatch.setattr(python_steps, "take", noted)
    gc.disable()
    try:
        for _ in range(3):
            await rig.engine.infer(typed(np.zeros((1, 300_000, 2))))
        for _ in range(200):
            if not any(each() is not None for each in made):
                break
            await asyncio.sleep(0.01)
        assert [each() is not None for each in made] == [False] * 3
    finally:
        gc.enable()
    await rig.repository.close()


WAITS = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
"""Code whose start ends once there is a file."""


async def slow_starts(folder: Path, count: int = 2) -> PythonRig:
    """Return a rig with pipelines whose code waits; a change waits for none of them."""
    rig = PythonRig()
    rig.repository._openings._wait_s = 0.0
    for number in range(count):
        (folder / str(number)).mkdir()
        (folder / str(number) / "step.py").write_text(WAITS + CODE)
        rig.pipeline(CHAIN % "", f"slow{number}", folder / str(number))
    await rig.begin()
    return rig


async def test_a_command_waits_for_a_slow_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "WAIT_S", 0.0)  # that is how long a daemon's change waits
    rig = PythonRig()
    (tmp_path / "step.py").write_text(WAITS + CODE)
    rig.pipeline(CHAIN % "", folder=tmp_path)
    begins = asyncio.create_task(rig.begin())
    assert not (await asyncio.wait({begins}, timeout=0.5))[0]
    (tmp_path / "go").touch()
    await begins
    assert (await rig.ask({"x": np.ones((1, 3))}))["z"].tolist() == [[6, 6, 6]]
    await rig.repository.close()


async def test_slow_starts_hold_up_no_other_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "RETRY_S", 3_600.0)  # the end of a start makes the next attempt due
    rig = await slow_starts(tmp_path)
    assert "it is still being opened" in rig.reason("slow0")
    assert rig.repository.opens(rig.pipelines["slow0"])  # no earlier release steps in
    rig.pipeline(CHAIN % "", "quick", folder := tmp_path / "quick")
    folder.mkdir()
    (folder / "step.py").write_text(CODE)
    rig.model("other", lambda of: {"y": of["x"]}, (spec("x", 1),), (spec("y", 1),))
    await rig.begin()
    assert (await rig.ask({"x": np.ones((1, 1))}, name="other"))["y"].tolist() == [[1]]
    for number in range(2):
        (tmp_path / str(number) / "go").touch()
    for name in ("quick", "slow0", "slow1"):
        while rig.registry.serving(name, "1") is None:
            await asyncio.sleep(0.02)
        assert (await rig.ask({"x": np.ones((1, 3))}, name=name))["z"].tolist() == [[6, 6, 6]]
    await rig.repository.close()


@pytest.mark.parametrize("end", ["removed", "changed", "closed"])
async def test_a_start_of_what_is_not_wanted_any_more_is_ended(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[python_process.PythonProcess]()

    def noted(step: Any) -> python_process.PythonProcess:
        started.append(python_process.PythonProcess(step))
        return started[-1]

    monkeypatch.setattr(python_steps, "PythonProcess", noted)
    rig = await slow_starts(tmp_path, 1)
    while not started:
        await asyncio.sleep(0.01)
    if end == "closed":
        await rig.repository.close()
    elif end == "removed":
        rig.pipelines.clear()
        await rig.begin()
    else:
        rig.pipeline(CHAIN % "", "slow0", tmp_path / "0", digest="p2")
        await rig.begin()
    assert started[0].popen.poll() is not None
    if end != "closed":
        await rig.repository.close()
    assert [each.popen.poll() is not None for each in started] == [True] * len(started)


STREAMS = """
import time
class Step:
    sums = {}
    def run(self, x, stream):
        if stream.starts or stream.key not in self.sums:
            self.sums[stream.key] = 0.0
        if x[0] < 0: time.sleep(0.05)
        self.sums[stream.key] += abs(float(x.sum()))
        total = self.sums[stream.key]
        if stream.ends: del self.sums[stream.key]
        return {"y": [total], "word": [f"{stream.id} {len(self.sums)}"]}
"""
SUMMED = """
[input]
x = "FP32[]"
[[step]]
name = "m"
model = "model"
inputs = { x = "x" }
[[step]]
name = "code"
python = "step.py"
stream = true
inputs = { x = "m.y" }
outputs = { y = "FP32[]", word = "text" }
[output]
y = "code.y"
word = "code.word"
"""


async def test_code_gets_the_stream_and_its_requests_in_order(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(STREAMS)
    rig = PythonRig(slow=("model",))
    rig.model("model", lambda of: {"y": of["x"]}, (spec("x"),), (spec("y"),))
    rig.pipeline(SUMMED, folder=tmp_path)
    await rig.begin()

    async def ask(value: float, stream: str = "7", place: int = 0, caller: str = "a") -> tuple[float, str]:
        found = await rig.ask({"x": np.array([float(value)])}, stream=stream, place=place, caller=caller)
        return float(found["y"][0]), found["word"][0].decode()

    assert await ask(1) == (1, "7 1")
    assert await ask(5, caller="b") == (5, "7 2")  # the same name of another caller
    assert await ask(2) == (3, "7 2")
    assert await ask(9, place=START) == (9, "7 2")
    assert await ask(1, place=END) == (10, "7 1")
    values = [-(place + 1.0) if place % 2 else place + 1.0 for place in range(12)]
    found = await asyncio.gather(*(ask(value, "é") for value in values))
    assert [total for total, _ in found] == np.cumsum(np.abs(values)).tolist()
    assert rig.target().manifest.parameters["state"] == "stream"
    await rig.repository.close()


async def test_rows_that_run_one_by_one_begin_and_end_a_stream_once(tmp_path: Path) -> None:
    code = (
        "class Step:\n  def run(self, x, stream): return {'y': float(x), 'word': f'{stream.starts:d}{stream.ends:d}'}"
    )
    (tmp_path / "step.py").write_text(code)
    rig = PythonRig()
    rig.model("model", lambda of: {"y": of["x"]}, (spec("x"),), (spec("y"),))
    rig.pipeline(SUMMED.replace("stream = true", "stream = true\nbatch = false"), folder=tmp_path)
    await rig.begin()
    found = await rig.ask({"x": np.arange(3.0)}, stream="7", place=START | END)
    assert found["word"].tolist() == [b"10", b"00", b"01"]
    await rig.repository.close()


async def test_a_start_that_computes_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_steps, "START_CPU_S", 0.5)
    rig = await served(tmp_path, CHAIN % "", "while True: pass")
    assert "died by SIGXCPU: it used more CPU time than it may" in rig.reason()
    assert "undecided" not in rig.reason()
    await rig.repository.close()


USES = """
import signal, threading, time
class Step:
    def run(self, a):
        case = a[0, 0, 0]
        if case == 1:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGXCPU})
            threading.Thread(target=self.spin).start()
        if case == 2:
            threading.stack_size(65_536)
            for _ in range(100): threading.Thread(target=time.sleep, args=(100,)).start()
        if case == 3: raise RuntimeError("can't start new thread")
        return a
    def spin(self):
        while True: pass
"""


@pytest.mark.parametrize(
    ("case", "words"),
    [(1, "used more CPU time than it may, and was ended"), (2, "had 101 threads, more than 64, and was ended")],
)
async def test_the_gateway_ends_what_uses_more_than_it_may(tmp_path: Path, case: int, words: str) -> None:
    limit_s = 0.1 if case == 1 else 30.0  # a busy machine starts a hundred threads in seconds
    rig = await served(tmp_path, EVERY % ("FP64", "FP64", "true"), USES, run_limit_s=limit_s)
    (worker,) = rig.target()._workers.values()
    process = worker._process
    assert process is not None
    await rig.engine.infer(typed(np.full((1, 1, 2), float(case))))
    await asyncio.wait_for(process.gone.wait(), 60)
    assert worker._problem == words
    await rig.repository.close()


async def test_a_lack_of_threads_costs_the_run_only(tmp_path: Path) -> None:
    rig = await served(tmp_path, EVERY % ("FP64", "FP64", "true"), USES)
    with pytest.raises(RequestError, match="can't start new thread"):
        await rig.engine.infer(typed(np.full((1, 1, 2), 3.0)))
    await rig.engine.infer(typed(np.zeros((1, 1, 2))))  # it is not away
    await rig.repository.close()


def typed(a: Any) -> Any:
    request = asked({"a": a})
    request.inputs["a"] = Tensor(Datatype.FP64, a)
    return request
