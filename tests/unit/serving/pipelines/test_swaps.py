"""Models of a pipeline that are replaced while it answers."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.simulators.examples import examples
from tests.simulators.pipelines import PipelineRig, asked, spec

CHAIN = '[input]\nx = "FP32[4]"\n' + "".join(
    f'[[step]]\nname = "s{place}"\nmodel = "m"\nof = "{f"s{place - 1}.y" if place else "x"}"\n' for place in range(4)
)


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_no_request_fails_while_its_model_is_replaced_again_and_again() -> None:
    rig = PipelineRig()
    rig.model("m", lambda inputs: {"y": inputs["x"] + 1}, (spec("x", 4),), (spec("y", 4),))
    rig.pipeline(CHAIN + '[output]\ny = "s3.y"\n')
    await rig.begin()
    swapping, answered = True, 0

    async def ask(caller: int) -> None:
        nonlocal answered
        while swapping:
            x = np.full((1, 4), answered % 1000 + caller, np.float32)
            response = await rig.engine.infer(asked({"x": x}, "y"))
            np.testing.assert_array_equal(response.outputs["y"].array, x + 4)
            answered += 1

    callers = [asyncio.create_task(ask(number)) for number in range(8)]
    swaps = examples(1000)
    for number in range(swaps):
        rig.digests["m"] = f"d{number + 2}"
        await rig.begin()
    swapping = False
    await asyncio.gather(*callers)
    assert len(rig.runtime.sessions) == swaps + 1
    assert answered > swaps
