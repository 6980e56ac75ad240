"""A pipeline as an operator meets it: listed, checked, explained and asked, on disk and of a running gateway."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.simulators.daemon import COMMAND, QUIET, SHORT_TRIALS, running
from tests.simulators.models_made import save, shaped

PIPELINE = """
schema = 1
name = "policy"
version = "1"
[input]
x = "FP32[4]"
[[step]]
name = "cheap"
model = "half"
of = "x"
[[step]]
name = "deep"
model = "double"
of = "cheap.y"
when = "top(cheap.y) > 0"
else = "cheap"
[output]
y = "deep.y"
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, factor in (("half", 0.5), ("double", 2.0)):
        nodes = [
            onnx.helper.make_node("Constant", [], ["f"], value_float=factor),
            onnx.helper.make_node("Mul", ["x", "f"], ["y"]),
        ]
        (folder / name / "1").mkdir(parents=True)
        save(shaped({"x": ["rows", 4]}, {"y": ["rows", 4]}, *nodes), folder / name / "1" / "model.onnx")
    for name, model in (("policy", "double"), ("broken", "absent")):
        (folder / name / "1").mkdir(parents=True)
        text = PIPELINE.replace('"policy"', f'"{name}"').replace('"double"', f'"{model}"')
        (folder / name / "1" / "pipeline.toml").write_text(text)
    return folder


def said(*words: str, code: int = 0) -> str:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout


def test_a_pipeline_on_disk(models: Path, tmp_path: Path) -> None:
    state = ("--models", str(models), "--state", str(tmp_path / "state"))
    listed = {one["name"]: one for one in json.loads(said("models", *state, "--json"))["models"]}
    assert listed["policy"]["pipeline"] == {"steps": 2, "models": ["half", "double"]}
    assert listed["half"]["pipeline"] is None
    svg = tmp_path / "policy.svg"
    shown = json.loads(said("explain", "policy", *state, "--json", "--svg", str(svg)))
    assert (shown["refused"], [step["name"] for step in shown["pipeline"]["steps"]]) == (None, ["cheap", "deep"])
    assert "half of x" in svg.read_text()
    refused = json.loads(said("explain", "broken", *state, "--json", code=1))["refused"]
    assert "the model absent, which it runs, is not there" in refused
    checked = json.loads(said("models", "check", str(models), *state, "--json", code=1))["releases"]
    assert {one["name"]: one["ok"] for one in checked} == {
        "policy": True,
        "broken": False,
        "half": True,
        "double": True,
    }
    np.savez(tmp_path / "x.npz", x=np.array([[1, 1, 1, 1], [-1, -1, -1, -1]], np.float32))
    answer = said("infer", "policy", *state, "--npz", str(tmp_path / "x.npz"), "--output", "json")
    (result,) = [output for output in json.loads(answer)["outputs"] if output["name"] == "result"]
    assert [json.loads(row)["y"] for row in result["data"]] == [[1.0] * 4, [-0.5] * 4]


def test_a_pipeline_is_drafted_and_serves(models: Path, tmp_path: Path) -> None:
    for name in ("half", "double"):
        shutil.copytree(models / name, tmp_path / "models" / name)
    where = ("--models", str(tmp_path / "models"))
    made = json.loads(said("models", "new", "--pipeline", "both", "half", "double@1", *where, "--json"))
    assert (made["name"], made["version"]) == ("both", "1")
    assert said("models", "new", "--pipeline", "both", "half", "absent", *where, code=2) == ""
    np.savez(tmp_path / "x.npz", x=np.ones((2, 4), np.float32))
    state = ("--state", str(tmp_path / "state"), "--npz", str(tmp_path / "x.npz"), "--output", "json")
    outputs = json.loads(said("infer", "both", *where, *state))["outputs"]
    assert [each["data"] for each in outputs if each["name"] == "double_y"] == [[1.0] * 8]


