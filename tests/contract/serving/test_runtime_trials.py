"""Trials in throw-away processes: real crashes, real hangs, real answers."""

import asyncio
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import openvino
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import INDEPENDENT, Artifact, Golden, ModelManifest, TensorSpec, Tolerance, Variant
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.verdict import Joining, PluginStatus, RuntimeStatus, SessionBudget
from gateway.serving.domain.postprocess import finish_outputs
from gateway.serving.engine.cost import estimate_cost
from gateway.serving.runtimes import child, fork_server, trial
from gateway.serving.runtimes.catalog import get_runtime
from gateway.serving.runtimes.generate import samples
from gateway.serving.runtimes.job import Listing
from gateway.serving.runtimes.settings import TrialSettings
from gateway.serving.runtimes.trial import inspect_file, runtime_status, try_variant
from tests.simulators import models, models_litert, models_made

QUICK = TrialSettings(nice=0, measure_s=0.02)
IMPATIENT = replace(QUICK, deadline_s=3.0)
UNWAITING = replace(QUICK, deadline_s=16.0)
pytestmark = pytest.mark.usefixtures("no_child_is_left")
_before: set[int] = set()
"""Processes of other tests, such as servers that all tests of a session share."""


def children():
    return [child for child in psutil.Process().children() if child.pid not in _before]


@pytest.fixture
def no_child_is_left():
    """Check that no child is left, neither alive nor a zombie."""
    _before.clear()
    _before.update(child.pid for child in psutil.Process().children())
    yield
    assert children() == []


def tried(case, settings=QUICK, **changes):
    variant = replace(case.variant, **changes.pop("variant", {}))
    return asyncio.run(try_variant(replace(case.manifest, **changes), variant, case.files, SessionBudget(), settings))


def with_golden(case, scores=None):
    """Write a golden set of the oracle's answers, or of `scores`, next to the model."""
    expected = finish_outputs(case.manifest, case.oracle().run(case.inputs))["scores"] if scores is None else scores
    label = expected.argmax(axis=-1)
    np.savez(case.files / "golden.npz", **{"input.x": case.inputs["x"], "output.scores": expected, "label": label})
    return Golden("golden.npz", "0" * 64, {case.variant.runtime: Tolerance(1.0, 1e-5)})


def test_every_variant_passes_and_is_measured(case):
    verdict = tried(case)
    assert verdict.passed, verdict.reason
    assert verdict.measured.p99_us >= verdict.measured.p50_us > 0
    assert verdict.measured.cpu_us > 0
    single = case.open().rows is None
    assert (verdict.measured.row_us > 0, verdict.joining.allowed) == (not single, not single)
    assert verdict.joining.rows == (1 if single else 32)
    assert not verdict.joining.difference
    assert verdict.level == ("proven" if case.manifest.golden else "exercised")
    assert verdict.measured.memory_bytes > 0
    if case.manifest.golden:
        assert verdict.reason.startswith("passed its golden set: agreement ")
        assert verdict.accuracy > 0.9
    else:
        assert verdict.reason.startswith("no golden set; ran on generated inputs")
        assert verdict.accuracy is None


def test_runs_at_a_time_are_measured_with_every_runtime(small):
    manifest = replace(small.manifest, runs=3)
    verdict = asyncio.run(try_variant(manifest, small.variant, small.files, SessionBudget(runs=3), QUICK))
    assert verdict.passed, verdict.reason
    assert (verdict.threads, verdict.runs) == (1, 3)
    alone, together = verdict.parallel
    assert (alone.runs, together.runs) == (1, 3)
    assert 0 < together.busy_us < together.run_us
    assert verdict.measured.busy_us == together.busy_us
    assert verdict.measured.memory_bytes == together.memory_bytes >= alone.memory_bytes > 0


@pytest.fixture
def busy_machine():
    """Keep the processors busy with eight loops while the block runs."""

    @contextmanager
    def busy():
        loops = [
            subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=-1) for _ in range(8)
        ]
        try:
            assert [loop.stdout.readline() for loop in loops] == [b"\n"] * 8
            yield
        finally:
            for loop in loops:
                loop.kill()
                loop.communicate()

    return busy


