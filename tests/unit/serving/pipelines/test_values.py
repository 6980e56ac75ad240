"""Values at their limits: datatypes that do not hold a number, constants, lists of no size, empty galleries."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import RequestError
from gateway.common.domain.tensor import Array, Datatype, Tensors
from gateway.serving.pipelines.tensors import cast
from tests.simulators.daemon import ROOT
from tests.simulators.images_made import encoded
from tests.simulators.pipelines import FOUND as OBJECTS
from tests.simulators.pipelines import PIXELS, PipelineRig, detector, spec

INT32, INT64 = np.iinfo(np.int32), np.iinfo(np.int64)


@pytest.mark.parametrize(
    ("given", "datatype", "wanted"),
    [
        (np.float32([3e9, -3e9, 1.6]), Datatype.INT32, [INT32.max, INT32.min, 2]),
        (np.float32([1e30, -1e30]), Datatype.INT64, [INT64.max, INT64.min]),
        (np.float64([2.0**64, -1.0]), Datatype.UINT64, [2**64 - 1, 0]),
        (np.array([300, -1, 7]), Datatype.UINT8, [255, 0, 7]),
        (np.array([2**64 - 1, 5], np.uint64), Datatype.INT64, [INT64.max, 5]),
        (np.array([200, 5], np.uint8), Datatype.INT8, [127, 5]),
        (np.float32([1e6, -1e6, np.inf, 0.5]), Datatype.FP16, [65504, -65504, np.inf, 0.5]),
        (np.array([70000]), Datatype.FP16, [65504]),
        (np.float64([1e300, 2.0]), Datatype.FP32, [float(np.finfo(np.float32).max), 2]),
        (np.array([True, False]), Datatype.UINT8, [1, 0]),
    ],
)
def test_an_input_gets_the_nearest_value_that_its_datatype_holds(
    given: Array, datatype: Datatype, wanted: list[Any]
) -> None:
    made = cast(given, datatype)
    assert made.dtype == datatype.dtype
    assert made.tolist() == wanted


@pytest.mark.asyncio
async def test_the_gauge_of_the_how_to_reads_its_needle() -> None:
    page = (ROOT / "docs/pages/howto/pipelines.md").read_text()
    steps = next(block for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "gauge-points" in block)
    angles = np.radians([135, 405])  # from the lower left over the top to the lower right, of which down is y
    shares = np.linspace(-0.1, 1.0, 12)

    def points(of: Tensors) -> Tensors:
        ways = [(*angles, angles[0] + share * (angles[1] - angles[0])) for share in shares]
        return {
            "keypoints": np.float32([[[0, 0], *[[np.cos(at), np.sin(at)] for at in way]] for way in ways]) * 30 + 50
        }

    rig = PipelineRig()
    rig.model("gauge-points", points, (PIXELS,), (spec("keypoints", 4, 2),))
    rig.pipeline(f'[input]\nimage = "image"\n{steps}[output]\nbar = "gauge.bar"\n')
    await rig.begin()
    found = await rig.ask({"image": np.array([encoded(np.zeros((8, 8, 3), np.uint8))] * len(shares), object)}, "bar")
    np.testing.assert_allclose(found["bar"], shares * 10, atol=1e-4)


SKIPS = """
[input]
x = "FP32[]"
big = "INT64[]"
[[step]]
name = "m"
model = "m"
of = "x"
when = "x > 0"
[output]
"""


async def skipping(outputs: str, datatype: Datatype = Datatype.UINT8, *shape: int) -> PipelineRig:
    """Return a rig with a model whose y is 7, and which runs where x > 0."""
    rig = PipelineRig()
    sizes = [size if size > 0 else 5 for size in shape]
    y = spec("y", *shape, datatype=datatype)
    rig.model("m", lambda of: {"y": np.full((len(of["x"]), *sizes), 7, datatype.dtype)}, (spec("x"),), (y,))
    rig.pipeline(SKIPS + outputs)
    await rig.begin()
    return rig


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "datatype", "other", "dtype"),
    [
        ("default(m.y, 9)", Datatype.UINT8, 9, np.uint8),
        ("default(m.y, -1)", Datatype.UINT8, -1, np.float64),
        ("default(m.y, 300)", Datatype.UINT8, 300, np.float64),
        ("default(m.y, 0.5)", Datatype.UINT8, 0.5, np.float64),
        ("default(m.y, big)", Datatype.UINT8, 400, np.float64),
        ("default(m.y, 0.5)", Datatype.FP32, 0.5, np.float32),
        ("default(m.y, 70000)", Datatype.FP16, 70000, np.float64),
        ("default(m.y, x + 0.25)", Datatype.FP32, -0.75, np.float32),
    ],
)
async def test_a_default_is_held(text: str, datatype: Datatype, other: float, dtype: type) -> None:
    rig = await skipping(f'y = "{text}"', datatype)
    inputs = {"x": np.array([1.0, -1.0]), "big": np.array([400, 400])}
    found = (await rig.ask(inputs, "y"))["y"]
    assert found.dtype == dtype
    assert found.tolist() == [7, other]
    assert (await rig.ask({"x": np.array([-1.0]), "big": np.array([400])}, "y"))["y"].tolist() == [other]


@pytest.mark.asyncio
@pytest.mark.parametrize(("other", "dtype"), [(9, np.int32), (2**31, np.float64), (0.5, np.float64)])
async def test_a_default_of_first_is_held(other: float, dtype: type) -> None:
    rig = PipelineRig()
    detector(rig, "find", lambda pixels: [((0, 0, 2, 2), 0.9, 1)] if pixels.max() > 100 else [])
    rig.pipeline(FOUND + f'y = "first(cars.class, default={other})"')
    await rig.begin()
    answer = await rig.ask({"page": np.array([picture(200), picture(0)], object)}, "y")
    assert answer["y"].dtype == dtype
    assert answer["y"].tolist() == [1, other]


FOUND = """
[input]
page = "image"
[[step]]
name = "cars"
model = "find"
of = "page"
[output]
"""


def picture(value: int) -> bytes:
    """Return an image of one grey."""
    return encoded(np.full((8, 8, 3), value, np.uint8))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "value", "datatype"), [("'plate'", "plate", "BYTES"), ("2 * 3", 6, "FP64"), ("true", True, "BOOL")]
)
async def test_a_constant_is_part_of_each_object(text: str, value: object, datatype: str) -> None:
    rig = PipelineRig()
    detector(rig, "find", lambda pixels: [((0, 0, 2, 2), 0.9, 1)] * (pixels[0, 0, 0] // 100))
    rig.pipeline(FOUND + f'plates = {{ box = "cars.box", kind = "{text}" }}\nall = {{ kind = "{text}" }}')
    await rig.begin()
    answer = await rig.ask({"page": np.array([picture(200), picture(0)], object)})
    documents = [json.loads(text) for text in answer["result"]]
    assert [[each["kind"] for each in document["plates"]] for document in documents] == [[value, value], []]
    assert documents[1]["all"] == {"kind": value}
    spec_of = rig.target().manifest.output("plates.kind")
    assert spec_of is not None
    assert (spec_of.datatype.label, spec_of.shape) == (datatype, (-1, -1))
    assert answer["plates.kind"].shape == (2, 2)


@pytest.mark.asyncio
@pytest.mark.parametrize("second", ["crop(q, box)", "q"])
async def test_a_model_takes_a_whole_image_next_to_a_part(second: str) -> None:
    def sums(of: Tensors) -> Tensors:
        return {"y": sum(array[:, 0, 0, 0].astype(np.float32) for array in of.values())}

    rig = PipelineRig()
    rig.model("pair", sums, (replace(PIXELS, name="a"), replace(PIXELS, name="b")), (spec("y"),))
    rig.model("sees", lambda of: {"y": of["image"][:, 0, 0, 0].astype(np.float32)}, (PIXELS,), (spec("y"),))
    rig.pipeline(f"""
