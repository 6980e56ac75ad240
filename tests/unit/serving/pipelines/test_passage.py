"""Requests through pipelines: each answer is what the steps give when they are run by hand."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from gateway.common.domain.tensor import Array, Tensors
from gateway.serving.domain.postprocess import softmax
from tests.simulators.images_made import encoded
from tests.simulators.pipelines import PIXELS, PipelineRig, arrays, asked, detector, images, spec

pytestmark = pytest.mark.asyncio
RNG = np.random.default_rng(43)
SMALL, DEEP = RNG.normal(size=(6, 3)).astype(np.float32), RNG.normal(size=(6, 3)).astype(np.float32)
CASCADE = """
[input]
x = "FP32[6]"
amount = "FP32[]"
[[step]]
name = "cheap"
model = "small"
of = "x"
[[step]]
name = "sure"
rule = { best = "top(softmax(cheap.y))" }
[[step]]
name = "deeper"
model = "deep"
of = "x"
when = "sure.best < 0.7 or amount > 100"
else = "cheap"
[[step]]
name = "policy"
rule = { action = "'block' if argmax(deeper.y) == 0 and amount > 50 else 'allow'" }
[output]
action = "policy.action"
scores = "deeper.y"
"""


def linear(weights: Array) -> object:
    return lambda inputs: {"y": inputs["x"] @ weights}


def tabular(**changes: object) -> PipelineRig:
    """Return a rig with the models `small` and `deep`: x [6] → y [3]."""
    rig = PipelineRig(**changes)  # type: ignore[arg-type]
    for name, weights in (("small", SMALL), ("deep", DEEP)):
        rig.model(name, linear(weights), (spec("x", 6),), (spec("y", 3),))  # type: ignore[arg-type]
    return rig


def cascade(x: Array, amount: Array) -> tuple[Array, list[bytes]]:
    """Return what the cascade answers, row by row."""
    scores, actions = [], []
    for row, of in zip(x, amount, strict=True):
        y = row @ SMALL
        if softmax(y.astype(np.float64)).max() < 0.7 or of > 100:
            y = row @ DEEP
        scores.append(y)
        actions.append(b"block" if y.argmax() == 0 and of > 50 else b"allow")
    return np.array(scores, np.float32), actions


async def test_a_cascade_answers_as_its_steps_by_hand() -> None:
    rig = tabular()
    rig.pipeline(CASCADE)
    await rig.begin()
    for rows in (1, 2, 7, 100):
        x, amount = RNG.normal(size=(rows, 6)).astype(np.float32), RNG.uniform(0, 150, rows).astype(np.float32)
        answer = await rig.ask({"x": x, "amount": amount})
        scores, actions = cascade(x, amount)
        np.testing.assert_allclose(answer["scores"], scores, rtol=1e-5)
        assert answer["action"].tolist() == actions
        documents = [json.loads(text) for text in answer["result"]]
        assert [each["action"].encode() for each in documents] == actions
        np.testing.assert_allclose([each["scores"] for each in documents], scores, atol=1e-5)


async def test_what_when_skips_is_not_run() -> None:
    rig = tabular()
    rig.pipeline(CASCADE)
    await rig.begin()
    sure = np.linalg.lstsq(SMALL.T, np.array([9.0, 0.0, 0.0], np.float32), rcond=None)[0].astype(np.float32)
    await rig.ask({"x": np.tile(sure, (4, 1)), "amount": np.zeros(4)})
    assert rig.session_of("deep").rows_run == []
    await rig.ask({"x": np.tile(sure, (4, 1)), "amount": np.array([0.0, 200, 0, 0])})
    assert rig.session_of("deep").rows_run == [1]
    counted = dict(zip([run.name for run in rig.target()._plan.runs], rig.target().steps, strict=True))["deeper"]
    assert (counted.rows, counted.skipped_rows) == (1, 7)


async def test_sixteen_callers_get_their_own_answers() -> None:
    rig = tabular(slow=("deep",), max_batch_rows=16)
    rig.pipeline(CASCADE)
    await rig.begin()

    async def call(caller: int) -> None:
        own = np.random.default_rng(caller)
        for _ in range(12):
            rows = int(own.integers(1, 17))
            x, amount = own.normal(size=(rows, 6)).astype(np.float32), own.uniform(0, 150, rows).astype(np.float32)
            answer = await rig.ask({"x": x, "amount": amount}, caller=str(caller))
            scores, actions = cascade(x, amount)
            np.testing.assert_allclose(answer["scores"], scores, rtol=1e-4, atol=1e-5)
            assert answer["action"].tolist() == actions

    await asyncio.gather(*(call(caller) for caller in range(16)))
    assert rig.target().statistics.success.count == 16 * 12
    assert rig.target().statistics.fail.count == 0


@pytest.mark.parametrize("batch", [True, False])
async def test_rows_above_a_models_limit_run_in_parts(batch: bool) -> None:
    rig = PipelineRig()
    if batch:
        changes: dict[str, object] = {"max_batch_rows": 3}
        specs = (spec("x", 2),), (spec("y", 2),)
    else:
        changes = {"batch": False}
        specs = (spec("x", 2),), (spec("y", 2),)
        specs = tuple((type(each)(each.name, each.datatype, (2,)),) for (each,) in specs)  # type: ignore[assignment]
    rig.model("m", lambda inputs: {"y": inputs["x"] * 2}, *specs, **changes)  # type: ignore[arg-type]
    rig.pipeline('[input]\nx = "FP32[2]"\n[[step]]\nname = "a"\nmodel = "m"\nof = "x"\n[output]\ny = "a.y"')
    await rig.begin()
    x = RNG.normal(size=(100, 2)).astype(np.float32)
    np.testing.assert_array_equal((await rig.ask({"x": x}, "y"))["y"], x * 2)
    assert max(rig.session_of("m").rows_run) <= 3


async def test_parts_wait_so_that_a_short_queue_suffices() -> None:
    rig = PipelineRig(queue_requests=4)
    rig.model("m", lambda inputs: {"y": inputs["x"] + 1}, (spec("x"),), (spec("y"),), max_batch_rows=1)
    rig.pipeline('[input]\nx = "FP32[]"\n[[step]]\nname = "a"\nmodel = "m"\nof = "x"\n[output]\ny = "a.y"')
    await rig.begin()
    x = np.arange(200, dtype=np.float32)
    np.testing.assert_array_equal((await rig.ask({"x": x}, "y"))["y"], x + 1)


# ---- images ----------------------------------------------------------------------------------------------------------
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
COLOURS = {RED: b"red", GREEN: b"green", BLUE: b"blue"}


def picture(*parts: tuple[tuple[int, int, int, int], tuple[int, int, int]], size: tuple[int, int] = (64, 96)) -> bytes:
    """Return an encoded picture with coloured boxes (x1, y1, x2, y2)."""
    pixels = np.zeros((*size, 3), np.uint8)
    for (x1, y1, x2, y2), colour in parts:
        pixels[y1:y2, x1:x2] = colour
    return encoded(pixels)


def colour(inputs: Tensors) -> Tensors:
    """Classify images by their mean colour."""
    means = inputs["image"].reshape(len(inputs["image"]), 3, -1).mean(axis=2)
    labels = np.array(
        [list(COLOURS.values())[int(row.argmax())] if row.max() > 100 else b"none" for row in means], object
    )
    return {"label": labels, "mean": means.astype(np.float32)}


def vision(boxes: dict[int, list[object]], **changes: object) -> PipelineRig:
    """Return a rig with a detector, whose objects are chosen by the number of the request, and a classifier."""
    rig, asked_for = PipelineRig(**changes), iter(boxes.values())  # type: ignore[arg-type]
    detector(rig, "find", lambda _: next(asked_for))  # type: ignore[arg-type]
    outputs = (spec("label", datatype=PIXELS.datatype.BYTES), spec("mean", 3))
    rig.model("colour", colour, (PIXELS,), outputs)
    return rig


CHAIN = """
[input]
image = "image"
[[step]]
name = "cars"
model = "find"
of = "image"
[[step]]
name = "best"
select = "cars"
where = "score > 0.3 and label == 'car' and class == 0"
by = "score"
top = 2
[[step]]
name = "kind"
model = "colour"
of = "crop(image, best.box)"
[output]
things = { box = "best.box", score = "best.score", kind = "kind.label" }
number = "count(best)"
all = "count(cars)"
red = "any(kind.label == 'red')"
highest = "max(best.score)"
"""


async def test_objects_are_cut_out_and_classified() -> None:
    parts = [((2, 2, 20, 20), RED), ((30, 30, 60, 60), GREEN), ((70, 5, 90, 25), BLUE)]
    rig = vision({0: [(box, score, 0) for (box, _), score in zip(parts, (0.4, 0.9, 0.8), strict=True)], 1: []})
    rig.pipeline(CHAIN)
    await rig.begin()
    answer = await rig.ask({"image": np.array([picture(*parts)], object)})
    assert answer["things.kind"].tolist() == [[b"green", b"blue"]]
    np.testing.assert_allclose(answer["things.score"], [[0.9, 0.8]])
    np.testing.assert_array_equal(answer["things.box"], [[(30, 30, 60, 60), (70, 5, 90, 25)]])
    assert (answer["number"].tolist(), answer["all"].tolist()) == ([2], [3])
    assert answer["red"].tolist() == [False]
    answer = await rig.ask({"image": np.array([picture()], object)})
    assert answer["things.box"].shape == (1, 0, 4)
    assert json.loads(answer["result"][0]) == {"things": [], "number": 0, "all": 0, "red": False, "highest": None}
    assert rig.session_of("colour").rows_run == [2]


async def test_rows_with_different_numbers_of_objects_are_kept_apart() -> None:
    parts = [((2, 2, 20, 20), RED), ((30, 30, 60, 60), GREEN)]
    rows = {
        0: [(parts[0][0], 0.5, 0)],
        1: [],
        2: [(parts[1][0], 0.6, 0), (parts[0][0], 0.7, 1), (parts[0][0], 0.8, 0)],
    }
    rig = vision(rows)  # type: ignore[arg-type]
    rig.pipeline(CHAIN)
    await rig.begin()
    answer = await rig.ask({"image": np.array([picture(*parts)] * 3, object)})
    assert answer["number"].tolist() == [1, 0, 2]
    assert answer["all"].tolist() == [1, 0, 3]
    assert answer["red"].tolist() == [True, False, True]
    assert answer["things.kind"].tolist() == [[b"red", b""], [b"", b""], [b"red", b"green"]]
    np.testing.assert_allclose(answer["highest"], [0.5, 0.0, 0.8])
    assert [json.loads(row)["highest"] for row in answer["result"]] == [0.5, None, 0.8]


TILED = """
[input]
image = "image"
[[step]]
name = "parts"
tile = "image"
size = [32, 32]
overlap = 0.25
[[step]]
name = "found"
model = "spots"
of = "parts.image"
[[step]]
name = "whole"
merge = ["found"]
nms_iou = 0.01
[output]
boxes = "whole.box"
scores = "whole.score"
labels = "whole.label"
tiles = "count(parts)"
"""


def spots(pixels: Array) -> list[tuple[object, float, int]]:
    """Find what is brighter than half in one channel: one box in the pixels of a part of the picture."""
    found = list[tuple[object, float, int]]()
    for channel in range(2):
        rows, columns = np.nonzero(pixels[channel] > 200)
        if len(rows):
            box = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            found.append((box, float(len(rows)) / 64, channel))
    return found


async def test_objects_in_tiles_are_in_the_pixels_of_the_picture_and_found_once() -> None:
    rig = PipelineRig()
    detector(rig, "spots", spots, images(32), labels=("red", "green"))
    rig.pipeline(TILED)
    await rig.begin()
    image = picture(((24, 0, 32, 8), RED), ((73, 41, 81, 49), GREEN))
    answer = await rig.ask({"image": np.array([image, picture()], object)})
    order = np.argsort(answer["labels"][0])
    assert answer["labels"][0][order].tolist() == [b"green", b"red"]
    np.testing.assert_array_equal(answer["boxes"][0][order], [(73, 41, 81, 49), (24, 0, 32, 8)])
    assert answer["tiles"].tolist() == [12, 12]


async def test_other_pictures_and_callers_do_not_mix() -> None:
    rig = PipelineRig(slow=("spots",))
    detector(rig, "spots", spots, images(32), labels=("red", "green"))
    rig.pipeline(TILED)
    await rig.begin()

    async def call(caller: int) -> None:
        own = np.random.default_rng(caller)
        for _ in range(3):
            x, y = (int(value) * 8 for value in own.integers(0, 7, 2))
            answer = await rig.ask(
                {"image": np.array([picture(((x, y, x + 8, y + 8), RED))], object)}, caller=str(caller)
            )
            np.testing.assert_array_equal(answer["boxes"], [[(x, y, x + 8, y + 8)]])

    await asyncio.gather(*(call(caller) for caller in range(16)))


async def test_outputs_are_those_that_are_asked_for() -> None:
    rig = tabular()
    rig.pipeline(CASCADE)
    await rig.begin()
    inputs = {"x": np.zeros((2, 6)), "amount": np.zeros(2)}
    assert list(await rig.ask(inputs, "scores")) == ["scores"]
    assert list(await rig.ask(inputs, "result", "action")) == ["result", "action"]
    assert list(arrays(await rig.engine.infer(asked(inputs)))) == ["result", "action", "scores"]


async def test_the_times_of_the_last_runs_are_kept_and_a_step_that_is_skipped_has_none() -> None:
    rig = PipelineRig()
    rig.model("m", lambda of: {"y": of["x"] + 1}, (spec("x"),), (spec("y"),))
    steps = '[[step]]\nname = "one"\nmodel = "m"\nof = "x"\n'
    steps += '[[step]]\nname = "two"\nmodel = "m"\nof = "one.y"\nwhen = "one.y > 100"\nelse = "one"\n'
    rig.pipeline(f'[input]\nx = "FP32[]"\n{steps}[[step]]\nname = "r"\nrule = {{ z = "two.y" }}\n[output]\ny = "r.z"\n')
    await rig.begin()
    for _ in range(200):
        await rig.ask({"x": np.array([1.0])}, "y")
    one, two, rule = (rig.target().statistics.steps[name] for name in ("one", "two", "r"))
    assert (one.runs, len(one.recent_ns), rule.runs, len(rule.recent_ns)) == (200, 127, 200, 127)
    assert (two.runs, two.skipped_rows, two.ns, list(two.recent_ns), two.p50_ns) == (0, 200, 0, [], 0)
    assert 0 < min(one.recent_ns) <= one.p50_ns <= max(one.recent_ns) <= one.ns
    assert one.row_cpu_ns == 0
    (counted,) = rig.engine.statistics("chain")
    assert {name: step.row_cpu_ns for name, step in counted.steps.items()} == {"one": 10_000, "two": 10_000, "r": 0}
