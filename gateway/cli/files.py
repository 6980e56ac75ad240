"""Files that a request is made of, read within a bound."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from gateway.domain.errors import ConfigurationError
from gateway.domain.tensor import Datatype, Tensor

FILE_LIMIT_BYTES = 64 * 1_048_576


def images(names: list[str]) -> Tensor:
    """BYTES tensor [n] of encoded images."""
    encoded = np.empty(len(names), object)
    encoded[:] = [read_file(name) for name in names]
    return Tensor(Datatype.BYTES, encoded)


def read_file(name: str) -> bytes:
    """A bounded file; "-" is standard input. Raises ConfigurationError."""
    try:
        if name == "-":
            return sys.stdin.buffer.read(FILE_LIMIT_BYTES)
        with Path(name).open("rb") as file:
            content = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error}", file=name) from error
    if len(content) > FILE_LIMIT_BYTES:
        raise ConfigurationError(f"is larger than {FILE_LIMIT_BYTES} bytes", file=name)
    return content