[input]
p = "image"
q = "image"
box = "FP32[4]"
[[step]]
name = "both"
model = "pair"
inputs = {{ a = "p", b = "{second}" }}
[[step]]
name = "part"
model = "sees"
of = "crop(q, box)"
[output]
both = "both.y"
part = "part.y"
""")
    await rig.begin()
    inputs = {
        "p": np.array([picture(100)], object),
        "q": np.array([picture(50)], object),
        "box": np.float32([[0, 0, 4, 4]]),
    }
    answer = await rig.ask(inputs, "both", "part")
    assert {name: array.tolist() for name, array in answer.items()} == {"both": [150], "part": [50]}


ALIGNED = """
[input]
image = "image"
points = "{kind}"
wide = "FP32[]"
[[step]]
name = "part"
model = "sees"
of = "{text}"
[output]
y = "part.y"
"""


async def aligning(text: str, kind: str = "FP32[3, 2]") -> PipelineRig:
    """Return a rig whose model answers with the first pixel of the part that `text` says."""
    rig = PipelineRig()
    rig.model("sees", lambda of: {"y": of["image"][:, :, 0, 0].astype(np.float32)}, (PIXELS,), (spec("y", 3),))
    rig.pipeline(ALIGNED.format(text=text, kind=kind))
    await rig.begin()
    return rig


@pytest.mark.asyncio
@pytest.mark.parametrize("values", [2, 3])
async def test_key_points_align_a_part_whatever_they_are(values: int) -> None:
    rig = await aligning("align(image, points, [[0, 0], [7, 0], [0, 7]], 8)", f"FP32[3, {values}]")
    red, green, blue = (
        np.zeros((16, 16)),
        np.arange(16).repeat(16).reshape(16, 16) * 9,
        np.arange(16) * np.ones((16, 1)),
    )
    image = encoded(np.stack([red + 200, green, blue * 9], axis=2).astype(np.uint8), "png")
    inner, turned = [(4, 3), (11, 3), (4, 10)], [(11, 3), (11, 10), (4, 3)]
    odd = [[(5, 5)] * 3, [(np.nan, 0), (np.inf, 3), (1, -np.inf)], [(1e30, 1), (2, -1e30), (3, 3)], [(-90, -90)] * 3]
    points = np.array([inner, turned, *odd], np.float32)
    asked = np.concatenate((points, np.zeros((6, 3, values - 2))), axis=2)
    answer = await rig.ask({"image": np.array([image] * 6, object), "points": asked, "wide": np.ones(6)}, "y")
    np.testing.assert_allclose(answer["y"][:2], [[200, 27, 36], [200, 27, 99]], atol=3)
    assert answer["y"][-1].tolist() == [0, 0, 0]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "kind", "problem"),
    [
        ("align(image, points, [[0, 0], [7, 0], [0, 7]])", "", "needs 4 to 5 values"),
        ("align(image, points, [[0, 0], [7, 0]], 8)", "", r"must be numbers of the shape \[2, -1\]"),
        ("align(image, points, [[0, 0], [7, 0], [0, 7]], 8)", "FP32[-1, 2]", "must be x, y of 3 points"),
        ("align(image, points, [[0, 0], [7, 0], [0, 7]], 8)", "FP32[3, 4]", "must be x, y of 3 points"),
        ("align(image, points, [[0, 0], [7, 0], [0, 7]], 8)", "FP32[3]", "must be numbers of the shape"),
        ("align(points, points, [[0, 0], [7, 0], [0, 7]], 8)", "", "must be an image"),
        ("align(image, image, [[0, 0], [7, 0], [0, 7]], 8)", "", "must be a number"),
        *(
            (f"align(image, points, {template}, 8)", "", "must list different places of key points")
            for template in (
                "points",
                "[]",
                "[[]]",
                "[1, 2, 3]",
                "[[1, 2]] * 3",
                "[[1, 2], [3]]",
                "[[0, 0], [7, wide]]",
            )
        ),
        *(
            (f"align(image, points, {template}, 8)", "", "must list different places of key points")
            for template in (
                "[[4, 4], [4, 4], [4, 4]]",
                "[[0, 0], [7, 0], [0, 1e10]]",
                "[['0', '0'], ['7', '0']]",
                "'x'",
            )
        ),
        *(
            (f"align(image, points, [[0, 0], [7, 0], [0, 7]], {size})", "", "a height unless it is the same: 1 to 2048")
            for size in ("0", "2049", "7.5", "-8", "8, 0", "wide", "8, wide", "1e300")
        ),
        ("align(image, points, [[0, 0], [7, 0], [0, 7]], '8')", "", "must be a number"),
        ("align(image, points, [[0, 0], [7, 0], [0, 7]], 8, mode=1)", "", "align has no 'mode'"),
    ],
)
async def test_what_cannot_be_aligned_is_refused_when_it_is_loaded(text: str, kind: str, problem: str) -> None:
    rig = await aligning(text, kind or "FP32[3, 2]")
    assert re.search(problem, rig.reason()), rig.reason()


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["mask_counts", "boxes", "anchors"])
async def test_own_outputs_of_a_detector_are_no_columns(name: str) -> None:
    rig = PipelineRig()
    own = (spec("mask_counts", -1), spec("anchors", -1, 4))
    answered = ("boxes", "scores", "classes", "mask_counts")
    rig.model("find", lambda _: {}, (PIXELS,), (*OBJECTS, *own), answered=answered)
    rig.pipeline(FOUND + f'y = "cars.{name}"')
    await rig.begin()
    assert f"no column '{name}'; it has box, score, class, label" in rig.reason()


@pytest.mark.asyncio
async def test_lists_that_all_rows_lack_are_the_default() -> None:
    outputs = ("a = 'argmax(default(m.y, 3))'", "t = 'top(default(m.y, 3))'", "y = 'default(m.y, 3)'")
    rig = await skipping("\n".join(outputs), Datatype.FP32, -1)
    some = await rig.ask({"x": np.array([1.0, -1.0]), "big": np.zeros(2, np.int64)}, "a", "t", "y")
    assert [some[name].tolist() for name in "aty"] == [[0, 0], [7, 3], [[7] * 5, [3] * 5]]
    none = await rig.ask({"x": np.array([-1.0, -1.0]), "big": np.zeros(2, np.int64)}, "a", "t", "y")
    assert [none[name].tolist() for name in "aty"] == [[0, 0], [3, 3], [[3], [3]]]


@pytest.mark.asyncio
@pytest.mark.parametrize("text", ["argmax(m.y)", "top(m.y)", "top(softmax(m.y))"])
async def test_an_empty_list_fails_its_step_with_words(text: str) -> None:
    rig = PipelineRig()
    rig.model("m", lambda of: {"y": np.zeros((len(of["x"]), 0), np.float32)}, (spec("x"),), (spec("y", -1),))
    step = '[[step]]\nname = "m"\nmodel = "m"\nof = "x"\n[[step]]\nname = "r"\n'
    rig.pipeline(f'[input]\nx = "FP32[]"\n{step}rule = {{ b = "{text}" }}\n[output]\nb = "r.b"')
    await rig.begin()
    with pytest.raises(RequestError, match=r"step 'r': .* a model returned an empty one"):
        await rig.ask({"x": np.array([1.0])})


@pytest.mark.asyncio
async def test_no_objects_have_no_largest_value() -> None:
    rig = PipelineRig()
    detector(rig, "find", lambda _: [])
    rig.model("sees", lambda of: {"y": of["image"][:, 0, 0, :2]}, (PIXELS,), (spec("y", -1),))
    values = '{ a = "argmax(kind.y)", t = "top(kind.y)", s = "top(softmax(kind.y))" }'
    step = '[[step]]\nname = "kind"\nmodel = "sees"\nof = "crop(page, cars.box)"\n[output]\n'
    rig.pipeline(FOUND.replace("[output]\n", step) + f"found = {values}")
    await rig.begin()
    answer = await rig.ask({"page": np.array([picture(0)], object)}, "found.a", "found.t", "found.s")
    assert [array.shape for array in answer.values()] == [(1, 0)] * 3


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("source", "refused"),
    [('merge = ["cars"]', True), ('tile = "page"\nsize = [4, 4]', True), ('select = "cars"\ntop = 1', False)],
)
async def test_labels_are_those_of_a_model(source: str, refused: bool) -> None:
    rig = PipelineRig()
    detector(rig, "find", lambda _: [((0, 0, 2, 2), 0.9, 1)])
    steps = f'[[step]]\nname = "some"\n{source}\n[[step]]\nname = "few"\nselect = "some"\ntop = 1\n[output]\n'
    rig.pipeline(FOUND.replace("[output]\n", steps) + 'y = "label(1, few)"')
    await rig.begin()
    if refused:
        assert "is no step that runs a model" in rig.reason()
    else:
        assert (await rig.ask({"page": np.array([picture(0)], object)}, "y"))["y"].tolist() == [b"dog"]


LARGE = 2**53


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"big == {LARGE + 1}", [False, True, False]),
        (f"big != {LARGE + 1}", [True, False, True]),
        (f"{LARGE} < big", [False, True, False]),
        (f"big == -{LARGE + 1}", [False, False, True]),
        (f"big in [{LARGE + 1}, 3]", [False, True, False]),
        (f"big not in [-{LARGE + 1}]", [True, True, False]),
        (f"big < {2**64}", [True, True, True]),
        (f"big < {10**30}", [True, True, True]),
        ("big > 0.5", [True, True, False]),
    ],
)
async def test_large_whole_numbers_are_compared_exactly(text: str, wanted: list[bool]) -> None:
    rig = await skipping(f'y = "{text}"')
    inputs = {"x": np.ones(3), "big": np.array([LARGE, LARGE + 1, -LARGE - 1])}
    assert (await rig.ask(inputs, "y"))["y"].tolist() == wanted
