"""Edits of a manifest's text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Artifact, Golden, ModelManifest, Tolerance, Variant
from gateway.common.domain.manifest_toml import read_manifest
from gateway.workshop.making.evaluation import Basis
from gateway.workshop.making.manifest_edit import accuracy_note, edited

SHIPPED = Path(__file__).parents[4] / "models/activity/1/manifest.toml"
TEXT = """# my model
schema = 1  # of the format
name = "m"
version = "1"

[[input]]
name = "x"
datatype = "FP32"
shape = [-1, 3]

[[output]]
name = "y"
datatype = "FP32"
shape = [-1, 2]

# the best one
[[variant]]
name = "onnx-fp32"
runtime = "onnx"
precision = "fp32"
artifacts = [
    {path = "m.onnx", sha256 = "%s", bytes = 1},
]

[variant.bind]
x = {name = "in"}
""" % ("0" * 64)
MANIFEST = read_manifest(TEXT, "m")
INT8 = Variant("onnx-int8", "onnx", "int8", (Artifact("i.onnx", "1" * 64, 1),), accuracy=0.5)
GOLDEN = Golden("golden.npz", "2" * 64, {"onnx": Tolerance(0.9, 0.1)})


def measured(manifest: ModelManifest, accuracy: float) -> ModelManifest:
    variants = tuple(replace(each, accuracy=accuracy) for each in manifest.variants)
    return replace(manifest, variants=variants)


def test_variants_and_golden_set_are_added_and_comments_stay() -> None:
    wanted = measured(replace(MANIFEST, variants=(*MANIFEST.variants, INT8), golden=GOLDEN), 0.75)
    note = accuracy_note(Basis("agreement", "share of samples with the class of onnx-fp32", 40))
    found = edited(TEXT, wanted, {"variant.onnx-fp32.accuracy": note}, "m")
    assert read_manifest(found, "m") == wanted
    assert all(comment in found for comment in ("# my model", "# of the format", "# the best one"))
    assert f"# {note}\naccuracy = 0.75" in found


def test_a_second_edit_replaces_the_first_one() -> None:
    once = measured(replace(MANIFEST, variants=(*MANIFEST.variants, INT8), golden=GOLDEN), 0.75)
    note = {"variant.onnx-fp32.accuracy": "measured: first"}
    text = edited(TEXT, once, note, "m")
    again = measured(replace(MANIFEST, golden=replace(GOLDEN, sha256="3" * 64)), 0.5)
    found = edited(text, again, {"variant.onnx-fp32.accuracy": "measured: second"}, "m")
    assert read_manifest(found, "m") == again
    assert found.count("accuracy = ") == 1
    assert "first" not in found
    assert edited(found, again, {"variant.onnx-fp32.accuracy": "measured: second"}, "m") == found


def test_a_shipped_manifest_is_edited_without_other_changes() -> None:
    text = SHIPPED.read_text()
    manifest = read_manifest(text, "m")
    assert edited(text, manifest, {}, "m") == text
    changed = edited(text, replace(manifest, golden=replace(manifest.golden or GOLDEN, sha256="4" * 64)), {}, "m")
    assert [line for line in changed.splitlines() if line not in text.splitlines()] == [f'sha256 = "{"4" * 64}"']


def test_an_accuracy_can_be_taken_away() -> None:
    text = edited(TEXT, measured(MANIFEST, 0.5), {"variant.onnx-fp32.accuracy": "measured: x"}, "m")
    assert edited(text, MANIFEST, {}, "m").rstrip() == TEXT.rstrip()


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("precision = ", "'precision' = "),
        TEXT.replace("[variant.bind]\n", "bind.").replace("x = {name", "x = {name"),
    ],
)
def test_a_text_that_cannot_be_edited_is_refused(text: str) -> None:
    """Quoted keys are valid TOML, but the line of `precision` is not found."""
    manifest = read_manifest(text, "m")
    if "'precision'" in text:
        with pytest.raises(ConfigurationError, match="cannot be edited"):
            edited(text, measured(manifest, 0.5), {}, "m")
    else:
        assert read_manifest(edited(text, measured(manifest, 0.5), {}, "m"), "m") == measured(manifest, 0.5)