def decisions(case):
    """Return what a trial decides: cores, whether runs happen on the event loop, and whether requests are joined.

    Two threads of one run and two runs of one thread take as many cores, and nearly as long.
    """
    settings = replace(QUICK, measure_s=0.2)
    budget = SessionBudget(2, runs=2)
    verdict = asyncio.run(try_variant(case.manifest, case.variant, case.files, budget, settings))
    assert verdict.passed, verdict.reason
    cost = estimate_cost(verdict, "cpu", joins=True, inline_limit_us=300, batch_rows=32, batch_gain=1.2)
    return verdict.measured.disturbed, (verdict.threads * verdict.runs, cost.limit_ns > 0, cost.worker_rows > 1)


def convolution(tmp_path):
    """Return a model of a few milliseconds, which runs no faster in a batch."""
    weights = [
        numpy_helper.from_array(np.full((24, 3 if n == 0 else 24, 3, 3), 0.01, np.float32), f"w{n}") for n in range(4)
    ]
    nodes = [helper.make_node("Conv", [f"x{n}" if n else "x", f"w{n}"], [f"x{n + 1}"], pads=[1] * 4) for n in range(4)]
    nodes.append(helper.make_node("GlobalAveragePool", ["x4"], ["y"]))
    x, y = (TensorSpec(name, Datatype.FP32, shape) for name, shape in (("x", (-1, 3, 64, 64)), ("y", (-1, 24, 1, 1))))
    ends = [[helper.make_tensor_value_info(s.name, TensorProto.FLOAT, ["n", *s.shape[1:]])] for s in (x, y)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", *ends, weights), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    (tmp_path / "c.onnx").write_bytes(model.SerializeToString())
    variant = Variant("c", "onnx", "fp32", (Artifact("c.onnx", "0" * 64, 1),))
    manifest = ModelManifest("c", "1", variants=(variant,), inputs=(x,), outputs=(y,), batch=True)
    return SimpleNamespace(manifest=manifest, variant=variant, files=tmp_path)


@pytest.mark.parametrize(
    "small",
    [pytest.param(name, marks=() if name == "onnx" else pytest.mark.long) for name in models.FILES],
    indirect=True,
)
def test_a_trial_decides_the_same_on_a_busy_machine(small, busy_machine):
    _, quiet = decisions(small)
    with busy_machine():
        disturbed, loaded = decisions(small)
    assert loaded == quiet
    assert disturbed.startswith("load ")


def test_a_slow_model_is_judged_by_its_cpu_time_on_a_busy_machine(tmp_path, busy_machine):
    case = convolution(tmp_path)
    _, quiet = decisions(case)
    with busy_machine():
        disturbed, loaded = decisions(case)
    assert loaded == quiet
    assert disturbed.startswith("load ")


def test_a_golden_set_that_agrees(small):
    verdict = tried(small, golden=with_golden(small))
    assert verdict.passed, verdict.reason
    assert verdict.accuracy == 1.0


def test_a_golden_set_that_does_not_agree(small):
    wrong = np.roll(np.eye(3, dtype=np.float32), 1)[np.arange(8) % 3]
    verdict = tried(small, golden=with_golden(small, wrong))
    assert not verdict.passed
    assert verdict.measured is None
    assert verdict.reason.startswith("failed its golden set: agreement 0.")


def test_a_golden_set_that_is_missing(small):
    verdict = tried(small, golden=Golden("golden.npz", "0" * 64))
    assert not verdict.passed
    assert "golden set cannot be read" in verdict.reason


def test_answers_that_are_not_finite_are_a_remark(tmp_path):
    graph = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 3]}],
        "nodes": [{"op": "MatMul", "inputs": ["x", "W"], "outputs": ["scores"], "attributes": {}}],
    }
    models.write_reference(tmp_path / "model.npz", graph, W=np.full((4, 3), np.inf, np.float32))
    variant = Variant("reference", "reference", "fp32", (Artifact("model.npz", "0" * 64, 1),))
    verdict = asyncio.run(try_variant(models.dense(), variant, tmp_path, SessionBudget(), QUICK))
    assert (verdict.passed, verdict.level) == (True, "exercised")
    assert "'scores' holds NaN or infinity" in verdict.remarks[0]


