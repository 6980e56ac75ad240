"""Input files of a request, read with a size limit."""

from __future__ import annotations

import io
import json
import math
import sys
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import numpy as np

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.tensor import Array, Datatype, Tensor, datatype_of
from gateway.common.domain.text_model import REQUEST
from gateway.serving.domain.golden import input_key

FILE_LIMIT_BYTES = 64 * 1_048_576


def images(names: list[str]) -> Tensor:
    """Return a BYTES tensor [n] of encoded images."""
    encoded = np.empty(len(names), object)
    encoded[:] = [read_file(name) for name in names]
    return Tensor(Datatype.BYTES, encoded)


def texts(given: list[str], shape: Sequence[int]) -> Tensor:
    """Return a BYTES tensor of texts for an input of this shape, -1 for any number. Raises RequestError INVALID."""
    array = np.empty(len(given), object)
    array[:] = [text.encode(errors="surrogateescape") for text in given]
    sizes = [len(given) if size < 0 and place == 0 else abs(size) for place, size in enumerate(shape)]
    if math.prod(sizes) != len(given):
        raise RequestError(Fault.INVALID, f"the model takes {math.prod(sizes)} text at a time, not {len(given)}")
    return Tensor(Datatype.BYTES, array.reshape(sizes))


def chat(given: list[str], max_tokens: int) -> dict[str, Tensor]:
    """Return the input of a language model that is asked one text, a chat at temperature 0. Raises RequestError."""
    document = {"messages": [{"role": "user", "content": given[0]}], "max_tokens": max_tokens, "temperature": 0}
    if len(given) > 1:
        raise RequestError(Fault.INVALID, f"a language model answers one text at a time, not {len(given)}")
    return {REQUEST: texts([json.dumps(document)], (1,))}


def tensors(name: str, wanted: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Tensor]:
    """Return the arrays of an npz file, each stored as NAME or, as in a golden set, as input.NAME.

    Those that are `optional` may be absent.

    Raises ConfigurationError for a file that is no npz, RequestError INVALID for arrays that are no tensors.
    """
    content = io.BytesIO(read_file(name))
    if not zipfile.is_zipfile(content):
        raise ConfigurationError("is no npz file; numpy.savez writes one", file=name)
    try:
        with np.load(content, allow_pickle=False) as arrays:
            names = [*wanted, *(wish for wish in optional if input_key(arrays, wish))]
            return {wish: _tensor(_stored(arrays, wish, name), wish, name) for wish in names}
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigurationError(f"cannot be read as npz: {error}", file=name) from error


def _stored(arrays: np.lib.npyio.NpzFile, wish: str, name: str) -> Array:
    key = input_key(arrays, wish)
    if key is None:
        raise RequestError(Fault.INVALID, f"{name} holds no array '{wish}'; it holds {', '.join(arrays) or 'none'}")
    found: Array = arrays[key]
    return found


def _tensor(array: Array, wish: str, name: str) -> Tensor:
    try:
        datatype = datatype_of(array.dtype)
    except KeyError:
        raise RequestError(Fault.INVALID, f"{name}: array '{wish}' of {array.dtype} is no tensor") from None
    if datatype is Datatype.BYTES:
        elements = np.empty(array.size, object)
        elements[:] = [part if isinstance(part, bytes) else str(part).encode() for part in array.ravel().tolist()]
        array = elements.reshape(array.shape)
    return Tensor(datatype, array)


def read_file(name: str) -> bytes:
    """Return the content of a bounded file; "-" is standard input. Raises ConfigurationError.

    A pipe is read once and kept: `infer` asks again while a gateway starts, and the pipe is empty then.
    """
    return _content(name) if Path(name).is_file() else _kept(name)


def _content(name: str) -> bytes:
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
            content = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror or error}", file=name) from error
    if not content:
        raise ConfigurationError("is empty", file=name)
    if len(content) > FILE_LIMIT_BYTES:
        raise ConfigurationError(f"is larger than {FILE_LIMIT_BYTES} bytes", file=name)
    return content


_kept = cache(_content)
