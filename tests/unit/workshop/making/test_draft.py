"""Drafts of manifests from files and wishes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Binding, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.verdict import Signature
from gateway.serving.tasks.catalog import TASKS
from gateway.workshop.making.choices import VALUE_RANGES
from gateway.workshop.making.draft import ManifestDraft, make_draft, with_task_table
from gateway.workshop.making.manifest_text import manifest_text
from gateway.workshop.making.model_file import ModelFile
from gateway.workshop.making.task_proposal import FACE_POINTS
from gateway.workshop.making.wishes import Wishes

WISHES = Wishes("m", "1")


def tensor(name: str, *shape: int, datatype: Datatype = Datatype.FP32) -> TensorSpec:
    return TensorSpec(name, datatype, shape)


def file(
    name: str = "a.onnx", runtime: str = "onnx", image: tuple[int, ...] = (-1, 3, 64, 64), classes: int = 3
) -> ModelFile:
    signature = Signature((tensor("image", *image),), (tensor("scores", image[0], classes),))
    return ModelFile(Path(name), runtime, signature)


def test_a_classifier_of_images() -> None:
    draft = make_draft([replace(file(), labels=("a", "b", "c"), labels_why="a reason")], WISHES)
    manifest = draft.manifest
    (image,) = manifest.inputs
    assert (manifest.task, manifest.labels, manifest.batch) == ("image-classification", ("a", "b", "c"), True)
    assert (image.layout, image.shape) == ("NCHW", (-1, 3, 64, 64))
    assert image.preprocess is not None
    assert (image.preprocess.resize, image.preprocess.fit, image.preprocess.color) == ((64, 64), "stretch", "rgb")
    assert draft.notes["labels"] == "inferred: a reason"
    assert draft.notes["input.image.preprocess.scale"].startswith("assumed, check it: pixels are unit")
    assert [question.key for question in draft.questions] == ["value_range"]


def test_models_of_imagenet_see_the_middle_of_an_image() -> None:
    draft = make_draft([file()], replace(WISHES, value_range="imagenet"))
    preprocess = draft.manifest.inputs[0].preprocess
    assert preprocess is not None
    assert (preprocess.fit, preprocess.crop_share) == ("crop", 0.875)
    assert draft.notes["input.image.preprocess.fit"].startswith("assumed, check it: ")


def test_the_size_of_images_where_a_file_takes_any() -> None:
    draft = make_draft([file(image=(-1, 3, -1, 96))], replace(WISHES, size_px=(64, 96)))
    preprocess = draft.manifest.inputs[0].preprocess
    assert preprocess is not None
    assert preprocess.resize == (64, 96)
    with pytest.raises(ConfigurationError, match="takes images of any by 96 pixels") as found:
        make_draft([file(image=(-1, 3, -1, 96))], replace(WISHES, size_px=(96, 64)))
    assert found.value.file == "a.onnx"


def test_what_the_author_says_is_no_guess() -> None:
    said = replace(WISHES, task="embedding", labels=("x", "y", "z"), labels_file="l.txt", value_range="imagenet")
    draft = make_draft([file()], said)
    (image,) = draft.manifest.inputs
    assert image.preprocess is not None
    assert (image.preprocess.scale, image.preprocess.mean, image.preprocess.std) == VALUE_RANGES["imagenet"]
    assert "std = [0.229, 0.224, 0.225]" in manifest_text(draft.manifest, draft.notes)
    assert (draft.manifest.task, draft.manifest.labels) == ("embedding", ("x", "y", "z"))
    assert draft.notes["labels"] == "from l.txt"
    assert "as --task says" in draft.notes["task"]
    assert draft.questions == ()


def test_several_files_are_variants_with_their_own_layouts_and_names() -> None:
    lite = ModelFile(
        Path("b.tflite"),
        "litert",
        Signature((tensor("in:0", 1, 64, 64, 3),), (tensor("out:0", 1, 3),)),
        precision="int8",
    )
    other = replace(file("c.onnx"), precision="int8")
    draft = make_draft([other, lite, file(), replace(other, path=Path("d.onnx"))], WISHES)
    assert [v.name for v in draft.manifest.variants] == ["onnx-fp32", "onnx-int8", "litert-int8", "onnx-int8-2"]
    assert [each.path.name for each in draft.files] == ["a.onnx", "c.onnx", "b.tflite", "d.onnx"]
    bound = draft.manifest.variants[2].bind
    assert bound == {"image": Binding("in:0", "NHWC"), "scores": Binding("out:0")}
    assert draft.manifest.inputs[0].shape == (-1, 3, 64, 64)


def test_open_sizes_take_those_of_a_file_that_fixes_them() -> None:
    draft = make_draft([file(image=(-1, 3, -1, -1)), file("b.onnx", image=(-1, 3, 32, 48))], WISHES)
    assert draft.manifest.inputs[0].shape == (-1, 3, 32, 48)


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (file("b.onnx", image=(-1, 3, 32, 32)), "nothing fits 'image'"),
        (file("b.onnx", classes=4), "nothing fits 'scores'"),
        (
            ModelFile(
                Path("b.onnx"),
                "onnx",
                Signature((tensor("image", -1, 3, 64, 64, datatype=Datatype.UINT8),), (tensor("scores", -1, 3),)),
            ),
            "nothing fits 'image'",
        ),
    ],
)
def test_files_of_other_models_are_refused(other: ModelFile, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as refused:
        make_draft([file(), other], WISHES)
    assert str(refused.value).startswith("b.onnx: is no variant of the first file")


def test_labels_of_the_author_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"l\.txt: holds 2 labels, but the outputs have 3 classes"):
        make_draft([file()], replace(WISHES, labels=("a", "b"), labels_file="l.txt"))


def test_labels_of_the_file_that_do_not_fit_are_left_out_and_told() -> None:
    draft = make_draft([replace(file(), labels=("a", "b"), labels_why="the archive")], WISHES)
    assert draft.manifest.labels == ()
    assert "left out, because the archive holds 2 labels" in draft.notes["labels"]
    assert "labels_file" in [question.key for question in draft.questions]


def test_one_row_in_each_run_is_a_batch_of_rows_one_after_the_other() -> None:
    draft = make_draft([file(image=(1, 3, 64, 64))], WISHES)
    assert (draft.manifest.batch, draft.manifest.inputs[0].shape) == (True, (-1, 3, 64, 64))
    assert "one row" in draft.notes["input.image.shape"]


def test_a_first_dimension_that_counts_nothing_is_no_batch() -> None:
    signature = Signature((tensor("x", -1, 4), tensor("state", 2, -1, 8)), (tensor("y", -1, 2),))
    draft = make_draft([ModelFile(Path("a.onnx"), "onnx", signature)], WISHES)
    assert draft.manifest.batch is False
    assert not draft.manifest.batched
    assert draft.notes["batch"].startswith("inferred: the first dimensions are not all open or 1")


def test_an_exporter_that_is_known_tells_range_and_size() -> None:
    yolo = Signature((tensor("images", -1, 3, -1, -1),), (tensor("output0", -1, 6, -1),))
    draft = make_draft(
        [ModelFile(Path("y.onnx"), "onnx", yolo, value_range="unit", size_px=(320, 640))],
        replace(WISHES, labels=("a", "b"), labels_file="l"),
    )
    (image,) = draft.manifest.inputs
    assert image.preprocess is not None
    assert (image.preprocess.resize, image.preprocess.fit) == ((320, 640), "letterbox")
    assert draft.questions == ()


def test_a_series_has_a_hint_how_to_serve_windows() -> None:
    signature = Signature((tensor("motion", -1, 100, 6),), (tensor("scores", -1, 4),))
    notes = make_draft([ModelFile(Path("a.onnx"), "onnx", signature)], WISHES).notes
    assert 'channels = ["c0", "c1", "c2", "c3", "c4", "c5"]\nsize_rows = 100\nhop_rows = 50' in notes["inputs"]


def pose(points: int) -> ModelFile:
    output = tensor("output0", -1, 5 + 3 * points, 84)
    return ModelFile(Path("pose.onnx"), "onnx", Signature((tensor("images", -1, 3, 64, 64),), (output,)))


def test_a_person_has_the_points_of_coco_unless_they_are_named() -> None:
    draft = make_draft([pose(17)], WISHES)
    options = draft.manifest.task_options
    assert options is not None
    assert (options["head"], options["values"], options["keypoints"][::16]) == ("yolov8", 3, ("nose", "right_ankle"))
    text = manifest_text(draft.manifest, draft.notes)
    assert "# assumed, check it: the 17 points are those of a person in COCO; --keypoints names others\n" in text
    names = tuple(f"p{index}" for index in range(17))
    named = make_draft([pose(17)], replace(WISHES, keypoints=names, keypoints_file="n.txt"))
    assert (named.manifest.task_options or {})["keypoints"] == names
    assert "task.keypoints" not in named.notes


def test_other_points_need_names() -> None:
    hand = replace(WISHES, labels=("hand",), labels_file="l.txt")
    draft = make_draft([pose(21)], hand)
    assert (draft.manifest.task, draft.manifest.task_options) == ("keypoints", None)
    assert "keypoints_file" in [question.key for question in draft.questions]
    assert "name the points with --keypoints FILE" in draft.notes["task"]
    names = tuple(f"p{index}" for index in range(21))
    named = make_draft([pose(21)], replace(WISHES, keypoints=names, keypoints_file="n.txt"))
    assert (named.manifest.task_options or {})["keypoints"] == names
    with pytest.raises(ConfigurationError, match=r"n\.txt: holds 5 names of key points, which the outputs do not have"):
        make_draft([pose(21)], replace(hand, keypoints=names[:5], keypoints_file="n.txt"))


def test_a_model_without_a_known_task_asks_for_it() -> None:
    signature = Signature((tensor("x", -1, 44100, 1),), (tensor("y", -1, 172, 88),))
    draft: ManifestDraft = make_draft([ModelFile(Path("a.onnx"), "onnx", signature)], WISHES)
    (question,) = draft.questions
    assert (question.key, question.choices) == ("task", ("", *TASKS))
    assert draft.manifest.task == ""


def drafted(inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], labels: tuple[str, ...]) -> ManifestDraft:
    said = replace(WISHES, labels=labels, labels_file="l") if labels else WISHES
    return make_draft([ModelFile(Path("a.onnx"), "onnx", Signature(inputs, outputs))], said)


IMAGE, LINE = tensor("image", -1, 300, 300, 3, datatype=Datatype.UINT8), tensor("image", -1, 3, 48, -1)
PHOTO, PAGE, FACE = tensor("x", -1, 3, 320, 320), tensor("x", -1, 3, -1, -1), tensor("input", 1, 128, 128, 3)
BLAZE_FACE = (tensor("regressors", 1, 896, 16), tensor("classificators", 1, 896, 1))
MERGED = {"score_threshold": 0.5, "iou_threshold": 0.3, "merge": True}
LABEL = tensor("label", -1, datatype=Datatype.INT64)
SSD = (tensor("a", -1, 10, 4), tensor("b", -1, 10), tensor("c", -1, 10), tensor("d", -1))
NAMED_SSD = (tensor("boxes", -1, 10, 4), tensor("scores", -1, 10), tensor("classes", -1, 10), tensor("n", -1))
SSD_OPTIONS = {"head": "ssd", "boxes": "a", "classes": "b", "scores": "c", "count": "d"}


@pytest.mark.parametrize(
    ("inputs", "outputs", "labels", "options"),
    [
        ((tensor("x", -1, 4),), (LABEL, tensor("scores", -1, 3)), ("a", "b", "c"), {"output": "scores"}),
        ((tensor("x", -1, 4),), (tensor("scores", -1, 3),), ("a", "b", "c"), {}),
        ((IMAGE,), SSD, ("a", "b"), SSD_OPTIONS),
        ((IMAGE,), NAMED_SSD, ("a", "b"), {"head": "ssd"}),
        ((PHOTO,), (tensor("y", -1, 2100, 7),), ("a", "b"), {"head": "yolox"}),
        ((FACE,), BLAZE_FACE, (), {"head": "mediapipe", "keypoints": FACE_POINTS, **MERGED}),
        ((PAGE,), (tensor("sigmoid_0.tmp_0", -1, 1, -1, -1),), (), {"head": "db", "score_threshold": 0.5}),
        ((LINE,), (tensor("y", -1, -1, 5),), ("a", "b", "c"), {"space": True}),
        ((LINE,), (tensor("y", -1, -1, 4),), ("a", "b", "c"), {}),
    ],
)
def test_the_table_of_a_task_has_what_the_tensors_tell(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], labels: tuple[str, ...], options: object
) -> None:
    draft = drafted(inputs, outputs, labels)
    assert draft.manifest.task_options == options
    assert with_task_table(draft.manifest, draft.proposal)[1] == ""


@pytest.mark.parametrize(
    ("image", "outputs", "expected"),
    [
        (PHOTO, (tensor("y", -1, 2100, 7),), ("bgr", (320, 320), "top-left", 114, "pixels")),
        (FACE, BLAZE_FACE, ("rgb", (128, 128), "center", 0, "signed-unit")),
        (PAGE, (tensor("fetch_name_0", -1, -1, -1, -1),), ("bgr", (960, 960), "top-left", 0, "signed-unit")),
    ],
)
def test_known_families_tell_colours_place_and_range(
    image: TensorSpec, outputs: tuple[TensorSpec, ...], expected: tuple[object, ...]
) -> None:
    draft = drafted((image,), outputs, ())
    found = draft.manifest.inputs[0].preprocess
    assert found is not None
    (value_range,) = (name for name, values in VALUE_RANGES.items() if values == (found.scale, found.mean, found.std))
    assert (found.color, found.resize, found.align, found.pad_value, value_range) == expected
    assert "value_range" not in {question.key for question in draft.questions}
    file = replace(draft.files[0], value_range="unit", range_why="the graph")
    (own,) = make_draft([file], WISHES).manifest.inputs
    assert own.preprocess is not None
    assert (own.preprocess.scale, own.preprocess.mean) == VALUE_RANGES["unit"][:2]


def test_points_of_a_known_family_have_other_names_if_the_author_names_them() -> None:
    names = tuple("abcdef")
    said = replace(WISHES, keypoints=names, keypoints_file="k", labels=("head",), labels_file="l")
    manifest = make_draft([ModelFile(Path("a.tflite"), "litert", Signature((FACE,), BLAZE_FACE))], said).manifest
    assert (manifest.labels, (manifest.task_options or {})["keypoints"]) == (("head",), names)


def test_detectors_of_tensorflow_stretch_images() -> None:
    preprocess = drafted((IMAGE,), SSD, ("a", "b")).manifest.inputs[0].preprocess
    assert preprocess is not None
    assert preprocess.fit == "stretch"


def test_what_a_table_of_a_task_lacks_is_told() -> None:
    draft = drafted((LINE,), (tensor("y", -1, -1, 4),), ())
    manifest, lacking = with_task_table(draft.manifest, draft.proposal)
    assert (manifest.task, manifest.task_options) == ("text-recognition", None)
    assert lacking.startswith("task.charset: missing; name the characters")


def test_rows_that_a_recurrent_network_has_second_are_first_for_clients() -> None:
    axes = (replace(tensor("image", -1, 3, 60, 160), axes=("batch", "", "", "")),)
    draft = drafted(axes, (replace(tensor("y", 20, -1, 4), axes=("", "batch", "")),), ("a", "b", "c"))
    (output,) = draft.manifest.outputs
    assert (draft.manifest.batched, output.shape, output.layout) == (True, (-1, 20, 4), "NLC")
    assert draft.manifest.variants[0].bind["y"] == Binding("y", "LNC")
    assert "second dimension" in draft.notes["output.y.layout"]
    assert draft.manifest.task_options == {}


def test_a_second_dimension_of_another_name_counts_no_rows() -> None:
    axes = (replace(tensor("image", -1, 3, 60, 160), axes=("batch", "", "", "")),)
    draft = drafted(axes, (replace(tensor("y", 20, -1, 4), axes=("", "steps", "")),), ("a", "b", "c"))
    assert (draft.manifest.batch, draft.manifest.outputs[0].shape) == (False, (20, -1, 4))
