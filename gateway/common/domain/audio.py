"""Declaration of recordings as inputs of a model: encodings, rate, log-mel spectrogram. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

PCM_FORMATS = ("s16le", "s24le", "f32le")
"""Encodings of raw samples, which have no header."""
AUDIO_FORMATS = ("wav", *PCM_FORMATS)
CHANNELS_LIMIT = 16
"""Most channels of a recording."""
RATE_LOW_HZ, RATE_LIMIT_HZ = 1_000, 384_000
"""Least and greatest rate of a recording, and of a model."""


@dataclass(frozen=True, slots=True)
class LogMelForm:
    """Log-mel spectrogram; `gateway.serving.tasks.log_mel` has the formulas.

    Lengths are samples at the model's rate. `f_max_hz` is at most half of it. `floor` and `offset` apply to energies,
    before the logarithm; `log_range` limits the result below its maximum (0: it does not).
    """

    window: int
    hop: int
    fft: int
    mels: int
    f_min_hz: float
    f_max_hz: float
    window_form: str = "hann"
    padding: str = "none"
    spectrum: str = "power"
    mel_scale: str = "htk"
    mel_norm: str = "none"
    triangles: str = "hz"
    log: str = "ln"
    floor: float = 1e-10
    offset: float = 0.0
    reference: str = "one"
    log_range: float = 0.0


@dataclass(frozen=True, slots=True)
class AudioPreprocess:
    """Conversion of recordings to an input: decode, mix, resample, log-mel (None: samples), normalise.

    The values are (x·scale − mean) / std after `normalise`; mean and std are one number, or one per mel band. Raw
    samples have `source_rate_hz` and `source_channels`. `limit_s` bounds the duration of a recording. `axes` is the
    order of frames and mel bands in the input.
    """

    decode: tuple[str, ...]
    rate_hz: int
    source_rate_hz: int
    source_channels: int = 1
    limit_s: float = 60.0
    mel: LogMelForm | None = None
    axes: tuple[str, ...] = ("frame", "mel")
    normalise: str = "none"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
