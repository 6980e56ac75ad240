"""Files of the states of streams: frames of a length and MessagePack, then the SHA-256 of all of them.

The functions block: call them on a thread. The module loads msgspec: import it with the first file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from gateway.common.domain.manifest import StreamLimits
from gateway.common.domain.tensor import Array
from gateway.common.files.durable import replacing, temporary
from gateway.common.store.plain import open_plain
from gateway.serving.engine.streams import StreamState, state_bytes

MAGIC, FORMAT = b"edge-gateway streams\n", 1
"""Begin of a file, and its format: raise that when a class of states changes. Files of others are refused."""
FILE_BYTES = 2**27
"""Most bytes of the frames of a file."""
RESERVE_BYTES = 2**26
"""Bytes of the disk that are left to verdicts and journals."""
CHUNK_BYTES = 2**20
PAUSED_STREAMS = 50
"""Streams that are encoded before a pause, in about 0.5 ms."""
LENGTH, SUM_BYTES, MODE = struct.Struct("<I"), 32, 0o600


@dataclass(frozen=True, slots=True)
class FileHeader:
    """First frame. `wall_s`, `monotonic_s`: when it was written. `often`: while states change, not at the end only."""

    format: int
    owner: tuple[str, ...]
    limits: StreamLimits
    wall_s: float
    monotonic_s: float
    often: bool


def write_streams(file: Path, header: FileHeader, streams: Sequence[StreamState], pause_s: float) -> int:
    """Replace a file, atomically. Return how many streams do not fit, those that are idle longest. Raises OSError.

    `streams`: the one that was used last is the first one. `pause_s`: pause after PAUSED_STREAMS.
    """
    disk, encoder, digest = os.statvfs(file.parent), msgspec.msgpack.Encoder(enc_hook=_packed), hashlib.sha256()
    room = min(FILE_BYTES, disk.f_bavail * disk.f_frsize - RESERVE_BYTES)
    if room <= 0:
        raise OSError(errno.ENOSPC, f"fewer than {RESERVE_BYTES >> 20} MiB of the disk are free", str(file))
    with replacing(file, MODE, temporary(file.parent)) as content:

        def add(frame: bytes) -> None:
            for part in (LENGTH.pack(len(frame)), frame):
                digest.update(part)
                content.write(part)

        digest.update(MAGIC)
        content.write(MAGIC)
        add(encoder.encode(header))
        for place, stream in enumerate(streams):
            if place % PAUSED_STREAMS == 0:
                time.sleep(pause_s)
            idle_s = 0.0 if stream.line else header.monotonic_s - stream.used_s
            states = {step: (type(state).__name__, state) for step, state in stream.states.items()}
            frame = encoder.encode((*stream.key, idle_s, states))
            room -= LENGTH.size + len(frame)
            if room < 0:
                content.write(digest.digest())
                return len(streams) - place
            add(frame)
        content.write(digest.digest())
    return 0


def read_streams(file: Path, kinds: Sequence[type[Any]]) -> tuple[FileHeader, list[StreamState]]:
    """Return the streams of a file whose idle time is not over, the one that is idle longest first.

    `kinds`: classes of states. Raises OSError, ValueError, and what a damaged frame leads to.
    """
    states = {kind.__name__: msgspec.msgpack.Decoder(kind, dec_hook=_unpacked) for kind in kinds}
    record = msgspec.msgpack.Decoder(tuple[str, str, float, dict[str, tuple[str, msgspec.Raw]]])
    with open_plain(file) as content:
        frames = _frames(content)
        header = msgspec.msgpack.decode(next(frames), type=FileHeader)
        if header.format != FORMAT:
            raise ValueError(f"it has format {header.format}, not {FORMAT}")
        now_s, gone_s, found = time.monotonic(), max(0.0, time.time() - header.wall_s), list[StreamState]()
        later_s = now_s - header.monotonic_s - gone_s
        for frame in frames:
            caller, name, idle_s, packed = record.decode(frame)
            if idle_s + gone_s >= header.limits.idle_s:
                continue
            made = {step: _moved(states[kind].decode(raw), later_s) for step, (kind, raw) in packed.items()}
            found.append(StreamState((caller, name), made, state_bytes(made), now_s - gone_s - idle_s))
    return header, found[::-1]


def _frames(content: BinaryIO) -> Iterator[bytes]:
    """Yield the frames of a file. Raises ValueError, before the first one, for a file that is foreign or damaged."""
    left, digest = os.fstat(content.fileno()).st_size - SUM_BYTES, hashlib.sha256()
    if content.read(len(MAGIC)) != MAGIC or left > FILE_BYTES + CHUNK_BYTES:
        raise ValueError("it is no file of streams")
    content.seek(0)
    for begin in range(0, left, CHUNK_BYTES):
        digest.update(content.read(min(CHUNK_BYTES, left - begin)))
    if content.read(SUM_BYTES + 1) != digest.digest():
        raise ValueError("it is damaged")
    content.seek(len(MAGIC))
    while content.tell() < left:
        (size,) = LENGTH.unpack(content.read(LENGTH.size))
        yield content.read(size)


def _moved(state: Any, by_s: float) -> Any:
    """Return a state whose times are on the clock of this process."""
    return state.moved(by_s) if hasattr(state, "moved") else state


def _packed(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{type(value).__name__} is no part of a state")
    return value.dtype.str, value.shape, value.tobytes()


def _unpacked(_kind: Any, value: Any) -> Array:
    label, shape, content = value
    if np.dtype(label).kind not in "biuf":
        raise ValueError(f"{label!r:.20} is no type of numbers")
    array: Array = np.frombuffer(content, label).reshape(shape)
    return array
