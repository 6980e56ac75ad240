"""Recordings to inputs: formats, rates, lengths, axes, normalisation, datatypes; what is refused."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.audio import AudioPreprocess, LogMelForm
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.tasks.audio_input import decode_recordings
from gateway.serving.tasks.log_mel import log_mel

SAMPLES = AudioPreprocess(("wav", "s16le"), 16_000, 16_000)
FORM = LogMelForm(400, 160, 512, 8, 20.0, 8_000.0)
MEL = replace(SAMPLES, mel=FORM)


def pcm(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-9_000, 9_000, count).astype("<i2")


def wav(samples: Array, rate_hz: int = 16_000) -> bytes:
    file = io.BytesIO()
    scipy.io.wavfile.write(file, rate_hz, samples)
    return file.getvalue()


def decode(content: bytes, audio: AudioPreprocess = SAMPLES, shape: tuple[int, ...] = (-1, -1)) -> Array:
    return decode_recordings([content], TensorSpec("x", Datatype.FP32, shape, audio=audio), audio)[0]


def refusal(content: bytes, audio: AudioPreprocess = SAMPLES, shape: tuple[int, ...] = (-1, -1)) -> RequestError:
    with pytest.raises(RequestError) as error:
        decode(content, audio, shape)
    assert "recording 0 of input 'x'" in error.value.message
    return error.value


def test_raw_samples_and_wav_files_are_the_same() -> None:
    samples = pcm(100)
    assert np.array_equal(decode(samples.tobytes()), samples / np.float32(32_768))
    assert np.array_equal(decode(wav(samples)), decode(samples.tobytes()))


def test_channels_are_mixed_and_rates_changed() -> None:
    stereo = np.stack([pcm(300, 1), pcm(300, 2)], axis=1)
    got = decode(wav(stereo, 48_000))
    wanted = scipy.signal.resample_poly(stereo.mean(axis=1) / 32_768, 1, 3)
    assert np.allclose(got, wanted, atol=1e-6)
    raw = replace(SAMPLES, decode=("s16le",), source_rate_hz=48_000, source_channels=2)
    assert np.array_equal(decode(stereo.tobytes(), raw), got)


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_fixed_number_of_samples_is_reached_by_silence_or_a_cut(count: int, wanted: int) -> None:
    samples = pcm(count)
    got = decode(samples.tobytes(), shape=(-1, 1, wanted + 1))[0]
    whole = np.concatenate([samples, np.zeros(50)])[: wanted + 1] / 32_768
    assert np.array_equal(got, whole.astype(np.float32))


@given(st.integers(1, 2_000), st.sampled_from(["none", "zero", "reflect"]))
def test_a_fixed_number_of_frames_is_reached_by_silence_or_a_cut(count: int, padding: str) -> None:
    audio = replace(MEL, mel=replace(FORM, padding=padding))
    got = decode(pcm(count).tobytes(), audio, (-1, 5, 8))
    assert got.shape == (5, 8)
    assert np.isfinite(got).all()


def test_open_frames_and_both_orders_of_axes() -> None:
    samples = pcm(1_000)
    wanted = log_mel(samples / np.float32(32_768), FORM, 16_000)
    assert np.array_equal(decode(samples.tobytes(), MEL, (-1, -1, 8)), wanted)
    turned = decode(samples.tobytes(), replace(MEL, axes=("mel", "frame")), (-1, 1, 8, -1))
    assert np.array_equal(turned, wanted.T[np.newaxis])


def test_values_are_normalised_and_scaled() -> None:
    samples = pcm(2_000)
    whole = decode(samples.tobytes(), replace(SAMPLES, normalise="recording"))
    assert (whole.mean(), whole.std()) == (pytest.approx(0, abs=1e-6), pytest.approx(1, abs=1e-4))
    bands = decode(samples.tobytes(), replace(MEL, normalise="mel"), (-1, -1, 8))
    assert np.allclose(bands.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(bands.std(axis=0), 1, atol=1e-4)
    plain = decode(samples.tobytes(), MEL, (-1, -1, 8))
    numbers = np.arange(8, dtype=np.float32)
    scaled = replace(MEL, scale=2.0, mean=tuple(numbers.tolist()), std=(4.0,))
    assert np.allclose(decode(samples.tobytes(), scaled, (-1, -1, 8)), (plain * 2 - numbers) / 4)
    assert not decode(bytes(20), replace(SAMPLES, normalise="recording")).any()


def test_quantised_inputs_are_rounded_and_kept_in_range() -> None:
    audio = replace(SAMPLES, scale=200.0)
    spec = TensorSpec("x", Datatype.INT8, (-1, 2), audio=audio)
    got = decode_recordings([np.array([16_384, -32_768], "<i2").tobytes()], spec, audio)
    assert got.dtype == np.int8
    assert got.tolist() == [[100, -128]]


def test_recordings_of_one_request_have_one_length() -> None:
    spec = TensorSpec("x", Datatype.FP32, (-1, -1), audio=SAMPLES)
    assert decode_recordings([bytes(4), bytes(4)], spec, SAMPLES).shape == (2, 2)
    with pytest.raises(RequestError, match="differ in length"):
        decode_recordings([bytes(4), bytes(6)], spec, SAMPLES)


def test_what_is_no_recording_is_refused() -> None:
    assert "is empty" in refusal(b"").message
    assert "is empty" in refusal(wav(np.zeros(0, np.int16))).message
    assert "not a multiple of 2" in refusal(b"123").message
    assert "no WAV file" in refusal(b"1234", replace(SAMPLES, decode=("wav",))).message
    short = refusal(bytes(2), MEL, (-1, -1, 8))
    assert (short.fault, "1 samples at 16000 Hz; a window takes 400" in short.message) == (Fault.INVALID, True)


def test_a_recording_that_is_too_long_is_refused() -> None:
    audio = replace(SAMPLES, limit_s=0.001)
    assert decode(bytes(32), audio).shape == (16,)
    error = refusal(bytes(34), audio)
    assert error.fault is Fault.TOO_LARGE
    assert "limit_s" in error.message
