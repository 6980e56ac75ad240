"""Pipelines as models: several versions, staging, routes, shadows, and pipelines in pipelines; rows of mixed origin."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import RequestError
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.release import Release
from gateway.common.domain.tensor import Datatype, Tensors
from tests.simulators.pipelines import FOUND, PipelineRig, spec

pytestmark = pytest.mark.asyncio
ONE = """
[input]
x = "FP32[]"
[[step]]
name = "one"
model = "m"
of = "x"
[output]
y = "one.y{more}"
"""


def rig_with_m() -> PipelineRig:
    """Return a rig with the model `m`: y = x + 1."""
    rig = PipelineRig()
    rig.model("m", lambda of: {"y": of["x"] + 1}, (spec("x"),), (spec("y"),))
    return rig


def version(number: str, more: str) -> Release:
    """Return a signed release of a version of `chain`."""
    text = f'schema = 1\nname = "chain"\nversion = "{number}"\n' + ONE.format(more=more)
    declared = read_pipeline(text, "pipeline.toml")
    return Release("chain", number, Path("/models"), f"v{number}", pipeline=declared, signed=True)


async def y(rig: PipelineRig, name: str = "chain", **changes: object) -> float:
    """Return the answer to x = 1."""
    return float((await rig.ask({"x": np.array([1.0])}, "y", name=name, **changes))["y"][0])


async def test_a_staged_pipeline_answers_what_a_route_gives_it() -> None:
    rig = rig_with_m()
    rig.pipelines["chain"] = version("1", "")
    await rig.begin()
    loaded = await rig.stage_release(version("2", " * 10"))
    assert loaded.variant == "pipeline"
    assert await y(rig) == 2
    rig.repository.route("chain", {"1": 50, "2": 50}, lease_s=60)
    assert sorted([await y(rig) for _ in range(4)]) == [2, 2, 20, 20]
    rig.repository.route("chain", {"1": 100}, shadow="2", lease_s=60)
    assert [await y(rig) for _ in range(3)] == [2, 2, 2]
    rig.pipelines["chain"] = version("2", " * 10")
    await rig.begin()
    assert await y(rig) == 20


async def test_pipelines_run_pipelines() -> None:
    rig = rig_with_m()
    rig.pipeline(ONE.format(more=""), "inner")
    rig.pipeline(ONE.format(more=" + 100").replace('"m"', '"inner"'), "outer")
    await rig.begin()
    assert await y(rig, "outer") == 102
    with pytest.raises(RequestError, match="is run by the pipeline outer"):
        await rig.repository.unload("inner")
    rig.pipeline(ONE.format(more=" * 3"), "inner", digest="p2")
    await rig.begin()
    assert await y(rig, "outer") == 106
    text = ONE.format(more="").replace("one.y", "'big' if one.y > 0 else 'small'")
    rig.pipeline(text, "inner", digest="p3")  # another datatype
    await rig.begin()
    with pytest.raises(
        RequestError, match=r"pipeline 'outer': a model was replaced: .* is text; here it must be a number"
    ):
        await y(rig, "outer")
    assert "is text" in rig.reason("outer")
    rig.pipeline(ONE.format(more=" * 3"), "inner", digest="p4")
    await rig.begin()
    assert await y(rig, "outer") == 106


@pytest.mark.parametrize("gone", [False, True])
async def test_what_is_under_way_in_nested_pipelines_is_answered_before_they_close(*, gone: bool) -> None:
    rig = PipelineRig(slow=("m",))
    rig.model("m", lambda of: {"y": of["x"] + 1}, (spec("x"),), (spec("y"),))
    two = ONE.replace("[output]", '[[step]]\nname = "two"\nmodel = "{run}"\nof = "one.y"\n[output]').replace(
        "one.y{more}", "two.y"
    )
    rig.pipeline(two.format(run="m"), "a")
    rig.pipeline(two.format(run="a"), "b")
    rig.pipeline(two.format(run="b"), "c")
    await rig.begin()
    gate = rig.session_of("m").gate
    gate.clear()
    asked = [asyncio.create_task(y(rig, name)) for name in "abc"]
    await asyncio.sleep(0.05)
    rig.pipelines.clear()
    rig.manifests.clear()
    ending = asyncio.create_task(rig.begin() if gone else rig.repository.close())
    await asyncio.sleep(0.05)
    gate.set()
    await ending
    assert await asyncio.gather(*asked) == [3, 4, 5]


async def test_pipelines_that_run_each_other_are_refused_with_their_names() -> None:
    rig = rig_with_m()
    for name, run in (("a", "b"), ("b", "c"), ("c", "a"), ("user", "a"), ("alone", "m")):
        rig.pipeline(ONE.format(more="").replace('"m"', f'"{run}"'), name)
    await rig.begin()
    ring = "pipelines run each other: a → b → c → a; take one of these steps out"
    assert [rig.reason(name) for name in "abc"] == [ring] * 3
    assert "'a' is not ready" in rig.reason("user")
    assert await y(rig, "alone") == 2
    rig.pipeline(ONE.format(more=""), "c", digest="p2")
    await rig.begin()
    assert await y(rig, "user") == 2


async def test_a_pipeline_runs_an_older_version_of_the_one_that_would_run_it() -> None:
    rig = rig_with_m()
    rig.pipelines["chain"] = version("1", "")
    rig.pipeline(ONE.format(more="").replace('"m"', '"chain"'), "outer")
    await rig.begin()
    later = replace(
        version("2", ""),
        pipeline=read_pipeline(
            'schema = 1\nname = "chain"\nversion = "2"\n' + ONE.format(more="").replace('"m"', '"outer"'),
            "pipeline.toml",
        ),
    )
    rig.pipelines["later"] = later
    await rig.begin()
    assert await y(rig, "outer") == 2
    assert "runs itself" in next(one.reason for one in rig.repository.index() if one.version == "2")


@pytest.mark.parametrize("name", ["score", "class", "label"])
async def test_a_list_of_a_pipeline_is_a_list_also_under_the_name_of_a_classifiers_result(name: str) -> None:
    def found(of: Tensors) -> Tensors:
        rows = len(of["x"])
        scores, classes = np.tile(np.float32([0.25, 0.75]), (rows, 1)), np.tile(np.int32([0, 1]), (rows, 1))
        return {"boxes": np.zeros((rows, 2, 4), np.float32), "scores": scores, "classes": classes}

    rig = rig_with_m()
    rig.model("find", found, (spec("x"),), FOUND, answered=("boxes", "scores", "classes"), labels=("car", "dog"))
    rig.pipeline(ONE.format(more="").replace('"m"', '"find"').replace('y = "one.y"', f'{name} = "one.{name}"'), "inner")
    rig.pipeline(ONE.format(more="").replace('"m"', '"inner"').replace('"one.y"', f'"one.{name}"'), "outer")
    await rig.begin()
    inputs = {"x": np.array([1.0, 2.0])}
    inner, outer = (await rig.ask(inputs, name, name="inner"))[name], (await rig.ask(inputs, "y", name="outer"))["y"]
    assert outer.shape == (2, 2)
    assert outer.tolist() == inner.tolist()


async def test_a_pipeline_under_the_models_of_a_route_answers_with_each() -> None:
    rig = rig_with_m()
    rig.pipeline(ONE.format(more=""))
    await rig.begin()
    of = replace(rig.manifests["m"], version="2")
    rig.runtime.functions["m"] = lambda inputs: {"y": inputs["x"] + 50}  # type: ignore[attr-defined]
    await rig.stage(of, "d2")
    rig.repository.route("m", {"1": 50, "2": 50}, lease_s=60)
    assert {await y(rig) for _ in range(6)} == {2, 51}


@pytest.mark.parametrize("changes", [{"labels": ("dog", "cat")}, {"outputs": (spec("z", 2),)}])
async def test_a_version_of_a_route_that_means_something_else_answers_no_pipeline(changes: dict[str, Any]) -> None:
    rig = PipelineRig()
    rig.model("m", lambda of: {"y": of["x"], "z": of["x"]}, (spec("x", 2),), (spec("y", 2),), labels=("cat", "dog"))
    rig.pipeline(ONE.format(more="").replace("FP32[]", "FP32[2]").replace('"one.y"', '"label(argmax(one.y), one)"'))
    await rig.begin()
    rig.runtime.functions["m"] = lambda of: {"y": of["x"][:, ::-1], "z": of["x"]}  # type: ignore[attr-defined]
    await rig.stage(replace(rig.manifests["m"], version="2", **changes), "d2")
    rig.repository.route("m", {"1": 60, "2": 40}, lease_s=60)
    assert [(await rig.ask({"x": np.array([[9.0, 1.0]])}, "y"))["y"][0] for _ in range(6)] == [b"cat"] * 6


# ---- rows of mixed origin --------------------------------------------------------------------------------------------
MIXED = """
[input]
x = "FP32[]"
[[step]]
name = "low"
model = "small"
of = "x"
[[step]]
name = "high"
model = "large"
of = "x"
when = "x > 5"
else = "low"
fallback = {{ y = -7 }}
[output]
y = "high.y"
"""


async def mixed(datatype: Datatype = Datatype.FP32, **changes: object) -> PipelineRig:
    """Return a rig with a cascade whose second model has a fallback."""
    rig = PipelineRig()
    rig.model("small", lambda of: {"y": of["x"].astype(datatype.dtype)}, (spec("x"),), (spec("y", datatype=datatype),))
    rig.model("large", lambda of: {"y": of["x"] * 2.5}, (spec("x"),), (spec("y"),), **changes)  # type: ignore[arg-type]
    rig.pipeline(MIXED.replace("{{", "{").replace("}}", "}"))
    await rig.begin()
    return rig


async def test_a_failed_run_leaves_the_rows_that_were_skipped() -> None:
    rig = await mixed()
    x = np.array([1.0, 9.0, 2.0, 7.0])
    np.testing.assert_array_equal((await rig.ask({"x": x}, "y"))["y"], [1, 22.5, 2, 17.5])
    rig.session_of("large").failure = RuntimeError("broken")
    np.testing.assert_array_equal((await rig.ask({"x": x}, "y"))["y"], [1, -7, 2, -7])


async def test_whole_numbers_of_else_become_those_of_the_step() -> None:
    rig = await mixed(Datatype.INT32)
    answer = await rig.ask({"x": np.array([1.0, 9.0])}, "y")
    assert "does not hold" in rig.reason() or answer["y"].tolist() == [1, 22.5]


async def test_a_failing_part_fails_the_step_once() -> None:
    rig = await mixed(max_batch_rows=1)
    x = np.arange(6.0, 30.0)
    np.testing.assert_array_equal((await rig.ask({"x": x}, "y"))["y"], x * 2.5)
    rig.session_of("large").failure = RuntimeError("broken")
    np.testing.assert_array_equal((await rig.ask({"x": x}, "y"))["y"], np.full(24, -7.0))
    assert sum(step.fallbacks for step in rig.target().steps) == 1
    assert not rig.target().busy


async def test_lists_of_different_lengths_are_filled_up() -> None:
    rig = PipelineRig()

    def ones(of: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"y": np.ones((len(of["x"]), int(of["x"].max())), np.int32)}

    rig.model("m", ones, (spec("x"),), (spec("y", -1, datatype=Datatype.INT32),), max_batch_rows=1)  # type: ignore[arg-type]
    rig.pipeline(ONE.format(more=""))
    await rig.begin()
    answer = await rig.ask({"x": np.array([1.0, 3.0])}, "y")
    assert answer["y"].tolist() == [[1, -1, -1], [1, 1, 1]]


async def test_steps_side_by_side_run_side_by_side() -> None:
    rig = PipelineRig(slow=("a", "b"))
    for name in "ab":
        rig.model(name, lambda of, name=name: {"y": of["x"] + ord(name)}, (spec("x"),), (spec("y"),))  # type: ignore[misc]
    steps = "".join(f'[[step]]\nname = "s{name}"\nmodel = "{name}"\nof = "x"\n' for name in "ab")
    rig.pipeline(f'[input]\nx = "FP32[]"\n{steps}[output]\ny = "sa.y + sb.y"')
    await rig.begin()
    for name in "ab":
        rig.session_of(name).gate.clear()
    request = asyncio.create_task(y(rig))
    await rig.begun(rig.session_of("a"))
    await rig.begun(rig.session_of("b"))
    for name in "ba":
        rig.session_of(name).gate.set()
    assert await request == 2 + ord("a") + ord("b")
