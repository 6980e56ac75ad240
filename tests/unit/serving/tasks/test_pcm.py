"""PCM and WAV files as scipy and Python read and write them; broken and hostile ones are refused."""

from __future__ import annotations

import io
import struct
import wave

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Array
from gateway.serving.tasks.pcm import CHUNKS_LIMIT, SAMPLE_LIMIT, decode_pcm, decode_wav, mono


def written(samples: Array, rate_hz: int = 16_000) -> bytes:
    """Return the WAV file that scipy writes."""
    file = io.BytesIO()
    scipy.io.wavfile.write(file, rate_hz, samples)
    return file.getvalue()


def chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def form(number: int = 1, channels: int = 1, rate_hz: int = 8_000, bits: int = 16, width: int | None = None) -> bytes:
    block = channels * bits // 8 if width is None else width
    return struct.pack("<HHIIHH", number, channels, rate_hz, rate_hz * block, block, bits)


def riff(*chunks: bytes) -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def refusal(content: bytes) -> str:
    with pytest.raises(RequestError) as error:
        decode_wav(content, "recording 0")
    assert error.value.fault is Fault.INVALID
    assert error.value.message.startswith("recording 0 ")
    return error.value.message


@given(
    st.sampled_from([(np.uint8, 2**7, 128), (np.int16, 2**15, 0), (np.int32, 2**31, 0), (np.float32, 1, 0)]),
    st.integers(1, 4),
    st.data(),
)
def test_files_that_scipy_writes(how: tuple[type, int, int], channels: int, data: st.DataObject) -> None:
    kind, full_scale, zero = how
    elements = st.floats(-2, 2, width=32) if kind is np.float32 else None
    samples = data.draw(arrays.arrays(kind, st.tuples(st.integers(0, 9), st.just(channels)), elements=elements))
    rate_hz, got = decode_wav(written(samples, 44_100), "recording 0")
    assert rate_hz == 44_100
    assert np.allclose(got, (samples.astype(np.float64) - zero) / full_scale, rtol=1e-6, atol=0)


def test_a_file_of_24_bits_that_python_writes() -> None:
    values = [0, 1, -1, 2**23 - 1, -(2**23)]
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 3, 8_000, 0, "NONE", ""))
        writer.writeframes(b"".join(value.to_bytes(3, "little", signed=True) for value in values))
    rate_hz, got = decode_wav(file.getvalue(), "recording 0")
    assert rate_hz == 8_000
    assert got[:, 0].tolist() == [value / 2**23 for value in values]


def test_an_extensible_format_and_chunks_that_are_skipped() -> None:
    guid = bytes.fromhex("000000001000800000aa00389b71")
    extensible = form(0xFFFE, channels=2) + struct.pack("<HHIH", 22, 16, 3, 1) + guid
    content = riff(
        chunk(b"LIST", b"odd"), chunk(b"fmt ", extensible), chunk(b"fact", bytes(4)), chunk(b"data", b"\0\x40\0\xc0")
    )
    assert decode_wav(content, "recording 0")[1].tolist() == [[0.5, -0.5]]


def test_a_file_whose_size_was_not_known() -> None:
    content = riff(chunk(b"fmt ", form())) + b"data" + b"\xff" * 4 + b"\0\x40"
    assert decode_wav(content, "recording 0")[1].tolist() == [[0.5]]


REFUSALS = {
    "empty": (b"", "no WAV"),
    "another container": (b"RIFF\0\0\0\0AVI ", "no WAV"),
    "no data": (riff(chunk(b"fmt ", form())), "ends after"),
    "no format": (riff(chunk(b"data", b"")), "no format"),
    "a short format": (riff(chunk(b"fmt ", b"12")), "format of 2 bytes"),
    "a compressed format": (riff(chunk(b"fmt ", form(7, bits=8))), "WAVE format 0x7 of 8 bits"),
    "an unknown extension": (riff(chunk(b"fmt ", form(0xFFFE) + bytes(24))), "WAVE format 0xfffe"),
    "no channels": (riff(chunk(b"fmt ", form(channels=0))), "0 channels"),
    "too many channels": (riff(chunk(b"fmt ", form(channels=17))), "17 channels"),
    "no rate": (riff(chunk(b"fmt ", form(rate_hz=0))), "at 0 Hz"),
    "blocks that do not fit": (riff(chunk(b"fmt ", form(width=3))), "blocks of 3 bytes"),
    "half a sample": (riff(chunk(b"fmt ", form()), chunk(b"data", b"\0")), "not a multiple of 2"),
    "truncated": (written(np.zeros(100, np.int16))[:-50], "truncated"),
    "too many chunks": (riff(*[chunk(b"junk", b"")] * CHUNKS_LIMIT), "first 64 chunks"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_is_no_usual_wav_file_is_refused(what: str) -> None:
    content, words = REFUSALS[what]
    assert words in refusal(content)


@given(st.lists(st.tuples(st.integers(0, 59), st.integers(0, 255)), max_size=6), st.integers(0, 60))
def test_a_damaged_file_is_read_or_refused_and_nothing_else(places: list[tuple[int, int]], keep: int) -> None:
    content = bytearray(written(np.arange(8, dtype=np.int16)))
    for place, value in places:
        content[place] = value
    assert outcome(bytes(content[:keep])) in {np.dtype(np.float32), Fault.INVALID}


def outcome(content: bytes) -> np.dtype[np.float32] | Fault:
    try:
        return decode_wav(content, "recording 0")[1].dtype
    except RequestError as error:
        return error.fault


def test_raw_samples_and_their_mix() -> None:
    samples = decode_pcm(np.array([[16_384, -16_384], [8_192, 0]], "<i2").tobytes(), "s16le", 2, "x")
    assert samples.tolist() == [[0.5, -0.5], [0.25, 0.0]]
    assert mono(samples).tolist() == [0.0, 0.125]
    assert mono(samples[:, :1]).tolist() == [0.5, 0.25]


@pytest.mark.parametrize("bad", [np.nan, np.inf, SAMPLE_LIMIT * 2])
def test_floats_that_are_no_samples_are_refused(bad: float) -> None:
    with pytest.raises(RequestError, match="NaN, or a sample beyond") as error:
        decode_pcm(np.array([0, bad], "<f4").tobytes(), "f32le", 1, "x")
    assert error.value.fault is Fault.INVALID