def test_a_pipeline_of_a_running_gateway(models: Path, tmp_path: Path) -> None:
    with running(tmp_path, models=models, config=f"{QUIET}{SHORT_TRIALS}") as daemon:
        url = ("--url", daemon.http)
        np.savez(tmp_path / "x.npz", x=np.array([[1, 1, 1, 1], [-1, -1, -1, -1]], np.float32))
        for _ in range(3):
            said("infer", "policy", *url, "--npz", str(tmp_path / "x.npz"))
        shown = json.loads(said("explain", "policy", *url, "--json"))["pipeline"]
        listed = {one["name"]: one for one in json.loads(said("models", *url, "--json"))["models"]}
        words = said("explain", "policy", *url)
        assert "draws" not in said("explain", "half", *url)
    cheap, deep = shown["steps"]
    assert (cheap["runs"], cheap["rows"], cheap["skipped_rows"]) == (3, 6, 0)
    assert (deep["runs"], deep["rows"], deep["skipped_rows"]) == (3, 3, 3)
    assert cheap["share"] + deep["share"] == pytest.approx(1)
    for step in (cheap, deep):
        assert step["p50_us"] == step["p50_ns"] / 1e3 > 0
        assert step["cpu_us"] == pytest.approx(step["row_cpu_ns"] * step["rows"] / 3e3)
        assert step["row_cpu_ns"] > 0
    assert (listed["policy"]["state"], listed["policy"]["why"]) == ("READY", "2 steps, runs half, double")
    assert (listed["broken"]["state"], "absent" in listed["broken"]["reason"]) == ("UNAVAILABLE", True)
    assert "pipeline of 2 steps" in words
    assert "p50 µs" in words
    assert "CPU µs" in words


def double_by(factor: float, models: Path) -> None:
    """Replace the model `double`."""
    nodes = [
        onnx.helper.make_node("Constant", [], ["f"], value_float=factor),
        onnx.helper.make_node("Mul", ["x", "f"], ["y"]),
    ]
    save(shaped({"x": ["rows", 4]}, {"y": ["rows", 4]}, *nodes), models / "double" / "1" / "model.onnx")


def test_the_golden_set_of_a_pipeline_is_made_checked_and_decides(models: Path, tmp_path: Path) -> None:
    own = tmp_path / "models"
    for name in ("half", "double", "policy"):
        shutil.copytree(models / name, own / name)
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32))
    text, folder = (own / "policy" / "1" / "pipeline.toml").read_text(), str(own / "policy" / "1")
    command = ("models", "golden", folder, "--calibration", str(tmp_path / "x.npz"), "--json")
    made = json.loads(said(*command))
    assert (made["rows"], made["golden"]["file"]) == (32, "golden.npz")
    written = (own / "policy" / "1" / "pipeline.toml").read_text()
    assert written.startswith(text)
    assert f'sha256 = "{made["golden"]["sha256"]}"' in written
    assert "pipeline = {agreement = 0.968, mean_abs = 0.02}" in written
    mine = written.replace("0.968", "0.9")
    (own / "policy" / "1" / "pipeline.toml").write_text(mine)
    double_by(2.5, own)
    assert json.loads(said(*command))["golden"]["sha256"] not in written
    assert "agreement = 0.9," in (own / "policy" / "1" / "pipeline.toml").read_text()
    state = ("--state", str(tmp_path / "state"))
    (checked,) = json.loads(said("models", "check", folder, *state, "--json"))["releases"]
    assert [(one["name"], one["level"], one["tried"]) for one in checked["variants"]] == [("pipeline", "proven", True)]
    assert "passed its golden set: agreement 1.0000 (at least 0.9)" in said("models", "check", folder, *state)
    with running(tmp_path, models=own, config=f"{QUIET}{SHORT_TRIALS}") as daemon:
        url = ("--url", daemon.http)
        (listed,) = [one for one in json.loads(said("models", *url, "--json"))["models"] if one["name"] == "policy"]
        assert listed["level"] == "proven"
        assert "passed its golden set" in listed["why"]
    double_by(3.0, own)
    (checked,) = json.loads(said("models", "check", folder, *state, "--json", code=1))["releases"]
    assert checked["problem"].startswith("failed its golden set: agreement 1.0000 (at least 0.9), mean difference")
    with running(tmp_path, models=own, config=f"{QUIET}{SHORT_TRIALS}") as daemon:
        (listed,) = [
            one
            for one in json.loads(said("models", "--url", daemon.http, "--json"))["models"]
            if one["name"] == "policy"
        ]
    assert (listed["state"], "EG-310" in listed["reason"]) == ("UNAVAILABLE", True)


ONE = """
schema = 1
name = "one"
version = "1"
[input]
x = "FP32[4]"
[[step]]
name = "s"
model = "m"
of = "x"
[output]
y = "s.y"
"""


def one_model(folder: Path, rows: str | int, *nodes: onnx.NodeProto) -> str:
    """Write a pipeline of one model; return its folder."""
    for name in ("m", "one"):
        (folder / name / "1").mkdir(parents=True)
    save(shaped({"x": [rows, 4]}, {"y": [rows, 4]}, *nodes), folder / "m" / "1" / "model.onnx")
    (folder / "one" / "1" / "pipeline.toml").write_text(ONE)
    return str(folder / "one" / "1")