def test_a_variant_that_does_not_fit_says_why(small):
    verdict = tried(small, variant={"artifacts": (Artifact("nothing.here", "0" * 64, 1),)})
    assert not verdict.passed
    assert "nothing.here" in verdict.reason


def crashing(folder):
    (folder / "model.tflite").write_bytes(models_litert.crashing())
    return Variant("recursion", "litert", "fp32", (Artifact("model.tflite", "0" * 64, 1),))


def endless(folder):
    models.write_onnx_endless(folder / "model.onnx")
    return Variant("endless", "onnx", "fp32", (Artifact("model.onnx", "0" * 64, 1),))


def endless_manifest(golden=None):
    manifest = models.dense()
    x, y = (replace(manifest.inputs[0], name=name, shape=(1,)) for name in "xy")
    return replace(manifest, inputs=(x,), outputs=(y,), golden=golden)


def never_answering(folder):
    """Try a model whose golden set never ends."""
    np.savez(
        folder / "golden.npz", **{"input.x": np.zeros((2, 1), np.float32), "output.y": np.zeros((2, 1), np.float32)}
    )
    manifest = endless_manifest(Golden("golden.npz", "0" * 64, {"onnx": Tolerance(1.0, 1e-5)}))
    return asyncio.run(try_variant(manifest, endless(folder), folder, SessionBudget(), IMPATIENT))


def test_a_model_that_crashes_its_runtime(tmp_path):
    verdict = asyncio.run(try_variant(models.identity(), crashing(tmp_path), tmp_path, SessionBudget(), QUICK))
    assert not verdict.passed
    assert not verdict.transient
    assert re.match(r"crashed twice: died by SIGSEGV \(exit -11; it had \d+ MiB\) while opening it", verdict.reason)


def test_a_model_that_crashes_while_it_is_inspected(tmp_path):
    crashing(tmp_path)
    with pytest.raises(VariantError, match=r"crashed twice: died by SIGSEGV .* while reading the model"):
        asyncio.run(inspect_file("litert", tmp_path / "model.tflite", QUICK))


def test_a_model_that_never_answers(tmp_path):
    verdict = never_answering(tmp_path)
    assert not verdict.passed
    assert verdict.reason.startswith("no answer within 3 s while running")
    assert verdict.reason.endswith("if this device is that slow, raise [trial] deadline_s")


@pytest.mark.parametrize("busy", [0.0, 3.0])
def test_a_model_that_does_not_answer_on_a_busy_machine_is_undecided(tmp_path, monkeypatch, busy):
    monkeypatch.setattr(child, "busy_share", lambda _first, _last: busy)
    monkeypatch.setattr(child, "OWN_SHARE", 2.0)  # it may have a core of its own here
    verdict = never_answering(tmp_path)
    assert (verdict.passed, verdict.transient) == (False, bool(busy))
    assert ("of CPU time: the machine was busy)" in verdict.reason) == verdict.transient


def unending(folder, columns, above):
    """Return a model that ends its runs only for small inputs, without a golden set."""
    models.write_onnx_looping(folder / "model.onnx", columns, above)
    manifest = models.dense()
    x, y = (replace(manifest.inputs[0], name=name, shape=(-1, columns)) for name in "xy")
    variant = Variant("looping", "onnx", "fp32", (Artifact("model.onnx", "0" * 64, 1),))
    return replace(manifest, inputs=(x,), outputs=(y,)), variant, folder


@pytest.mark.parametrize("batch", [True, False])
def test_a_generated_input_that_never_ends_is_left_out(tmp_path, batch):
    manifest, variant, folder = unending(tmp_path, 1, 0.0)
    manifest = replace(manifest, batch=batch)
    verdict = asyncio.run(try_variant(manifest, variant, folder, SessionBudget(), UNWAITING))
    assert (verdict.passed, verdict.level) == (True, "exercised")
    assert verdict.remarks[0] == "runs on generated inputs did not end within 4 s (1 of them)"
    sample = list(samples(manifest))[verdict.sample]
    assert sample.zeros
    if batch:
        assert not verdict.joining.allowed


