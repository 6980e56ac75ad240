"""Steps with state: the order of a stream's requests, what is kept of streams and how long, swaps, golden sets."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import struct
import threading
import time
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import StreamLimits
from gateway.common.domain.release import Release
from gateway.common.domain.tensor import Array, Tensors
from gateway.serving.engine import streams
from gateway.serving.engine.images import image_size
from gateway.serving.engine.streams import StreamState
from gateway.serving.engine.target import RequestTarget
from gateway.serving.frontends.cameras.forms import choose_form
from gateway.serving.frontends.documents import model_config, model_metadata, pipeline_steps
from gateway.serving.pipelines import planner
from gateway.serving.pipelines.golden import compared, golden_answers
from gateway.serving.pipelines.tracking import Tracks, follow
from tests.simulators.daemon import ROOT
from tests.simulators.images_made import ORIENTATION, encoded, exif
from tests.simulators.pipelines import FOUND, PIXELS, PipelineRig, detector, spec
from tests.unit.serving.pipelines.test_golden import with_golden

FOLLOW = """
[input]
frame = "FP32[9, 6]"
[[step]]
name = "found"
model = "find"
of = "frame"
[[step]]
name = "people"
track = "found"
{more}
[output]
track = "people.track"
frames = "people.frames"
n = "count(people)"
"""


def tensor_detector(rig: PipelineRig) -> None:
    """Add a detector of what its tensor lists: rows of a box, score and class; a score of 0 ends them."""

    def find(inputs: Tensors) -> Tensors:
        x = inputs["frame"]
        classes = np.where(np.cumsum(x[:, :, 4] == 0, axis=1) > 0, -1, x[:, :, 5]).astype(np.int32)
        return {"boxes": x[:, :, :4], "scores": x[:, :, 4], "classes": classes}

    answered = tuple(each.name for each in FOUND)
    rig.model("find", find, (spec("frame", 9, 6),), FOUND, answered=answered, labels=("person", "dog"))


async def following(more: str = "", end: str = "", **changes: Any) -> PipelineRig:
    """Return a rig with a pipeline that tracks what its detector `find` is asked to find."""
    rig = PipelineRig(**changes)
    tensor_detector(rig)
    rig.pipeline(FOLLOW.format(more=more) + end)
    await rig.begin()
    return rig


def frame(*xs: float, score: float = 0.9) -> Array:
    """Return a frame [1, 9, 6] with objects at these places."""
    rows = np.zeros((1, 9, 6), np.float32)
    for row, x in enumerate(xs):
        rows[0, row] = x, 0, x + 20, 40, score, 0
    return rows


async def tracks(rig: PipelineRig, *frames: Array, **changes: Any) -> list[list[int]]:
    """Return the numbers of the objects of each frame of a request."""
    found = (await rig.ask({"frame": np.concatenate(frames)}, "track", **changes))["track"]
    return [[int(number) for number in row if number >= 0] for row in found]


def walk(seed: int, frames: int = 12, objects: int = 4) -> list[Array]:
    """Return frames of objects that move, are missed, and return."""
    rng = np.random.default_rng(seed)
    places, speeds = rng.uniform(0, 300, objects), rng.normal(0, 5, objects)
    made = list[Array]()
    for _ in range(frames):
        places += speeds
        made.append(frame(*places[rng.random(objects) > 0.2]))
    return made


# ---- rows ------------------------------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_rows_of_a_request_are_frames_one_after_the_other() -> None:
    frames = walk(3)
    one, other = await following(), await following()
    single = [(await tracks(one, each))[0] for each in frames]
    assert await tracks(other, *frames[:5]) + await tracks(other, *frames[5:]) == single
    assert max(map(max, single)) >= 4


@pytest.mark.asyncio
async def test_tracked_rows_have_the_columns_of_their_detector() -> None:
    rig = await following()
    text = FOLLOW.format(more="").replace(
        'n = "count(people)"', 'things = { box = "people.box", kind = "people.label" }'
    )
    step = '[[step]]\nname = "left"\nselect = "people"\nwhere = "track > 1 and frames >= 1"\n[output]'
    text = text.replace("[output]", step) + 'left = "count(left)"\nlow = "any(left.score < 0.5)"\n'
    rig.pipeline(text, digest="p2")
    await rig.begin()
    found = await rig.ask({"frame": frame(10, 200, 400, score=0.9)})
    assert found["things.kind"].tolist() == [[b"person"] * 3]
    assert found["things.box"][0, :, 0].tolist() == [10, 200, 400]
    assert (found["left"].tolist(), found["low"].tolist()) == ([2], [False])
    second = frame(12, 202, 402)
    second[0, :, 4] *= [1, 0.01, 0.3, 0, 0, 0, 0, 0, 0]
    found = await rig.ask({"frame": second})
    assert (found["track"].tolist(), found["frames"].tolist(), found["low"].tolist()) == ([[1, 3]], [[2, 2]], [True])


@pytest.mark.asyncio
@pytest.mark.parametrize("long", [False, True])
async def test_tracking_on_threads_answers_the_same(long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "LOOP_PAIRS", -1 if long else 10**9)
    rig, frames = await following(), walk(5)
    with monkeypatch.context() as patched:
        if not long:
            patched.setattr(rig.target().preparing, "submit_for", lambda *_: pytest.fail("a thread was used"))
        found = [(await tracks(rig, each))[0] for each in frames]
    plain = await following()
    assert found == [(await tracks(plain, each))[0] for each in frames]


@pytest.mark.asyncio
async def test_ten_thousand_boxes_are_followed_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, slices = PipelineRig(), list[str]()
    many = np.random.default_rng(0).uniform(0, 9_000, (10_000, 1, 2)).astype(np.float32)
    boxes = np.concatenate((many, many + 30), axis=2).reshape(1, -1, 4)
    scores, classes = np.full((1, 10_000), 0.9, np.float32), np.zeros((1, 10_000), np.int32)
    answers = {"boxes": boxes, "scores": scores, "classes": classes}
    rig.model("find", lambda _: answers, (spec("frame", 9, 6),), FOUND, answered=tuple(answers))
    rig.pipeline(FOLLOW.format(more=""))
    await rig.begin()
    threads = rig.target().preparing
    submit = threads.submit_for

    def counting(caller: str, call: Any, *arguments: Any) -> Any:
        slices.append(caller)
        return submit(caller, call, *arguments)

    monkeypatch.setattr(threads, "submit_for", counting)
    for _ in range(2):
        found = await rig.ask({"frame": frame(1)}, "n", caller="a")
        assert found["n"].tolist() == [500]
    assert set(slices) == {"a"}
    assert len(slices) > 3  # other callers have their turn in between


# ---- order -----------------------------------------------------------------------------------------------------------
class Detector:
    """Detector `find` whose answers come when, and in the order in which, the test lets them."""

    def __init__(self, rig: PipelineRig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = list[Callable[[], Any]]()
        target = rig.registry.find("find", "")
        submit = target.submit
        self.fails = set[float]()

        def later(request: Any, sink: Any, token: Any, *more: Any) -> Any:
            def answer() -> None:
                if float(request.inputs["frame"].array[0, 0, 0]) in self.fails:
                    sink.refuse(token, RequestError(Fault.INTERNAL, "broken", in_run=True))
                    sink.flush()
                else:
                    submit(request, sink, token, *more)

            self.held.append(answer)
            return self

        monkeypatch.setattr(target, "submit", later)

    def cancel(self) -> None:
        """Cancel nothing: an answer that comes late is ignored."""

    async def let(self, index: int) -> None:
        """Let one answer come."""
        self.held.pop(index)()
        await asyncio.sleep(0.001)


async def begun(rig: PipelineRig, *values: Any, **changes: Any) -> list[asyncio.Task[list[list[int]]]]:
    """Return requests under way, which arrived in this order."""
    tasks = [asyncio.create_task(tracks(rig, value, **changes)) for value in values]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


@pytest.mark.asyncio
async def test_requests_of_a_stream_pass_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await following()
    find = Detector(rig, monkeypatch)
    first, second, third = await begun(rig, frame(0), frame(4, 200), frame(8, 204))
    other = (await begun(rig, frame(50), stream="other"))[0]
    await find.let(2)
    await find.let(1)
    assert not any(task.done() for task in (first, second, third))
    await find.let(1)
    assert await other == [[1]]  # streams do not wait for each other
    assert not first.done()
    await find.let(0)
    assert [await first, await second, await third] == [[[1]], [[1]], [[1, 2]]]


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["fails", "cancelled", "expires", "closed"])
async def test_a_request_that_ends_before_its_turn_changes_nothing(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await following()
    assert await tracks(rig, frame(0)) == [[1]]
    find = Detector(rig, monkeypatch)
    deadline = {"deadline_ns": time.monotonic_ns() + 200_000_000} if how == "expires" else {}
    (bad,) = await begun(rig, frame(5, 300), **deadline)
    (good,) = await begun(rig, frame(6, 300))
    await find.let(1)
    if how == "fails":
        find.fails.add(5.0)
        await find.let(0)
    elif how == "cancelled":
        bad.cancel()
    elif how == "closed":
        closing = asyncio.create_task(rig.target().close(0.0))
        with pytest.raises(RequestError, match="it was unloaded"):
            await good
        await closing
    with pytest.raises((RequestError, asyncio.CancelledError)) as caught:
        await bad
    if how != "closed":
        assert await good == [[1]]  # 300 is new: it would be confirmed if the other one had passed
    if how == "fails":
        assert "pipeline 'chain', step 'found': broken" in str(caught.value)
    held = rig.target().streams
    assert (len(held._busy), len(held._idle)) == (0, 1)


@pytest.mark.asyncio
async def test_a_request_that_waits_for_its_turn_expires_in_the_step_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await following()
    find = Detector(rig, monkeypatch)
    (first,) = await begun(rig, frame(0))
    (late,) = await begun(rig, frame(1), deadline_ns=time.monotonic_ns() + 400_000_000)
    await find.let(1)
    with pytest.raises(RequestError, match="step 'people': the request's time is over") as caught:
        await late
    assert caught.value.fault is Fault.EXPIRED
    await find.let(0)
    assert await first == [[1]]


@pytest.mark.asyncio
async def test_a_request_that_loses_its_place_frees_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await following(queue_requests=6)
    find = Detector(rig, monkeypatch)
    tasks = await begun(rig, frame(0), frame(1), frame(2), caller="a")
    more = await begun(rig, frame(5), frame(6), frame(7), caller="a", stream="s")
    (other,) = await begun(rig, frame(3), caller="b")
    with pytest.raises(RequestError, match="another caller has fewer"):
        await more[2]
    (again,) = await begun(rig, frame(4), caller="c")
    with pytest.raises(RequestError, match="another caller has fewer"):
        await more[1]
    for _ in range(8):
        await find.let(0)
    assert [await one for one in (*tasks, more[0], other, again)] == [[[1]]] * 6
    assert len(rig.target().streams._busy) == 0


@pytest.mark.asyncio
async def test_a_stream_that_hangs_leaves_room_for_others_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await following(queue_requests=8)
    find = Detector(rig, monkeypatch)
    hanging = await begun(rig, *(frame(x) for x in range(6)), stream="door")
    for late in hanging[4:]:
        with pytest.raises(RequestError, match="as many requests of this sequence_id under way") as caught:
            await late
        assert caught.value.fault is Fault.OVERLOADED
    others = await begun(rig, frame(0), frame(1), stream="yard")
    for _ in range(2):
        await find.let(-1)
    assert [await one for one in others] == [[[1]]] * 2
    for _ in range(4):
        await find.let(0)
    assert [await one for one in hanging[:4]] == [[[1]]] * 4


@pytest.mark.asyncio
async def test_who_makes_many_streams_forgets_none_of_others() -> None:
    rig = await following(end="[state]\nkeys = 4\n")
    for stream in ("door", "yard"):
        await tracks(rig, frame(0), caller="camera", stream=stream)
    for number in range(20):
        await tracks(rig, frame(0), caller="other", stream=str(number))
    held = rig.target().streams
    assert {("camera", "door"), ("camera", "yard")} < held._idle.keys()
    assert (len(held), held._idle.keys()) == (4, {(c, s) for c, of in held._idle_of.items() for _, s in of})
    await tracks(rig, frame(0), caller="third")  # it has none of its own
    assert ("camera", "door") not in held._idle


@pytest.mark.asyncio
async def test_a_route_gives_a_stream_to_one_version() -> None:
    rig = await following()
    first = rig.pipelines["chain"]
    assert first.pipeline is not None
    later = replace(first, version="2", digest="p2", pipeline=replace(first.pipeline, version="2"))

    async def fetched() -> Release:
        return later

    await rig.repository.stage("chain", "2", fetched)
    rig.repository.route("chain", {"1": 50, "2": 50}, lease_s=60)
    for stream in map(str, range(40)):
        for count in (1, 2, 3):
            found = (await rig.ask({"frame": frame(count)}, "frames", stream=stream))["frames"]
            assert found.tolist() == [[count]]
    streams_of = [rig.registry.entry("chain").loaded[version].streams for version in ("1", "2")]  # type: ignore[attr-defined]
    assert min(map(len, streams_of)) > 8
    assert sum(map(len, streams_of)) == 40


@pytest.mark.asyncio
async def test_work_for_a_request_that_is_over_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "LOOP_PAIRS", -1)
    rig = await following()
    assert await tracks(rig, frame(0)) == [[1]]
    real, calls = follow, list[int]()

    def slow(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            time.sleep(0.2)
        return real(*arguments)

    monkeypatch.setattr(planner, "follow", slow)
    (cancelled,) = await begun(rig, frame(2, 300))
    while not calls:
        await asyncio.sleep(0.001)
    (following_one,) = await begun(rig, frame(4, 300))
    cancelled.cancel()
    assert await following_one == [[1]]
    assert await tracks(rig, frame(6, 300)) == [[1, 2]]


TWO = """
[input]
frame = "FP32[9, 6]"
go = "FP32[]"
[[step]]
name = "found"
model = "find"
of = "frame"
[[step]]
name = "people"
track = "found"
[[step]]
name = "more"
model = "add"
of = "go + count(people)"
[[step]]
name = "again"
model = "find"
of = "frame"
when = "more.y > 0"
[[step]]
name = "others"
track = "again"
[output]
track = "people.track"
second = "others.track"
"""


@pytest.mark.asyncio
async def test_a_request_that_fails_between_its_steps_changes_no_state() -> None:
    rig, fails = PipelineRig(), [False]

    def add(inputs: Tensors) -> Tensors:
        if fails[0]:
            raise RuntimeError("broken")
        return {"y": inputs["x"]}

    tensor_detector(rig)
    rig.model("add", add, (spec("x"),), (spec("y"),))
    rig.pipeline(TWO)
    await rig.begin()
    go = np.array([1.0])
    for _ in range(2):
        found = await rig.ask({"frame": frame(0), "go": go})
        assert found["track"].tolist() == found["second"].tolist() == [[1]]
    fails[0] = True
    with pytest.raises(RequestError, match="step 'more'"):
        await rig.ask({"frame": frame(1, 300), "go": go})
    fails[0] = False
    found = await rig.ask({"frame": frame(2, 300), "go": go})
    assert found["track"].tolist() == found["second"].tolist() == [[1]]
    both = [rig.ask({"frame": frame(2 + n, 300), "go": go}, "second") for n in range(20)]
    assert [each["second"].tolist() for each in await asyncio.gather(*both)] == [[[1, 2]]] * 20


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 6), st.booleans())
def test_many_streams_with_random_delays_answer_as_one_after_the_other(seed: int, many: int, long: bool) -> None:
    async def compare() -> None:
        rng = random.Random(seed)
        walks = {f"s{n}": walk(seed % 1000 + n, rng.randint(2, 8)) for n in range(many)}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(planner, "LOOP_PAIRS", -1 if long else 10**9)
            plain = await following()
            rig = await following()
            ends = {
                name: {rng.randrange(len(frames)): rng.choice(["fail", "cancel"])} for name, frames in walks.items()
            }
            wanted = {
                name: [
                    (await tracks(plain, each, stream=name))[0] for n, each in enumerate(frames) if n not in ends[name]
                ]
                for name, frames in walks.items()
            }
            find = Detector(rig, patched)
            tasks, order = dict[str, list[Any]](), [name for name, frames in walks.items() for _ in frames]
            rng.shuffle(order)
            places = dict.fromkeys(walks, 0)
            for name in order:
                each, place = walks[name][places[name]], places[name]
                places[name] += 1
                if ends[name].get(place) == "fail":
                    each = each.copy()
                    each[0, 0] = [-7777, 0, -7757, 40, 0.9, 0]
                    find.fails.add(-7777.0)
                (task,) = await begun(rig, each, stream=name)
                tasks.setdefault(name, []).append(task)
                if rng.random() < 0.4 and find.held:
                    await find.let(rng.randrange(len(find.held)))
                if ends[name].get(place) == "cancel":
                    task.cancel()
            while find.held:
                await find.let(rng.randrange(len(find.held)))
            for name, found in tasks.items():
                answers: list[Any] = await asyncio.gather(*found, return_exceptions=True)
                good = [answer[0] for n, answer in enumerate(answers) if n not in ends[name] or not _is_error(answer)]
                if all(_is_error(answers[n]) for n in ends[name]):
                    assert good == wanted[name]
            assert len(rig.target().streams._busy) == 0

    asyncio.run(compare())


def _is_error(answer: Any) -> bool:
    return isinstance(answer, BaseException)


# ---- what is kept ----------------------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_callers_and_streams_have_states_of_their_own() -> None:
    rig = await following()
    for caller in ("a", "b"):
        for stream in ("", "x", "y"):
            assert await tracks(rig, frame(0), frame(300, 5), caller=caller, stream=stream) == [[1], [1]]
    assert await tracks(rig, frame(6, 301), caller="a", stream="x") == [[1, 2]]
    assert len(rig.target().streams) == 6


@pytest.mark.asyncio
async def test_the_stream_that_is_idle_longest_is_forgotten() -> None:
    rig = await following(end="[state]\nkeys = 2\n")
    for stream in ("a", "b", "a", "c"):
        await tracks(rig, frame(0), frame(0, 300), stream=stream)
    assert len(rig.target().streams) == 2
    assert await tracks(rig, frame(1, 301), stream="a") == [[1, 2]]
    assert await tracks(rig, frame(1, 301, 600), stream="b") == [[1, 2, 3]]  # it begins anew
    assert await tracks(rig, frame(1, 301, 600), stream="b") == [[1, 2, 3]]


@pytest.mark.asyncio
async def test_more_streams_under_way_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await following(end="[state]\nkeys = 1\n")
    find = Detector(rig, monkeypatch)
    tasks = [(await begun(rig, frame(0), stream=f"s{n}"))[0] for n in range(5)]
    while find.held:
        await find.let(0)
    assert [await task for task in tasks] == [[[1]]] * 5
    assert len(rig.target().streams) == 1


@pytest.mark.asyncio
async def test_idle_streams_are_forgotten_by_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await following(end="[state]\nidle_s = 20\n")
    now, timers = [time.monotonic()], list[tuple[float, Callable[[], None]]]()
    monkeypatch.setattr("gateway.serving.engine.streams.time.monotonic", lambda: now[0])
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda s, call, *of: timers.append((s, partial(call, *of))))
    for n in range(10):
        now[0] += 1
        await tracks(rig, frame(0), stream=f"s{n}")
    assert [round(s) for s, _ in timers] == [20]
    now[0] += 15.5
    timers.pop()[1]()
    assert len(rig.target().streams) == 5
    assert [round(s, 1) for s, _ in timers] == [0.5]
    assert await tracks(rig, frame(0, 300), stream="s9") == [[1]]
    now[0] += 60
    timers.pop()[1]()
    assert (len(rig.target().streams), rig.target().streams._size, timers) == (0, 0, [])
    assert await tracks(rig, frame(0, 300), stream="s9") == [[1, 2]]


@pytest.mark.asyncio
async def test_bytes_of_states_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await following()
    await tracks(rig, frame(0, 100, 200), stream="a")
    size = rig.target().streams._size
    monkeypatch.setattr(streams, "STATE_LIMIT_BYTES", 3 * size)
    for n in range(20):
        await tracks(rig, frame(0, 100, 200), stream=f"s{n}")
    assert len(rig.target().streams) == 3
    await tracks(rig, frame(), stream="b")
    assert rig.target().streams._size <= 3 * size


@pytest.mark.asyncio
async def test_bytes_of_states_are_bounded_while_all_streams_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await following()
    await tracks(rig, frame(0, 100, 200), stream="a")
    limit = 2 * rig.target().streams._size + 4 * streams.STREAM_BYTES
    monkeypatch.setattr(streams, "STATE_LIMIT_BYTES", limit)
    find = Detector(rig, monkeypatch)
    tasks = [(await begun(rig, frame(0, 100, 200), stream=f"s{n % 6}"))[0] for n in range(12)]
    while find.held:
        await find.let(0)
        assert rig.target().streams._size <= limit
    found = await asyncio.gather(*tasks, return_exceptions=True)
    faults = [each for each in found if isinstance(each, RequestError)]
    assert {each.fault for each in faults} == {Fault.OVERLOADED}
    assert "step 'people': its state of" in faults[0].message
    assert found.count([[1, 2, 3]]) == 12 - len(faults) > 1
    assert not rig.target().busy


@pytest.mark.asyncio
async def test_a_hundred_thousand_streams_have_the_size_that_is_counted() -> None:
    kept = streams.Streams(StreamLimits(100_000, 86_400.0))
    tracked = np.arange(5 * 23, dtype=np.float64).reshape(5, 23)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for n in range(3_000):
        request = SimpleNamespace(caller=f"caller {n}", stream=f"stream {n}")
        passage: Any = SimpleNamespace(ticket=SimpleNamespace(request=request))
        stream = kept.join(passage)
        kept.keep(stream, {"people": Tracks(n, n, tracked.copy())})
        kept.leave(stream, passage)
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(kept) == 3_000
    assert used <= kept._size
    assert isinstance(kept._idle[("caller 0", "stream 0")], StreamState)


# ---- versions and swaps ----------------------------------------------------------------------------------------------
@pytest.mark.asyncio
@pytest.mark.parametrize("change", ["release", "text", "model"])
async def test_streams_survive_for_the_same_release_only(change: str) -> None:
    rig = await following()
    for _ in range(2):
        await tracks(rig, frame(0))
    assert await tracks(rig, frame(0, 300)) == [[1]]
    before = rig.target()
    if change == "model":
        rig.manifests["find"], rig.digests["find"] = replace(rig.manifests["find"], labels=("adult", "dog")), "d2"
    else:
        rig.pipeline(FOLLOW.format(more="lost = 31" if change == "text" else ""), digest="p2")
    await rig.begin()
    assert (rig.target() is before) == (change == "model")
    survives = change == "model"
    assert (rig.target().streams is before.streams) == survives
    assert await tracks(rig, frame(0, 300)) == [[1, 2]]
    # number 2 was seen twice, or in the first frame of a stream that begins again
    assert rig.target().streams._idle["", ""].states["people"].frame == (4 if survives else 1)


@pytest.mark.asyncio
async def test_a_pipeline_with_state_is_no_step_of_another() -> None:
    rig = await following()
    step = '[[step]]\nname = "a"\nmodel = "chain"\nof = "x"\n'
    rig.pipeline(f'[input]\nx = "FP32[9, 6]"\n{step}[output]\nn = "a.n"\n', "outer")
    await rig.begin()
    assert "pipeline 'chain' has steps with state; write its steps into this one" in rig.reason("outer")
    assert rig.target().manifest.parameters == {"state": "stream"}


# ---- golden sets -----------------------------------------------------------------------------------------------------
YARD = """
[input]
image = "image"
[[step]]
name = "found"
model = "spots"
of = "image"
[[step]]
name = "people"
track = "found"
[[step]]
name = "seen"
count = "people"
image = "image"
lines = { door = [0.0, 0.5, 1.0, 0.5] }
zones = { yard = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]] }
[output]
door = "seen.door_in"
total = "seen.door_in_total"
back = "seen.door_out_total"
inside = "seen.yard"
stay = "seen.yard_s"
"""


def spots(rig: PipelineRig, **changes: Any) -> None:
    """Add a detector that finds one object: its box is around the brightest row of the image."""

    def find(pixels: Array) -> list[tuple[Any, float, int]]:
        rows = pixels[0].max(axis=1)
        y = int(rows.argmax())
        return [((2, y - 3, 6, y + 1), 0.9, 0)] if rows.max() > 100 else []

    detector(rig, "spots", find, **changes)


def spot(row: int) -> bytes:
    """Return an image whose row is bright."""
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[row] = 255
    return encoded(pixels)


async def counted(rig: PipelineRig, *rows: int, **changes: Any) -> dict[str, list[Any]]:
    """Return the counts of frames."""
    found = await rig.ask({"image": np.array([spot(row) for row in rows], object)}, **changes)
    return {name: array.tolist() for name, array in found.items() if name != "result"}


@pytest.mark.asyncio
async def test_counts_of_images() -> None:
    rig = PipelineRig()
    spots(rig)
    rig.pipeline(YARD)
    await rig.begin()
    found = await counted(rig, 1, 2, 3, 4, 4, 3, arrived_ns=10**9)
    assert (found["door"], found["total"]) == ([0, 0, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1])
    assert found["back"] == [0] * 6  # at 4 of 8 pixels, the foot is on the line, which is beyond it
    found = await counted(rig, 2, 1, arrived_ns=4 * 10**9)
    assert (found["back"], found["inside"], found["stay"]) == ([1, 1], [1, 1], [3.0, 3.0])
    assert rig.target().statistics.steps["image"].rows == 0  # only the headers are read


@pytest.mark.asyncio
async def test_labels_are_counted_apart_by_selects_of_what_is_tracked() -> None:
    steps = "".join(
        f'[[step]]\nname = "{label}s"\nselect = "people"\nwhere = "label == \'{label}\'"\n'
        f'[[step]]\nname = "{label}_seen"\ncount = "{label}s"\nimage = "image"\n'
        "lines = { door = [0.0, 0.5, 1.0, 0.5] }\nzones = { yard = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]] }\n"
        for label in ("car", "dog")
    )
    outputs = "".join(
        f'{label} = "{label}_seen.yard"\n{label}_in = "{label}_seen.door_in_total"\n{label}_s = "{label}_seen.yard_s"\n'
        for label in ("car", "dog")
    )
    rig = PipelineRig()
    spots(rig, labels=("dog", "car"))
    rig.pipeline(
        f'{YARD[: YARD.index("[[step]]", YARD.index("track"))]}{steps}[output]\n{outputs}both = "dog_seen.yard + 0"\n'
    )
    await rig.begin()
    found = await counted(rig, 2, 3, 4, 5, arrived_ns=10**9)
    found = await counted(rig, 5, arrived_ns=3 * 10**9)
    assert (found["dog"], found["dog_in"], found["dog_s"]) == ([1], [1], [2.0])
    assert (found["car"], found["car_in"], found["car_s"]) == ([0], [0], [0.0])
    parameters = {"state": "stream", "totals": "car_in dog_in", "durations_s": "car_s dog_s"}
    assert rig.target().manifest.parameters == parameters


@pytest.mark.asyncio
async def test_the_pipeline_of_the_how_to_counts() -> None:
    page = (ROOT / "docs/pages/howto/pipelines.md").read_text()
    declared = next(block for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "person-detector" in block)
    rig = PipelineRig()
    spots(rig, labels=("person",))
    rig.pipeline(declared.replace("person-detector", "spots"))
    await rig.begin()
    found = await counted(rig, 1, 2, 3, 4, 5, arrived_ns=10**9)
    assert found["people.track"] == [[1]] * 5
    assert (found["entered"], found["left"], found["waiting"]) == ([0, 0, 1, 1, 1], [0] * 5, [0, 0, 1, 1, 1])
    found = await counted(rig, 5, 4, 3, 2, arrived_ns=3 * 10**9)
    assert (found["longest_s"][::3], found["left"]) == ([2, 0], [0, 0, 0, 1])
    target = rig.target()
    described = target.manifest, target.placement, ["1"]
    form = choose_form("chain", model_metadata(*described)["inputs"], model_config(*described))
    assert (form.input, form.image) == ("image", "jpeg"), "cameras send their frames"
    steps = pipeline_steps(rig.target().placement.pipeline or pytest.fail("no pipeline"), {})["steps"]
    assert [(each["kind"], each["reads"], each["does"]) for each in steps[-2:]] == [
        ("track", ["persons"], "persons, scores from 0.5 and from 0.1, lost for 30 frames"),
        ("count", ["image", "people"], "people at door, yard"),
    ]


@pytest.mark.asyncio
async def test_a_decoded_image_and_its_header_have_one_size() -> None:
    decoding = '[[step]]\nname = "decoding"\nmodel = "spots"\nof = "turn(image, 0)"\n'
    for more in ("", decoding):
        rig = PipelineRig()
        spots(rig)
        rig.pipeline(YARD.replace("[[step]]", f"{more}[[step]]", 1))
        await rig.begin()
        found = await counted(rig, 2, 3, arrived_ns=10**9)
        assert found["total"] == [0, 1]


def test_the_size_of_an_image_is_that_of_the_upright_one() -> None:
    pixels = np.zeros((6, 10, 3), np.uint8)
    assert image_size(encoded(pixels), 0, "image") == (10, 6)
    assert image_size(encoded(pixels, "jpeg", exif=exif((ORIENTATION, 6))), 0, "image") == (6, 10)
    turned = encoded(pixels, "png", exif=exif((ORIENTATION, 6))[6:])
    assert image_size(turned, 0, "image") == (6, 10)
    begin, length = turned.index(b"eXIf") - 4, int.from_bytes(turned[turned.index(b"eXIf") - 4 :][:4], "big") + 12
    chunk, end = turned[begin : begin + length], turned.rindex(b"IEND") - 4
    late = turned[:begin] + turned[begin + length : end] + chunk + turned[end:]  # it follows the pixels
    assert image_size(late, 0, "image") == (6, 10)
    for bad in (b"", b"no image", encoded(pixels)[:20]):
        with pytest.raises(RequestError, match="image 3 of input 'image' is") as caught:
            image_size(bad, 3, "image")
        assert caught.value.fault is Fault.INVALID
    with pytest.raises(RequestError, match="decodes to more than 178956970 pixels") as caught:
        image_size(huge(), 0, "image")
    assert caught.value.fault is Fault.TOO_LARGE


def huge() -> bytes:
    """Return a PNG image whose header names 60,000 by 60,000 pixels."""
    content = encoded(np.zeros((1, 1, 3), np.uint8))
    head = b"IHDR" + struct.pack(">II", 60_000, 60_000) + content[24:29]
    return content[:12] + head + struct.pack(">I", zlib.crc32(head)) + content[33:]


@pytest.mark.asyncio
@pytest.mark.parametrize(("plus", "passes"), [(0, True), (1, False)])
async def test_a_golden_set_is_a_stream_of_its_own(tmp_path: Path, plus: int, passes: bool) -> None:
    rows = [1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1]
    images = np.array([spot(row) for row in rows])
    total = [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    arrays = {
        "input_image": images,
        "output_door": np.eye(12, dtype=np.int64)[2],
        "output_total": np.array(total) + plus,
        "output_back": np.array([0] * 10 + [1, 1]),
        "output_inside": np.ones(12, np.int64),
        "output_stay": np.arange(12.0),
    }
    rig = PipelineRig()
    spots(rig)
    rig.pipeline(with_golden(YARD, tmp_path, "", **arrays), folder=tmp_path)
    await rig.begin()
    if not passes:
        assert "failed its golden set" in rig.reason()
        return
    assert not rig.reason()
    assert len(rig.target().streams) == 0  # it is forgotten
    assert (await counted(rig, 2, 3, caller="golden set", arrived_ns=1))["total"] == [0, 1]
    before, rig.digests["spots"] = rig.target(), "d2"
    await rig.begin()
    assert rig.target() is not before  # its golden set ran with the new model
    assert (await counted(rig, 2, 3, caller="golden set", arrived_ns=1))["total"] == [1, 2]
    assert len(rig.target().streams) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("most", [1, 8])
async def test_a_golden_set_has_the_same_answers_twice(most: int) -> None:
    rig = PipelineRig()
    spots(rig)
    rig.pipeline(YARD)
    await rig.begin()
    target: RequestTarget = rig.target()
    manifest = compared(target.manifest)
    inputs = {"image": np.array([spot(row) for row in (1, 2, 3, 4, 3, 2)], object)}
    ask: Callable[[], Awaitable[dict[str, Array]]] = partial(golden_answers, manifest, target.submit, inputs, most)
    first, again = await ask(), await ask()
    assert {name: array.tolist() for name, array in first.items()} == {n: a.tolist() for n, a in again.items()}
    assert first["stay"].tolist() == [0, 1, 2, 3, 4, 5]
    assert first["total"].tolist() == [0, 0, 1, 1, 1, 1]


# ---- what does not fit -----------------------------------------------------------------------------------------------
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('track = "found"', 'track = "image"', "'image' has no rows of its own"),
        ('count = "people"', 'count = "found"', "'found' is no track step, nor a select of one"),
        ('image = "image"\nlines', 'image = "x"\nlines', "image names 'x', which is no image input"),
        ('track = "found"', 'tile = "image"\nsize = [4, 4]', "'people' is no track step"),
        (
            '[[step]]\nname = "seen"',
            '[[step]]\nname = "twice"\ntrack = "people"\n[[step]]\nname = "seen"',
            "'people' has a column 'frames' already",
        ),
        (
            'track = "found"',
            (
                'merge = ["found"]\n[[step]]\nname = "parts"\ntile = "image"\nsize = [4, 4]\n[[step]]\n'
                'name = "in_parts"\nmodel = "spots"\nof = "parts.image"\n[[step]]\nname = "bad"\ntrack = "in_parts"'
            ),
            "'in_parts' has several lists for one frame; join them with a merge step first",
        ),
        (
            'track = "found"',
            (
                'merge = ["found"]\n[[step]]\nname = "parts"\ntile = "image"\nsize = [4, 4]\n[[step]]\nname = "bad"\n'
                'merge = ["parts"]\n[[step]]\nname = "worse"\ntrack = "bad"'
            ),
            "'bad' has no column 'score', as detectors have",
        ),
    ],
)
async def test_steps_that_do_not_fit_are_refused_with_words(old: str, new: str, words: str) -> None:
    rig = PipelineRig()
    spots(rig)
    assert old in YARD
    rig.pipeline(YARD.replace(old, new).replace("[[step]]", 'x = "FP32[]"\n[[step]]', 1))
    await rig.begin()
    assert words in rig.reason()
    assert "pipeline.toml:" in rig.reason()


TILED = """of = "parts.image"
[[step]]
name = "whole"
merge = ["found"]
[[step]]"""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("of", "fits"),
    [
        ('of = "other"', False),
        ('of = "turn(image, 90)"', False),
        (TILED, True),
        (TILED.replace("parts", "turned"), False),
    ],
)
async def test_places_are_counted_in_the_image_that_the_detector_sees(of: str, *, fits: bool) -> None:
    rig = PipelineRig()
    spots(rig)
    parts = '[[step]]\nname = "parts"\ntile = "image"\nsize = [4, 4]\n'
    parts += '[[step]]\nname = "turned"\ntile = "turn(image, 90)"\nsize = [4, 4]\n'
    text = YARD.replace("[[step]]", f'other = "image"\n{parts}[[step]]', 1).replace('of = "image"\n[[step]]', of)
    if "whole" not in of:
        text = text.replace(of, f"{of}\n[[step]]", 1)
    rig.pipeline(text.replace('track = "found"', f'track = "{"whole" if "whole" in of else "found"}"'))
    await rig.begin()
    assert fits == (not rig.reason()), rig.reason()
    assert fits or "the boxes of 'found' are not in pixels of 'image' as it is seen upright" in rig.reason()


@pytest.mark.asyncio
async def test_other_inputs_of_a_detector_may_be_computed() -> None:
    rig, boxes = PipelineRig(), np.zeros((1, 1, 4), np.float32)
    rig.model(
        "spots",
        lambda of: {"boxes": boxes, "scores": of["least"][:, np.newaxis], "classes": np.full((1, 1), -1, np.int32)},
        (PIXELS, spec("least")),
        FOUND,
        answered=tuple(each.name for each in FOUND),
        labels=("car",),
    )
    rig.pipeline(YARD.replace('of = "image"', 'inputs = { image = "image", least = "max(0.1, 0.2)" }'))
    await rig.begin()
    assert (await counted(rig, 2))["inside"] == [0], rig.reason()


@pytest.mark.asyncio
async def test_a_detector_of_stored_pixels_is_not_counted() -> None:
    rig = PipelineRig()
    assert PIXELS.preprocess is not None
    spots(rig, pixels=replace(PIXELS, preprocess=replace(PIXELS.preprocess, orientation="stored")))
    rig.pipeline(YARD)
    await rig.begin()
    assert "not in pixels of 'image' as it is seen upright" in rig.reason()


@pytest.mark.asyncio
async def test_an_odd_image_is_not_read_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, threads = PipelineRig(), list[threading.Thread]()
    spots(rig)
    rig.pipeline(YARD)
    await rig.begin()

    def sized(*of: Any) -> tuple[int, int]:
        threads.append(threading.current_thread())
        return image_size(*of)

    monkeypatch.setattr(planner, "image_size", sized)
    odd = spot(2)[:33] + (b"\0\0\0\0zzZz" + struct.pack(">I", zlib.crc32(b"zzZz"))) * 5_000 + spot(2)[33:]
    assert image_size(odd, 0, "image") == (8, 8)
    for image in (spot(2), odd):
        await rig.ask({"image": np.array([image], object)})
    assert [each is threading.main_thread() for each in threads] == [True, False]


@pytest.mark.asyncio
async def test_a_detector_that_answers_nan_fails_nobody() -> None:
    rig = await following()
    bad = frame(0, 100, 200)
    bad[0, 0, 2], bad[0, 1, 4] = np.nan, np.nan
    assert await tracks(rig, bad) == [[1]]
    assert await tracks(rig, frame(200)) == [[1]]
