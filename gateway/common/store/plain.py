"""Files that are opened only if they are regular ones: a read of a pipe or a device might never end."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

from gateway.common.domain.manifest_toml import DIGEST_PATTERN
from gateway.common.domain.python310 import sha256_of

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def check_digest(value: object) -> str:
    """Return `value`. Raises ValueError unless it is a SHA-256 digest in hex, which may become a file name."""
    if not (isinstance(value, str) and DIGEST_PATTERN.fullmatch(value)):
        raise ValueError(f"{value!r:.80} is no SHA-256 digest in lower-case hex")
    return value


def open_plain(file: Path) -> io.BufferedReader:
    """Open `file` for reading; links are followed. Raises OSError, also if it is no regular file."""
    descriptor = os.open(file, _FLAGS)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no plain file", str(file))


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a plain file's content, as hex. Raises OSError."""
    with open_plain(path) as file:
        return sha256_of(file)


def read_plain(path: Path, limit_bytes: int) -> bytes:
    """Return the content of a plain file. Raises ValueError if it is too large, OSError."""
    with open_plain(path) as stream:
        content = stream.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise ValueError(f"it has more than {limit_bytes} bytes; divide it")
    return content
