"""Decoding of uncompressed audio: raw PCM and WAV files to samples. Pure functions.

Formula: a sample of n bits is its integer divided by 2^(n − 1), so that full scale is ±1; 8 bits are unsigned with the
zero at 128. Source: Multimedia Programming Interface and Data Specifications 1.0 (RIFF, WAVE form), and
Multiple Channel Audio Data and WAVE Files (WAVE_FORMAT_EXTENSIBLE).

Data from a peer is untrusted: every size is checked before it is used. A `data` chunk of 0xFFFFFFFF bytes ends with
the file: programs write this size when they do not know it yet.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from gateway.common.domain.audio import CHANNELS_LIMIT, RATE_LIMIT_HZ, RATE_LOW_HZ
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Array

SAMPLE_LIMIT = 2.0**31
"""Largest magnitude of a float sample: full scale of programs that do not divide 32-bit integers."""
CHUNKS_LIMIT = 64
"""Most chunks of a WAV file that are read until its data."""
_PCM, _FLOAT, _EXTENSIBLE = 0x0001, 0x0003, 0xFFFE
_SUBFORMAT_TAIL = bytes.fromhex("000000001000800000aa00389b71")
"""Last 14 bytes of the GUID of a format that has a number in the WAVE form."""
_OPEN_SIZE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class WaveHeader:
    """Content of a `fmt ` chunk: encoding (a key of ENCODINGS), channels, rate."""

    encoding: str
    channels: int
    rate_hz: int


def decode_pcm(content: bytes | memoryview, encoding: str, channels: int, where: str) -> Array:
    """Return FP32 samples [n, channels] of interleaved little-endian PCM. `encoding` is a key of ENCODINGS.

    Raises RequestError INVALID for a part of a sample, NaN or too large floats; `where` names the recording.
    """
    width = _WIDTHS[encoding] * channels
    if len(content) % width:
        problem = f"{where} has {len(content)} bytes, not a multiple of {width}: {encoding}, {channels} channels"
        raise RequestError(Fault.INVALID, problem)
    samples = ENCODINGS[encoding](content).reshape(-1, channels)
    if encoding == "f32le" and not (np.abs(samples) <= SAMPLE_LIMIT).all():  # NaN compares false
        raise RequestError(Fault.INVALID, f"{where} holds NaN, or a sample beyond {SAMPLE_LIMIT:g}; full scale is 1")
    return samples


def decode_wav(content: bytes | memoryview, where: str) -> tuple[int, Array]:
    """Return the rate in hertz and FP32 samples [n, channels] of a WAV file.

    Raises RequestError INVALID if it is broken or compressed; `where` names the recording.
    """
    view, form = memoryview(content), None
    if len(view) < 12 or bytes(view[:4]) != b"RIFF" or bytes(view[8:12]) != b"WAVE":
        raise RequestError(Fault.INVALID, f"{where} is no WAV file")
    offset = 12
    for _ in range(CHUNKS_LIMIT):
        name, body, offset = _chunk(view, offset, where)
        if name == b"fmt ":
            form = _wave_form(body, where)
        elif name == b"data" and form is None:
            raise RequestError(Fault.INVALID, f"{where} has no format before its data")
        elif name == b"data" and form:
            return form.rate_hz, decode_pcm(body, form.encoding, form.channels, where)
    raise RequestError(Fault.INVALID, f"{where} has no data in its first {CHUNKS_LIMIT} chunks")


def mono(samples: Array) -> Array:
    """Return the mean [n] of all channels of samples [n, channels]."""
    return samples[:, 0] if samples.shape[1] == 1 else np.asarray(samples.mean(axis=1))


def _chunk(view: memoryview, offset: int, where: str) -> tuple[bytes, memoryview, int]:
    """Return name and content of the chunk at `offset`, and the offset of the next one (chunks have even sizes)."""
    if offset + 8 > len(view):
        raise RequestError(Fault.INVALID, f"{where} ends after {len(view)} bytes, before its data")
    name, size = struct.unpack_from("<4sI", view, offset)
    begin = offset + 8
    if name == b"data" and size == _OPEN_SIZE:
        size = len(view) - begin
    if begin + size > len(view):
        problem = f"{where} is truncated: a chunk of {size} bytes begins at {begin}, the file has {len(view)}"
        raise RequestError(Fault.INVALID, problem)
    return name, view[begin : begin + size], begin + size + size % 2


def _wave_form(body: memoryview, where: str) -> WaveHeader:
    """Return the form that a `fmt ` chunk declares."""
    if len(body) < 16:
        raise RequestError(Fault.INVALID, f"{where} has a format of {len(body)} bytes; at least 16 are needed")
    number, channels, rate_hz, _, width, bits = struct.unpack_from("<HHIIHH", body)
    if number == _EXTENSIBLE and len(body) >= 40 and bytes(body[26:40]) == _SUBFORMAT_TAIL:
        (number,) = struct.unpack_from("<H", body, 24)
    encoding = _ENCODED.get((number, bits))
    if encoding is None:
        known = "PCM of 8, 16, 24 and 32 bits, and floats of 32 bits"
        raise RequestError(Fault.INVALID, f"{where} has the WAVE format {number:#x} of {bits} bits; read are {known}")
    if not 1 <= channels <= CHANNELS_LIMIT or not RATE_LOW_HZ <= rate_hz <= RATE_LIMIT_HZ:
        problem = f"{where} has {channels} channels at {rate_hz} Hz; read are 1 to {CHANNELS_LIMIT} channels"
        raise RequestError(Fault.INVALID, f"{problem} at {RATE_LOW_HZ} to {RATE_LIMIT_HZ} Hz")
    if width != channels * bits // 8:
        raise RequestError(
            Fault.INVALID, f"{where} has blocks of {width} bytes, but {channels} channels of {bits} bits"
        )
    return WaveHeader(encoding, channels, rate_hz)


def _u8(content: bytes | memoryview) -> Array:
    return (np.frombuffer(content, np.uint8).astype(np.float32) - 128.0) / np.float32(2**7)


def _s16(content: bytes | memoryview) -> Array:
    return np.frombuffer(content, "<i2").astype(np.float32) / np.float32(2**15)


def _s24(content: bytes | memoryview) -> Array:
    words = np.zeros((len(content) // 3, 4), np.uint8)
    words[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)  # the upper bytes: the sign is in its place
    return words.reshape(-1).view("<i4").astype(np.float32) / np.float32(2**31)


def _s32(content: bytes | memoryview) -> Array:
    return np.frombuffer(content, "<i4").astype(np.float32) / np.float32(2**31)


def _f32(content: bytes | memoryview) -> Array:
    return np.frombuffer(content, "<f4").astype(np.float32)


ENCODINGS: Mapping[str, Callable[[bytes | memoryview], Array]] = {
    "u8": _u8,
    "s16le": _s16,
    "s24le": _s24,
    "s32le": _s32,
    "f32le": _f32,
}
"""Decoder of samples by the name of their encoding, as FFmpeg names it."""
_WIDTHS = {"u8": 1, "s16le": 2, "s24le": 3, "s32le": 4, "f32le": 4}
_ENCODED = {(_PCM, 8): "u8", (_PCM, 16): "s16le", (_PCM, 24): "s24le", (_PCM, 32): "s32le", (_FLOAT, 32): "f32le"}