def test_rows_that_never_end_are_not_joined(tmp_path):
    manifest, variant, folder = unending(tmp_path, 16, 1000.0)
    manifest = replace(manifest, rows=INDEPENDENT)
    verdict = asyncio.run(try_variant(manifest, variant, folder, SessionBudget(), UNWAITING))
    assert (verdict.passed, verdict.level, verdict.remarks) == (True, "exercised", ())
    assert verdict.joining == Joining("declared", "a run of several generated rows did not end")
    assert verdict.sample == 0


def test_a_model_that_ends_no_run_is_refused(tmp_path):
    verdict = asyncio.run(try_variant(endless_manifest(), endless(tmp_path), tmp_path, SessionBudget(), UNWAITING))
    assert not verdict.passed
    assert verdict.reason.startswith("runs on generated inputs did not end within 4 s (2 of them)")
    assert "(while running it on generated inputs); add a golden set" in verdict.reason


@pytest.mark.parametrize(("head", "passes"), [("yolov5", False), ("yolov8", True)])
@pytest.mark.parametrize("size", [64, -1])
def test_a_task_that_cannot_read_the_answers_of_its_model_is_refused_with_their_shapes(tmp_path, head, passes, size):
    model = models_made.shaped(
        {"images": ["rows", 3, "h" if size < 0 else size, "w" if size < 0 else size]},
        {"output0": ["rows", 6, "boxes"]},
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Reshape", ["mean", "column"], ["means"]),
        helper.make_node("Expand", ["means", "head"], ["output0"]),
        initializer=[
            numpy_helper.from_array(np.array(sizes), name)
            for name, sizes in {"column": [-1, 1, 1], "head": [1, 6, 84]}.items()
        ],
    )
    models_made.save(model, tmp_path / "model.onnx")
    images = TensorSpec("images", Datatype.FP32, (-1, 3, size, size), layout="NCHW")
    outputs = (TensorSpec("output0", Datatype.FP32, (-1, -1, -1)),)
    variant, options = Variant("v", "onnx", "fp32", (Artifact("model.onnx", "0" * 64, 1),)), {"head": head}
    manifest = ModelManifest(
        "street", "1", (images,), outputs, (variant,), "object-detection", options, labels=("person", "car")
    )
    verdict = asyncio.run(try_variant(manifest, variant, tmp_path, SessionBudget(), QUICK))
    assert verdict.passed == passes, verdict.reason
    if not passes:
        assert "object-detection" in verdict.reason
        assert "output0 [1, 6, 84]" in verdict.reason
        assert "correct the table [task]" in verdict.reason


def test_a_model_file_that_cannot_be_read_to_its_end(tmp_path):
    os.mkfifo(tmp_path / "model.npz")
    with pytest.raises(VariantError, match=r"no answer within 3 s while reading the model"):
        asyncio.run(inspect_file("reference", tmp_path / "model.npz", IMPATIENT))


async def running_child():
    """Return the trial's process and the fork server that is its parent."""
    while True:
        for server in children():
            for process in server.children():
                return process, server
        await asyncio.sleep(0)


async def endless_trial(folder, interfere):
    """Run a trial that does not end, and call `interfere` with its task, its process and its server."""
    variant = endless(folder)
    trial = asyncio.create_task(try_variant(endless_manifest(), variant, folder, SessionBudget(), QUICK))
    child, server = await running_child()
    interfere(trial, child, server)
    try:
        return await trial
    finally:
        child.wait(timeout=30)


def test_cancelling_a_trial_kills_its_process(tmp_path):
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(endless_trial(tmp_path, lambda trial, _child, _server: trial.cancel()))


def test_cancelling_a_trial_before_its_process_runs_leaves_nothing(tmp_path):
    async def cancelled():
        trial = asyncio.create_task(inspect_file("reference", tmp_path / "model.npz", QUICK))
        while not children():
            await asyncio.sleep(0)
        trial.cancel()
        await trial

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


