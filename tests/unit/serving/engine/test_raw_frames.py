"""Raw frames of a camera from the request to the model's input, through the engine."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import Preprocess, TensorSpec
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.domain.infer import InferRequest
from tests.simulators.engine_rig import Rig, manifest
from tests.simulators.images_made import elements

NV12_4X2 = Preprocess(("nv12",), color="gray", frame=(4, 2), color_range="full", scale=0.5, mean=(1.0,), std=(2.0,))
INPUT = TensorSpec("x", Datatype.FP32, (-1, 1, 4, 2), preprocess=NV12_4X2)
OUTPUT = TensorSpec("y", Datatype.FP32, (-1, 1, 4, 2))


def frames(*contents: bytes) -> InferRequest:
    return InferRequest("m", {"x": Tensor(Datatype.BYTES, elements(*contents))})


@pytest.mark.asyncio
async def test_raw_frames_reach_the_model_as_its_manifest_declares() -> None:
    rig = Rig()
    await rig.serve(manifest(inputs=(INPUT,), outputs=(OUTPUT,)))
    luma = np.arange(0, 80, 10, dtype=np.uint8)
    got = (await rig.engine.infer(frames(luma.tobytes() + bytes(4), bytes(12)))).outputs["y"].array
    assert np.array_equal(got[0, 0].ravel(), (luma * np.float32(0.5) - 1) / 2)
    assert (got[1] == -0.5).all()


@pytest.mark.asyncio
async def test_a_frame_of_another_size_is_refused_with_the_sizes() -> None:
    rig = Rig()
    await rig.serve(manifest(inputs=(INPUT,), outputs=(OUTPUT,)))
    with pytest.raises(RequestError, match="image 1 of input 'x' has 11 bytes, but a frame of 2 by 4") as error:
        await rig.engine.infer(frames(bytes(12), bytes(11)))
    assert error.value.fault is Fault.INVALID
