"""Windows of streams, and models with sequences as steps: their state is that of the pipeline's stream."""

from __future__ import annotations

import asyncio
import gc
import re
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.common.domain.manifest import ControlInput, SequenceBatching, StateTensors, TensorSpec
from gateway.common.domain.manifest_toml import read_manifest
from gateway.common.domain.tensor import Array, Datatype, Tensors
from gateway.serving.domain.infer import InferRequest
from gateway.serving.engine.sequences import SequenceServable
from gateway.serving.engine.ticket import Ticket
from gateway.serving.frontends.documents import pipeline_steps
from gateway.serving.pipelines import plan, planner
from gateway.serving.pipelines.columns import StepError
from gateway.serving.pipelines.passage import RequestPassage
from gateway.serving.pipelines.windows import StreamValues, windows
from tests.simulators.daemon import ROOT
from tests.simulators.engine_rig import release
from tests.simulators.pipelines import PipelineRig, spec
from tests.unit.serving.pipelines.test_golden import with_golden

WINDOWS = """
[input]
pcm = "FP32[-1]"
[[step]]
name = "frames"
window = { of = "pcm", rows = 4, hop = 2 }
[[step]]
name = "loud"
model = "loud"
of = "frames.window"
[output]
loud = "loud.y"
n = "count(frames)"
"""
LISTEN = WINDOWS.replace('model = "loud"', 'model = "sums"')
STATE = SequenceBatching((StateTensors("total", "next", 100.0),), ())


def add_models(rig: PipelineRig) -> None:
    """Add `loud`, the sum of a window, and `sums`, the sum of all windows of a sequence after 100."""
    rig.model("loud", lambda given: {"y": given["x"].sum(1, keepdims=True)}, (spec("x", 4),), (spec("y", 1),))

    def add(given: Tensors) -> Tensors:
        made = given["total"] + given["x"].sum(1, keepdims=True)
        if np.isinf(made).any():
            raise ValueError("overflow")
        return {"y": made, "next": made}

    rig.model("sums", add, (spec("x", 4), spec("total", 1)), (spec("y", 1), spec("next", 1)), sequence=STATE)


async def listening(text: str = WINDOWS) -> PipelineRig:
    rig = PipelineRig()
    add_models(rig)
    rig.pipeline(text)
    await rig.begin()
    return rig


async def heard(rig: PipelineRig, *values: float, **changes: Any) -> list[float]:
    """Return the values of the windows that a chunk completes."""
    found = await rig.ask({"pcm": np.array([values], np.float32)}, "loud", "n", **changes)
    assert found["loud"].shape == (1, found["n"][0])
    return [float(value) for value in found["loud"][0]]


# ---- windows ---------------------------------------------------------------------------------------------------------
@settings(max_examples=200, deadline=None)
@given(sizes=st.lists(st.integers(0, 9), max_size=12), size=st.integers(1, 7), hop=st.integers(1, 9))
def test_windows_of_chunks_are_those_of_the_whole(sizes: list[int], size: int, hop: int) -> None:
    whole = np.arange(2 * sum(sizes), dtype=np.float32).reshape(-1, 2)
    state, found, at = StreamValues(whole[:0], size), list[Array](), 0
    for length in sizes:
        before = state.values.copy()
        after, ends, made = windows(state, whole[at : at + length], size, hop)
        assert (state.values == before).all()
        assert [whole[at + end].tolist() for end in ends] == [window[-1].tolist() for window in made]
        assert len(after.values) < size
        assert after.values.base is None
        state, at = after, at + length
        found += list(made)
    wanted = [whole[end - size : end] for end in range(size, len(whole) + 1, hop)]
    assert [each.tolist() for each in found] == [each.tolist() for each in wanted]


@pytest.mark.parametrize(
    ("values", "size", "words"),
    [(30_000, 16_000, "more than 10000 windows"), (21_000, 16_000, "windows of more than 268435456 bytes")],
)
def test_too_many_or_too_large_windows_are_refused_before_they_are_made(values: int, size: int, words: str) -> None:
    given, state = np.zeros(values, np.float32), StreamValues(np.zeros(0, np.float32), size)
    tracemalloc.start()
    try:
        with pytest.raises(StepError, match=words):
            windows(state, given, size, 1)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("hop", [1, 3])
def test_windows_are_views(hop: int) -> None:
    values = np.arange(5_000, dtype=np.float32)
    tracemalloc.start()
    try:
        _, ends, made = windows(StreamValues(values[:0], 1_000), values, 1_000, hop)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    assert (made[:, -1] == ends).all()
    assert made.nbytes > 5_000_000


