"""Random pipelines answer as their steps run by hand, row by row, in plain Python."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gateway.common.domain.tensor import Array, Tensors
from tests.simulators.images_made import encoded
from tests.simulators.pipelines import PIXELS, PipelineRig, detector, spec

WIDTH, HEIGHT = 60, 40
LABELS = ("car", "dog")
Box = tuple[float, float, float, float]
Thing = tuple[Box, float, int]
SIZES = st.floats(0, 30, width=16)
BOXES = st.tuples(st.floats(-10, 70, width=16), st.floats(-10, 50, width=16), SIZES, SIZES)
THINGS = st.lists(st.tuples(BOXES, st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]), st.integers(0, 1)), max_size=5)


@dataclass(frozen=True)
class Case:
    """Pipeline with random parts, and what its detectors find in each picture."""

    found: list[tuple[list[Thing], list[Thing]]]
    amounts: list[float]
    iou: float
    least: float
    label: str
    top: int
    limit: float
    has_else: bool
    most: int
    slow: tuple[str, ...]


CASES = st.builds(
    Case,
    found=st.lists(st.tuples(THINGS, THINGS), min_size=1, max_size=4),
    amounts=st.lists(st.integers(-5, 5).map(float), min_size=4, max_size=4),
    iou=st.sampled_from([0.0, 0.2, 0.6]),
    least=st.sampled_from([0.0, 0.4, 0.95]),
    label=st.sampled_from(["", "car", "dog"]),
    top=st.sampled_from([0, 1, 3]),
    limit=st.sampled_from([-1.0, 60.0, 120.0, 999.0]),
    has_else=st.booleans(),
    most=st.sampled_from([1, 2, 7]),
    slow=st.sampled_from([(), ("mean",), ("left", "large"), ("mean", "left", "right", "large", "row")]),
)


def document(case: Case) -> str:
    """Return the pipeline of a case."""
    where = f"score > {case.least}" + (f" and label == '{case.label}'" if case.label else "")
    order = f'by = "score"\ntop = {case.top}' if case.top else ""
    return f"""
[input]
image = "image"
amount = "FP32[]"
[[step]]
name = "a"
model = "left"
of = "image"
[[step]]
name = "b"
model = "right"
of = "image"
[[step]]
name = "both"
merge = ["a", "b"]
nms_iou = {case.iou}
[[step]]
name = "best"
select = "both"
where = "{where}"
{order}
[[step]]
name = "red"
model = "mean"
of = "crop(image, best.box)"
[[step]]
name = "more"
model = "large"
of = "crop(image, best.box)"
when = "red.y > {case.limit}"
{'else = "red"' if case.has_else else ""}
[[step]]
name = "sums"
rule = {{ total = "sum(red.y)", any = "any(best.score > 0.6)", weight = "amount * count(best)" }}
[[step]]
name = "row"
model = "row"
inputs = {{ x = "sums.total" }}
when = "sums.any and amount > 0"
[output]
things = {{ box = "best.box", label = "best.label", y = "more.y" }}
total = "sums.total"
weight = "sums.weight"
row = "default(row.y, -1)"
maybe = "row.y"
highest = "max(best.score)"
"""


def picture(number: int) -> Image.Image:
    """Return a picture whose green is its number, and whose red is four times the column."""
    across, down = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    return Image.fromarray(np.stack([across * 4, down * 0 + number, down * 4], axis=2).astype(np.uint8))


def mean_red(inputs: Tensors) -> Array:
    return inputs["image"][:, 0].reshape(len(inputs["image"]), -1).mean(axis=1).astype(np.float32)  # type: ignore[no-any-return]


def corners(box: Box) -> Box:
    """Return left, top, right, bottom of a box of left, top, width, height, as detectors have them: in FP32."""
    return tuple(np.float32([box[0], box[1], box[0] + box[2], box[1] + box[3]]).tolist())


def rig_of(case: Case) -> PipelineRig:
    """Return a rig that serves the pipeline's models, with few rows in a request of some."""
    rig = PipelineRig(slow=case.slow)
    for name, side in (("left", 0), ("right", 1)):
        detector(
            rig,
            name,
            lambda pixels, side=side: [  # type: ignore[misc]
                (corners(box), score, index) for box, score, index in case.found[int(pixels[1, 0, 0])][side]
            ],
            labels=LABELS,
            max_batch_rows=case.most,
        )
    rig.model("mean", lambda of: {"y": mean_red(of)}, (PIXELS,), (spec("y"),), max_batch_rows=case.most)
    rig.model("large", lambda of: {"y": mean_red(of) * -2}, (PIXELS,), (spec("y"),), max_batch_rows=case.most)
    rig.model("row", lambda of: {"y": of["x"] + 0.5}, (spec("x"),), (spec("y"),))
    rig.pipeline(document(case))
    return rig


