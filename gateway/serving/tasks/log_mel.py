"""Log-mel spectrogram of a recording, as the manifest declares it. Pure functions of samples.

1. Frames: one of `window` samples begins every `hop` samples. With `padding` none, only frames that lie inside the
   recording. With zero or reflect, frame t is centred on sample t · hop, and zeros or reflected samples surround the
   recording.
2. Each frame is multiplied by a periodic window, w[n] = a − (1 − a) · cos(2πn / window), with a = 0.5 (Hann) or 0.54
   (Hamming). Its FFT of `fft` samples gives |X|² (`spectrum` power) or |X| (magnitude).
3. Mel scale: htk m = 2595 · log10(1 + f / 700) (Young et al., The HTK Book, 5.4); slaney m = 3f / 200 below 1,000 Hz
   and 15 + 27 · ln(f / 1000) / ln 6.4 above (Slaney, Auditory Toolbox 2). Triangular bands have their corners at
   `mels` + 2 points with equal distances in mel. They are linear in hertz (librosa, torchaudio) or in mel
   (TensorFlow, Kaldi). With `mel_norm` slaney each has the area of 1 Hz: it is multiplied by 2 / (upper − lower
   corner).
4. Logarithm of max(x, floor) + offset: ln, log10, or db (10 · log10 of power, 20 · log10 of magnitude). Reference max
   subtracts the largest value of the recording. log_range r lifts values to at least the largest one − r.
5. pcen instead of a logarithm: (x / (ε + M)^0.98 + 2)^0.5 − 2^0.5, where M[t] = (1 − s) · M[t−1] + s · x[t], M[0] =
   x[0], ε = 10^−6, and s has a time constant of 0.4 s (Wang et al. 2017; constants and the scale of 2^31 as in
   librosa).

Examples. librosa: window = fft, padding zero, slaney twice, db. Whisper: 400/160/400, reflect, slaney twice, log10,
log_range 8, then (x + 4) / 4. YAMNet: magnitude, htk, triangles in mel, ln with floor 0 and offset 0.001.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from gateway.common.domain.audio import LogMelForm
from gateway.common.domain.tensor import Array

BLOCK_FRAMES = 512
"""Frames that are transformed at once: it bounds the memory to 512 spectra."""
PCEN_GAIN, PCEN_BIAS, PCEN_POWER, PCEN_EPSILON = 0.98, 2.0, 0.5, 1e-6
PCEN_SECONDS = 0.4
PCEN_SCALE = 2.0**31
_FORMS = 8
"""Forms whose window and mel bands are kept: a model has one."""
_WINDOW = {"hann": 0.5, "hamming": 0.54}


def frame_count(form: LogMelForm, samples: int) -> int:
    """Return the number of frames of a recording of `samples`."""
    before, after = _padding(form)
    length = samples + before + after
    return 0 if length < form.window or not samples else 1 + (length - form.window) // form.hop


def sample_count(form: LogMelForm, frames: int) -> int:
    """Return the number of samples for `frames` frames without padded samples at the end, as far as possible."""
    return frames * form.hop if form.padding != "none" else (frames - 1) * form.hop + form.window


def log_mel(samples: Array, form: LogMelForm, rate_hz: int, most: int | None = None) -> Array:
    """Return the log-mel spectrogram [frames, mels] of samples [n] at `rate_hz`, FP32. No samples have no frames.

    `most` is the largest number of frames; later ones have no effect.
    """
    energies = mel_energies(samples, form, rate_hz)[:most]
    if not len(energies):
        return energies
    if form.log == "pcen":
        return pcen(energies, rate_hz / form.hop)
    values = _LOGARITHMS[form.log](np.maximum(energies, np.float32(form.floor)) + np.float32(form.offset))
    if form.log == "db":
        values *= np.float32(10.0 if form.spectrum == "power" else 20.0)
    if form.reference == "max":
        values -= values.max()
    return np.asarray(np.maximum(values, values.max() - form.log_range) if form.log_range else values, np.float32)


def mel_energies(samples: Array, form: LogMelForm, rate_hz: int) -> Array:
    """Return the sums [frames, mels] of the spectrum in each mel band, FP32."""
    frames = frame_count(form, len(samples))
    energies = np.empty((frames, form.mels), np.float32)
    if not frames:
        return energies
    bands, (before, after) = mel_bands(form, rate_hz), _padding(form)
    padded = np.pad(samples.astype(np.float32), (before, after), "reflect" if form.padding == "reflect" else "constant")
    windows = np.lib.stride_tricks.sliding_window_view(padded, form.window)[:: form.hop]
    for begin in range(0, frames, BLOCK_FRAMES):
        block = windows[begin : min(begin + BLOCK_FRAMES, frames)] * _window(form.window_form, form.window)
        spectrum = np.abs(np.fft.rfft(block, form.fft))
        energies[begin : begin + len(block)] = (spectrum**2 if form.spectrum == "power" else spectrum) @ bands
    return energies


def pcen(energies: Array, frames_hz: float) -> Array:
    """Return the per-channel energy normalisation of energies [frames, mels], FP32; `frames_hz` frames per second."""
    time = PCEN_SECONDS * frames_hz
    rate = (np.sqrt(1.0 + 4.0 * time**2) - 1.0) / (2.0 * time**2)
    scaled = energies.astype(np.float64) * PCEN_SCALE
    smooth, level = np.empty_like(scaled), scaled[0]
    for frame, values in enumerate(scaled):  # each depends on the one before; a frame is all bands at once
        level = level + rate * (values - level)
        smooth[frame] = level
    gained = scaled / (PCEN_EPSILON + smooth) ** PCEN_GAIN
    return np.asarray((gained + PCEN_BIAS) ** PCEN_POWER - PCEN_BIAS**PCEN_POWER, np.float32)


@lru_cache(maxsize=_FORMS)
def mel_bands(form: LogMelForm, rate_hz: int) -> Array:
    """Return the weights [fft / 2 + 1, mels] of the mel bands, FP32."""
    to_mel, to_hertz = _SCALES[form.mel_scale]
    limits = to_mel(np.array([form.f_min_hz, form.f_max_hz]))
    corners = np.linspace(limits[0], limits[1], form.mels + 2)
    hertz = to_hertz(corners)
    places = np.fft.rfftfreq(form.fft, 1.0 / rate_hz)
    if form.triangles == "mel":
        places = to_mel(places)
    else:
        corners = hertz
    rising = (places[:, np.newaxis] - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - places[:, np.newaxis]) / (corners[2:] - corners[1:-1])
    weights = np.maximum(0.0, np.minimum(rising, falling))
    if form.mel_norm == "slaney":
        weights *= 2.0 / (hertz[2:] - hertz[:-2])
    return np.asarray(weights, np.float32)


def _padding(form: LogMelForm) -> tuple[int, int]:
    """Return the samples before and after a recording that centre frame t on sample t · hop.

    The window lies in the middle of the FFT's samples, as in librosa and torch.stft: it matters for odd lengths.
    """
    if form.padding == "none":
        return 0, 0
    before = form.fft // 2 - (form.fft - form.window) // 2
    return before, form.fft // 2 * 2 - form.fft + form.window - before


@lru_cache(maxsize=_FORMS)
def _window(name: str, size: int) -> Array:
    offset = _WINDOW[name]
    return (offset - (1.0 - offset) * np.cos(2.0 * np.pi * np.arange(size) / size)).astype(np.float32)


def _htk_mel(hertz: Array) -> Array:
    return np.asarray(2595.0 * np.log10(1.0 + hertz / 700.0))


def _htk_hertz(mel: Array) -> Array:
    return np.asarray(700.0 * (10.0 ** (mel / 2595.0) - 1.0))


def _slaney_mel(hertz: Array) -> Array:
    above = 15.0 + 27.0 * np.log(np.maximum(hertz, 1000.0) / 1000.0) / np.log(6.4)
    return np.where(hertz < 1000.0, hertz * 3.0 / 200.0, above)


def _slaney_hertz(mel: Array) -> Array:
    return np.where(mel < 15.0, mel * 200.0 / 3.0, 1000.0 * np.exp((np.maximum(mel, 15.0) - 15.0) * np.log(6.4) / 27.0))


def _unchanged(values: Array) -> Array:
    return values


_Function = Callable[[Array], Array]
_SCALES: Mapping[str, tuple[_Function, _Function]] = {
    "htk": (_htk_mel, _htk_hertz),
    "slaney": (_slaney_mel, _slaney_hertz),
}
_LOGARITHMS: Mapping[str, _Function] = {"none": _unchanged, "ln": np.log, "log10": np.log10, "db": np.log10}
