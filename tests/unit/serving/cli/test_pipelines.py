"""Pipelines as commands show them: the graph drawn, the figures, and whether the models on disk fit."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.release import Release
from gateway.common.domain.statistics import StepStatistics
from gateway.common.domain.tensor import Datatype
from gateway.serving.cli.pipeline_svg import HEIGHT, RISE, WIDTH, draw_pipeline
from gateway.serving.cli.pipelines import check_pipeline, with_figures, with_models, write_svg
from gateway.serving.frontends.documents import pipeline_steps
from gateway.serving.pipelines.settings import PipelineSettings
from gateway.serving.tasks.drawing import draw

HEAD = 'schema = 1\nname = "{name}"\nversion = "1"\n[input]\nx = "FP32[4]"\n'
SVG = "{http://www.w3.org/2000/svg}"


def text(name: str, *steps: tuple[str, str, str], output: str = "last.y") -> str:
    """Return a pipeline whose steps are (name, model, input)."""
    lines = [f'[[step]]\nname = "{step}"\nmodel = "{model}"\nof = "{of}"\n' for step, model, of in steps]
    return HEAD.format(name=name) + "".join(lines) + f'[output]\ny = "{output}"\n'


def release(name: str, version: str = "1", pipeline: str = "", problem: str = "") -> Release:
    declared = read_pipeline(pipeline, f"{name}/pipeline.toml") if pipeline else None
    return Release(name, version, Path(name), name, problem=problem, pipeline=declared)


async def manifest_of(one: Release) -> ModelManifest:
    sides = [(TensorSpec(name, Datatype.FP32, (ROWS, 4)),) for name in "xy"]
    return ModelManifest(one.name, one.version, sides[0], sides[1], ())


def checked(of: Release, *others: Release) -> ModelManifest:
    return asyncio.run(check_pipeline(of, (of, *others), manifest_of, PipelineSettings()))


CHAIN = text("chain", ("first", "a", "x"), ("last", "b@2", "first.y"))


def test_a_pipeline_is_checked_against_the_models_on_disk() -> None:
    chain = release("chain", pipeline=CHAIN)
    found = checked(chain, release("a"), release("b", "1"), release("b", "2"))
    assert [spec.name for spec in found.outputs] == ["result", "y"]
    nested = release("outer", pipeline=text("outer", ("last", "chain", "x")))
    assert checked(nested, chain, release("a"), release("b", "2")).name == "outer"


def test_code_that_is_off_is_said() -> None:
    code = text("chain").replace(
        "[output]", '[[step]]\nname = "last"\npython = "s.py"\nof = "x"\noutputs.y = "FP32[4]"\n[output]'
    )
    with pytest.raises(VariantError, match=r"\[pipelines\] python = true"):
        checked(release("chain", pipeline=code))


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([release("a")], "the model b version 2, which it runs, is not there"),
        ([release("b", "2"), release("a", problem="its file is damaged")], "a, .*is damaged"),
        ([release("a", pipeline=text("a", ("last", "chain", "x"))), release("b", "2")], "runs itself"),
    ],
)
def test_what_a_pipeline_lacks_is_said(others: list[Release], words: str) -> None:
    with pytest.raises((VariantError, ConfigurationError), match=words):
        checked(release("chain", pipeline=CHAIN), *others)


def test_what_does_not_fit_is_said_with_the_step() -> None:
    wrong = release("chain", pipeline=text("chain", ("last", "a", "x"), output="last.scores"))
    with pytest.raises(ConfigurationError, match="scores"):
        checked(wrong, release("a"))


def test_a_pipeline_comes_with_the_models_that_its_pipelines_run() -> None:
    chain, a, b = release("chain", pipeline=CHAIN), release("a"), release("b", "2")
    outer = release("outer", pipeline=text("outer", ("last", "chain", "x")))
    found = with_models(outer, (a, release("other"), b, chain, outer))
    assert sorted(one.name for one in found) == ["a", "b", "chain", "outer"]
    assert with_models(a, (a, b)) == [a]


def document(pipeline: str, **counted: StepStatistics) -> dict[str, Any]:
    found = pipeline_steps(read_pipeline(pipeline, "p"), counted)
    with_figures(found)
    return found


def test_the_shares_of_the_steps_make_up_the_whole() -> None:
    found = document(CHAIN, first=StepStatistics(2, 4, ns=3_000_000), last=StepStatistics(1, 1, ns=1_000_000))
    first, last = found["steps"]
    assert (first["mean_us"], first["share"], last["share"]) == (1_500, 0.75, 0.25)
    assert "share" not in document(CHAIN, first=StepStatistics())["steps"][0]


def test_the_times_and_the_cpu_of_a_step() -> None:
    ran, skipped = StepStatistics(rows=30), StepStatistics(skipped_rows=2)
    for ns in (*[900_000] * 3, *range(200_000, 327_000, 1_000)):  # of which the last 127 remain
        ran.runs += 1
        ran.took(ns)
    ran.row_cpu_ns = 26_000
    found = document(CHAIN, first=ran, last=skipped)
    first, last = found["steps"]
    assert (first["p50_us"], first["cpu_us"]) == (263, pytest.approx(26 * 30 / 130))
    assert "recent_ns" not in first
    assert (last["p50_ns"], "p50_us" in last) == (0, False)
    json.dumps(found)


def test_the_steps_of_an_older_gateway_have_no_median() -> None:
    found = pipeline_steps(read_pipeline(CHAIN, "p"), {"first": StepStatistics(2, 4, ns=3_000_000)})
    for step in found["steps"]:
        step.pop("p50_ns", None), step.pop("row_cpu_ns", None)
    with_figures(found)
    first = found["steps"][0]
    assert (first["mean_us"], first["p50_us"], first["cpu_us"]) == (1_500, 0, 0)
    assert "2 × 1,500 µs" in draw_pipeline(found)


def read_svg(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314  our own


def boxes(svg: str) -> dict[str, tuple[float, float]]:
    """Return the left upper corner of each box by the name in it."""
    found = {}
    for group in read_svg(svg).iter(f"{SVG}g"):
        name, place = group.find(f"{SVG}text"), group.find(f"{SVG}rect")
        assert name is not None
        assert place is not None
        assert name.text is not None
        found[name.text] = float(place.attrib["x"]), float(place.attrib["y"])
    return found


def test_the_drawing_has_the_figures_and_escapes_what_it_shows() -> None:
    source = text("chain", ("first", "a", "x"), ("last", "b", "first.y"), output="last.y if sum(x) < 1 else first.y")
    drawn = draw_pipeline(
        document(source, first=StepStatistics(1_200, 7, 21, 3, 4, 60_000_000, recent_ns=deque([50_000])))
    )
    words = [each.text for each in read_svg(drawn).iter(f"{SVG}text")]
    assert {"1,200 × 50 µs · 100%", "75% skipped"} <= set(words)
    assert "3 failed, 4 fallbacks" in words
    assert "last.y if sum(x) < 1 else first.y" in words
    titles = [each.text or "" for each in read_svg(drawn).iter(f"{SVG}title")]
    assert any("75% skipped" in title for title in titles)


@given(st.lists(st.sets(st.integers(0, 11), max_size=3), min_size=1, max_size=12))
def test_no_two_boxes_overlap_and_what_is_read_is_above(reads: list[set[int]]) -> None:
    names = [f"s{place}" for place in range(len(reads))]
    rules = list[str]()
    for place, (name, read) in enumerate(zip(names, reads, strict=True)):
        earlier = [f"s{number}.y" for number in read if number < place]
        rules.append(f'[[step]]\nname = "{name}"\nrule = {{ y = "{" + ".join(("sum(x)", *earlier))}" }}\n')
    model = '[[step]]\nname = "m"\nmodel = "a"\nof = "x"\n'
    source = HEAD.format(name="p") + "".join(rules) + model + f'[output]\ny = "m.y"\nz = "{names[-1]}.y"\n'
    found = document(source)
    placed = boxes(draw_pipeline(found))
    assert set(placed) == {"x", "m", *names, "y", "z"}
    for one, (left, top) in placed.items():
        assert not [o for o, (x, y) in placed.items() if o != one and abs(x - left) < WIDTH and abs(y - top) < HEIGHT]
    for step in found["steps"]:
        for read in step["reads"]:
            assert placed[read][1] + HEIGHT + RISE <= placed[step["name"]][1]


def test_the_drawing_is_written_to_svg_only(tmp_path: Path) -> None:
    write_svg(document(CHAIN), str(tmp_path / "a.svg"))
    assert set(boxes((tmp_path / "a.svg").read_text())) == {"x", "first", "last", "y"}
    for name, words in (("a.png", "writes SVG"), ("absent/a.svg", "cannot be written")):
        with pytest.raises(ConfigurationError, match=words):
            write_svg(document(CHAIN), str(tmp_path / name))


def test_objects_of_any_output_of_a_pipeline_are_drawn() -> None:
    entries = [
        {"box": [20.0, 40.0, 60.0, 80.0], "text": "AB 12", "score": 0.5},
        {"box": [5.0, 5.0, 15.0, 15.0]},
        {"box": None, "text": ""},
    ]
    plain = Image.new("RGB", (100, 100), "#ffffff")
    drawn = np.asarray(draw({"plates": entries, "count": 2, "names": ["a"]}, plain))
    assert (drawn[80, 40] != 255).any()
    assert (drawn[15, 10] != 255).any()
    assert (drawn[90, 90] == 255).all()
