"""[input.audio] of a manifest: every key read, defaults, values that contradict."""

from __future__ import annotations

import pytest

from gateway.common.domain.audio import AudioPreprocess, LogMelForm
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.manifest_toml import read_manifest

HEAD = """\
schema = 1
name = "m"
version = "1"
[[input]]
name = "x"
datatype = "FP32"
shape = {shape}
[input.audio]
"""
TAIL = f"""
[[output]]
name = "y"
datatype = "FP32"
shape = [-1, 2]
[[variant]]
name = "a"
runtime = "onnx"
precision = "fp32"
artifacts = [{{path = "m.onnx", sha256 = "{"ab" * 32}", bytes = 1}}]
"""
LEAST = 'decode = ["wav"]\nrate_hz = 16000\n'
MEL = f"{LEAST}mels = 40\nwindow_ms = 25\nhop_ms = 10\n"
FULL = """\
decode = ["wav", "s24le"]
rate_hz = 16000
source_rate_hz = 48000
source_channels = 2
limit_s = 30
mels = 80
axes = ["mel", "frame"]
window_ms = 25
hop_ms = 10
fft = 400
window_form = "hamming"
padding = "reflect"
spectrum = "magnitude"
f_min_hz = 20
f_max_hz = 7600
mel_scale = "slaney"
mel_norm = "slaney"
triangles = "mel"
log = "db"
floor = 1e-5
offset = 0.5
reference = "max"
log_range = 8.0
normalise = "mel"
scale = 2.0
mean = [-4.0]
std = [4.0]
"""


def read(audio: str, shape: str = "[-1, -1]") -> TensorSpec:
    return read_manifest(HEAD.format(shape=shape) + audio + TAIL, "m/1/manifest.toml").inputs[0]


def refusal(audio: str, shape: str = "[-1, -1]") -> ConfigurationError:
    with pytest.raises(ConfigurationError) as error:
        read(audio, shape)
    return error.value


def test_every_key_is_read() -> None:
    form = LogMelForm(
        *(400, 160, 400, 80, 20.0, 7_600.0, "hamming", "reflect", "magnitude"),
        *("slaney", "slaney", "mel", "db", 1e-5, 0.5, "max", 8.0),
    )
    wanted = AudioPreprocess(
        ("wav", "s24le"), 16_000, 48_000, 2, 30.0, form, ("mel", "frame"), "mel", 2.0, (-4.0,), (4.0,)
    )
    assert read(FULL, "[-1, 80, 3000]").audio == wanted


def test_what_may_be_left_out_has_its_default() -> None:
    assert read(LEAST).audio == AudioPreprocess(("wav",), 16_000, 16_000)
    audio = read(MEL, "[-1, 1, 98, 40]").audio
    assert audio is not None
    assert audio.mel == LogMelForm(400, 160, 512, 40, 0.0, 8_000.0)


REFUSALS = [
    (f"{LEAST}zz = 1", "[-1, -1]", "zz", "unknown key"),
    ('decode = ["mp3"]\nrate_hz = 16000', "[-1, -1]", "decode", "must hold only"),
    ("decode = []\nrate_hz = 16000", "[-1, -1]", "decode", "must name wav"),
    ('decode = ["s16le", "f32le"]\nrate_hz = 16000', "[-1, -1]", "decode", "one of"),
    (f"{LEAST}source_rate_hz = 48000", "[-1, -1]", "source_rate_hz", "raw samples"),
    ('decode = ["wav"]\nrate_hz = 999', "[-1, -1]", "rate_hz", "between"),
    (f"{LEAST}hop_ms = 10", "[-1, -1]", "hop_ms", "set mels"),
    (LEAST, "[-1, -1, 40]", "shape", "rows, then samples"),
    (MEL, "[-1, -1, 41]", "shape", "frame and mel (40 mel bands)"),
    (MEL, "[-1, -1, -1]", "shape", "40 mel bands"),
    (MEL, "[-1, 40]", "shape", "40 mel bands"),
    (f"{MEL}fft = 399", "[-1, -1, 40]", "fft", "between 400"),
    (f"{MEL}f_min_hz = 8000", "[-1, -1, 40]", "f_max_hz", "greater than"),
    (f"{MEL}floor = 0.0", "[-1, -1, 40]", "floor", "silence"),
    (f'{MEL}axes = ["mel", "mel"]', "[-1, -1, 40]", "axes", "once each"),
    (f"{MEL}mean = [1.0, 2.0]", "[-1, -1, 40]", "mean", "1 or 40 numbers"),
    (f"{MEL}std = [0.0]", "[-1, -1, 40]", "std", "between 1e-09"),
    (f'{LEAST}normalise = "mel"', "[-1, -1]", "normalise", "needs mels"),
    (f'{LEAST}[input.preprocess]\ndecode = ["png"]', "[-1, 3, 8, 8]", "audio", "without preprocess"),
]


@pytest.mark.parametrize(("audio", "shape", "key", "words"), REFUSALS)
def test_values_that_cannot_be_are_refused(audio: str, shape: str, key: str, words: str) -> None:
    error = refusal(audio, shape)
    assert error.key == key
    assert words in error.problem


def test_bytes_are_no_numeric_input() -> None:
    text = (HEAD.format(shape="[-1, -1]") + LEAST + TAIL).replace('"FP32"', '"BYTES"', 1)
    with pytest.raises(ConfigurationError, match="numeric input"):
        read_manifest(text, "f")
