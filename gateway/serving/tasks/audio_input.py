"""Recordings to an input tensor as the manifest declares: decode, mix, resample, log-mel, normalise. Pure functions.

If the input has a fixed number of samples or frames, a shorter recording is followed by silence, and the end of a
longer one is cut off. If the number is open, all recordings of a request must have the same.

`normalise`: (x − mean) / √(variance + 10^−7) over the recording, as wav2vec 2.0 takes samples, or over each mel band.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gateway.common.domain.audio import AudioPreprocess
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ROWS, TensorSpec
from gateway.common.domain.tensor import Array
from gateway.serving.tasks.input_values import cast_values
from gateway.serving.tasks.log_mel import log_mel, sample_count
from gateway.serving.tasks.pcm import decode_pcm, decode_wav, mono
from gateway.serving.tasks.resampling import resample

NORMALISE_EPSILON = 1e-7
"""Added to a variance before its root is taken: silence becomes zeros."""


def decode_recordings(encoded: Sequence[bytes], spec: TensorSpec, audio: AudioPreprocess) -> Array:
    """Return a tensor [n, …] in the spec's datatype and shape from n encoded recordings.

    Raises RequestError: INVALID if a recording is not in a declared format or holds too little, TOO_LARGE if it exceeds
    `limit_s`.
    """
    rows = [
        _row(content, spec, audio, f"recording {index} of input '{spec.name}'") for index, content in enumerate(encoded)
    ]
    if len({row.shape for row in rows}) > 1:
        raise RequestError(Fault.INVALID, f"the recordings for input '{spec.name}' differ in length")
    values = np.stack(rows)
    shape = iter(values.shape[1:])
    return cast_values(values, spec.datatype.dtype).reshape(
        len(rows), *(1 if size == 1 else next(shape) for size in spec.shape[1:])
    )


def decode_samples(content: bytes | memoryview, audio: AudioPreprocess, where: str) -> Array:
    """Return FP32 samples [n] at the model's rate from one encoded recording. Raises as `decode_recordings` does."""
    if "wav" in audio.decode and (len(audio.decode) == 1 or bytes(content[:4]) == b"RIFF"):
        rate_hz, samples = decode_wav(content, where)
    else:
        rate_hz, encoding = audio.source_rate_hz, next(name for name in audio.decode if name != "wav")
        samples = decode_pcm(content, encoding, audio.source_channels, where)
    if not len(samples):
        raise RequestError(Fault.INVALID, f"{where} is empty")
    if len(samples) > audio.limit_s * rate_hz:
        problem = f"{where} takes {len(samples) / rate_hz:.3f} s; at most {audio.limit_s:g} s are read (audio.limit_s)"
        raise RequestError(Fault.TOO_LARGE, problem)
    return resample(mono(samples), rate_hz, audio.rate_hz)


def _row(content: bytes, spec: TensorSpec, audio: AudioPreprocess, where: str) -> Array:
    """Return the values of one recording: [samples], or frames and mel bands in the order of `audio.axes`."""
    sizes = [size for size in spec.shape[1:] if size != 1]
    samples = decode_samples(content, audio, where)
    if audio.mel is None:
        return _normalised(_fitted(samples, sizes[0]), audio)
    frames = sizes[audio.axes.index("frame")]
    fitted = _fitted(samples, frames if frames == ROWS else sample_count(audio.mel, frames))
    features = log_mel(fitted, audio.mel, audio.rate_hz, None if frames == ROWS else frames)
    if not len(features):
        problem = f"{where} holds {len(samples)} samples at {audio.rate_hz} Hz; a window takes {audio.mel.window}"
        raise RequestError(Fault.INVALID, problem)
    values = _normalised(features, audio)
    return values if audio.axes == ("frame", "mel") else values.T


def _fitted(samples: Array, count: int) -> Array:
    """Return `count` samples, with silence at the end or without the end; all samples if `count` is open."""
    if count == ROWS:
        return samples
    return np.pad(samples[:count], (0, max(0, count - len(samples))))


def _normalised(values: Array, audio: AudioPreprocess) -> Array:
    """Return (x·scale − mean) / std, after `normalise`."""
    if audio.normalise != "none":
        axis = 0 if audio.normalise == "mel" else None
        variance = values.var(axis=axis, keepdims=True, dtype=np.float64)
        mean = values.mean(axis=axis, keepdims=True, dtype=np.float64)
        values = ((values - mean) / np.sqrt(variance + NORMALISE_EPSILON)).astype(np.float32)
    moved = values * np.float32(audio.scale) - np.asarray(audio.mean, np.float32)
    return np.asarray(moved / np.asarray(audio.std, np.float32))
