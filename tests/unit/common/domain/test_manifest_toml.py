"""manifest.toml: every documented key read, every unknown one refused, every place named."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Artifact, Binding, Preprocess, TensorSpec, Tolerance, Window
from gateway.common.domain.manifest_toml import read_manifest
from gateway.common.domain.tensor import DATATYPES, Datatype

HEX = "ab" * 32
FULL = f"""\
schema = 1
name = "meter-reader"
version = "1"
task = "image-classification"
labels = ["0", "1"]
max_accuracy_loss = 0.02
[[input]]
name = "image"
datatype = "FP32"
shape = [-1, 1, 8, 6]
layout = "NCHW"
finite = true
[input.preprocess]
decode = ["jpeg", "png"]
color = "gray"
resize = [8, 6]
fit = "letterbox"
scale = 0.0625
mean = [0.5]
std = [0.25]
pad_value = 114
[[output]]
name = "scores"
datatype = "FP32"
shape = [-1, 10]
postprocess = "softmax"
[window]
channels = ["x", "y"]
size_rows = 100
hop_rows = 50
rate_hz = 10.0
[golden]
file = "golden.npz"
sha256 = "{HEX}"
[golden.tolerance]
onnx = {{agreement = 0.995, mean_abs = 0.03}}
[[variant]]
name = "onnx-int8"
runtime = "onnx"
precision = "int8"
accuracy = 0.9907
accelerators = ["cpu", "intel-gpu"]
needs = ["avx2"]
artifacts = [{{path = "onnx-int8/model.onnx", sha256 = "{HEX}", bytes = 61078}}]
[variant.bind]
image = {{name = "x", layout = "NHWC"}}
scores = {{name = "logits"}}
"""
LEAST = f"""\
schema = 1
name = "m"
version = "1"
[[input]]
name = "x"
datatype = "FP32"
shape = []
[[output]]
name = "y"
datatype = "BYTES"
shape = [-1]
[[variant]]
name = "a"
runtime = "litert"
precision = "fp32"
artifacts = [{{path = "m.tflite", sha256 = "{HEX}", bytes = 0}}]
"""


def refusal(text: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as error:
        read_manifest(text, "m/1/manifest.toml")
    assert error.value.file == "m/1/manifest.toml"
    return error.value


def changed(old: str, new: str, text: str = FULL) -> ConfigurationError:
    assert text.count(old) == 1
    return refusal(text.replace(old, new))


def test_every_documented_key_is_read() -> None:
    got = read_manifest(FULL, "f")
    assert (got.name, got.version, got.task) == ("meter-reader", "1", "image-classification")
    assert (got.labels, got.max_accuracy_loss) == (("0", "1"), 0.02)
    images = Preprocess(("jpeg", "png"), "gray", (8, 6), "letterbox", 0.0625, (0.5,), (0.25,), 114)
    assert got.inputs == (TensorSpec("image", Datatype.FP32, (-1, 1, 8, 6), "NCHW", True, images),)
    assert got.outputs == (TensorSpec("scores", Datatype.FP32, (-1, 10), postprocess="softmax"),)
    assert got.window == Window(("x", "y"), 100, 50, 10.0)
    assert got.golden is not None
    assert (got.golden.file, got.golden.sha256) == ("golden.npz", HEX)
    assert got.golden.tolerance == {"onnx": Tolerance(0.995, 0.03)}
    (variant,) = got.variants
    assert (variant.name, variant.runtime, variant.precision, variant.accuracy) == ("onnx-int8", "onnx", "int8", 0.9907)
    assert (variant.accelerators, variant.needs) == (("cpu", "intel-gpu"), ("avx2",))
    assert variant.artifacts == (Artifact("onnx-int8/model.onnx", HEX, 61078),)
    assert variant.bind == {"image": Binding("x", "NHWC"), "scores": Binding("logits")}
    assert got.batched


def test_what_may_be_left_out_has_its_default() -> None:
    got = read_manifest(LEAST, "f")
    assert (got.task, got.labels, got.max_accuracy_loss, got.window, got.golden) == ("", (), 0.01, None, None)
    assert (got.variants[0].accelerators, got.variants[0].accuracy) == (("cpu",), None)
    assert got.variants[0].binding("x") == Binding("x")
    assert not got.batched


def test_the_outline_of_the_contract_with_its_defaults() -> None:
    plain = (
        FULL.replace('layout = "NCHW"\n', "")
        .replace("mean = [0.5]\nstd = [0.25]\npad_value = 114\n", "")
        .replace('color = "gray"\n', "")
    )
    got = read_manifest(plain.replace("[-1, 1, 8, 6]", "[-1, 3, 8, 6]"), "f")
    assert got.inputs[0].preprocess == Preprocess(("jpeg", "png"), "rgb", (8, 6), "letterbox", 0.0625, (0.0,))


def test_adapters_are_artifacts_of_language_models() -> None:
    files = "".join(f'[[variant.artifacts]]\npath = "{name}"\nsha256 = "{"0" * 64}"\nbytes = 1\n' for name in "mr")
    begin = LEAST.index("[[variant]]")
    language = '[[variant]]\nname = "a"\nruntime = "llamacpp"\nprecision = "int8"\n' + files
    text = LEAST[:begin] + language + '[variant.adapters]\nred = "r"\n'
    manifest = read_manifest(text, "f")
    assert (manifest.adapters, dict(manifest.variants[0].adapters)) == (("red",), {"red": "r"})
    for changes, words in (
        (('red = "r"', 'red = "m"'), "behind the first"),
        (('red = "r"', 'red = "../r"'), "path"),
        (('red = "r"', '"re d" = "r"'), "letters"),
        (('"llamacpp"', '"onnx"'), "runtime onnx has none"),
        (("", text[begin:].replace('"a"', '"b"').replace("red =", "blue =")), "all must have the same"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            read_manifest(text + changes[1] if not changes[0] else text.replace(*changes), "f")


def test_a_signature_is_for_files_that_litert_runs() -> None:
    text = LEAST.replace('name = "a"\n', 'name = "a"\nsignature = "encode"\n')
    assert read_manifest(text, "f").variants[0].signature == "encode"
    error = changed('runtime = "onnx"\n', 'runtime = "onnx"\nsignature = "encode"\n')
    assert error.key == "signature"
    assert "litert" in error.problem


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_can_be_named(datatype: str) -> None:
    text = LEAST.replace('datatype = "FP32"', f'datatype = "{datatype}"')
    assert read_manifest(text, "f").inputs[0].datatype is DATATYPES[datatype]


LEVELS = {
    "": ("schema = 1\n", "schema = 1\nzz = 1\n"),
    "input[0]": ("finite = true\n", "finite = true\nzz = 1\n"),
    "input[0].preprocess": ("scale = 0.0625\n", "scale = 0.0625\nzz = 1\n"),
    "output[0]": ("shape = [-1, 10]\n", "shape = [-1, 10]\nzz = 1\n"),
    "window": ("size_rows = 100\n", "size_rows = 100\nzz = 1\n"),
    "golden": ('file = "golden.npz"\n', 'file = "golden.npz"\nzz = 1\n'),
    "golden.tolerance": ("[golden.tolerance]\n", "[golden.tolerance]\nzz = {}\n"),
    "golden.tolerance.onnx": ("{agreement = 0.995,", "{zz = 1, agreement = 0.995,"),
    "variant[0]": ('precision = "int8"\n', 'precision = "int8"\nzz = 1\n'),
    "variant[0].artifacts[0]": ("{path =", "{zz = 1, path ="),
    "variant[0].bind.image": ('{name = "x",', '{zz = 1, name = "x",'),
}


@pytest.mark.parametrize("table", LEVELS)
def test_an_unknown_key_is_refused_at_every_level(table: str) -> None:
    old, new = LEVELS[table]
    error = changed(old, new)
    line = FULL.replace(old, new).splitlines().index(next(s for s in FULL.replace(old, new).splitlines() if "zz" in s))
    assert (error.table, error.key, error.line) == (table, "zz", line + 1)
    assert "unknown" in error.problem


@pytest.mark.parametrize("old", ["finite = true", 'postprocess = "softmax"'])
def test_keys_of_inputs_are_unknown_to_outputs_and_the_other_way_round(old: str) -> None:
    text = FULL.replace(old, "")
    other = "[[output]]" if old.startswith("finite") else "[[input]]"
    error = refusal(text.replace(other, f"{other}\n{old}"))
    assert "unknown key" in error.problem


KEYS = [line.partition(" = ")[0] for line in FULL.splitlines() if " = " in line]
ONCE = [key for key in KEYS if FULL.count(f"{key} =") == 1]


@pytest.mark.parametrize("key", ONCE)
def test_a_wrong_type_is_refused_on_its_line(key: str) -> None:
    lines = FULL.splitlines()
    place = next(index for index, line in enumerate(lines) if line.startswith(f"{key} = "))
    lines[place] = f"{key} = 2026-01-01"
    error = refusal("\n".join(lines))
    assert (error.key, error.line) == (key, place + 1)
    assert "must be " in error.problem


REQUIRED = ["schema", "name", "version", "datatype", "shape", "runtime", "precision", "artifacts", "path", "bytes"]


@pytest.mark.parametrize("key", REQUIRED)
def test_what_must_be_there_is_missed(key: str) -> None:
    lines = [line for line in LEAST.splitlines() if not line.startswith(f"{key} =")]
    text = "\n".join(lines).replace(f'{key} = "m.tflite", ', "").replace(f", {key} = 0", "")
    assert text != LEAST.rstrip("\n")
    error = refusal(text)
    assert (error.key, error.line) == (key, None)
    assert "missing" in error.problem


@pytest.mark.parametrize("table", ["input", "output", "variant"])
def test_a_model_without_inputs_outputs_or_variants_is_refused(table: str) -> None:
    start = LEAST.index(f"[[{table}]]")
    end = LEAST.find("[[", start + 2)
    error = refusal(LEAST[:start] + (LEAST[end:] if end > 0 else ""))
    assert (error.key, error.line) == (table, None)


REFUSALS = [
    ("schema = 1", "schema = 2", "schema", "between 1 and 1"),
    ('name = "meter-reader"', 'name = "../etc"', "name", "the first a letter or digit"),
    ('name = "meter-reader"', f'name = "{"x" * 129}"', "name", "1 to 128"),
    ('version = "1"', 'version = ""', "version", "1 to 128"),
    ("max_accuracy_loss = 0.02", "max_accuracy_loss = nan", "max_accuracy_loss", "between"),
    ('name = "image"', 'name = ""', "name", "printable"),
    ('name = "image"', 'name = "a\\nb"', "name", "printable"),
    ("shape = [-1, 10]", "shape = [-2, 10]", "shape", "must be positive, or -1"),
    ("shape = [-1, 10]", "shape = [-1, 0]", "shape", "must be positive, or -1"),
    ("shape = [-1, 10]", "shape = [4294967296]", "shape", "must be positive, or -1"),
    ('layout = "NCHW"', 'layout = "NCWH"', "layout", "must be one of"),
    ("[-1, 1, 8, 6]", "[-1, 3, 8, 6]", "shape", "images of [1, 8, 6]"),
    ("[-1, 1, 8, 6]", "[-1, 1, 6, 8]", "shape", "images of [1, 8, 6]"),
    ("[-1, 1, 8, 6]", "[-1, 48]", "shape", "images of [1, 8, 6]"),
    ('layout = "NCHW"', 'layout = "NHWC"', "shape", "images of [8, 6, 1]"),
    ('layout = "NCHW"', 'layout = "NLC"', "preprocess", "layout NCHW or NHWC"),
    ('decode = ["jpeg", "png"]', 'decode = ["webp"]', "decode", "must hold only"),
    ('decode = ["jpeg", "png"]', "decode = []", "decode", "names no format"),
    ("resize = [8, 6]", "resize = [8]", "resize", "[height, width]"),
    ("resize = [8, 6]", "resize = [8, 100000]", "resize", "[height, width]"),
    ("mean = [0.5]", "mean = [1.0, 2.0]", "mean", "1 or 1 numbers"),
    ("mean = [0.5]", "mean = [nan]", "mean", "finite"),
    ("std = [0.25]", "std = [0.0]", "std", "between 1e-06"),
    ("std = [0.25]", "std = [1.0, 2.0]", "std", "1 or 1 numbers"),
    ("pad_value = 114", "pad_value = 256", "pad_value", "between 0 and 255"),
    ('fit = "letterbox"', 'fit = "crop"', "pad_value", 'is for fit = "letterbox"'),
    ("pad_value = 114", "crop_share = 0.5", "crop_share", 'is for fit = "crop"'),
    ('fit = "letterbox"\n', 'fit = "crop"\ncrop_share = 0\n', "crop_share", "between 0.01 and 1"),
    ("pad_value = 114", 'align = "left"', "align", "top-left"),
    ("pad_value = 114", 'resample = "cubic"', "resample", "bicubic"),
    ("pad_value = 114", 'orientation = "exif"', "orientation", "stored"),
    ("finite = true", "default = 1", "default", "take tensors of numbers"),
    ('decode = ["jpeg", "png"]', 'decode = ["nv12", "png"]', "decode", "only format"),
    ('decode = ["jpeg", "png"]', 'decode = ["nv12"]', "frame", "missing"),
    ('decode = ["jpeg", "png"]', 'decode = ["nv12"]\norientation = "stored"', "orientation", "no EXIF data"),
    ("std = [0.25]", "frame = [8, 6]", "frame", "raw frames"),
    ("std = [0.25]", 'color_matrix = "bt709"', "color_matrix", "raw frames"),
    ("std = [0.25]", 'color_range = "full"', "color_range", "raw frames"),
    ("scale = 0.0625", "scale = inf", "scale", "between"),
    ("hop_rows = 50", "hop_rows = 0", "hop_rows", "between"),
    ("rate_hz = 10.0", "rate_hz = 0", "rate_hz", "between"),
    ('file = "golden.npz"', 'file = "../golden.npz"', "file", "inside the model's folder"),
    (f'sha256 = "{HEX}"\n[golden.t', f'sha256 = "{HEX.upper()}"\n[golden.t', "sha256", "64 lower-case hex"),
    ("onnx = {a", "tensorrt = {a", "tensorrt", "unknown runtime"),
    ("agreement = 0.995", "agreement = 1.5", "agreement", "between"),
    ('runtime = "onnx"', 'runtime = "tensorrt"', "runtime", "must be one of onnx"),
    ('precision = "int8"', 'precision = "int4"', "precision", "must be one of fp32"),
    ("accuracy = 0.9907", "accuracy = 99.07", "accuracy", "between"),
    ('"onnx-int8/model.onnx"', '"/etc/passwd"', "path", "inside the model's folder"),
    ('"onnx-int8/model.onnx"', '"a/../../b"', "path", "inside the model's folder"),
    ('"onnx-int8/model.onnx"', '""', "path", "inside the model's folder"),
    ('"onnx-int8/model.onnx"', '"a\\\\b"', "path", "inside the model's folder"),
    ('"onnx-int8/model.onnx"', '"a\\u0000"', "path", "inside the model's folder"),
    ("bytes = 61078", "bytes = -1", "bytes", "between"),
    ('scores = {name = "logits"}', 'score = {name = "logits"}', "variant", "neither an input nor an output"),
    ('scores = {name = "logits"}', 'scores = "logits"', "scores", "must be a table"),
]


@pytest.mark.parametrize(("old", "new", "key", "words"), REFUSALS)
def test_values_that_cannot_be_are_refused(old: str, new: str, key: str, words: str) -> None:
    error = changed(old, new)
    assert error.key == key
    assert words in error.problem


MASKED = FULL.replace(
    "[[output]]", '[[input]]\nname = "mask"\ndatatype = "UINT8"\nshape = [-1, 8, 6]\ndefault = 1\n[[output]]'
)


def test_an_input_may_have_a_default() -> None:
    assert read_manifest(MASKED, "m").inputs[1].default == 1.0


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("default = 1", "default = 256", "must be a value of UINT8, not 256"),
        ("default = 1", "default = 0.5", "must be a value of UINT8"),
        ('"UINT8"', '"BYTES"', "must be a string"),
        (
            '"UINT8"\nshape = [-1, 8, 6]\ndefault = 1',
            '"BOOL"\nshape = [-1, 8, 6]\ndefault = 2',
            "must be a value of BOOL",
        ),
        ("[-1, 8, 6]\ndefault", "[-1, -1, 6]\ndefault", "needs fixed sizes"),
        ("default = 1", "default = 1e17", "between"),
    ],
)
def test_defaults_that_cannot_be_are_refused(old: str, new: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        read_manifest(MASKED.replace(old, new), "m")
    assert caught.value.key == "default"


RAW = FULL.replace('decode = ["jpeg", "png"]', 'decode = ["nv12"]\nframe = [8, 6]')


def test_raw_frames_have_a_size_and_colours() -> None:
    colours = RAW.replace("frame = [8, 6]", 'frame = [8, 6]\ncolor_matrix = "bt709"\ncolor_range = "full"')
    preprocess = read_manifest(colours, "f").inputs[0].preprocess
    assert preprocess is not None
    assert (preprocess.decode, preprocess.frame) == (("nv12",), (8, 6))
    assert (preprocess.color_matrix, preprocess.color_range) == ("bt709", "full")


def test_the_size_of_raw_frames_is_even_and_is_the_images_without_resize() -> None:
    assert "even" in changed("frame = [8, 6]", "frame = [8, 7]", RAW).problem
    assert (
        "images of [1, 4, 6]"
        in changed("frame = [8, 6]\n", "frame = [4, 6]\n", RAW.replace("resize = [8, 6]\n", "")).problem
    )


def test_softmax_needs_floats() -> None:
    text = FULL.replace('datatype = "FP32"\nshape = [-1, 10]', 'datatype = "INT32"\nshape = [-1, 10]')
    assert "softmax gives floats, but the datatype is INT32" in refusal(text).problem


@pytest.mark.parametrize("datatype", ["BYTES", "BOOL"])
def test_images_need_a_numeric_input(datatype: str) -> None:
    text = FULL.replace('datatype = "FP32"\nshape = [-1, 1, 8', f'datatype = "{datatype}"\nshape = [-1, 1, 8')
    assert refusal(text).key == "preprocess"


def test_two_of_the_same_name_are_refused() -> None:
    start = LEAST.index("[[variant]]")
    assert "two entries are called 'a'" in refusal(LEAST + LEAST[start:]).problem


def test_a_key_that_stands_twice_names_the_line_of_its_table() -> None:
    text = LEAST + LEAST[LEAST.index("[[variant]]") :].replace('"a"', '"b"').replace('"litert"', '"lite"')
    error = refusal(text)
    assert (error.table, error.key, error.line) == ("variant[1]", "runtime", 19)


@pytest.mark.parametrize("model", ["meter-reader", "activity"])
def test_the_shipped_manifests_read(model: str) -> None:
    file = Path(__file__).parents[4] / "models" / model / "1" / "manifest.toml"
    got = read_manifest(file.read_text("utf-8"), str(file))
    assert got.name == model
    reference = got.reference()
    assert reference is not None
    assert reference.precision == "fp32"
