"""The form of frames that a model takes, by its metadata and configuration as the gateway writes them."""

from types import SimpleNamespace

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ModelManifest, Preprocess, TensorSpec
from gateway.common.domain.pipeline import PipelineInput
from gateway.common.domain.statistics import Placement
from gateway.common.domain.tensor import Datatype
from gateway.serving.frontends.cameras.forms import FrameForm, choose_form
from gateway.serving.frontends.documents import model_config, model_metadata
from gateway.workshop.camera.requests import binary_request, region_request, wire_parts


def chosen(*inputs: TensorSpec, batch: bool = True) -> FrameForm:
    """Return the form for a model with these inputs, as a client sees it."""
    manifest = ModelManifest("street", "1", inputs, (), (), batch=batch)
    placement = Placement("onnx-fp32", "onnx", "fp32", "cpu", "", 8)
    config = model_config(manifest, placement, ["1"])
    return choose_form("street", model_metadata(manifest, placement, ["1"])["inputs"], config)


def image(**preprocess) -> TensorSpec:
    return TensorSpec("images", Datatype.FP32, (-1, 3, 64, 64), "NCHW", preprocess=Preprocess(**preprocess))


def test_raw_frames_are_sent_where_the_manifest_declares_them():
    form = chosen(image(decode=("nv12",), frame=(1080, 1920), color_matrix="bt709"))
    assert form == FrameForm("images", "nv12", (1920, 1080), matrix="bt709", color_range="limited")
    assert str(form) == "NV12 of 1920 by 1080 pixels"
    assert chosen(image(decode=("i420",), frame=(2, 4))).pixels == "yuv420p"
    assert chosen(image(decode=("yuyv",), frame=(2, 4), color_range="full")).color_range == "full"


def test_inputs_with_a_default_need_no_frames():
    mask = TensorSpec("mask", Datatype.UINT8, (-1, 64, 64), default=1.0)
    assert chosen(mask, image(decode=("jpeg",))).input == "images"


def test_of_compressed_images_jpeg_is_the_cheaper_one():
    assert chosen(image(decode=("png", "jpeg"))).image == "jpeg"
    assert str(chosen(image(decode=("png",)))) == "PNG"


@pytest.mark.parametrize(
    ("shape", "layout", "size", "pixels", "sent"),
    [
        ((-1, 48, 64, 3), "NHWC", (64, 48), "rgb24", [1, 48, 64, 3]),
        ((-1, 3, 48, 64), "", (64, 48), "rgb24", [1, 3, 48, 64]),
        ((-1, -1, -1, 3), "", None, "rgb24", [1, 20, 30, 3]),
        ((1, 1, -1, -1), "NCHW", None, "gray", [1, 1, 20, 30]),
    ],
)
def test_a_model_that_takes_bytes_of_pixels_gets_tensors(shape, layout, size, pixels, sent):
    form = chosen(TensorSpec("frame", Datatype.UINT8, shape, layout))
    assert (form.size, form.pixels) == (size, pixels)
    assert form.shape(*(size or (30, 20))) == sent


def test_a_model_without_rows_gets_an_image_of_three_dimensions():
    assert chosen(TensorSpec("frame", Datatype.UINT8, (48, 64, 3)), batch=False).shape(64, 48) == [48, 64, 3]


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ([TensorSpec("x", Datatype.FP32, (-1, 3, 64, 64))], r"takes FP32 \[-1, 3, 64, 64\] and no images; declare"),
        ([TensorSpec("x", Datatype.UINT8, (-1, 64))], "no images"),
        ([TensorSpec("x", Datatype.UINT8, (-1, 6, 8, 8), "NCHW")], "images of 6 channels"),
        ([TensorSpec("x", Datatype.UINT8, (-1,)), TensorSpec("y", Datatype.UINT8, (-1,))], "has the inputs x, y"),
    ],
)
def test_a_model_that_takes_no_frames_is_refused_with_the_remedy(inputs, problem):
    with pytest.raises(ConfigurationError, match=problem):
        chosen(*inputs)


def test_an_image_has_its_length_before_it_and_a_tensor_has_none():
    encoded, tensor = FrameForm("images", "rgb24", image="jpeg"), FrameForm("x", "gray", layout="NHWC", rank=4)
    assert wire_parts(encoded, b"abc") == (b"\x03\0\0\0", b"abc")
    assert wire_parts(tensor, b"abc") == (b"abc",)
    body, headers = binary_request(encoded, [1], (b"\x03\0\0\0", b"abc"), ["result"])
    length = int(headers["Inference_Header_Content_Length"])
    assert body[length:] == b"\x03\0\0\0abc"
    assert b'"datatype": "BYTES"' in body[:length]
    assert b'"binary_data_size": 7' in body[:length]
    assert b'"shared_memory_byte_size": 7' in region_request(encoded, [1], "region", 7, [])


def test_a_pipeline_takes_images_where_it_declares_them():
    inputs = (TensorSpec("image", Datatype.BYTES, (-1,)),)
    manifest = ModelManifest("gate", "1", inputs, (), ())
    for kind in ("image", "text"):
        declared = SimpleNamespace(inputs=(PipelineInput("image", kind),))
        placement = Placement("pipeline", "pipeline", "none", "cpu", "", 8, pipeline=declared)
        described = model_metadata(manifest, placement, ["1"])["inputs"], model_config(manifest, placement, ["1"])
        if kind == "image":
            assert choose_form("gate", *described) == FrameForm("image", "rgb24", image="jpeg")
        else:
            with pytest.raises(ConfigurationError, match="no images"):
                choose_form("gate", *described)
