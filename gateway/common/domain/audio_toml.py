"""Strict reader of a manifest's `[input.audio]`: recordings, as samples or as a log-mel spectrogram.

Source: docs/pages/reference/manifest.md.
"""

from __future__ import annotations

from gateway.common.domain.audio import (
    AUDIO_FORMATS,
    CHANNELS_LIMIT,
    PCM_FORMATS,
    RATE_LIMIT_HZ,
    RATE_LOW_HZ,
    AudioPreprocess,
    LogMelForm,
)
from gateway.common.domain.document import Table
from gateway.common.domain.manifest import ROWS, TensorSpec
from gateway.common.domain.tensor import Datatype

FRAME_LIMIT_MS = 1_000.0
"""Largest `window_ms` and `hop_ms`; the least is one sample."""
FFT_LIMIT = 65_536
MELS_LIMIT = 1_024
DURATION_LIMIT_S = 3_600.0
NUMBER_LIMIT = 1e9
"""Largest magnitude of `scale`, `floor`, `offset` and `log_range`; the least `std` is its reciprocal."""
_OF_MEL = (
    *("window_ms", "hop_ms", "fft", "window_form", "padding", "spectrum", "f_min_hz", "f_max_hz", "mel_scale"),
    *("mel_norm", "triangles", "log", "floor", "offset", "reference", "log_range", "axes"),
)


def read_audio(table: Table | None) -> AudioPreprocess | None:
    """Take `[input.audio]`. Raises ConfigurationError for unknown keys and for values that contradict."""
    if table is None:
        return None
    rate_hz = table.integer("rate_hz", low=RATE_LOW_HZ, high=RATE_LIMIT_HZ)
    audio = AudioPreprocess(
        decode=_formats(table),
        rate_hz=rate_hz,
        source_rate_hz=table.integer("source_rate_hz", rate_hz, low=RATE_LOW_HZ, high=RATE_LIMIT_HZ),
        source_channels=table.integer("source_channels", 1, low=1, high=CHANNELS_LIMIT),
        limit_s=table.number("limit_s", 60.0, low=0.001, high=DURATION_LIMIT_S),
        mel=_log_mel(table, rate_hz),
        axes=table.texts("axes", ("frame", "mel"), among=("frame", "mel")),
        normalise=table.text("normalise", "none", among=("none", "recording", "mel")),
        scale=table.number("scale", 1.0, low=-NUMBER_LIMIT, high=NUMBER_LIMIT),
        mean=table.numbers("mean", (0.0,)),
        std=table.numbers("std", (1.0,)),
    )
    counts = {1, audio.mel.mels} if audio.mel else {1}
    for key, numbers in (("mean", audio.mean), ("std", audio.std)):
        if len(numbers) not in counts:
            table.refuse(key, f"must hold {' or '.join(map(str, sorted(counts)))} numbers, not {len(numbers)}")
    if not all(1 / NUMBER_LIMIT <= number <= NUMBER_LIMIT for number in audio.std):
        table.refuse("std", f"must hold numbers between {1 / NUMBER_LIMIT:g} and {NUMBER_LIMIT:g}")
    if len(set(audio.axes)) != 2:
        table.refuse("axes", f"must name frame and mel once each, not {list(audio.axes)}")
    if audio.normalise == "mel" and audio.mel is None:
        table.refuse("normalise", "by mel band needs mels; set recording or none")
    table.finish()
    return audio


def check_audio_input(table: Table, spec: TensorSpec, audio: AudioPreprocess) -> None:
    """Check the shape: rows, then samples, or frames and mel bands; dimensions of size 1 do not count.

    Raises ConfigurationError for a shape or datatype that recordings do not fit.
    """
    if spec.datatype in {Datatype.BYTES, Datatype.BOOL} or spec.preprocess:
        table.refuse("audio", "recordings need a numeric input without preprocess")
    sizes = [size for size in spec.shape[1:] if size != 1]
    wanted = [ROWS] if audio.mel is None else [audio.mel.mels if axis == "mel" else ROWS for axis in audio.axes]
    if len(sizes) != len(wanted) or any(w not in {ROWS, s} for s, w in zip(sizes, wanted, strict=True)):
        form = "samples" if audio.mel is None else f"{' and '.join(audio.axes)} ({audio.mel.mels} mel bands)"
        table.refuse("shape", f"must have rows, then {form}, and else dimensions of 1, not {list(spec.shape)}")


def _formats(table: Table) -> tuple[str, ...]:
    """Take `decode`: WAV, at most one encoding of raw samples, or both."""
    formats = table.texts("decode", among=AUDIO_FORMATS)
    raw = [name for name in formats if name in PCM_FORMATS]
    if not formats or len(raw) > 1:
        table.refuse("decode", f"must name wav, one of {', '.join(PCM_FORMATS)}, or both, not {list(formats)}")
    for key in ("source_rate_hz", "source_channels"):
        if key in table and not raw:
            table.refuse(key, "is for raw samples; a WAV file has its own")
    return formats


def _log_mel(table: Table, rate_hz: int) -> LogMelForm | None:
    """Take the keys of the log-mel spectrogram; without `mels` there is none."""
    if "mels" not in table:
        for key in _OF_MEL:
            if key in table:
                table.refuse(key, "is for log-mel spectrograms; set mels, too")
        return None
    window = _samples(table, "window_ms", rate_hz)
    form = LogMelForm(
        window=window,
        hop=_samples(table, "hop_ms", rate_hz),
        fft=table.integer("fft", 1 << (window - 1).bit_length(), low=window, high=FFT_LIMIT),
        mels=table.integer("mels", low=2, high=MELS_LIMIT),
        f_min_hz=table.number("f_min_hz", 0.0, low=0.0, high=rate_hz / 2),
        f_max_hz=table.number("f_max_hz", rate_hz / 2, low=0.0, high=rate_hz / 2),
        window_form=table.text("window_form", "hann", among=("hann", "hamming")),
        padding=table.text("padding", "none", among=("none", "zero", "reflect")),
        spectrum=table.text("spectrum", "power", among=("power", "magnitude")),
        mel_scale=table.text("mel_scale", "htk", among=("htk", "slaney")),
        mel_norm=table.text("mel_norm", "none", among=("none", "slaney")),
        triangles=table.text("triangles", "hz", among=("hz", "mel")),
        log=table.text("log", "ln", among=("none", "ln", "log10", "db", "pcen")),
        floor=table.number("floor", 1e-10, low=0.0, high=NUMBER_LIMIT),
        offset=table.number("offset", 0.0, low=0.0, high=NUMBER_LIMIT),
        reference=table.text("reference", "one", among=("one", "max")),
        log_range=table.number("log_range", 0.0, low=0.0, high=NUMBER_LIMIT),
    )
    if form.f_min_hz >= form.f_max_hz:
        table.refuse("f_max_hz", f"must be greater than f_min_hz, {form.f_min_hz:g}")
    if form.log in {"ln", "log10", "db"} and form.floor + form.offset < 1e-30:
        table.refuse("floor", "silence has no logarithm; set floor or offset")
    return form


def _samples(table: Table, key: str, rate_hz: int) -> int:
    """Take a time in milliseconds as the nearest number of samples."""
    return max(1, round(table.number(key, low=1000 / rate_hz, high=FRAME_LIMIT_MS) * rate_hz / 1000))
