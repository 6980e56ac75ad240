"""Golden set of a pipeline: run when it is loaded and when its models are others; refused if it is not reached."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError, VariantError
from gateway.common.domain.manifest import Artifact
from gateway.common.domain.pipeline import Pipeline
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.release import Release
from gateway.common.domain.tensor import Tensors
from gateway.serving.domain.golden import GoldenResult, compare_golden
from gateway.serving.domain.infer import InferRequest
from gateway.serving.domain.ports import Pending
from gateway.serving.pipelines import golden, target
from tests.simulators.engine_rig import release, variant
from tests.simulators.images_made import encoded
from tests.simulators.pipelines import NAME, PipelineRig, detector, spec

CHAIN = """
[input]
x = "FP32[4]"
[[step]]
name = "s"
model = "m"
of = "x"
[output]
y = "s.y"
word = "'big' if top(s.y) > 2 else 'small'"
"""
X = np.arange(40, dtype=np.float32).reshape(10, 4) / 10
EXPECTED = {"y": X + 1, "word": np.array([b"small"] * 2 + [b"big"] * 8)}


def with_golden(text: str, folder: Path, tolerance: str = "", /, **arrays: Any) -> str:
    """Write a golden set; return the text of the pipeline with it."""
    np.savez(folder / "golden.npz", **{key.replace("_", ".", 1): value for key, value in arrays.items()})
    digest = hashlib.sha256((folder / "golden.npz").read_bytes()).hexdigest()
    return f'{text}[golden]\nfile = "golden.npz"\nsha256 = "{digest}"\n{tolerance}'


def add(rig: PipelineRig, plus: float, digest: str) -> None:
    """Add the model `m`, which adds `plus`, from a file of this digest."""
    files = (Artifact("m.onnx", digest, 1),)
    rig.model("m", lambda of: {"y": of["x"] + np.float32(plus)}, (spec("x", 4),), (spec("y", 4),), digest=digest)
    rig.manifests["m"] = replace(rig.manifests["m"], variants=(replace(variant("m"), artifacts=files),))


async def begun(folder: Path, plus: float = 1, tolerance: str = "", **changes: Any) -> PipelineRig:
    """Return a rig whose pipeline has a golden set of x + 1, and whose model adds `plus`."""
    rig = PipelineRig()
    add(rig, plus, "d1")
    arrays = {"input_x": X, **{f"output_{name}": array for name, array in EXPECTED.items()}, **changes}
    rig.pipeline(with_golden(CHAIN, folder, tolerance, **arrays), folder=folder)
    await rig.begin()
    return rig


@pytest.mark.asyncio
async def test_a_pipeline_that_reaches_its_golden_set_serves(tmp_path: Path) -> None:
    rig = await begun(tmp_path)
    placement = rig.target().placement
    assert placement.level == "proven"
    assert placement.reason.startswith("1 steps, runs m; passed its golden set: agreement 1.0000 (at least 0.99)")
    assert sum(rig.session_of("m").rows_run) >= len(X)
    assert rig.target().statistics.inferences == rig.target().statistics.steps["s"].runs == 0
    await rig.ask({"x": X}, "y")
    assert rig.target().statistics.inferences == len(X)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("plus", "tolerance", "words"),
    [
        (
            1.5,
            "",
            "failed its golden set: agreement 0.9000 (at least 0.99), mean difference 0.17 (at most 0.02)",
        ),
        (1.5, "[golden.tolerance]\npipeline = { agreement = 0.8, mean_abs = 0.6 }\n", ""),
        (1.5, "[golden.tolerance]\npipeline = { agreement = 0.8 }\n", "mean difference 0.17 (at most 0.02) (EG-310)"),
        (1.015, "", ""),
        (np.nan, "", "mean difference inf"),
    ],
)
async def test_the_tolerance_decides(tmp_path: Path, plus: float, tolerance: str, words: str) -> None:
    rig = await begun(tmp_path, plus, tolerance)
    assert words in rig.reason() if words else not rig.reason()
    if words:
        with pytest.raises(RequestError) as caught:
            await rig.ask({"x": X}, "y")
        assert caught.value.fault in {Fault.UNAVAILABLE, Fault.NOT_FOUND}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_y": EXPECTED["y"][:, :3]}, "output 'y' has shape [10, 4], expected [10, 3]"),
        ({"output_y": EXPECTED["y"][:9]}, "output 'y' has shape [10, 4], expected [9, 4]"),
        ({"input_x": X[:, :3]}, "input 'x' of the golden set has shape [10, 3], expected [-1, 4]"),
        ({"input_x": np.float32(1)}, "input 'x' of the golden set has shape [], expected [-1, 4]"),
        ({"input_x": np.full((10, 4), b"text")}, "failed to open: ValueError"),
        ({"output_word": EXPECTED["y"]}, "output 'word' has shape [10], expected [10, 4]"),
        ({"output_word": np.array(["small"] * 10)}, "failed its golden set: agreement 0.0000"),
        ({"output_y": np.zeros((10, 0), np.float32)}, "array 'output.y' is empty, so nothing could fail"),
        ({"input_x": X[:0]}, "array 'input.x' is empty"),
    ],
)
async def test_wrong_golden_sets_are_refused_with_words(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    assert words in (await begun(tmp_path, **changes)).reason()


@pytest.mark.asyncio
async def test_inputs_of_different_rows_are_refused_at_once(tmp_path: Path) -> None:
    text = CHAIN.replace("[[step]]", 't = "text"\n[[step]]', 1)
    rig = PipelineRig()
    add(rig, 1, "d1")
    arrays = {"input_x": X, "input_t": np.array([b"a"] * 5), "output_y": X + 1, "output_word": EXPECTED["word"]}
    rig.pipeline(with_golden(text, tmp_path, **arrays), folder=tmp_path)
    await rig.begin()
    assert "the inputs of the golden set differ in their rows: [5, 10]" in rig.reason()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("rows", "words"), [(1, "has more than 1200 bytes; write fewer rows"), (300, "bytes unpacked, at most 1200 are")]
)
async def test_large_golden_sets_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, words: str
) -> None:
    monkeypatch.setattr(golden, "LIMIT_BYTES", 1200)
    rig = PipelineRig()
    add(rig, 1, "d1")
    arrays = {
        "x": np.zeros((rows, 4), np.float32),
        "y": np.ones((rows, 4), np.float32),
        "word": np.array([b"a"] * rows),
    }
    noise = {} if rows > 1 else {"more": np.random.default_rng(1).bytes(2000)}
    named = {f"{'input' if name == 'x' else 'output'}.{name}": array for name, array in arrays.items()} | noise
    np.savez_compressed(tmp_path / "golden.npz", **named)  # type: ignore[arg-type]
    content = (tmp_path / "golden.npz").read_bytes()
    assert (len(content) > 1200) is (rows == 1)
    digest = hashlib.sha256(content).hexdigest()
    rig.pipeline(f'{CHAIN}[golden]\nfile = "golden.npz"\nsha256 = "{digest}"\n', folder=tmp_path)
    await rig.begin()
    assert words in rig.reason()


@pytest.mark.asyncio
async def test_a_golden_set_is_read_and_compared_on_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop stays free: it goes on while a comparison waits for it."""
    loop, compare, seen = asyncio.get_running_loop(), compare_golden, list[str]()

    def waiting(*arguments: Any, **named: Any) -> GoldenResult:
        ran = threading.Event()
        loop.call_soon_threadsafe(ran.set)
        assert ran.wait(10), "compared on the event loop"
        seen.append("compared")
        return compare(*arguments, **named)

    for name in ("read_golden", "stored"):
        monkeypatch.setattr(golden, name, on_a_thread(getattr(golden, name), seen))
    monkeypatch.setattr(golden, "compare_golden", waiting)
    rig = await begun(tmp_path)
    assert not rig.reason()
    assert seen[0] == "read_golden"
    assert seen[-1] == "compared"
    assert "stored" in seen