@pytest.mark.asyncio
async def test_windows_fit_a_model_whose_rows_have_more_sizes_of_one() -> None:
    rig = PipelineRig()
    rig.model("loud", lambda given: {"y": given["x"].sum(1)}, (spec("x", 4, 1),), (spec("y", 1),))
    rig.pipeline(WINDOWS)
    await rig.begin()
    assert await heard(rig, 1, 2, 3, 4, 5, 6) == [10, 18]


@pytest.mark.asyncio
async def test_many_windows_of_few_values_are_made_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, used = await listening(WINDOWS.replace("hop = 2", "hop = 1")), list[str]()
    begin = rig.target().preparing.submit_for
    monkeypatch.setattr(rig.target().preparing, "submit_for", lambda *of: (used.append(""), begin(*of))[1])
    monkeypatch.setattr(planner, "LOOP_NUMBERS", 20)
    assert (await heard(rig, *range(5)), len(used)) == ([6, 10], 0)
    assert len(await heard(rig, *range(6), stream="b")) == 3
    assert used


@pytest.mark.asyncio
async def test_steps_after_a_window_run_when_one_is_complete() -> None:
    rig = await listening()
    assert await heard(rig, 1, 2, 3) == []
    assert rig.session_of("loud").given == []  # nothing ran
    assert [await heard(rig, 4, 5), await heard(rig), await heard(rig, 6, 7, 8)] == [[10], [], [18, 26]]
    assert await heard(rig, 1, 1, 1, 1, stream="other") == [4]
    assert rig.session_of("loud").rows_run == [1, 2, 1]


@pytest.mark.asyncio
async def test_a_row_is_one_value_if_its_size_is_fixed() -> None:
    text = WINDOWS.replace("FP32[-1]", "FP32[2]").replace("rows = 4", "rows = 2").replace("hop = 2", "hop = 1")
    rig = PipelineRig()
    rig.model("loud", lambda x: {"y": x["x"].sum((1, 2))[:, None]}, (spec("x", 2, 2),), (spec("y", 1),))
    rig.pipeline(text.replace("loud =", 'pcm0 = "frames.window"\nloud ='))
    await rig.begin()
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    found = await rig.ask({"pcm": rows}, "loud", "n", "pcm0")
    assert (found["n"].tolist(), found["loud"][1:, 0].tolist()) == ([0, 1, 1], [6, 14])
    assert found["pcm0"][2, 0].tolist() == [[2, 3], [4, 5]]


@pytest.mark.asyncio
async def test_sizes_of_one_before_the_open_one_are_left_out() -> None:
    rig = PipelineRig()
    rig.model("loud", lambda x: {"y": x["x"].sum((1, 2))[:, None]}, (spec("x", 2, 3),), (spec("y", 1),))
    rig.pipeline(WINDOWS.replace("[-1]", "[1, -1, 3]").replace("rows = 4", "rows = 2"))
    await rig.begin()
    rows = np.arange(24, dtype=np.float32).reshape(2, 1, 4, 3)
    found = await rig.ask({"pcm": rows}, "loud", "n")
    assert (found["n"].tolist(), found["loud"].tolist()) == ([2, 2], [[15, 51], [87, 123]])


@pytest.mark.asyncio
async def test_windows_of_windows() -> None:
    more = '[[step]]\nname = "again"\nwindow = { of = "loud.y", rows = 2, hop = 1 }\n[output]\npairs = "again.window"\n'
    rig = await listening(WINDOWS.replace("[output]\n", more))
    found = await rig.ask({"pcm": np.arange(10, dtype=np.float32)[None]}, "pairs")
    assert found["pairs"][0].tolist() == [[6, 14], [14, 22], [22, 30]]


