"""Models of a pipeline that are replaced while it answers."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import RequestError
from gateway.common.domain.manifest import Artifact
from gateway.common.domain.release import Release
from gateway.serving.pipelines import target
from gateway.serving.pipelines.plan import Plan, plan
from tests.simulators.engine_rig import release
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


@pytest.mark.asyncio
async def test_no_request_fails_while_the_golden_set_runs_for_each_new_version(tmp_path: Path) -> None:
    rig, x = PipelineRig(), np.ones((1, 4), np.float32)
    np.savez(tmp_path / "golden.npz", **{"input.x": x, "output.y": x + 4})  # type: ignore[arg-type]
    digest = hashlib.sha256((tmp_path / "golden.npz").read_bytes()).hexdigest()
    golden = f'[golden]\nfile = "golden.npz"\nsha256 = "{digest}"\n'
    rig.model("m", lambda inputs: {"y": inputs["x"] + 1}, (spec("x", 4),), (spec("y", 4),))
    rig.pipeline(f'{CHAIN}[output]\ny = "s3.y"\n{golden}', folder=tmp_path)
    await rig.begin()
    targets, answered, swapping = {id(rig.target()): rig.target()}, 0, True

    async def ask() -> None:
        nonlocal answered
        while swapping:
            np.testing.assert_array_equal((await rig.ask({"x": x}, "y"))["y"], x + 4)
            answered += 1

    callers = [asyncio.create_task(ask()) for _ in range(4)]
    for number in range(50):
        files = (Artifact("m.onnx", f"{number:064x}", 1),)
        variants = (replace(rig.manifests["m"].variants[0], artifacts=files),)
        rig.manifests["m"], rig.digests["m"] = replace(rig.manifests["m"], variants=variants), f"d{number + 2}"
        await rig.begin()
        targets[id(rig.target())] = rig.target()
    swapping = False
    await asyncio.gather(*callers)
    assert len(targets) == 51
    assert rig.target().statistics.inferences == answered > 50
    assert rig.target().statistics.fail.count == 0


def misfit(rig: PipelineRig, size: int, digest: str) -> None:
    """Add a model of rows of `size` numbers."""
    rig.model("m", lambda inputs: {"y": inputs["x"]}, (spec("x", size),), (spec("y", size),), digest=digest)


def same_pipelines(rig: PipelineRig) -> dict[tuple[str, str], Release]:
    """Return the pipelines of a rig, as a folder's next scan finds them unchanged."""
    return {(each.name, each.version): each for each in rig.pipelines.values()}


async def follow_models(rig: PipelineRig) -> None:
    """Serve what was added; the pipelines did not change."""
    models = [release(of, rig.digests[name]) for name, of in rig.manifests.items()]
    await rig.repository.synchronise([*models, *rig.pipelines.values()], same=same_pipelines(rig))


def test_a_pipeline_is_equal_to_itself_when_it_is_read_again() -> None:
    rig, again = PipelineRig(), PipelineRig()
    for each in (rig, again):
        each.pipeline(CHAIN + '[output]\ny = "s3.y"\n')
    assert rig.pipelines == again.pipelines


@pytest.mark.asyncio
async def test_a_refused_pipeline_is_tried_again_when_its_model_changes() -> None:
    rig = PipelineRig()
    misfit(rig, 5, "d1")
    rig.pipeline(CHAIN + '[output]\ny = "s3.y"\n')
    rig.pipeline(
        '[input]\nx = "FP32[4]"\n[[step]]\nname = "s"\nmodel = "chain"\nof = "x"\n[output]\ny = "s.y"\n', "outer"
    )
    await rig.begin()
    assert "[5]" in rig.reason()
    misfit(rig, 4, "d2")
    await follow_models(rig)
    assert rig.reason() == ""
    assert rig.reason("outer") == ""
    x = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal((await rig.ask({"x": x}, "y", name="outer"))["y"], x)


@pytest.mark.asyncio
async def test_a_refused_pipeline_that_is_gone_is_not_tried_again() -> None:
    rig = PipelineRig()
    misfit(rig, 5, "d1")
    rig.pipeline(CHAIN + '[output]\ny = "s3.y"\n')
    await rig.begin()
    rig.pipelines.clear()
    misfit(rig, 4, "d2")
    await follow_models(rig)
    assert [entry.name for entry in rig.repository.index()] == ["m"]
    misfit(rig, 4, "d3")
    await follow_models(rig)
    assert [entry.name for entry in rig.repository.index()] == ["m"]


@pytest.mark.asyncio
async def test_a_pipeline_that_does_not_fit_any_more_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, planned = PipelineRig(), list[str]()
    misfit(rig, 4, "d1")
    rig.pipeline(CHAIN + '[output]\ny = "s3.y"\n')
    await rig.begin()

    def counted(*given: Any) -> Plan:
        planned.append("once")
        return plan(*given)

    monkeypatch.setattr(target, "plan", counted)
    x, words = np.ones((1, 4), np.float32), list[str]()
    for digest in ("d2", "d3"):
        misfit(rig, 5, digest)
        await rig.begin()
        planned.clear()
        for _ in range(3):
            with pytest.raises(RequestError) as caught:
                await rig.ask({"x": x}, "y")
            words.append(caught.value.message)
        assert len(planned) <= 1
    assert set(words) == {words[0]}
    assert "a model was replaced: pipeline.toml:" in words[0]
    assert rig.reason().startswith("it is refused with the models that serve now: pipeline.toml:")
    misfit(rig, 4, "d4")
    await rig.begin()
    assert (await rig.ask({"x": x}, "y"))["y"].shape == (1, 4)