def on_a_thread(function: Any, seen: list[str]) -> Any:
    """Return a function that must not be called on the main thread."""

    def called(*arguments: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread(), function
        seen.append(function.__name__)
        return function(*arguments)

    return called


@pytest.mark.asyncio
@pytest.mark.parametrize(("score", "box", "words"), [(0, 0, ""), (0.01, 2, ""), (0.05, 0, "0.05"), (0, 9, "0.04")])
async def test_one_tolerance_bounds_outputs_of_different_units(
    tmp_path: Path, score: float, box: float, words: str
) -> None:
    """Boxes in pixels do not make room for wrong scores: both have the same best classes."""
    scores, boxes = (np.array([row] * 10, np.float32) for row in ([0.9, 0.1], [200, 250]))
    rig = PipelineRig()
    outputs = {"scores": scores + np.float32(score), "boxes": boxes + np.float32(box)}
    specs = (spec("scores", 2), spec("boxes", 2))
    rig.model("m", lambda of: {k: v[: len(of["x"])] for k, v in outputs.items()}, (spec("x", 4),), specs)
    text = CHAIN[: CHAIN.index("[output]")] + '[output]\nscores = "s.scores"\nboxes = "s.boxes"\n'
    arrays = {"input_x": X, "output_scores": scores, "output_boxes": boxes}
    rig.pipeline(with_golden(text, tmp_path, **arrays), folder=tmp_path)
    await rig.begin()
    assert (f"mean difference {words} (at most 0.02)" in rig.reason()) if words else not rig.reason()


@pytest.mark.asyncio
async def test_places_that_are_not_finite_in_both_pass(tmp_path: Path) -> None:
    x = X.copy()
    x[3, 1], x[5, 2], x[7, 0] = np.nan, np.inf, -np.inf
    y = x + 1
    assert not (await begun(tmp_path, input_x=x, output_y=y, output_word=await words_of(x))).reason()
    y[4, 1] = np.nan
    assert "mean difference inf" in (await begun(tmp_path, input_x=x, output_y=y)).reason()


async def words_of(x: np.ndarray) -> np.ndarray:
    """Return what the pipeline itself says of rows."""
    rig = PipelineRig()
    add(rig, 1, "d1")
    rig.pipeline(CHAIN)
    await rig.begin()
    return golden.stored((await rig.ask({"x": x}, "word"))["word"])


@pytest.mark.asyncio
@pytest.mark.parametrize(("most", "rows"), [(1024, [8, 8, 4]), (3, [3] * 6 + [2])])
async def test_its_requests_are_those_of_one_caller_with_few_rows_and_a_deadline_each(
    most: int, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = PipelineRig()
    add(rig, 1, "d1")
    rig.pipeline(CHAIN)
    await rig.begin()
    seen, clock_ns = list[InferRequest](), [0]
    monkeypatch.setattr(golden, "time", SimpleNamespace(monotonic_ns=lambda: clock_ns[0] + time.monotonic_ns()))

    def submit(request: InferRequest, *more: Any) -> Pending:
        seen.append(request)
        clock_ns[0] += 10**12
        return rig.target().submit(request, *more)

    x = np.tile(X, (2, 1))
    manifest = golden.compared(rig.target().manifest)
    answers = await golden.golden_answers(manifest, submit, {"x": x}, most)
    assert answers["y"].tolist() == (x + 1).tolist()
    assert [len(request.inputs["x"].array) for request in seen] == rows
    assert {request.caller for request in seen} == {"golden set"}
    deadlines = [request.deadline_ns or 0 for request in seen]
    assert all(later - one >= 10**12 for one, later in itertools.pairwise(deadlines))
    assert {request.model for request in seen} == {NAME}


@pytest.mark.asyncio
async def test_only_a_failed_comparison_is_final(tmp_path: Path) -> None:
    """Answers of others decide: the version is not tried again, until its models change."""
    rig = await begun(tmp_path, plus=3)
    assert "failed its golden set" in rig.reason()
    assert "undecided" not in rig.reason()


@pytest.mark.asyncio
async def test_a_set_that_no_pipeline_answers_is_final(tmp_path: Path) -> None:
    rule = '[[step]]\nname = "r"\nrule = { of = "1 / z" }\n[output]\nw = "r.of"'
    text = CHAIN.replace("[[step]]", 'z = "FP32[]"\n[[step]]', 1).replace("[output]", rule)
    rig = PipelineRig()
    add(rig, 1, "d1")
    arrays = {"input_x": X, "input_z": np.zeros(10, np.float32), "output_w": np.ones(10, np.float32)}
    arrays |= {f"output_{name}": array for name, array in EXPECTED.items()}
    rig.pipeline(with_golden(text, tmp_path, **arrays), folder=tmp_path)
    await rig.begin()
    assert "a run of its golden set failed: pipeline 'chain', step 'r'" in rig.reason()
    assert "undecided" not in rig.reason()


@pytest.mark.asyncio
async def test_a_check_that_is_cancelled_leaves_nothing_behind() -> None:
    rig = PipelineRig(slow=("m",))
    add(rig, 1, "d1")
    rig.pipeline(CHAIN)
    await rig.begin()
    gate = rig.session_of("m").gate
    gate.clear()
    manifest = golden.compared(rig.target().manifest)
    check = asyncio.create_task(golden.golden_answers(manifest, rig.target().submit, {"x": X}, 8))
    while not rig.target().busy:
        await asyncio.sleep(0)
    check.cancel()
    with pytest.raises(asyncio.CancelledError):
        await check
    assert not rig.target().busy
    gate.set()


@pytest.mark.asyncio
async def test_a_golden_set_that_lacks_an_output_or_changed_is_refused(tmp_path: Path) -> None:
    rig = PipelineRig()
    add(rig, 1, "d1")
    rig.pipeline(with_golden(CHAIN, tmp_path, input_x=X, output_y=X + 1), folder=tmp_path)
    await rig.begin()
    assert "golden set lacks the array 'output.word'" in rig.reason()
    (tmp_path / "golden.npz").write_bytes(b"other")
    rig.pipelines[NAME] = replace(rig.pipelines[NAME], digest="p2")
    await rig.begin()
    assert "golden.npz changed since it was read" in rig.reason()


@pytest.mark.asyncio
async def test_another_version_of_a_model_is_checked_and_refused_until_it_fits(tmp_path: Path) -> None:
    rig = await begun(tmp_path)
    first = rig.target()
    await rig.begin()
    assert rig.target() is first  # the same models: nothing is run again
    runs = len(rig.session_of("m").given)
    await rig.begin()
    assert len(rig.session_of("m").given) == runs
    await rig.ask({"x": X}, "y")
    add(rig, 1.001, "d2")
    await rig.begin()
    assert rig.target() is not first
    assert rig.target().statistics.inferences == len(X)  # counters go on
    add(rig, 3, "d3")
    await rig.begin()
    for _ in range(2):
        with pytest.raises(RequestError, match="a model was replaced: failed its golden set: agreement") as caught:
            await rig.ask({"x": X}, "y")
        assert caught.value.fault is Fault.UNAVAILABLE
        assert "EG-310" in rig.reason()
        runs = len(rig.session_of("m").given)
        await rig.begin()  # the same models are not asked again
        assert len(rig.session_of("m").given) == runs
    add(rig, 1, "d4")
    await rig.begin()
    assert not rig.reason()
    np.testing.assert_allclose((await rig.ask({"x": X}, "y"))["y"], X + 1)


NEAREST = f"""{CHAIN[: CHAIN.index("[output]")]}[[step]]
name = "g"
match = "g.npz"
of = "s.y"
[output]
label = "g.label"
"""


def gallery(folder: Path, labels: str) -> None:
    """Write a gallery of the unit vectors."""
    np.savez(folder / "g.npz", vectors=np.eye(4, dtype=np.float32), labels=np.array(list(labels)))


@pytest.mark.asyncio
@pytest.mark.parametrize("is_staged", [False, True])
async def test_a_release_that_fails_does_not_end_the_one_that_serves(tmp_path: Path, *, is_staged: bool) -> None:
    rig, x = PipelineRig(), np.eye(4, dtype=np.float32)
    add(rig, 0, "d1")
    gallery(tmp_path, "abcd")
    text = with_golden(NEAREST, tmp_path, input_x=x, output_label=np.array([b"a", b"b", b"c", b"d"]))
    rig.pipeline(text, folder=tmp_path)
    await rig.begin()
    assert not rig.reason()
    for digest in ("p2", "p3"):  # the same document with other galleries
        gallery(tmp_path, "bacd")
        other = replace(rig.pipelines[NAME], digest=digest)
        if is_staged:
            with pytest.raises(VariantError, match="failed its golden set"):
                await rig.stage_release(other)
        else:
            await rig.repository.synchronise([release(rig.manifests["m"]), other])
            assert rig.reason().startswith("a newer file is refused: failed its golden set")
        assert (await rig.ask({"x": x}, "label"))["label"].tolist() == [b"a", b"b", b"c", b"d"]
    add(rig, 0, "d2")  # it is opened again, with what its folder holds now: that is not what serves
    await rig.begin()
    assert "failed its golden set" in rig.reason()
    assert (await rig.ask({"x": x}, "label"))["label"].tolist() == [b"a", b"b", b"c", b"d"]
    gallery(tmp_path, "abcd")
    await rig.begin()
    assert not rig.reason()
    assert rig.target().placement.level == "proven"


@pytest.mark.asyncio
async def test_a_model_that_an_inner_pipeline_runs_is_noticed(tmp_path: Path) -> None:
    rig = await begun(tmp_path)
    outer = '[input]\nx = "FP32[4]"\n[[step]]\nname = "s"\nmodel = "chain"\nof = "x"\n[output]\ny = "s.y"\n'
    folder = tmp_path / "outer"
    folder.mkdir()
    rig.pipelines.clear()
    rig.pipeline(CHAIN)
    rig.pipeline(with_golden(outer, folder, input_x=X, output_y=X + 1), "outer", folder=folder)
    await rig.begin()
    assert not rig.reason("outer")
    add(rig, 2, "d2")
    await rig.begin()
    assert "failed its golden set" in rig.reason("outer")
    assert not rig.reason()


@pytest.mark.asyncio
async def test_a_pipeline_that_refuses_requests_is_not_ready(tmp_path: Path) -> None:
    rig = await begun(tmp_path)
    rig.engine.settled = True
    assert rig.engine.ready(NAME)
    add(rig, 3, "d2")
    await rig.begin()
    assert [entry.state for entry in rig.repository.index()] == ["UNAVAILABLE", "READY"]
    assert [one.state for one in rig.repository.standings()] == ["UNAVAILABLE", "READY"]
    assert not rig.engine.ready(NAME)
    assert not rig.engine.ready(NAME, "1")
    assert rig.engine.ready("m")
    assert rig.engine.ready()
    (tmp_path / "2").mkdir()
    await rig.repository.stage(NAME, "2", partial(another_version, tmp_path / "2"))
    rig.repository.route(NAME, {"1": 50, "2": 50}, lease_s=60)
    assert rig.engine.ready(NAME)  # one of the versions answers
    add(rig, 1, "d3")
    await rig.begin()
    assert rig.engine.ready(NAME, "1")
    assert not rig.reason()
    assert {entry.state for entry in rig.repository.index()} == {"READY"}


async def another_version(folder: Path) -> Release:
    """Return another version of the pipeline, which expects x + 3."""
    text = with_golden(CHAIN, folder, input_x=X, output_y=X + 3, output_word=np.array([b"big"] * 10))
    declared = read_pipeline(f'schema = 1\nname = "{NAME}"\nversion = "2"\n{text}', "pipeline.toml")
    return Release(NAME, "2", folder, "v2", pipeline=declared, signed=True)


@pytest.mark.asyncio
async def test_the_level_is_proven_only_with_the_models_that_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await begun(tmp_path)
    levels = list[tuple[str, bool]]()

    def placed() -> tuple[str, bool]:
        placement = rig.target().placement
        return placement.level, "passed its golden set" in placement.reason

    async def checked(*given: Any) -> str:
        levels.append(placed())
        return await golden.check_golden(*given)

    monkeypatch.setattr(target, "check_golden", checked)
    monkeypatch.setattr(golden, "LIMIT_S", 0.0)
    assert placed() == ("proven", True)
    add(rig, 3, "d2")
    await rig.begin()
    assert placed() == ("", False)
    assert levels == [("", False)]
    np.testing.assert_allclose((await rig.ask({"x": X}, "y"))["y"], X + 3)  # undecided: it answers
    assert not rig.target().refusal
    monkeypatch.undo()
    await rig.begin()
    assert rig.target().refusal.startswith("failed its golden set")


@pytest.mark.asyncio
async def test_a_run_that_fails_decides_nothing(tmp_path: Path) -> None:
    rig, failures = await begun(tmp_path), [RuntimeError("no memory for a moment")]
    add(rig, 1, "d2")
    function = rig.runtime.functions["m"]  # type: ignore[attr-defined]

    def fail_once(of: Tensors) -> Tensors:
        if failures:
            raise failures.pop()
        return function(of)  # type: ignore[no-any-return]

    rig.runtime.functions["m"] = fail_once  # type: ignore[attr-defined]
    await rig.begin()
    assert not failures
    assert "it is undecided with the models that serve now: a run of its golden set failed" in rig.reason()
    np.testing.assert_allclose((await rig.ask({"x": X}, "y"))["y"], X + 1)
    await rig.begin()
    assert not rig.reason()
    assert rig.target().placement.level == "proven"


@pytest.mark.asyncio
@pytest.mark.parametrize("is_refused", [False, True])
async def test_only_a_failed_comparison_refuses_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_refused: bool
) -> None:
    rig = await begun(tmp_path)
    add(rig, 1, "d2")

    async def refused(*_: Any) -> str:
        raise VariantError("a run failed") from RequestError(Fault.INVALID, "refused")

    async def late(*_: Any) -> str:
        raise VariantError("its fallback answered", transient=True)

    monkeypatch.setattr(target, "check_golden", refused if is_refused else late)
    await rig.begin()
    assert ("refused with the models" if is_refused else "undecided with the models") in rig.reason()
    np.testing.assert_allclose((await rig.ask({"x": X}, "y"))["y"], X + 1)
    monkeypatch.undo()
    await rig.begin()  # it runs again
    assert rig.target().placement.level == "proven"


@pytest.mark.asyncio
async def test_another_release_that_fails_leaves_the_refusal(tmp_path: Path) -> None:
    rig = await begun(tmp_path)
    add(rig, 3, "d2")
    await rig.begin()
    with pytest.raises(VariantError, match="failed its golden set"):
        await rig.stage_release(replace(rig.pipelines[NAME], digest="p2"))
    with pytest.raises(VariantError, match="failed its golden set"):  # nor is it there already
        await rig.stage_release(rig.pipelines[NAME])
    with pytest.raises(RequestError, match="a model was replaced: failed its golden set"):
        await rig.ask({"x": X}, "y")


@pytest.mark.asyncio
async def test_load_asks_the_same_models_again(tmp_path: Path) -> None:
    rig, plus = await begun(tmp_path), [3.0]
    rig.model("m", lambda of: {"y": of["x"] + np.float32(plus[0])}, (spec("x", 4),), (spec("y", 4),), digest="d2")
    await rig.begin()
    rig.disk[NAME] = (rig.pipelines[NAME],)
    for _ in range(2):
        with pytest.raises(RequestError, match="failed to load 'chain': failed its golden set"):
            await rig.repository.load(NAME)
        with pytest.raises(RequestError, match="a model was replaced"):
            await rig.ask({"x": X}, "y")
    plus[0] = 1.0
    await rig.begin()
    assert "failed its golden set" in rig.reason()
    await rig.repository.load(NAME)
    np.testing.assert_allclose((await rig.ask({"x": X}, "y"))["y"], X + 1)
    assert rig.target().placement.level == "proven"


@pytest.mark.asyncio
async def test_another_manifest_of_the_same_file_and_another_gallery_of_an_inner_pipeline_are_noticed(
    tmp_path: Path,
) -> None:
    rig = await begun(tmp_path)
    add(rig, 2, "d1")
    rig.digests["m"] = "d1 with another manifest"
    await rig.begin()
    assert "failed its golden set" in rig.reason()
    rig, x, folder = PipelineRig(), np.eye(4, dtype=np.float32), tmp_path / "outer"
    folder.mkdir()
    add(rig, 0, "d1")
    gallery(tmp_path, "abcd")
    outer = '[input]\nx = "FP32[4]"\n[[step]]\nname = "s"\nmodel = "chain"\nof = "x"\n[output]\ny = "s.label"\n'
    rig.pipeline(NEAREST, folder=tmp_path)
    golden_set = with_golden(outer, folder, input_x=x, output_y=np.array([b"a", b"b", b"c", b"d"]))
    rig.pipeline(golden_set, "outer", folder=folder)
    await rig.begin()
    assert not rig.reason("outer")
    gallery(tmp_path, "bacd")
    rig.pipeline(NEAREST, folder=tmp_path, digest="p2")
    await rig.begin()
    assert not rig.reason()
    assert "failed its golden set" in rig.reason("outer")


@pytest.mark.asyncio
async def test_a_version_under_a_route_does_not_refuse_the_pipeline(tmp_path: Path) -> None:
    text = CHAIN.replace("[output]", '[[step]]\nname = "t"\nmodel = "n"\nof = "s.y"\n[output]')
    rig = PipelineRig()
    add(rig, 1, "d1")
    rig.model("n", lambda of: {"y": of["x"]}, (spec("x", 4),), (spec("y", 4),))
    arrays = {"input_x": X, **{f"output_{name}": array for name, array in EXPECTED.items()}}
    rig.pipeline(with_golden(text, tmp_path, **arrays), folder=tmp_path)
    await rig.begin()
    assert not rig.reason()
    add(rig, 50, "d2")
    await rig.stage(replace(rig.manifests["m"], version="2"), "d2")
    add(rig, 1, "d1")
    rig.repository.route("m", {"1": 60, "2": 40}, lease_s=60)
    rig.digests["n"] = "d2"
    await rig.begin()
    assert "is undecided with the models that serve now: failed its golden set" in rig.reason()
    assert "under a route" in rig.reason()
    await rig.ask({"x": X}, "y")
    rig.repository.route("m", {"2": 100}, lease_s=60)
    await rig.begin()
    assert "is refused with the models that serve now: failed its golden set" in rig.reason()
    rig.repository.route("m", {"1": 100}, shadow="2", lease_s=60)
    np.testing.assert_allclose((await rig.ask({"x": X}, "y"))["y"], X + 1)
    await rig.begin()
    assert not rig.reason()
    assert rig.target().placement.level == "proven"
    rig.repository.route("m", {"1": 100}, lease_s=60)  # a shadow answers nobody
    assert rig.target().placement.level == "proven"


@pytest.mark.asyncio
async def test_a_staged_version_is_checked_with_the_models_of_its_commit(tmp_path: Path) -> None:
    rig = await begun(tmp_path)
    first = rig.pipelines[NAME]
    assert first.pipeline is not None
    later = replace(first, version="2", digest="p2", pipeline=replace(first.pipeline, version="2"), signed=True)

    async def fetched() -> Release:
        return later

    await rig.repository.stage(NAME, "2", fetched)
    add(rig, 3, "d2")
    rig.pipelines[NAME] = later
    await rig.begin()
    with pytest.raises(RequestError, match="failed its golden set"):
        await rig.ask({"x": X}, "y")
    assert not rig.engine.ready(NAME)


@pytest.mark.asyncio
async def test_a_staged_version_under_a_route_is_checked_when_a_model_is_replaced(tmp_path: Path) -> None:
    rig = await begun(tmp_path)
    first = rig.pipelines[NAME]
    assert first.pipeline is not None
    later = replace(first, version="2", digest="p2", pipeline=replace(first.pipeline, version="2"))

    async def fetched() -> Release:
        return later

    await rig.repository.stage(NAME, "2", fetched)
    rig.repository.route(NAME, {"1": 1, "2": 99}, lease_s=60)
    rig.pipelines[NAME] = replace(first, pipeline=replace(first.pipeline, golden=None), digest="p3")  # fits anything
    for plus, digest, is_good in ((3, "d2", False), (1, "d3", True), (1.001, "d4", True)):
        add(rig, plus, digest)
        await rig.begin()
        if is_good:
            assert await rig.ask({"x": X}, "y", version="2")
            assert rig.engine.placement(NAME, "2").level == "proven"
            continue
        with pytest.raises(RequestError, match="failed its golden set"):
            await rig.ask({"x": X}, "y", version="2")
        with pytest.raises(VariantError, match="failed its golden set"):  # its stager is told
            await rig.repository.stage(NAME, "2", fetched)
    runs = rig.session_of("m").rows_run[:]
    await rig.repository.stage(NAME, "2", fetched)  # the same models are not asked again
    assert rig.session_of("m").rows_run == runs


@pytest.mark.asyncio
async def test_a_pipeline_is_not_ready_while_one_that_it_runs_refuses(tmp_path: Path) -> None:
    rig = await begun(tmp_path)
    outer = f'[input]\nx = "FP32[4]"\n[[step]]\nname = "inner"\nmodel = "{NAME}"\nof = "x"\n'
    rig.pipeline(f'{outer}[output]\ny = "inner.y"\n', name="outer", digest="o1")
    spare = f'{outer}fallback = {{ word = "" }}\n[output]\nword = "inner.word"\n'
    rig.pipeline(spare, name="spare", digest="o2")
    await rig.begin()
    assert [rig.engine.ready(name) for name in ("outer", "spare", NAME)] == [True, True, True]
    add(rig, 3, "d2")
    await rig.begin()
    assert [rig.engine.ready(name) for name in ("outer", "spare", NAME)] == [False, True, False]
    add(rig, 1, "d3")
    await rig.begin()
    assert rig.engine.ready("outer")


@pytest.mark.asyncio
async def test_a_route_over_a_model_that_failed_does_not_end_the_refusal(tmp_path: Path) -> None:
    rig = await begun(tmp_path)
    add(rig, 3, "d2")
    await rig.begin()
    with pytest.raises(RequestError, match="failed its golden set"):
        await rig.ask({"x": X}, "y")
    bad = rig.runtime.functions["m"]
    rig.runtime.functions["m"] = lambda of: {"y": of["x"] + np.float32(1)}
    await rig.stage(replace(rig.manifests["m"], version="2"), "dm2")
    rig.runtime.functions["m"] = bad
    rig.repository.route("m", {"1": 90, "2": 10}, lease_s=30)
    with pytest.raises(RequestError, match="failed its golden set"):
        await rig.ask({"x": X}, "y")
    rig.repository.route("m", {"2": 100}, lease_s=30)
    assert ((await rig.ask({"x": X}, "y"))["y"] == X + 1).all()


@pytest.mark.asyncio
async def test_models_that_change_while_the_golden_set_runs_decide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await begun(tmp_path)

    async def checked(*given: Any) -> str:
        passed = await golden.check_golden(*given)
        add(rig, 3, "d2")
        monkeypatch.undo()
        await rig.begin()
        return passed

    monkeypatch.setattr(target, "check_golden", checked)
    with pytest.raises(VariantError, match="a model was replaced while its golden set ran") as caught:
        await rig.stage_release(replace(rig.pipelines[NAME], digest="p2"))
    assert caught.value.transient


@pytest.mark.asyncio
async def test_a_fallback_and_a_late_model_do_not_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = CHAIN.replace('of = "x"\n', 'of = "x"\nfallback = { y = 7 }\n')
    rig = PipelineRig()

    def fail(_: Tensors) -> Tensors:
        raise RuntimeError("broken")

    rig.model("m", fail, (spec("x", 4),), (spec("y", 4),))
    arrays = {"input_x": X, **{f"output_{name}": array for name, array in EXPECTED.items()}}
    rig.pipeline(with_golden(text, tmp_path, **arrays), folder=tmp_path)
    await rig.begin()
    assert "undecided" in rig.reason()
    assert "its fallback answered for step s" in rig.reason()
    monkeypatch.setattr(golden, "LIMIT_S", 0.0)
    rig = await begun(tmp_path)
    assert "undecided: a run of its golden set failed: the request's time was over" in rig.reason()


@pytest.mark.asyncio
async def test_lists_are_compared_although_requests_fill_them_differently(tmp_path: Path) -> None:
    """Images of 0 to 11 objects, in several requests: each fills its lists up to its own longest one."""
    text = """
[input]
image = "image"
[[step]]
name = "cars"
model = "finder"
of = "image"
[output]
cars = { box = "cars.box", label = "cars.label", score = "cars.score" }
"""
    rig = PipelineRig()
    detector(rig, "finder", lambda pixels: [((0, 0, n, n), 0.5, n % 2) for n in range(1, int(pixels.max()) + 1)])
    rig.pipeline(text)
    await rig.begin()
    images = np.array([encoded(np.full((8, 8, 3), value, np.uint8)) for value in range(12)])
    answers = await golden.golden_answers(
        golden.compared(rig.target().manifest), rig.target().submit, {"image": images}, 5
    )
    assert answers["cars.label"].shape == (12, 11)
    assert answers["cars.label"][0].tolist() == [b""] * 11
    assert answers["cars.label"][3].tolist() == [b"dog", b"car", b"dog"] + [b""] * 8
    assert answers["cars.box"].shape == (12, 11, 4)
    arrays = {"input.image": images, **{f"output.{name}": array for name, array in answers.items()}}
    np.savez(tmp_path / "golden.npz", **arrays)  # type: ignore[arg-type]
    digest = hashlib.sha256((tmp_path / "golden.npz").read_bytes()).hexdigest()
    rig.pipeline(f'{text}[golden]\nfile = "golden.npz"\nsha256 = "{digest}"\n', folder=tmp_path, digest="p2")
    await rig.begin()
    assert not rig.reason()
    assert "passed its golden set: agreement 1.0000" in rig.target().placement.reason
    fewer = {name: array[:, :9] if name.startswith("output") else array for name, array in arrays.items()}
    np.savez(tmp_path / "golden.npz", **fewer)  # type: ignore[arg-type]
    digest = hashlib.sha256((tmp_path / "golden.npz").read_bytes()).hexdigest()
    rig.pipeline(f'{text}[golden]\nfile = "golden.npz"\nsha256 = "{digest}"\n', folder=tmp_path, digest="p3")
    await rig.begin()
    assert "failed its golden set: agreement 0.9" in rig.reason()  # two of the lists have more


def read(golden_table: str) -> Pipeline:
    return read_pipeline(f'schema = 1\nname = "chain"\nversion = "1"\n{CHAIN}{golden_table}', "pipeline.toml")


def test_the_table_of_a_golden_set() -> None:
    table = f'[golden]\nfile = "a/g.npz"\nsha256 = "{"0" * 64}"\n'
    found = read(f"{table}[golden.tolerance]\npipeline = {{ mean_abs = 2 }}\n").golden
    assert found is not None
    assert (found.file, found.tolerance["pipeline"].agreement, found.tolerance["pipeline"].mean_abs) == (
        "a/g.npz",
        0.99,
        2,
    )
    assert read("").golden is None
    for wrong, words in (
        (table.replace("a/g", "../g"), "golden"),
        (table.replace("0" * 64, "0"), "sha256"),
        (f"{table}more = 1\n", "more"),
        (f"{table}[golden.tolerance]\nonnx = {{ agreement = 1 }}\n", "known are pipeline"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            read(wrong)
