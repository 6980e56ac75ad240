"""Which variants are made, and from which file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.serving.hardware.profiles import load_profiles
from gateway.workshop.making.quantize_plan import QuantizePlan, make_plan, wanted_by

PROFILES = load_profiles(Path(__file__).parents[4] / "device_profiles")
WANTED = wanted_by(PROFILES)


def plan(
    *variants: str, only: tuple[str, ...] = (), made: tuple[str, ...] = (), features: tuple[str, ...] = ()
) -> QuantizePlan:
    """Return the plan for variants that are named `runtime-precision`."""
    found = tuple(Variant(name, *name.rsplit("-", 1), ()) for name in variants)
    return make_plan(ModelManifest("m", "1", (), (), found), WANTED, only, made, features)


def tasks(found: QuantizePlan) -> dict[str, str]:
    return {kind.name: source.name for kind, source in found.tasks}


def test_the_profiles_ask_for_all_kinds() -> None:
    assert {("onnx", "int8"), ("openvino", "fp16"), ("openvino", "int8"), ("litert", "int8")} <= WANTED


@pytest.mark.parametrize(
    ("variants", "made"),
    [
        (["onnx-fp32"], {"onnx-int8": "onnx-fp32", "openvino-fp16": "onnx-fp32", "openvino-int8": "onnx-fp32"}),
        (["litert-fp32"], {"litert-int8": "litert-fp32", "litert-dynamic-int8": "litert-fp32"}),
        (["openvino-fp32"], {"openvino-fp16": "openvino-fp32", "openvino-int8": "openvino-fp32"}),
        (["onnx-fp16"], {"onnx-int8": "onnx-fp16", "openvino-fp16": "onnx-fp16", "openvino-int8": "onnx-fp16"}),
    ],
)
def test_variants_are_made_from_the_float_files_there_are(variants: list[str], made: dict[str, str]) -> None:
    found = plan(*variants)
    assert tasks(found) == made
    assert found.reference.name == variants[0]


def test_the_best_precision_then_the_runtimes_own_file_is_the_source() -> None:
    found = plan("openvino-fp16", "onnx-fp32", "openvino-fp32")
    assert tasks(found) == {"onnx-int8": "onnx-fp32", "openvino-int8": "openvino-fp32"}
    assert found.reference.name == "onnx-fp32"


def test_variants_of_the_author_are_kept_and_it_is_said() -> None:
    found = plan("onnx-fp32", "onnx-int8")
    assert "onnx-int8" not in tasks(found)
    assert [variant.name for variant in found.kept] == ["onnx-fp32", "onnx-int8"]
    assert "onnx-int8 is not made: the release has one of its author" in found.remarks


def test_variants_that_were_made_before_are_made_again_or_stay() -> None:
    everything = ("onnx-fp32", "onnx-int8", "openvino-fp16", "openvino-int8")
    found = plan(*everything, made=everything[1:])
    assert set(tasks(found)) == set(everything[1:])
    one = plan(*everything, made=everything[1:], only=("onnx-int8",))
    assert tasks(one) == {"onnx-int8": "onnx-fp32"}
    assert [variant.name for variant in one.kept] == ["onnx-fp32", "openvino-fp16", "openvino-int8"]
    assert one.reference.name == "onnx-fp32"


def test_what_cannot_be_made_is_said() -> None:
    assert "litert-int8 is not made: it needs a float variant of litert" in plan("onnx-fp32").remarks


def test_a_release_without_a_float_variant_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no float variant to make others from"):
        plan("onnx-int8")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"--only must name some of onnx-int8, .* not 'onnx-int4'"):
        plan("onnx-fp32", only=("onnx-int4",))


def test_a_kind_for_some_processors_is_made_where_it_is_named_and_can_be_measured() -> None:
    named, features = ("openvino-bf16",), ("avx2", "avx512_bf16")
    assert "openvino-bf16" not in tasks(plan("onnx-fp32", features=features))
    assert tasks(plan("onnx-fp32", only=named, features=features)) == {"openvino-bf16": "onnx-fp32"}
    elsewhere = plan("onnx-fp32", only=named, features=("avx2",))
    assert not elsewhere.tasks
    assert elsewhere.remarks == ("openvino-bf16 is not made: this CPU lacks avx512_bf16",)