@pytest.mark.asyncio
async def test_a_failure_behind_the_steps_with_state_changes_none_of_them() -> None:
    rig = await listening()
    await heard(rig, 1, 2, 3)
    session = rig.session_of("loud")
    session.failure = RuntimeError("broken")
    with pytest.raises(RequestError, match="broken"):
        await heard(rig, 4, 5)
    session.failure = None
    assert await heard(rig, 6) == [18]  # of 3, 4, 5, 6: the turn of the failed request was over before it failed


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('of = "pcm", rows', 'of = "frames.x", rows', "'frames' is no earlier step"),
        ('"FP32[-1]"', '"text"', "'of' is text; it must be numbers of a fixed shape"),
        ('"FP32[-1]"', '"FP32[4, -1]"', "it must be numbers of a fixed shape"),
        ('"FP32[-1]"', '"FP32[-1, 2000000]"', "at most 16777216 are kept; make it shorter"),
        ('"FP32[-1]"', '"FP32[9, 6]"', "takes rows of the shape \\[4\\], not \\[4, 9, 6\\]"),
        ("hop = 2", "hop = 0", "must be between 1"),
        ("hop = 2", "step = 2", "unknown key"),
        ("[output]", "[state]\nkeys = 0\n[output]", "must be between 1 and 100000"),
        ('window = { of = "pcm", rows = 4, hop = 2 }', 'window = "pcm"', "must be a table"),
    ],
)
async def test_windows_that_cannot_be_are_refused(old: str, new: str, words: str) -> None:
    assert old in WINDOWS
    try:
        reason = (await listening(WINDOWS.replace(old, new))).reason()
    except ConfigurationError as error:
        reason = str(error)
    assert re.search(words, reason), reason


@pytest.mark.asyncio
async def test_limits_of_states_need_a_step_with_state() -> None:
    text = WINDOWS.replace('window = { of = "pcm", rows = 4, hop = 2 }', 'rule = { window = "pcm" }')
    rig = await listening(
        text.replace("FP32[-1]", "FP32[4]").replace('n = "count(frames)"', "") + "[state]\nkeys = 5\n"
    )
    assert "is for steps with state; add one (track, window, a model with sequences)" in rig.reason()


@pytest.mark.asyncio
async def test_rows_of_one_moment_have_no_state() -> None:
    text = '[input]\nx = "FP32[4]"\n[[step]]\nname = "a"\nmodel = "spots"\nof = "x"\n[[step]]\nname = "b"\nMORE\n'
    boxes = tuple(
        TensorSpec(n, d, (-1, -1, *s))
        for n, d, s in (("boxes", Datatype.FP32, (4,)), ("scores", Datatype.FP32, ()), ("classes", Datatype.INT32, ()))
    )
    for more in ('window = { of = "a.box", rows = 2 }', 'model = "sums"\nof = "a.box"'):
        rig = PipelineRig()
        add_models(rig)
        rig.model("spots", lambda _: {}, (spec("x", 4),), boxes, answered=tuple(each.name for each in boxes))
        rig.pipeline(text.replace("MORE", more) + '[output]\nn = "count(a)"\n')
        await rig.begin()
        assert "the rows of 'a' are of one moment" in rig.reason()


def test_the_graph_names_windows() -> None:
    rig = PipelineRig()
    rig.pipeline(WINDOWS)
    declared = rig.pipelines["chain"].pipeline
    assert declared is not None
    line = pipeline_steps(declared, {})["steps"][0]
    assert (line["kind"], line["does"]) == ("window", "the last 4 of pcm, every 2")


@pytest.mark.asyncio
async def test_a_golden_set_of_windows_is_one_stream(tmp_path: Path) -> None:
    rig = await listening()
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    loud, n = np.array([[6, 0], [14, 22], [30, 38]], np.float32), np.array([1, 2, 2])
    for plus in (0, 1):
        text = with_golden(WINDOWS, tmp_path, "", input_pcm=rows, output_loud=loud, output_n=n + plus)
        rig.pipeline(text, folder=tmp_path, digest=f"p{plus + 2}")
        await rig.begin()
        assert ("failed its golden set" in rig.reason()) is bool(plus), rig.reason()


