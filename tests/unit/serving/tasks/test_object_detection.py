"""Object detection: each head, the choice of the head, pixels of the original image, hostile outputs."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.special import expit

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Array, Tensors
from gateway.serving.tasks.catalog import TASKS
from gateway.serving.tasks.detections import DetectionResult
from gateway.serving.tasks.frame import Frame, place
from gateway.serving.tasks.object_detection import ObjectDetection
from gateway.serving.tasks.postprocessed_head import roles_of
from gateway.serving.tasks.query_heads import sigmoid
from tests.simulators.vision_models import options, sparse_yolov8, vision_model, yolov8_output

CENTRE = np.array([[100, 120, 40, 20], [300, 300, 100, 50]], np.float32)
CORNERS = [[80.0, 110.0, 120.0, 130.0], [250.0, 275.0, 350.0, 325.0]]
TWO = ("cat", "dog")


def detect(model: ModelManifest, outputs: Tensors, frame: Frame | None = None, text: str = "") -> DetectionResult:
    return ObjectDetection(model, options(text)).interpret(outputs, frame)


def found(result: DetectionResult) -> list[tuple[str, float, list[float]]]:
    return [(each["label"], each["score"], each["box"]) for each in result.document()["detections"]]


YOLOV8 = {"output0": yolov8_output(CENTRE, np.array([0.5, 0.75]), np.array([0, 1]), 2)}
YOLOV8_MODEL = vision_model({"output0": (6, 8400)}, TWO)
EXPECTED = [("dog", 0.75, CORNERS[1]), ("cat", 0.5, CORNERS[0])]


def test_yolov8() -> None:
    assert found(detect(YOLOV8_MODEL, YOLOV8)) == EXPECTED


def test_yolov5_multiplies_objectness_and_class() -> None:
    output = np.zeros((25200, 7), np.float32)
    output[[7, 9], :4] = CENTRE
    output[7, 4:6], output[9, [4, 6]] = (1.0, 0.5), (0.75, 1.0)
    assert found(detect(vision_model({"output": (25200, 7)}, TWO), {"output": output})) == EXPECTED


def test_end_to_end_leaves_the_models_own_choice() -> None:
    rows = [[*CORNERS[1], 0.75, 1], [*CORNERS[1], 0.625, 1], [*CORNERS[0], 0.5, 0], [0, 0, 0, 0, 0, 0]]
    model = vision_model({"output0": (300, 6)}, (*TWO, "bird"))
    result = detect(model, {"output0": np.array(rows, np.float32)})
    assert found(result) == [EXPECTED[0], ("dog", 0.625, CORNERS[1]), EXPECTED[1]]


@pytest.mark.parametrize(
    "names",
    [
        ("TFLite_Detection_PostProcess", ":1", ":2", ":3"),
        ("detection_boxes", "detection_classes", "detection_scores", "num_detections"),
    ],
)
def test_ssd_by_the_names_of_its_outputs(names: tuple[str, ...]) -> None:
    boxes, classes, scores, count = (name if name[0] != ":" else names[0] + name for name in names)
    model = vision_model({boxes: (10, 4), classes: (10,), scores: (10,), count: ()}, TWO)
    corners = np.zeros((10, 4), np.float32)
    corners[:2] = np.array(CORNERS[::-1])[:, [1, 0, 3, 2]] / 640
    outputs = {
        boxes: corners,
        classes: np.array([1, 0] + [0] * 8, np.float32),
        scores: np.array([0.75, 0.5] + [0.9] * 8, np.float32),
        count: np.array(2, np.float32),
    }
    assert found(detect(model, outputs)) == EXPECTED


def test_ssd_with_all_outputs_of_the_object_detection_api() -> None:
    shapes = {
        "raw_detection_boxes": (1917, 4),
        "raw_detection_scores": (1917, 3),
        "detection_anchor_indices": (10,),
        "detection_boxes": (10, 4),
        "detection_classes": (10,),
        "detection_multiclass_scores": (10, 3),
        "detection_scores": (10,),
        "num_detections": (),
    }
    found = roles_of(vision_model(shapes, TWO), {})
    assert found == {
        "boxes": "detection_boxes",
        "classes": "detection_classes",
        "scores": "detection_scores",
        "count": "num_detections",
    }


def test_ssd_in_the_form_of_torchvision() -> None:
    model = vision_model({"boxes": (-1, 4), "labels": (-1,), "scores": (-1,)}, TWO)
    outputs = {"boxes": np.array(CORNERS[::-1]), "labels": np.array([2, 1]), "scores": np.array([0.75, 0.5])}
    text = 'box_order = "xyxy"\ncoordinates = "pixels"\nfirst_class = 1'
    assert found(detect(model, outputs, text=text)) == EXPECTED


def test_ssd_with_names_that_say_nothing_says_what_to_write() -> None:
    model = vision_model({"Call:0": (10,), "Call:1": (10, 4), "Call:2": (), "Call:3": (10,)}, TWO)
    with pytest.raises(ConfigurationError, match='classes: no output is known for it; write classes = "NAME"'):
        ObjectDetection(model, options())
    outputs = {"Call:0": [0.5], "Call:1": [[0.1, 0.1, 0.5, 0.5]], "Call:2": 1.0, "Call:3": [1.0]}
    arrays_of = {name: np.array(values, np.float32) for name, values in outputs.items()}
    result = detect(model, arrays_of, text='classes = "Call:3"\nscores = "Call:0"\ncount = "Call:2"')
    assert found(result) == [("dog", 0.5, [64.0, 64.0, 320.0, 320.0])]


def logit(scores: Array) -> Array:
    return np.log(scores / (1 - scores))


def test_the_sigmoid_is_that_of_scipy() -> None:
    logits = np.linspace(-1000, 1000, 4001)
    assert sigmoid(logits) == pytest.approx(expit(logits), abs=1e-15)


def test_detr_with_softmax_and_a_class_for_no_object() -> None:
    logits = np.log(np.array([[0.05, 0.75, 0.2], [0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], np.float32))
    boxes = np.array([CENTRE[1], CENTRE[0], CENTRE[0]], np.float32) / 640
    model = vision_model({"logits": (3, 3), "pred_boxes": (3, 4)}, TWO)
    assert found(detect(model, {"logits": logits, "pred_boxes": boxes})) == EXPECTED


def test_rt_detr_gives_the_best_pairs_of_query_and_class() -> None:
    """As many pairs as queries, as in Transformers: the third best of two queries is left out."""
    logits = logit(np.array([[0.3, 0.75], [0.5, 0.4]]))
    outputs = {"dets": np.array([CENTRE[1], CENTRE[0]]) / 640, "labels": logits}
    model = vision_model({"dets": (2, 4), "labels": (2, 2)}, TWO)
    assert found(detect(model, outputs)) == EXPECTED


def test_rt_detr_as_ultralytics_exports_it() -> None:
    boxes = np.array([CENTRE[1], CENTRE[0]]) / 640
    output = np.concatenate((boxes, [[0.0, 0.75], [0.5, 0.0]]), axis=1).astype(np.float32)
    assert (
        found(detect(vision_model({"output0": (300, 6)}, TWO), {"output0": output}, text='head = "detr"')) == EXPECTED
    )
    coco = np.zeros((300, 84), np.float32)
    coco[:2, :6] = output
    assert [box for _, _, box in found(detect(vision_model({"output0": (300, 84)}), {"output0": coco}))] == CORNERS[
        ::-1
    ]


def test_detr_without_labels_asks_for_the_activation() -> None:
    with pytest.raises(ConfigurationError, match='write activation = "softmax"'):
        ObjectDetection(vision_model({"logits": (100, 92), "pred_boxes": (100, 4)}, ()), options())


@pytest.mark.parametrize(
    ("shape", "labels", "head"),
    [
        ((84, 8400), 80, "yolov8"),
        ((-1, 84, 8400), 80, "yolov8"),
        ((84, -1), 80, "yolov8"),
        ((84, 8400), 0, "yolov8"),
        ((25200, 85), 80, "yolov5"),
        ((-1, 85), 80, "yolov5"),
        ((300, 6), 80, "end-to-end"),
        ((-1, 6), 80, "end-to-end"),
        ((300, 84), 80, "detr"),
        ((5, 8400), 1, "yolov8"),
    ],
)
def test_the_shape_tells_the_head(shape: tuple[int, ...], labels: int, head: str) -> None:
    model = vision_model({"output0": shape[-2:]}, [f"{index}" for index in range(labels)])
    chosen = ObjectDetection(model, options())
    assert repr(chosen._detector.head) == repr(ObjectDetection(model, options(f'head = "{head}"'))._detector.head)


@pytest.mark.parametrize(
    ("shape", "labels", "said"),
    [
        ((300, 6), 1, 'can be yolov5 or end-to-end; write head = "yolov5" or head = "end-to-end"'),
        ((300, 6), 0, 'write head = "yolov5" or head = "end-to-end" or head = "detr"'),
        ((25200, 85), 0, 'write head = "yolov5" or head = "detr"'),
        ((300, 6), 2, 'write head = "end-to-end" or head = "detr"'),
        ((-1, -1), 80, 'write head = "yolov5" or head = "yolov8" or head = "end-to-end"'),
        (
            (83, 8400),
            80,
            r"fits no head \(yolov5 \[n, 85\], yolov8 \[84, n\], end-to-end \[n, 6\], detr \[n, 84\] per row\)",
        ),
        ((84, 80, 80), 80, "fits no head"),
        ((7,), 80, "fits no head"),
    ],
)
def test_a_shape_that_does_not_tell_is_an_error_that_says_what_to_write(
    shape: tuple[int, ...], labels: int, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said) as error:
        ObjectDetection(vision_model({"output0": shape}, [f"{index}" for index in range(labels)]), options())
    assert "task.head" in str(error.value)


def test_a_head_that_the_shape_contradicts_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"fits no head \(yolov5 \[n, 85\] per row\)"):
        ObjectDetection(vision_model({"output0": (84, 8400)}), options('head = "yolov5"'))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("iou = 0.5", "task.iou: unknown key"),
        ("score_threshold = 1.5", "between 0.0 and 1.0"),
        ("max_candidates = 30001", "between 1 and 30000"),
        ("[score_thresholds]\nbird = 0.5", "bird: is none of the manifest's labels"),
        ('boxes = "none"', "must be one of output0"),
        ('scores = "output0"', "task.scores: unknown key"),
        ('box_order = "xyxy"', "task.box_order: unknown key"),
    ],
)
def test_wrong_options_name_table_and_key(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        ObjectDetection(YOLOV8_MODEL, options(text))


def test_thresholds_by_class_and_in_general() -> None:
    by_class = "score_threshold = 0.4\n[score_thresholds]\ndog = 0.8"
    assert found(detect(YOLOV8_MODEL, YOLOV8, text=by_class)) == [EXPECTED[1]]
    assert found(detect(YOLOV8_MODEL, YOLOV8, text="[score_thresholds]\ncat = 0.1\ndog = 0.6")) == EXPECTED
    assert found(detect(YOLOV8_MODEL, YOLOV8, text="score_threshold = 0.76")) == []


def test_bounds_before_and_after_suppression() -> None:
    assert found(detect(YOLOV8_MODEL, YOLOV8, text="max_candidates = 1")) == EXPECTED[:1]
    assert found(detect(YOLOV8_MODEL, YOLOV8, text="max_detections = 1")) == EXPECTED[:1]


@pytest.mark.parametrize("fit", ["stretch", "letterbox", "crop"])
def test_boxes_are_in_pixels_of_the_original(fit: str) -> None:
    """A box that was drawn on the original is found where it was drawn."""
    frame = place(fit, (1920, 1080), (640, 640))
    drawn = np.array([[500.0, 200.0, 900.0, 700.0]])
    moved = drawn * ([frame.scale_x, frame.scale_y] * 2) + [frame.left, frame.top] * 2
    centre = np.concatenate(((moved[:, :2] + moved[:, 2:]) / 2, moved[:, 2:] - moved[:, :2]), axis=1)
    for unit, text in ((1.0, ""), (640.0, 'coordinates = "normalised"')):
        output = yolov8_output(centre.astype(np.float32) / unit, np.array([0.5]), np.array([0]), 2)
        (_, _, box), *rest = found(detect(YOLOV8_MODEL, {"output0": output}, frame, text))
        assert not rest
        assert box == pytest.approx(drawn[0], abs=0.01)


def test_letterbox_of_opencv_and_back() -> None:
    """An image that OpenCV scales and pads: what is in its corners is found in the corners of the original."""
    original = np.zeros((300, 500, 3), np.uint8)
    original[:30, :50], original[-30:, -50:] = 255, 128
    scale = min(640 / 500, 640 / 300)
    resized = cv2.resize(original, (round(500 * scale), round(300 * scale)), interpolation=cv2.INTER_NEAREST)
    top = (640 - resized.shape[0]) // 2
    boxed = cv2.copyMakeBorder(resized, top, 640 - resized.shape[0] - top, 0, 0, cv2.BORDER_CONSTANT, value=0)
    centres = []
    for value in (255, 128):
        rows, columns = np.nonzero(boxed[:, :, 0] == value)
        x1, y1, x2, y2 = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        centres.append([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1])
    output = yolov8_output(np.array(centres, np.float32), np.array([0.75, 0.5]), np.array([0, 1]), 2)
    result = detect(YOLOV8_MODEL, {"output0": output}, place("letterbox", (500, 300), (640, 640)))
    boxes = [box for _, _, box in found(result)]
    assert boxes == [pytest.approx([0, 0, 50, 30], abs=0.5), pytest.approx([450, 270, 500, 300], abs=0.5)]


def test_what_is_only_in_the_padding_is_left_out() -> None:
    output = yolov8_output(np.array([[320, 30, 40, 20]], np.float32), np.array([0.9]), np.array([0]), 2)
    assert found(detect(YOLOV8_MODEL, {"output0": output}, place("letterbox", (1920, 1080), (640, 640)))) == []


def test_normalised_boxes_need_the_size_of_an_open_input() -> None:
    model = vision_model({"output0": (6, 8400)}, TWO, size=None)
    output = {"output0": yolov8_output(CENTRE / 640, np.array([0.5, 0.75]), np.array([0, 1]), 2)}
    text = 'coordinates = "normalised"'
    with pytest.raises(RequestError, match="the size of its input is open") as error:
        detect(model, output, text=text)
    assert error.value.fault is Fault.UNSUPPORTED
    assert found(detect(model, output, place("stretch", (640, 640), (640, 640)), text)) == EXPECTED
    assert found(detect(model, YOLOV8)) == EXPECTED


@pytest.mark.parametrize("shape", [(6,), (7, 8400), (2, 6, 8400), (5, 10)])
def test_an_output_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match="output 'output0' has shape") as error:
        detect(YOLOV8_MODEL, {"output0": np.zeros(shape, np.float32)})
    assert error.value.fault is Fault.UNSUPPORTED
    with pytest.raises(RequestError, match="output 'output0' is missing"):
        detect(YOLOV8_MODEL, {})


def test_half_precision_and_a_batch_of_one() -> None:
    output = YOLOV8["output0"].astype(np.float16)[np.newaxis]
    assert found(detect(YOLOV8_MODEL, {"output0": output})) == EXPECTED


def test_the_document_is_json_and_tensors_are_as_declared() -> None:
    task = TASKS["object-detection"](YOLOV8_MODEL, options())
    result = task.interpret(YOLOV8, None)
    assert json.loads(json.dumps(result.document()))["detections"][0] == {
        "label": "dog",
        "class": 1,
        "score": 0.75,
        "box": CORNERS[1],
    }
    tensors = result.tensors()
    assert {spec.name: spec.datatype.dtype for spec in task.results} == {n: a.dtype for n, a in tensors.items()}
    assert tensors["boxes"].tolist() == CORNERS[::-1]


def test_no_candidates_are_empty_tensors() -> None:
    tensors = detect(YOLOV8_MODEL, {"output0": np.zeros((6, 8400), np.float32)}).tensors()
    assert [array.shape for array in tensors.values()] == [(0, 4), (0,), (0,)]


def test_a_class_without_label_is_named_by_its_number() -> None:
    output = np.array([[*CORNERS[0], 0.5, 17]], np.float32)
    result = detect(vision_model({"output0": (300, 6)}, ()), {"output0": output}, text='head = "end-to-end"')
    assert found(result) == [("17", 0.5, CORNERS[0])]


HOSTILE = arrays.arrays(
    np.float32, st.sampled_from([(40, 6), (6, 40)]), elements=st.floats(width=32, allow_nan=True, allow_infinity=True)
)


@given(values=HOSTILE, head=st.sampled_from(["yolov5", "yolov8", "end-to-end", "detr"]))
def test_no_values_give_a_box_outside_the_image_or_a_score_that_is_no_number(values: Array, head: str) -> None:
    shape = (6, 40) if head == "yolov8" else (40, 6)
    labels = TWO[:1] if head == "yolov5" else TWO
    model = vision_model({"output0": shape}, labels)
    frame = place("letterbox", (1920, 1080), (640, 640))
    result = detect(model, {"output0": values.reshape(shape)}, frame, f'head = "{head}"')
    boxes, scores = result.tensors()["boxes"], result.tensors()["scores"]
    assert np.isfinite(scores).all()
    assert (scores >= 0.25).all()
    assert ((boxes >= 0) & (boxes <= [1920, 1080, 1920, 1080])).all()
    assert json.dumps(result.document(), allow_nan=False)


ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(
    boxes=arrays.arrays(np.float32, (9, 4), elements=ANY),
    rows=arrays.arrays(np.float32, (2, 9), elements=ANY),
    count=ANY,
    order=st.sampled_from(["yxyx", "xyxy"]),
)
def test_no_values_of_a_postprocessed_model_leave_the_image(
    boxes: Array, rows: Array, count: float, order: str
) -> None:
    model = vision_model({"boxes": (9, 4), "scores": (9,), "classes": (9,), "num": ()}, TWO)
    outputs = {"boxes": boxes, "scores": rows[0], "classes": rows[1], "num": np.array(count, np.float32)}
    result = detect(model, outputs, place("crop", (1920, 1080), (640, 640)), f'box_order = "{order}"')
    found = result.tensors()["boxes"]
    assert ((found >= 0) & (found <= [1920, 1080, 1920, 1080])).all()
    assert (result.tensors()["classes"] >= 0).all()
    assert json.dumps(result.document(), allow_nan=False)


def test_classes_of_quantised_outputs_are_rounded() -> None:
    rows = np.array([[*CORNERS[1], 0.75, 0.996]], np.float32)
    assert found(detect(vision_model({"y": (300, 6)}, ()), {"y": rows}, text='head = "end-to-end"'))[0][0] == "1"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 4])
def test_a_candidate_with_a_value_that_is_no_number_is_left_out(value: float, row: int) -> None:
    output = YOLOV8["output0"].copy()
    output[row, 0] = value
    assert found(detect(YOLOV8_MODEL, {"output0": output}))[:1] == EXPECTED[:1]
    assert len(found(detect(YOLOV8_MODEL, {"output0": output}))) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_never_become_detections(value: float) -> None:
    for activation, width in (("softmax", 3), ("sigmoid", 2)):
        outputs = {"l": np.full((2, width), value, np.float32), "b": CENTRE / 640}
        assert found(detect(vision_model({"l": (2, width), "b": (2, 4)}, TWO), outputs)) == [], activation


@given(seed=st.integers(0, 2**32 - 1))
def test_the_order_of_candidates_does_not_matter(seed: int) -> None:
    generator = np.random.default_rng(seed)
    output = sparse_yolov8(generator)
    model = vision_model({"output0": (84, 8400)})
    shuffled = output[:, generator.permutation(8400)]
    assert found(detect(model, {"output0": output})) == found(detect(model, {"output0": shuffled}))


def test_any_number_of_candidates_is_bounded() -> None:
    generator = np.random.default_rng(1)
    output = generator.random((84, 100_000), np.float32)
    output[:4] *= 600
    result = detect(vision_model({"output0": (84, -1)}), {"output0": output}, text="max_detections = 7")
    assert len(found(result)) == 7
