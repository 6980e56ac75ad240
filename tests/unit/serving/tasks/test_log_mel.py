"""Log-mel spectrograms as librosa computes them (recorded values), spectra as scipy, frames at every length."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.audio import LogMelForm
from gateway.common.domain.tensor import Array
from gateway.serving.tasks.log_mel import BLOCK_FRAMES, frame_count, log_mel, mel_bands, mel_energies, sample_count
from tests.unit.serving.tasks.make_librosa_values import FILE, RATE_HZ, recording

LIBROSA = np.load(FILE)
SLANEY = LogMelForm(400, 160, 400, 20, 0.0, 8_000.0, mel_scale="slaney", mel_norm="slaney", padding="zero")
PLAIN = LogMelForm(400, 160, 512, 8, 20.0, 4_000.0)


def close(got: Array, name: str, relative: float = 1e-5, absolute: float = 1e-7) -> bool:
    wanted = LIBROSA[name]
    assert got.shape == wanted.shape
    assert got.dtype == np.float32
    return np.allclose(got, wanted, rtol=relative, atol=absolute)


def test_mel_bands_are_those_of_librosa() -> None:
    slaney = replace(SLANEY, fft=512, f_min_hz=50.0, f_max_hz=7_000.0)
    htk = replace(SLANEY, fft=512, mel_scale="htk", mel_norm="none")
    assert close(mel_bands(slaney, RATE_HZ).T, "bands_slaney")
    assert close(mel_bands(htk, RATE_HZ).T, "bands_htk")


def test_energies_are_those_of_librosa() -> None:
    assert close(mel_energies(recording(), replace(SLANEY, padding="reflect"), RATE_HZ), "reflect")
    assert close(mel_energies(recording(), replace(SLANEY, spectrum="magnitude"), RATE_HZ), "magnitude")
    odd = LogMelForm(399, 150, 512, 20, 0.0, 8_000.0, window_form="hamming", padding="zero")
    assert close(mel_energies(recording(), odd, RATE_HZ), "hamming", absolute=1e-5)


def test_decibels_are_those_of_librosa() -> None:
    power = replace(SLANEY, padding="reflect", log="db", reference="max", log_range=60.0)
    assert close(log_mel(recording(), power, RATE_HZ), "decibel", absolute=1e-4)
    magnitude = replace(SLANEY, spectrum="magnitude", log="db", floor=1e-5)
    assert close(log_mel(recording(), magnitude, RATE_HZ), "magnitude_db", absolute=1e-4)


def test_pcen_is_that_of_librosa() -> None:
    form = replace(SLANEY, spectrum="magnitude", log="pcen")
    assert close(log_mel(recording(), form, RATE_HZ), "pcen", relative=1e-3, absolute=1e-5)


@pytest.mark.parametrize("triangles", ["hz", "mel"])
@pytest.mark.parametrize("window_form", ["hann", "hamming"])
def test_spectra_are_those_of_scipy(triangles: str, window_form: str) -> None:
    form = replace(PLAIN, triangles=triangles, window_form=window_form)
    samples, window = recording(), scipy.signal.get_window(window_form, 400)
    frames = np.stack([samples[160 * frame :][:400] * window for frame in range(frame_count(form, len(samples)))])
    spectra = np.abs(scipy.fft.rfft(frames, 512)) ** 2
    assert np.allclose(mel_energies(samples, form, RATE_HZ), spectra @ mel_bands(form, RATE_HZ), rtol=1e-4)


def test_bands_that_are_triangles_in_mel() -> None:
    """The peak of each band is 1 and neighbours cross at a half, on the scale on which they are triangles."""
    form = replace(PLAIN, triangles="mel", fft=65_536, window=400)
    bands = mel_bands(form, RATE_HZ)
    assert bands.max(axis=0) == pytest.approx(np.ones(8), abs=0.01)
    inside = slice(bands[:, 0].argmax() + 1, bands[:, -1].argmax())
    assert np.allclose(bands[inside].sum(axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize(
    ("log", "wanted"), [("ln", np.log), ("log10", np.log10), ("none", np.asarray), ("db", lambda x: 10 * np.log10(x))]
)
def test_logarithms_have_a_floor_and_an_offset(log: str, wanted: object) -> None:
    form = replace(PLAIN, log=log, floor=1e-3, offset=0.5)
    energies = mel_energies(recording(), form, RATE_HZ)
    got = log_mel(recording(), form, RATE_HZ)
    assert np.allclose(got, wanted(np.maximum(energies, 1e-3) + 0.5), rtol=1e-5)  # type: ignore[operator]


def test_a_whisper_spectrogram() -> None:
    """Source of the wanted values: the definition in Whisper's audio.py, on librosa's recorded energies."""
    form = replace(SLANEY, padding="reflect", log="log10", log_range=8.0)
    wanted = np.log10(np.maximum(LIBROSA["reflect"], 1e-10))
    wanted = np.maximum(wanted, wanted.max() - 8.0)
    assert np.allclose(log_mel(recording(), form, RATE_HZ), wanted, atol=1e-4)


FORMS = st.builds(
    LogMelForm,
    window=st.integers(1, 40),
    hop=st.integers(1, 50),
    fft=st.integers(40, 65),
    mels=st.just(2),
    f_min_hz=st.just(0.0),
    f_max_hz=st.just(500.0),
    padding=st.sampled_from(["none", "zero", "reflect"]),
    log=st.sampled_from(["ln", "db", "pcen"]),
)


@given(FORMS, st.integers(0, 200))
def test_every_length_has_its_frames(form: LogMelForm, samples: int) -> None:
    """No samples, one sample, less than a window: all have the number of frames that is announced, all finite."""
    got = log_mel(np.linspace(-1, 1, samples), form, 1_000)
    assert got.shape == (frame_count(form, samples), 2)
    assert np.isfinite(got).all()


@given(FORMS, st.integers(1, 30))
def test_the_samples_for_a_number_of_frames_are_enough(form: LogMelForm, frames: int) -> None:
    assert frame_count(form, sample_count(form, frames)) >= frames
    if form.padding == "none":
        assert frame_count(form, sample_count(form, frames) - 1) < frames


def test_silence_and_no_samples() -> None:
    assert (log_mel(np.zeros(800), PLAIN, RATE_HZ) == np.log(np.float32(1e-10))).all()
    assert log_mel(np.zeros(0), SLANEY, RATE_HZ).shape == (0, 20)


def test_blocks_do_not_change_the_result() -> None:
    samples = np.sin(np.arange(160 * (BLOCK_FRAMES + 9)))
    whole = mel_energies(samples, PLAIN, RATE_HZ)
    assert np.allclose(whole[BLOCK_FRAMES:], mel_energies(samples[160 * BLOCK_FRAMES :], PLAIN, RATE_HZ), rtol=1e-5)