def test_a_trial_killed_from_outside_is_undecided(tmp_path):
    verdict = asyncio.run(endless_trial(tmp_path, lambda _trial, child, _server: child.kill()))
    assert not verdict.passed
    assert verdict.transient
    assert re.match(r"died by SIGKILL \(exit -9, perhaps for lack of memory; it had \d+ MiB\) while ", verdict.reason)


def test_a_trial_whose_fork_server_is_killed_is_undecided(tmp_path, small):
    async def killed():
        verdict = await endless_trial(tmp_path, lambda _trial, _child, server: server.kill())
        again = await try_variant(small.manifest, small.variant, small.files, SessionBudget(), QUICK)
        return verdict, again

    verdict, again = asyncio.run(killed())
    assert (verdict.passed, verdict.transient) == (False, True)
    assert "died by SIGKILL" in verdict.reason
    assert again.passed, again.reason


def test_trials_of_a_runtime_share_one_server(small):
    async def tried_twice():
        servers = set()
        for _ in range(2):
            await try_variant(small.manifest, small.variant, small.files, SessionBudget(), QUICK)
            servers |= {child.pid for child in children()}
        return servers

    assert len(asyncio.run(tried_twice())) == 1


def test_a_server_without_tasks_ends(small, monkeypatch):
    monkeypatch.setattr(fork_server, "LINGER_S", 0.0)

    async def ended():
        await try_variant(small.manifest, small.variant, small.files, SessionBudget(), QUICK)
        while children():
            await asyncio.sleep(0.01)

    asyncio.run(ended())


def test_the_loop_is_free_while_a_trial_runs(small):
    async def both():
        trial = asyncio.create_task(try_variant(small.manifest, small.variant, small.files, SessionBudget(), QUICK))
        turns = 0
        while not trial.done():
            await asyncio.sleep(0)
            turns += 1
        return turns, await trial

    turns, verdict = asyncio.run(both())
    assert verdict.passed
    assert turns > 10


@pytest.mark.parametrize("runtime", models.FILES)
def test_status_of_every_runtime(runtime):
    status, devices = asyncio.run(runtime_status(runtime, QUICK))
    assert status.version == get_runtime(runtime).version()
    assert status.problem == ""
    assert any(device.startswith("CPU") for device in devices)


@pytest.mark.parametrize("kills", [1, 2])
def test_status_of_a_runtime_whose_process_is_killed(kills):
    async def listed():
        listing = asyncio.create_task(runtime_status("openvino", QUICK))
        for _ in range(kills):
            child, _ = await running_child()
            child.kill()
            while child.is_running():
                await asyncio.sleep(0)
        return await listing

    status, devices = asyncio.run(listed())
    assert status.problem == ""
    assert devices is None if kills == 2 else "CPU" in devices


def test_status_of_an_unknown_runtime():
    status, devices = asyncio.run(runtime_status("abacus", QUICK))
    assert "no runtime called 'abacus'" in status.problem
    assert devices == ()


def test_status_of_a_runtime_that_does_not_answer_in_time(monkeypatch):
    monkeypatch.setattr(child, "busy_share", lambda _first, _last: 0.0)
    status, devices = asyncio.run(runtime_status("openvino", replace(QUICK, deadline_s=0.003)))
    assert status.problem.startswith("no answer within 0.001 s while starting")
    assert status.version
    assert devices == ()


CONFINED = """
import os, platform, resource, sys
from pathlib import Path
from gateway.serving.runtimes.job import ChildTask, Inspection
from gateway.serving.runtimes.settings import TrialSettings
from gateway.serving.runtimes.trial_child import confine
machine = sys.argv[1] or platform.machine()
platform.machine = lambda: machine
bounds = resource.RLIMIT_AS, resource.RLIMIT_NOFILE
before = [resource.getrlimit(each) for each in bounds], os.getpriority(os.PRIO_PROCESS, 0)
confine(ChildTask(Inspection("onnx", Path("model.onnx")), TrialSettings(nice=2)))
assert [resource.getrlimit(each) for each in bounds] == before[0]
confined = "Seccomp:\\t2" in Path("/proc/self/status").read_text()
print(os.getpriority(os.PRIO_PROCESS, 0) - before[1], confined)
"""


