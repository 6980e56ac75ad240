"""Exports of Transformers give here what Transformers itself computes, from the image to the result.

Recorded with Transformers 5.17 (make_transformers_values.py): pixels of its image processors, outputs of tiny models,
and the results that its processors make of these outputs.
"""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.manifest_toml import read_manifest
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.verdict import Signature
from gateway.serving.engine.images import decode_images
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.tasks.interpreter import interpreter_of
from gateway.workshop.importing.hugging_face import read_hugging_face
from gateway.workshop.importing.imported import ImportOutcome
from gateway.workshop.importing.release_writer import UNKNOWN, release_text, settled
from gateway.workshop.importing.source import Documents, SourceModel

RECORDED = dict(np.load(Path(__file__).with_name("transformers_values.npz")))
SCORE = 0.3
IMAGE = RECORDED["image"]
OF_MODEL = {"detr": ("pixel_mask",), "conditional": ("pixel_mask",)}
"""Further inputs of Optimum's exports."""


def recorded(model):
    return {key.removeprefix(f"{model}."): value for key, value in RECORDED.items() if key.startswith(f"{model}.")}


def imported(model):
    """Import as from a folder of Optimum, whose exports have open sizes of images."""
    values = recorded(model)
    inputs = [TensorSpec("pixel_values", Datatype.FP32, (-1, -1, -1, -1))]
    inputs += [TensorSpec(name, Datatype.INT64, (-1, -1, -1)) for name in OF_MODEL.get(model, ())]
    raw = {key.removeprefix("raw."): value for key, value in values.items() if key.startswith("raw.")}
    outputs = [TensorSpec(name, Datatype.FP32, (-1, *value.shape[1:])) for name, value in raw.items()]
    file = SourceModel("model.onnx", "onnx", Signature(tuple(inputs), tuple(outputs)))
    texts = {"config.json": str(values["config"]), "preprocessor_config.json": str(values["processor"])}
    documents = Documents(model, frozenset({*texts, "model.onnx"}), texts, {}, {"model.onnx": file})
    (found,) = read_hugging_face(documents).models
    return settled(found), values, raw


def manifest_of(found):
    return read_manifest(release_text(found, {"onnx-fp32": [UNKNOWN]}, "source"), "manifest.toml")


def decoded(manifest):
    content = io.BytesIO()
    Image.fromarray(IMAGE).save(content, "PNG")
    elements = np.empty(1, object)
    elements[0] = content.getvalue()
    return decode_images(elements, manifest.inputs[0], EngineSettings())


def result(model):
    found, values, raw = imported(model)
    manifest = manifest_of(found)
    if manifest.outputs[0].postprocess == "softmax":
        shifted = np.exp(raw["logits"] - raw["logits"].max())
        raw = {"logits": shifted / shifted.sum()}
    interpreter = interpreter_of(manifest)
    results = interpreter.interpret(raw, None, {}, decoded(manifest)[1])
    return json.loads(results["result"][0]), results, values


@pytest.mark.parametrize("model", sorted({key.split(".")[0] for key in RECORDED if ".config" in key}))
def test_pixels_are_those_of_the_image_processor(model):
    found, values, _ = imported(model)
    pixels, _ = decoded(manifest_of(found))
    differences = np.abs(pixels - values["pixel_values"])
    assert pixels.shape == values["pixel_values"].shape
    # one step of 255 is 0.0078 to 0.018; a crop rounds places to pixels of another grid here
    assert differences.mean() < 0.02
    assert differences.max() < (0.2 if found.preprocess["pixel_values"]["fit"] == "crop" else 0.02)
    assert not [each for each in found.findings if each.outcome is ImportOutcome.LEFT_OUT]


@pytest.mark.parametrize("model", ["vit", "centre", "share"])
def test_classes(model):
    document, _, values = result(model)
    scores = {each["class"]: each["score"] for each in document["classes"]}
    expected = values["result.probabilities"][0]
    assert document["label"] == f"thing {expected.argmax()}"
    assert scores == pytest.approx({number: expected[number] for number in scores}, abs=1e-5)


@pytest.mark.parametrize("model", ["yolos", "detr", "conditional"])
def test_detections(model):
    document, _, values = result(model)
    height, width = IMAGE.shape[:2]
    boxes = np.clip(values["result.boxes"], 0, [width, height, width, height])
    found = [each for each in document["detections"] if each["score"] > SCORE]
    areas, own = has_area(boxes), has_area(np.array([each["box"] for each in found]))
    found = [each for each, wide in zip(found, own, strict=True) if wide]
    order = np.argsort(-values["result.scores"][areas], kind="stable")
    assert len(found) == areas.sum() >= 3
    np.testing.assert_allclose([each["score"] for each in found], values["result.scores"][areas][order], atol=1e-5)
    np.testing.assert_allclose([each["box"] for each in found], boxes[areas][order], atol=0.01)
    assert [each["class"] for each in found] == values["result.labels"][areas][order].tolist()


def has_area(boxes):
    """Return True for boxes that are no line: those without area in the image are left out here."""
    return (boxes[:, 2:] - boxes[:, :2] > 0.05).all(axis=1)


def test_classes_of_pixels():
    _, results, values = result("segformer")
    assert (results["classes"][0] == values["result.map"]).mean() > 0.999


def test_a_mask_of_pixels_need_not_be_sent():
    found, _, _ = imported("detr")
    mask = manifest_of(found).inputs[1]
    assert (mask.name, mask.shape, mask.default) == ("pixel_mask", (-1, 64, 64), 1.0)