def test_a_golden_set_keeps_what_is_not_finite(tmp_path: Path) -> None:
    """Logarithms of 0 and of less: the set that is made is reached, and its tolerance is not that of infinity."""
    folder = one_model(tmp_path / "models", "rows", onnx.helper.make_node("Log", ["x"], ["y"]))
    x = np.random.default_rng(1).normal(size=(40, 4)).astype(np.float32)
    x[3, 2] = 0
    np.savez(tmp_path / "x.npz", x=x)
    toml, command = (
        Path(folder) / "pipeline.toml",
        ("models", "golden", folder, "--calibration", str(tmp_path / "x.npz")),
    )
    toml.write_text(ONE.replace("[input]", f'golden.file = "g"\ngolden.sha256 = "{"0" * 64}"\n[input]', 1))
    done = subprocess.run([*COMMAND, *command], capture_output=True, text=True, check=False)
    assert (done.returncode, "write [golden] as a table" in done.stderr) == (2, True), done.stderr
    toml.write_text(ONE)
    json.loads(said(*command, "--json"))
    with np.load(Path(folder) / "golden.npz") as made:
        assert np.isnan(made["output.y"]).any()
    assert "mean_abs = 0.02}" in toml.read_text()
    state = ("--state", str(tmp_path / "state"))
    assert "passed its golden set: agreement 1.0000" in said("models", "check", folder, *state)


def test_answers_that_change_with_each_run_make_no_golden_set(tmp_path: Path) -> None:
    nodes = (
        onnx.helper.make_node("RandomUniformLike", ["x"], ["noise"], low=0.0, high=9.0),
        onnx.helper.make_node("Add", ["x", "noise"], ["y"]),
    )
    folder = one_model(tmp_path / "models", 1, *nodes)
    np.savez(tmp_path / "x.npz", x=np.ones((40, 4), np.float32))
    words = [*COMMAND, "models", "golden", folder, "--calibration", str(tmp_path / "x.npz")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, "asked twice, it failed its golden set: agreement 0" in done.stderr) == (2, True), done
    assert sorted(file.name for file in Path(folder).iterdir()) == ["pipeline.toml"]
    assert (Path(folder) / "pipeline.toml").read_text() == ONE


def test_what_has_no_golden_set_is_said(models: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((1, 5), np.float32))
    shutil.copytree(models, tmp_path / "models")
    for name, data, words in (
        ("policy", "x.npz", "samples of this input are [samples, 4]"),
        ("policy", "none", "does not exist"),
        ("broken", "x.npz", "the model absent, which it runs, is not there"),
        ("half", "x.npz", "models new"),
    ):
        folder, where = str(tmp_path / "models" / name / "1"), str(tmp_path / data)
        done = subprocess.run(
            [*COMMAND, "models", "golden", folder, "--calibration", where], capture_output=True, text=True, check=False
        )
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert not list(tmp_path.rglob("golden.npz"))
    folder = str(tmp_path / "models" / "policy" / "1")
    done = subprocess.run(
        [*COMMAND, "models", "quantize", folder, "--calibration", "x"], capture_output=True, text=True, check=False
    )
    assert "models golden DIR" in done.stderr


def test_the_golden_set_of_a_model_is_made_with_the_same_command(tmp_path: Path) -> None:
    folder = tmp_path / "activity" / "1"
    shutil.copytree(Path(__file__).parents[3] / "models" / "activity" / "1", folder)
    with np.load(folder / "golden.npz") as old:
        np.savez(tmp_path / "data.npz", **{key: old[key][:20] for key in old if key.startswith("input.")})
    text = (folder / "manifest.toml").read_text()
    said("models", "golden", str(folder), "--calibration", str(tmp_path / "data.npz"), "--json")
    with np.load(folder / "golden.npz") as made:
        assert {len(made[key]) for key in made} == {20}
    changed = set((folder / "manifest.toml").read_text().splitlines()) - set(text.splitlines())
    assert [line.partition(" = ")[0] for line in sorted(changed) if "tolerance" not in line][-1] == "sha256"
    assert not [line for line in changed if line.startswith(("accuracy", "# measured", "[[variant"))]
    assert "proven" in said("models", "check", str(folder), "--state", str(tmp_path / "state"), "--json")