# ---- by hand ---------------------------------------------------------------------------------------------------------
def overlap(one: Box, two: Box) -> float:
    width = max(0.0, min(one[2], two[2]) - max(one[0], two[0]))
    height = max(0.0, min(one[3], two[3]) - max(one[1], two[1]))
    area = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, two))
    return width * height / (area - width * height) if width * height else 0.0


def once(things: list[Thing], iou: float) -> list[Thing]:
    """Return the things that no better one of the same class overlaps, in their order."""
    kept = list[int]()
    for place in sorted(range(len(things)), key=lambda place: -things[place][1]):
        box, _, index = things[place]
        if not any(things[other][2] == index and overlap(things[other][0], box) > iou for other in kept):
            kept.append(place)
    return [things[place] for place in sorted(kept)]


def cut(box: Box, image: Image.Image) -> float:
    """Return the mean red of a part, as the model sees it."""
    sides = []
    for low, high, most in ((box[0], box[2], WIDTH), (box[1], box[3], HEIGHT)):
        begin, end = max(0, int(np.floor(low))), min(most, int(np.ceil(high)))
        if end <= begin:
            begin = min(begin, most - 1)
            end = begin + 1
        sides.append((begin, end))
    (left, right), (top, bottom) = sides
    part = image.crop((left, top, right, bottom)).resize((8, 8), Image.Resampling.BILINEAR)
    return float(np.asarray(part)[:, :, 0].mean())


def by_hand(case: Case, number: int) -> dict[str, Any]:
    """Return what the steps make of one picture."""
    left, right = ([(corners(box), score, index) for box, score, index in side] for side in case.found[number])
    things = once(left + right, case.iou) if case.iou else left + right
    chosen = [each for each in things if each[1] > np.float32(case.least) and case.label in {"", LABELS[each[2]]}]
    if case.top:
        chosen = sorted(chosen, key=lambda each: -each[1])[: case.top]
    image, amount = picture(number), case.amounts[number]
    reds = [cut(box, image) for box, _, _ in chosen]
    larger = [-2 * red if red > case.limit else red if case.has_else else None for red in reds]
    runs = any(score > 0.6 for _, score, _ in chosen) and amount > 0
    return {
        "boxes": [list(box) for box, _, _ in chosen],
        "labels": [LABELS[index] for _, _, index in chosen],
        "y": larger,
        "total": sum(reds),
        "weight": amount * len(chosen),
        "row": sum(reds) + 0.5 if runs else -1,
        "maybe": sum(reds) + 0.5 if runs else None,
        "highest": max((score for _, score, _ in chosen), default=None),
    }


def close(found: Any, wanted: Any) -> None:
    """Check numbers, lists of numbers, and None."""
    nan = [np.nan if each is None else each for each in np.ravel(np.asarray(found, object))]
    want = [np.nan if each is None else each for each in np.ravel(np.asarray(wanted, object))]
    np.testing.assert_allclose(np.array(nan, float), np.array(want, float), rtol=1e-4, atol=1e-3)


@settings(max_examples=60, deadline=None)
@given(CASES)
def test_random_pipelines_answer_as_their_steps_by_hand(case: Case) -> None:
    async def asked() -> dict[str, Array]:
        rig = rig_of(case)
        await rig.begin()
        assert not rig.reason()
        count = len(case.found)
        images = np.array([encoded(np.asarray(picture(number))) for number in range(count)], object)
        answer = await rig.ask({"image": images, "amount": np.array(case.amounts[:count])})
        await rig.repository.close()
        return answer

    answer = asyncio.run(asked())
    for number in range(len(case.found)):
        document, wanted = json.loads(answer["result"][number]), by_hand(case, number)
        things = document["things"]
        assert [thing["label"] for thing in things] == wanted["labels"]
        close([thing["box"] for thing in things], wanted["boxes"])
        close([thing["y"] for thing in things], wanted["y"])
        for key in ("total", "weight", "row", "maybe", "highest"):
            close(document[key], wanted[key])
        close(answer["total"][number], wanted["total"])
        close(answer["maybe"][number], wanted["maybe"] or 0.0)
        close(answer["things.box"][number][: len(things)], wanted["boxes"])