@pytest.mark.parametrize(("machine", "confined"), [("", True), ("armv7l", False)])
def test_a_trial_gives_way_and_keeps_its_descriptors_whether_it_can_be_confined_or_not(machine, confined):
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # as trials have it: with other threads none is confined
    done = subprocess.run(
        [sys.executable, "-c", CONFINED, machine], env=alone, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (f"2 {confined}", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_root_inspects_a_file_of_another_user(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    models.write_onnx_looping(home / "model.onnx", 1, 0.0)
    for path in (home, home / "model.onnx"):
        os.chown(path, 1000, 1000)
    home.chmod(0o700)
    assert asyncio.run(inspect_file("onnx", home / "model.onnx", QUICK)).inputs


def test_inspecting_garbage(tmp_path):
    file = Path(tmp_path / "model.onnx")
    file.write_bytes(b"hello" * 100)
    with pytest.raises(VariantError, match=r"ONNX Runtime cannot open model.onnx"):
        asyncio.run(inspect_file("onnx", file, QUICK))


def test_an_answer_beyond_the_limit_is_refused(small, monkeypatch):
    monkeypatch.setattr(TrialSettings, "answer_limit_bytes", 64)
    file = small.files / small.variant.artifacts[0].path
    with pytest.raises(VariantError, match="exceeds 64 bytes"):
        asyncio.run(inspect_file(small.variant.runtime, file, QUICK))


def looping(folder):
    """Write a model whose only input says how often its body runs; openvino can convert it, too."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "one"], ["w"]), helper.make_node("Identity", ["go"], ["still"])],
        "body",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("v", TensorProto.FLOAT, [1])],
        [value("still", TensorProto.BOOL, []), value("w", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "zero"], ["y"], body=body)],
        "looping",
        [value("n", TensorProto.INT64, [])],
        [value("y", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.zeros(1, np.float32), "zero")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")


@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_a_loop_is_found_however_quick_it_was_in_its_trial(tmp_path, runtime):
    looping(tmp_path)
    name = "m.onnx"
    if runtime == "openvino":
        openvino.save_model(openvino.convert_model(tmp_path / "m.onnx"), tmp_path / "m.xml", compress_to_fp16=False)
        name = "m.xml"
    variant = Variant(runtime, runtime, "fp32", (Artifact(name, "0" * 64, 1),))
    signature = asyncio.run(inspect_file(runtime, tmp_path / name, QUICK))
    manifest = ModelManifest("looping", "1", signature.inputs, signature.outputs, (variant,))
    verdict = asyncio.run(try_variant(manifest, variant, tmp_path, SessionBudget(), QUICK))
    assert (verdict.passed, verdict.level, verdict.joining) == (True, "exercised", None), verdict
    assert verdict.unbounded.startswith("control flow (")


def test_plugins_are_listed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, both = list[str](), asyncio.Event()

    async def ask(listing: Listing, *_: object) -> dict[str, list[str]]:
        if not listing.plugin:
            return {"devices": ["CPU"]}
        asked.append(listing.plugin)
        if len(asked) == len(names):
            both.set()
        await asyncio.wait_for(both.wait(), 10)
        return {"devices": [listing.plugin]}

    names = [plugin.provider for plugin in RUNTIMES["onnx"].plugins][:2]
    found = RuntimeStatus("onnx", "1", plugins={name: PluginStatus("2") for name in names})
    monkeypatch.setattr(trial, "installed_version", lambda _: found)
    monkeypatch.setattr(trial, "ask_child", ask)
    status, devices = asyncio.run(runtime_status("onnx", QUICK))
    assert {name: plugin.accelerators for name, plugin in status.plugins.items()} == {name: (name,) for name in names}
    assert devices == ("CPU", *(f"{name} by {name} 2" for name in names))
