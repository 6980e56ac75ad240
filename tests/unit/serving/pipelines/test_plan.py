"""Pipelines that do not fit their models: each refusal names the step, the line and what would fit."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.release import Release
from gateway.common.domain.tensor import Datatype
from gateway.serving.engine.target import ModelTarget
from gateway.serving.pipelines.columns import TEXT as TEXT_KIND
from gateway.serving.pipelines.columns import ColumnType
from gateway.serving.pipelines.runs import column_of
from gateway.serving.pipelines.target import read_gallery
from tests.simulators.engine_rig import manifest
from tests.simulators.pipelines import PIXELS, PipelineRig, detector, spec

HEAD = """
[input]
image = "image"
words = "text"
x = "FP32[4]"
n = "INT64[]"
[[step]]
name = "one"
model = "four"
of = "x"
[[step]]
name = "cars"
model = "find"
of = "image"
"""
TEXT = spec("y", datatype=Datatype.BYTES)


async def rig() -> PipelineRig:
    """Return a rig with models of several kinds."""
    made = PipelineRig()
    made.model("four", lambda of: {"y": of["x"]}, (spec("x", 4),), (spec("y", 4),))
    made.model("open", lambda of: {"y": of["x"]}, (spec("x", -1),), (spec("y", -1),))
    made.model("one", lambda of: {"y": of["x"]}, (spec("x"),), (spec("y"),))
    made.model("whole", lambda of: {"y": of["x"]}, (spec("x", datatype=Datatype.INT64),), (spec("y"),))
    made.model("says", lambda of: {"y": of["x"]}, (spec("x", datatype=Datatype.BYTES),), (TEXT,))
    two = spec("y", 2, datatype=Datatype.BYTES)
    made.model("lists", lambda of: {"y": of["x"]}, (spec("x", datatype=Datatype.BYTES),), (two,))
    made.model("pair", lambda of: {"y": of["a"]}, (spec("a"), spec("b")), (spec("y"),))
    made.model("integer", lambda of: {"y": of["x"]}, (spec("x", 4),), (spec("y", datatype=Datatype.INT32),))
    made.model("sees", lambda of: {"y": of["image"]}, (PIXELS,), (spec("y"),))
    detector(made, "find", lambda _: [])
    return made


def step(*lines: str, output: str = "one.y") -> str:
    """Return a document with one more step, named `new`, from line 18."""
    return HEAD + "\n".join(("[[step]]", 'name = "new"', *lines)) + f'\n[output]\nout = "{output}"\n'


@pytest.mark.asyncio
@pytest.mark.parametrize("value", ["image", "crop(image, cars.box)"])
async def test_a_pipeline_that_takes_an_image_is_no_step(value: str) -> None:
    made = await rig()
    made.pipeline(HEAD + '[output]\nn = "count(cars)"\n', "inner")
    images = f'image = "{value}", words = "words", x = "x", n = "n"'
    made.pipeline(step('model = "inner"', f"inputs = {{ {images} }}").replace("'", '"'))
    await made.begin()
    assert made.reason("inner") == ""
    words = "'inner' is a pipeline, and a step gives images to models only; write its steps into this pipeline"
    assert words in made.reason()


def rule(text: str) -> str:
    return step(f'rule = {{ p = "{text}" }}')


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (step('model = "one"', 'of = "x"'), r"takes rows of the shape \[\], not \[4\]"),
        (step('model = "four"', 'of = "n"'), r"takes rows of the shape \[4\], not \[\]"),
        (step('model = "four"', 'of = "words"'), "takes number, not text"),
        (step('model = "says"', 'of = "x"'), r"takes text, not number\[4\]"),
        (step('model = "says"', 'of = "image"'), "declares no way from an image to its values"),
        (step('model = "four"', 'of = "crop(image, cars.box)"'), "declares no way from an image to its values"),
        (step('model = "sees"', 'of = "x"'), "takes rows of the shape"),
        (step('model = "lists"', 'of = "words"', output="new.y + words"), r"is text\[2\]; here it must be a number"),
        (step('model = "lists"', 'of = "words"', output="words + new.y"), r"is text; here it must be a number"),
        (step('model = "pair"', 'of = "n"'), r"has the inputs a, b; write inputs = \{ a = … \}"),
        (step('model = "pair"', 'inputs = { a = "n" }'), "needs the input 'b'"),
        (step('model = "pair"', 'inputs = { a = "n", b = "n", c = "n" }'), "has no input 'c'; it has a, b"),
        (step('model = "one"', 'of = "two.y"'), "'two' is no earlier step"),
        (step('model = "one"', 'of = "new.y"'), "'new' is no earlier step"),
        (step('model = "one"', 'of = "one.z"'), "step 'one' has no column 'z'; it has y"),
        (step('model = "one"', 'of = "n"', 'when = "n"'), "'when' needs a comparison"),
        (step('model = "four"', 'of = "x"', 'when = "n > 1"', 'else = "x"', output="new.y"), "which is no step"),
        (
            step('model = "four"', 'of = "x"', 'when = "n > 1"', 'else = "cars"', output="new.y"),
            "'cars', has no column 'y' of the same type",
        ),
        (step('model = "one"', 'of = "n"', 'when = "n > 1"', 'else = "one"', output="new.y"), "has no column 'y'"),
        (step('model = "find"', 'of = "image"', 'when = "n > 1"', 'else = "cars"'), "need no 'else'"),
        (step('model = "find"', 'of = "image"', "fallback = { score = 1 }"), "fallback = {} means none"),
        (step('model = "four"', 'of = "x"', "fallback = { z = 1 }"), "fallback names 'z', which is no column"),
        (step('model = "four"', 'of = "x"', "fallback = {}", output="new.y"), "fallback lacks 'y'"),
        (
            step('model = "four"', 'of = "x"', 'fallback = { y = "a" }'),
            r"has 'a' for 'y', which is number\[4\]",
        ),
        (step('model = "says"', 'of = "words"', "fallback = { y = 1 }"), "fallback has 1 for 'y', which is text"),
        (step('model = "integer"', 'of = "x"', "fallback = { y = 1.5 }"), "fallback has 1.5 for 'y'"),
        (step('model = "integer"', 'of = "x"', "fallback = { y = 3000000000 }"), "fallback has 3000000000"),
        (step('model = "integer"', 'of = "x"', "fallback = { y = nan }"), "fallback has nan"),
        (step('model = "one"', 'of = "n"', 'when = "n > 1"', output="new.y + 1"), "may be absent"),
        (rule("image"), "is an image; name it where a model takes it"),
        (rule("scroe"), "is no input, column or earlier step"),
        (rule("one.y == 1"), "compares lists of numbers"),
        (step('select = "one"'), "'one' has no rows of its own"),
        (step('select = "image"'), "'image' has no rows of its own"),
        (step('select = "cars"', 'where = "scor > 1"'), "did you mean .score"),
        (step('select = "cars"', 'where = "score"'), "'where' is number; it must be a comparison"),
        (step('select = "cars"', 'by = "label"', "top = 1"), "'by' is text; it must be a number"),
        (step('merge = ["one"]'), "'one' has no rows of its own"),
        (step('tile = "x"', "size = [4, 4]"), "must be an image"),
        (step('tile = "cars.box"', "size = [4, 4]"), "must be an image"),
        (step('match = "people.npz"', 'of = "n"'), "but the vectors of people.npz have 5 numbers"),
        (step('match = "people.npz"', 'of = "x"'), "but the vectors of people.npz have 5 numbers"),
        (step('model = "four"', 'of = "x"', output="image"), "is an image; outputs are numbers, texts and flags"),
        (step('model = "four"', 'of = "x"', output="new"), "is a step; name one of its columns: y"),
        (step('model = "chain"', 'of = "x"'), "runs itself"),
    ],
)
async def test_what_does_not_fit_is_refused_with_step_and_line(document: str, problem: str, tmp_path: Path) -> None:
    made = await rig()
    np.savez(tmp_path / "people.npz", vectors=np.ones((3, 5), np.float32), labels=np.array(["a", "b", "c"]))
    made.pipeline(document, folder=tmp_path)
    await made.begin()
    reason = made.reason()
    with pytest.raises(ConfigurationError, match=problem):
        raise ConfigurationError(reason)
    assert reason.startswith("pipeline.toml:") or "takes" in reason
    assert "step 'new'" in reason or "output" in reason or "runs itself" in reason
    assert made.registry.find("four", "").manifest.name == "four"


@pytest.mark.asyncio
async def test_rows_of_two_steps_are_not_mixed() -> None:
    for text in (
        step('select = "cars"', 'where = "dogs.score > 0.5"'),
        step('model = "four"', 'inputs = { x = "x" }', 'when = "cars.score > dogs.score"'),
    ):
        made = await rig()
        dogs = '[[step]]\nname = "dogs"\nmodel = "find"\nof = "image"\n'
        made.pipeline(
            text.replace("[output]", "[output]").replace('[[step]]\nname = "new"', f'{dogs}[[step]]\nname = "new"')
        )
        await made.begin()
        assert "'dogs'" in made.reason()


@pytest.mark.asyncio
async def test_a_step_that_skips_rows_itself_is_no_else() -> None:
    made = await rig()
    first = '[[step]]\nname = "mid"\nmodel = "four"\nof = "x"\nwhen = "n > 1"\n'
    text = step('model = "four"', 'of = "x"', 'when = "n > 2"', 'else = "mid"', output="new.y")
    made.pipeline(text.replace('[[step]]\nname = "new"', f'{first}[[step]]\nname = "new"'))
    await made.begin()
    assert "skips rows itself; give it an 'else' as well" in made.reason()


@pytest.mark.asyncio
async def test_pipelines_that_run_each_other_are_refused() -> None:
    made = await rig()
    text = '[input]\nx = "FP32[4]"\n[[step]]\nname = "a"\nmodel = "{}"\nof = "x"\n[output]\ny = "a.y"'
    for name, other in (("ping", "pong"), ("pong", "ping")):
        made.pipeline(text.format(other), name)
    await made.begin()
    assert {entry.state for entry in made.repository.index() if entry.name in {"ping", "pong"}} == {"UNAVAILABLE"}
    made.pipeline(text.format("four"), "pong", digest="p2")
    await made.begin()
    np.testing.assert_array_equal((await made.ask({"x": np.ones((1, 4))}, "y", name="ping"))["y"], np.ones((1, 4)))
    made.pipeline(text.format("ping"), "pong", digest="p3")
    await made.begin()
    assert "runs itself, perhaps by a pipeline that it runs" in made.reason("pong")
    np.testing.assert_array_equal((await made.ask({"x": np.ones((1, 4))}, "y", name="ping"))["y"], np.ones((1, 4)))


# ---- galleries -------------------------------------------------------------------------------------------------------
def save(file: Path, **arrays: object) -> Path:
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file


def test_a_gallery_is_read_with_vectors_of_length_one(tmp_path: Path) -> None:
    file = save(tmp_path / "g.npz", vectors=[[3.0, 4.0], [0.0, 0.0]], labels=["a", "b"])
    vectors, labels = read_gallery(file)
    np.testing.assert_allclose(vectors, np.array([[0.6, 0.8], [0.0, 0.0]]))
    assert labels == (b"a", b"b")
    assert vectors.dtype == np.float32


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"vectors": [[1.0]]}, "is no gallery"),
        ({"vectors": [1.0], "labels": ["a"]}, r"needs vectors \[n, d\]"),
        ({"vectors": [[1.0]], "labels": ["a", "b"]}, "and n labels"),
        ({"vectors": [[1.0]], "labels": [1]}, "and n labels"),
        ({"vectors": [["x"]], "labels": ["a"]}, "of numbers"),
        ({"vectors": [[1j]], "labels": ["a"]}, "of numbers"),
        ({"vectors": [[np.nan]], "labels": ["a"]}, "finite numbers"),
        ({"vectors": [[1e300]], "labels": ["a"]}, "finite numbers"),
        ({"vectors": np.array([[None]]), "labels": ["a"]}, "is no gallery"),
    ],
)
def test_what_is_no_gallery_is_refused(arrays: dict[str, object], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        read_gallery(save(tmp_path / "g.npz", **arrays))


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04" + bytes(60), b"\x93NUMPY\x01\0"])
def test_a_file_that_is_no_archive_is_no_gallery(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "g.npz"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match="is no gallery"):
        read_gallery(file)
    np.save(tmp_path / "plain.npy", np.ones(3))
    with pytest.raises(ConfigurationError, match="is no gallery"):
        read_gallery(tmp_path / "plain.npy")
    with pytest.raises(ConfigurationError, match="is no gallery"):
        read_gallery(tmp_path / "none.npz")


def odd_archive(file: Path, kind: str) -> Path:
    """Write a gallery that is encrypted, has an unknown compression, or a shape that numpy cannot hold."""
    save(file, vectors=np.ones((2, 4), np.float32), labels=["a", "b"])
    content = bytearray(file.read_bytes())
    if kind == "shape":
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 4), }" % 10**30
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("vectors.npy", b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header)
    else:
        flag = bytes([1]) if kind == "encrypted" else struct.pack("<H", 99)
        for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            found = content.find(mark)
            while found >= 0:
                at = found + place + (0 if kind == "encrypted" else 2)
                content[at : at + len(flag)] = flag
                found = content.find(mark, found + 4)
        file.write_bytes(content)
    return file


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["encrypted", "compression", "shape"])
async def test_an_odd_gallery_refuses_its_pipeline_only(kind: str, tmp_path: Path) -> None:
    odd_archive(tmp_path / "g.npz", kind)
    made = PipelineRig()
    made.model("embed", lambda of: {"y": of["x"]}, (spec("x", 4),), (spec("y", 4),))
    head = '[input]\nx = "FP32[4]"\n[[step]]\nname = "e"\nmodel = "embed"\nof = "x"\n'
    made.pipeline(
        f'{head}[[step]]\nname = "who"\nmatch = "g.npz"\nof = "e.y"\n[output]\nname = "who.label"', folder=tmp_path
    )
    made.pipeline(f'{head}[output]\ny = "e.y"', name="other")
    await made.begin()
    assert "is no gallery" in made.reason()
    assert (await made.ask({"x": np.ones((1, 4))}, "y", name="other"))["y"].shape == (1, 4)


@pytest.mark.asyncio
async def test_any_failure_to_open_a_pipeline_refuses_that_one_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made = await rig()
    made.pipeline(step("tile = 'image'", "size = [8, 8]"), name="odd")
    made.pipeline(step("tile = 'image'", "size = [8, 8]"), name="sound")
    opened = made.repository._open_pipeline

    async def failing(release: Release, *more: Any) -> ModelTarget:
        if release.name == "odd":
            raise RuntimeError("out of luck")
        return await opened(release, *more)

    monkeypatch.setattr(made.repository, "_open_pipeline", failing)
    await made.begin()
    assert made.reason("odd") == "failed to open: RuntimeError: out of luck"
    assert not made.reason("sound")


@pytest.mark.asyncio
@pytest.mark.parametrize("least", [-1, 0, 0.5])
async def test_all_are_unknown_to_a_gallery_without_entries(least: float, tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", vectors=np.zeros((0, 4), np.float32), labels=np.array([], "U1"))
    made = await rig()
    made.pipeline(
        '[input]\nx = "FP32[4]"\n[[step]]\nname = "e"\nmodel = "four"\nof = "x"\n'
        f'[[step]]\nname = "who"\nmatch = "g.npz"\nof = "e.y"\nleast = {least}\n[output]\nname = "who.label"',
        folder=tmp_path,
    )
    await made.begin()
    assert (await made.ask({"x": np.ones((1, 4))}, "name"))["name"].tolist() == [b"unknown"]


@pytest.mark.asyncio
@pytest.mark.parametrize("entries", [0, 3, 20_000])
async def test_the_nearest_of_a_gallery_is_named(entries: int, tmp_path: Path) -> None:
    own = np.random.default_rng(entries)
    vectors = own.normal(size=(entries, 64)).astype(np.float32)
    save(tmp_path / "people.npz", vectors=vectors, labels=np.array([f"p{n}" for n in range(entries)], "U8"))
    made = PipelineRig()
    made.model("embed", lambda of: {"y": of["x"] * 3}, (spec("x", 64),), (spec("y", 64),))
    made.pipeline(
        '[input]\nx = "FP32[64]"\n[[step]]\nname = "e"\nmodel = "embed"\nof = "x"\n'
        '[[step]]\nname = "who"\nmatch = "people.npz"\nof = "e.y"\nleast = 0.6\nunknown = "nobody"\n'
        '[output]\nname = "who.label"\nscore = "who.score"',
        folder=tmp_path,
    )
    await made.begin()
    asked = np.concatenate(
        [vectors[:3] + 0.05, own.normal(size=(200, 64)), np.zeros((1, 64)), np.full((1, 64), np.nan)]
    )
    answer = await made.ask({"x": asked}, "name", "score")
    assert answer["name"][:3].tolist()[:entries] == [b"p0", b"p1", b"p2"][:entries]
    assert set(answer["name"][3 if entries else 0 :]) == {b"nobody"}
    if entries:
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        alike = (asked / np.linalg.norm(asked, axis=1, keepdims=True).clip(1e-9)) @ unit.T
        np.testing.assert_allclose(answer["score"][:203], alike.max(axis=1)[:203], rtol=1e-4)
        assert np.isnan(answer["score"][-1])


@pytest.mark.parametrize("task", ["audio-classification", "keyword-spotting"])
def test_the_label_of_a_classification_is_that_of_its_best_class(task: str) -> None:
    label = spec("label", -1, datatype=Datatype.BYTES)
    found = column_of(manifest("heard", outputs=(label,), task=task, answered=("label",)), "label")
    assert found is not None
    assert found[1] == ColumnType(TEXT_KIND, datatype=Datatype.BYTES)
    assert found[2](np.array([[b"okay nabu", b"other"]], object)).tolist() == [b"okay nabu"]