@pytest.mark.asyncio
async def test_the_blocks_of_the_how_to_listen() -> None:
    page = (ROOT / "docs/pages/howto/sequences.md").read_text()
    declared, pipeline = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    manifest = read_manifest(declared.replace("…", "0" * 64), "manifest.toml")
    rig = PipelineRig()
    specs = {"inputs": manifest.inputs, "outputs": manifest.outputs, "sequence": manifest.sequence, "batch": False}

    def hear(given: Tensors) -> Tensors:
        assert (given["input"].shape, given["sr"].tolist()) == ((1, 576), 16_000)
        return {"output": given["state"][0, :, :1] + given["input"][:, :1], "stateN": given["state"] + 1}

    rig.model("vad", hear, **specs)
    rig.pipeline(pipeline.partition('version = "1"')[2], name="listen")
    await rig.begin()
    sent, found = np.concatenate((np.zeros(64), np.ones(5000))).astype(np.float32), list[float]()
    for part in (sent[:2000], sent[2000:2100], sent[2100:]):
        answer = await rig.ask({"pcm": part[None]}, "speech", name="listen")
        found += answer["speech"].ravel().tolist()
    assert found == [float(count + (count > 0)) for count in range(5064 // 512)]


# ---- models with sequences -------------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_the_key_of_a_model_with_sequences_is_that_of_the_stream() -> None:
    rig = await listening(LISTEN)
    assert await heard(rig, 1, 1, 1, 1, 1, 1) == [104, 108]  # the rows of a request run one after the other
    assert [await heard(rig, 1, 1), await heard(rig, 2, 2, stream="b"), await heard(rig, 1, 1)] == [[112], [], [116]]
    sums = rig.registry.find("sums", "")
    assert isinstance(sums, SequenceServable)
    assert (len(sums.streams), sums.busy) == (0, False)  # the pipeline keeps the states
    assert rig.session_of("sums").rows_run == [1, 1, 1, 1]


@pytest.mark.asyncio
async def test_streams_of_a_pipeline_share_the_runs_of_a_model_with_sequences() -> None:
    rig = await listening(LISTEN)
    found = await asyncio.gather(*(heard(rig, 1, 1, 1, 1, stream=str(each)) for each in range(6)))
    assert (found, rig.session_of("sums").rows_run) == ([[104.0]] * 6, [6])


@pytest.mark.asyncio
async def test_a_failed_run_leaves_the_states_of_the_pipeline() -> None:
    rig = await listening(LISTEN)
    assert await heard(rig, 1, 1, 1, 1) == [104]
    with pytest.raises(RequestError, match="overflow"):
        await heard(rig, 1, 1, np.inf, np.inf)  # the second of its windows fails
    assert await heard(rig, 1, 1) == [108]
    rig.pipeline(LISTEN.replace('of = "frames.window"', 'of = "frames.window"\nfallback = { y = 7 }'), digest="p2")
    await rig.begin()
    assert await heard(rig, 1, 1, 1, 1) == [104]
    assert await heard(rig, 1, 1, np.inf, np.inf) == [7, 7]
    assert await heard(rig, 0, 0) == [7]  # it has the two values before these
    assert await heard(rig, 1, 1, 1, 1) == [106, 110]  # without what ran before the failure


@pytest.mark.asyncio
async def test_a_model_that_was_replaced_begins_anew_in_a_pipeline() -> None:
    rig = await listening(LISTEN)
    assert await heard(rig, 1, 1, 1, 1) == [104]
    made = rig.manifests["sums"]
    keeps = replace(made, sequence=replace(STATE, keep_state=True))
    others = [release(of, "d1") for name, of in rig.manifests.items() if name != "sums"]
    others += list(rig.pipelines.values())
    await rig.repository.synchronise([release(made, "d2"), *others])
    assert await heard(rig, 1, 1) == [104]  # the window went on
    await rig.repository.synchronise([release(keeps, "d3"), *others])
    assert await heard(rig, 1, 1) == [104]
    await rig.repository.synchronise([release(keeps, "d4"), *others])
    assert await heard(rig, 1, 1) == [108]


@pytest.mark.asyncio
async def test_a_step_has_no_number_for_corrid() -> None:
    rig = PipelineRig()
    add_models(rig)
    changed = replace(STATE, controls=(ControlInput("id", "corrid"),))
    inputs = (*rig.manifests["sums"].inputs, TensorSpec("id", Datatype.UINT64, (-1, 1)))
    rig.manifests["sums"] = replace(rig.manifests["sums"], inputs=inputs, sequence=changed)
    rig.pipeline(LISTEN)
    await rig.begin()
    assert "its model takes the sequence_id as a number, 'id', and that of a step is a text" in rig.reason()


# ---- memory ----------------------------------------------------------------------------------------------------------
@pytest.mark.asyncio
@pytest.mark.parametrize("text", [WINDOWS, LISTEN])
@pytest.mark.parametrize("apart", [False, True])
async def test_the_memory_of_a_request_waits_for_no_search_for_garbage(
    text: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if apart:
        monkeypatch.setattr(planner, "LOOP_NUMBERS", -1)
        monkeypatch.setattr(plan, "LOOP_VALUES", -1)
    rig = await listening(text)

    def left() -> int:
        return sum(isinstance(each, (RequestPassage, Ticket, InferRequest, StreamValues)) for each in gc.get_objects())

    await heard(rig, 1, 2, 3, 4)
    gc.collect()
    before = left()
    gc.disable()
    try:
        for _ in range(10):
            await heard(rig, 1, 2, 3, 4, deadline_ns=time.monotonic_ns() + 10**12)
        await asyncio.sleep(0)
        assert left() < before + 10  # a thread may hold its last work
    finally:
        gc.enable()
