"""TOML of manifests: what is written is read back as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.manifest import (
    Artifact,
    Binding,
    Golden,
    ModelManifest,
    Preprocess,
    TensorSpec,
    Tolerance,
    Variant,
)
from gateway.common.domain.manifest_toml import read_manifest
from gateway.common.domain.tensor import Datatype
from gateway.workshop.making.manifest_text import manifest_text
from gateway.workshop.making.toml_text import toml_value

SHIPPED = sorted((Path(__file__).parents[4] / "models").glob("*/1/manifest.toml"))
TEXTS = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)
NAMES = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), min_size=1, max_size=20)
"""Printable texts; filtered from TEXTS, too few would be left for the health checks of Hypothesis."""
SMALL = ModelManifest(
    "m",
    "1",
    (TensorSpec("x", Datatype.UINT8, (-1, 8, 8, 3), "NHWC", preprocess=Preprocess(("png",), fit="crop")),),
    (TensorSpec("y", Datatype.FP32, (-1, 2)),),
    (Variant("onnx-fp32", "onnx", "fp32", (Artifact("model.onnx", "0" * 64, 7),)),),
    batch=True,
)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.parent.parent.name)
def test_the_shipped_manifests_are_written_byte_for_byte(file: Path) -> None:
    assert manifest_text(read_manifest(file.read_text(), str(file))) == file.read_text()


@given(labels=st.lists(TEXTS, max_size=4), tensor=NAMES, own=NAMES, note=TEXTS, accuracy=st.none() | st.floats(0, 1))
def test_any_text_is_read_back(labels: list[str], tensor: str, own: str, note: str, accuracy: float | None) -> None:
    outputs = (TensorSpec(f"of {tensor}", Datatype.FP32, (-1, 2), postprocess="softmax"),)
    inputs = (replace(SMALL.inputs[0], name=tensor),)
    (variant,) = SMALL.variants
    variant = replace(variant, accuracy=accuracy, bind={tensor: Binding(own, "NCHW"), outputs[0].name: Binding(tensor)})
    manifest = replace(SMALL, labels=tuple(labels), inputs=inputs, outputs=outputs, variants=(variant,))
    notes = dict.fromkeys(("task", "labels", "inputs", f"input.{tensor}.shape", "variant.onnx-fp32.precision"), note)
    assert read_manifest(manifest_text(manifest, notes), "m") == manifest


def test_every_key_is_written() -> None:
    golden = Golden("golden.npz", "1" * 64, {"onnx": Tolerance(0.9, 0.1)})
    (variant,) = SMALL.variants
    full = replace(
        SMALL,
        batch=False,
        max_batch_rows=7,
        require="proven",
        golden=golden,
        variants=(
            replace(
                variant,
                runtime="litert",
                needs=("avx2",),
                accelerators=("cpu", "x"),
                signature="encode",
                bind={"x": Binding("x", "NCHW", (-1, 192))},
            ),
        ),
        task="embedding",
        task_options={"pool": "mean"},
        inputs=(replace(SMALL.inputs[0], preprocess=Preprocess(("png",), std=(0.5,), fit="letterbox", pad_value=114)),),
    )
    assert read_manifest(manifest_text(full), "m") == full
    assert read_manifest(manifest_text(replace(full, golden=replace(golden, tolerance={}))), "m").golden is not None


def test_comments_are_before_their_keys() -> None:
    lines = manifest_text(SMALL, {"task": "inferred: two\nlines", "input.x.preprocess.scale": "assumed"}).splitlines()
    assert lines[lines.index('task = ""') - 2 :][:2] == ["# inferred: two", "# lines"]
    assert lines[lines.index("scale = 1.0") - 1] == "# assumed"


@pytest.mark.parametrize("value", ["\x7f", "\x00", "\ud7ff\U0001f600", 'a"b\\c', [], [{"a": 1}], True, 1e-9])
def test_values_are_toml(value: object) -> None:
    import tomllib

    assert tomllib.loads(f"x = {toml_value(value)}")["x"] == value
