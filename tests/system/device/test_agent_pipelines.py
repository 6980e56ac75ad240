"""Pipelines as signed releases: installed, served, replaced and rolled back on a whole device, with their galleries."""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.simulators.fleet_device import DEVICE, SLOT, Done, FleetDevice, device

__all__ = ["device"]

IMAGE = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 1, 8, 8)
PIPELINE = """
schema = 1
name = "gauge"
version = "{version}"
[input]
image = "FP32[1, 8, 8]"
[[step]]
name = "read"
model = "{model}"
of = "image"
[[step]]
name = "near"
match = "digits.npz"
of = "read.scores"
least = -1.0
[output]
digit = "{output}"
"""


def publish(
    device: FleetDevice,
    version: str,
    *,
    model: str = f"{SLOT}@1",
    output: str = "near.label",
    golden: str = "",
    code: str = "",
) -> str:
    """Publish a version of the pipeline, with a gallery of digits or code, and a golden set of this answer.

    Return its path.
    """
    folder = device.folder / "models" / "gauge" / version
    folder.mkdir(parents=True)
    text = PIPELINE.format(version=version, model=model, output=output)
    if code:
        text = text.replace('match = "digits.npz"', 'python = "near.py"').replace(
            "least = -1.0", 'outputs.label = "text"'
        )
        (folder / "near.py").write_text(code)
    (folder / "pipeline.toml").write_text(text)
    labels = np.array([f"{version}-{digit}" for digit in range(10)])
    np.savez(folder / "digits.npz", vectors=np.eye(10, dtype=np.float32), labels=labels)
    if golden:
        arrays = {"input.image": IMAGE, "output.digit": np.array([golden.encode()])}
        np.savez(folder / "golden.npz", **arrays)  # type: ignore[arg-type]
        digest = hashlib.sha256((folder / "golden.npz").read_bytes()).hexdigest()
        with (folder / "pipeline.toml").open("a") as file:
            file.write(f'[golden]\nfile = "golden.npz"\nsha256 = "{digest}"\n')
    return device.repository.add_model(folder)


def asked(device: FleetDevice) -> str:
    """Return the digit that the pipeline reads, after a check that it is the one whose score is greatest."""
    image = IMAGE

    def ask(model: str, outputs: list[str]) -> dict[str, Any]:
        tensor = {"name": "image", "datatype": "FP32", "shape": list(image.shape), "data": image.ravel().tolist()}
        body = {"inputs": [tensor], "outputs": [{"name": name} for name in outputs]}
        url = f"http://{device.daemon.http}/v2/models/{model}/infer"
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
            return {one["name"]: one["data"] for one in json.load(answer)["outputs"]}

    digit = str(ask("gauge", ["digit"])["digit"][0])
    assert digit.partition("-")[2] == str(int(np.argmax(ask(SLOT, ["scores"])["scores"])))
    return digit


def labels_of(gallery: Path) -> list[bytes]:
    with np.load(gallery) as content:
        return [str(label).encode() for label in content["labels"]]


def sync(device: FleetDevice, pipeline: str) -> Done:
    """Assign a pipeline next to the model that the device has, and sync."""
    device.repository.assign(DEVICE, {SLOT: f"models/acme/{SLOT}/1/release", "gauge": pipeline})
    return device.sync()


@pytest.mark.timeout(240)
def test_a_signed_pipeline_serves_is_replaced_and_rolled_back(device: FleetDevice) -> None:
    done = sync(device, publish(device, "1"))
    assert (done.code, done.told["state"]) == (0, "in-step"), (done.out, device.daemon.log)
    assert asked(device).startswith("1-")
    listed = {one["model"]: one for one in device.control.status()["models"]}
    assert [listed["gauge"][key] for key in ("state", "signed", "variant")] == ["READY", True, "pipeline"]

    done = sync(device, publish(device, "2", output="near.absent"))
    assert (done.code, done.told["state"]) == (1, "behind"), done.out
    assert "absent" in done.told["why"]
    assert asked(device).startswith("1-")

    done = sync(device, publish(device, "3"))
    assert (done.code, done.told["state"]) == (0, "in-step"), done.out
    verified = device.agent("verify", "--json")
    assert (verified.code, verified.told["ok"]) == (0, True)
    assert device.daemon.stop() == 0
    device.daemon.start()
    assert asked(device).startswith("3-")


@pytest.mark.timeout(240)
def test_what_a_pipeline_lacks_on_a_device_is_said(device: FleetDevice) -> None:
    done = sync(device, publish(device, "4", model=f"{SLOT}@7"))
    assert done.told["state"] in {"waiting", "behind"}
    assert f"'{SLOT}' version 7" in done.told["why"]


@pytest.mark.timeout(240)
def test_a_gallery_that_was_changed_on_the_device_does_not_serve(device: FleetDevice) -> None:
    """The version before stands in, as for models."""
    for version in ("5", "6"):
        assert sync(device, publish(device, version)).told["state"] == "in-step"
    assert device.daemon.stop() == 0
    gallery = next(file for file in Path(device.store).glob("releases/*/digits.npz") if b"6-0" in labels_of(file))
    content = gallery.read_bytes()
    gallery.unlink()
    gallery.write_bytes(content[:-1] + b"!")
    device.daemon.start()
    assert asked(device).startswith("5-")
    listed = {(one["model"], one["version"]): one for one in device.control.status()["models"]}
    assert "is not what was signed" in listed["gauge", "6"]["reason"]


@pytest.mark.timeout(240)
def test_signed_code_runs_and_code_that_was_changed_does_not(device: FleetDevice) -> None:
    for version in ("11", "12"):
        code = f"class Step:\n  def run(self, x): return [f'{version}-{{row.argmax()}}' for row in x]\n"
        done = sync(device, publish(device, version, code=code))
        assert done.told["state"] == "in-step", done.out
        assert asked(device).startswith(f"{version}-")
    assert device.daemon.stop() == 0
    file = next(file for file in Path(device.store).glob("releases/*/near.py") if "12-" in file.read_text())
    changed = file.read_text().replace("12-", "13-")
    file.unlink()
    file.write_text(changed)
    device.daemon.start()
    assert asked(device).startswith("11-")
    listed = {(one["model"], one["version"]): one for one in device.control.status()["models"]}
    assert "near.py is missing, or is not what was signed" in listed["gauge", "12"]["reason"]


@pytest.mark.timeout(240)
def test_a_signed_golden_set_decides(device: FleetDevice) -> None:
    assert sync(device, publish(device, "7")).told["state"] == "in-step"
    digit = asked(device).partition("-")[2]
    assert sync(device, publish(device, "8", golden=f"8-{digit}")).told["state"] == "in-step"
    assert "passed its golden set: agreement 1.0000" in device.daemon.log
    done = sync(device, publish(device, "9", golden="9-none"))
    assert (done.code, done.told["state"]) == (1, "behind"), done.out
    assert "failed its golden set: agreement 0.0000" in done.told["why"]
    assert asked(device) == f"8-{digit}"
