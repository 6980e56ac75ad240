"""Process of a step with Python code: it confines itself, loads the class, and runs it for each message.

Messages come and go as JSON on the socket that is its stdin. Arrays are in two memfds, one of the gateway's and one of
its own: each is copied out before it is used, so an array that the code keeps stays as it is.
"""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gateway.common.domain.tensor import DATATYPES, Array, Datatype, decode_bytes, encode_bytes
from gateway.serving.pipelines import triton_python
from gateway.serving.runtimes.sandbox import SandboxLimits, enter

MESSAGE_BYTES, START_BYTES = 65_536, 2**20
WORDS_CHARS = 1_000
"""Most characters of an error of the code."""
NUMBER = struct.Struct("<Q")
"""Number of a run: it comes before the JSON of each of its messages, so that equal ones are read once."""
Entry = tuple[Sequence[int], int]
"""Shape and bytes of an array."""
Specs = Sequence[tuple[str, str, Sequence[int]]]
"""Name, datatype and shape of tensors."""


def main() -> None:
    """Confine this process, load the class, then run it until the gateway closes the socket."""
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    given, own = int(sys.argv[1]), int(sys.argv[2])
    start = json.loads(control.recv(START_BYTES))
    source, folder = os.pread(given, start["source_bytes"], 0), start["folder"]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        enter(SandboxLimits(start["memory_bytes"], (folder,)))
        if os.getppid() != start["gateway"]:  # it ended before this process asked to end with it
            os._exit(1)
        os.chdir(folder)
        run = load(source, start)
    except BaseException as error:  # noqa: BLE001  the gateway is told whatever it is
        _say(control, {"problem": words_of(error, start["file"])})
        os._exit(1)
    _say(control, {"ready": True})
    inputs, outputs, is_batched = start["inputs"], start["outputs"], start["batch"]
    shapes, entries, last, said = (
        b"",
        list[Entry](),
        dict[str, Any](),
        b"",
    )  # most runs are of the shapes of the one before
    while message := control.recv(MESSAGE_BYTES):
        given_shapes, _, stream = message[NUMBER.size :].partition(b"\n")
        if given_shapes != shapes:
            shapes = given_shapes
            entries = json.loads(shapes)
        answer: dict[str, Any]
        try:
            found = run(_read(given, inputs, entries), RequestStream(*json.loads(stream)) if stream else None)
            answer = {"outputs": write(own, outputs, found, entries[0][0][0] if is_batched else None)}
        except triton_python.TritonError as error:
            answer = {
                "error": error.message()[:WORDS_CHARS],
                "fault": triton_python.FAULTS.get(error.code(), "INTERNAL"),
            }
        except Exception as error:  # noqa: BLE001  one run's boundary
            answer = {
                "error": words_of(error, start["file"]),
                "fault": "INTERNAL",
                "over": isinstance(error, MemoryError),
            }
        if answer != last:
            last, said = answer, json.dumps(answer).encode()
        with suppress(BrokenPipeError):  # the gateway has closed it: the end of the loop follows
            control.send(message[: NUMBER.size] + said)
    finalize = getattr(getattr(run, "instance", None), "finalize", None)
    if finalize is not None:
        finalize()
    os._exit(0)


class RequestStream(NamedTuple):
    """Stream of a request. `key`: of the caller and `id`. `place`: START, END (`domain/infer.py`)."""

    id: str
    key: str
    place: int

    @property
    def starts(self) -> bool:
        """Return True for the first request, as its client says."""
        return bool(self.place & 1)

    @property
    def ends(self) -> bool:
        """Return True for the last request, as its client says."""
        return bool(self.place & 2)


class LoadedStep:
    """Object of the release's class, which runs by the names of its inputs. Raises what the class raises."""

    def __init__(self, found: type[Any], start: Mapping[str, Any]) -> None:
        self._names, self._outputs = [name for name, *_ in start["inputs"]], start["outputs"]
        self._single = start["single"]
        self.instance = found(**start["parameters"])
        if not callable(getattr(self.instance, "run", None)):
            raise TypeError(f"class {start['class']} has no method run")

    def __call__(self, arrays: Sequence[Array], stream: RequestStream | None = None) -> Mapping[str, Any]:
        """Return the outputs of a run by name."""
        named: dict[str, Any] = {} if stream is None else {"stream": stream}
        if self._single:
            found = self.instance.run(*arrays, **named)
        else:
            found = self.instance.run(**dict(zip(self._names, arrays, strict=True)), **named)
        if isinstance(found, Mapping):
            return found
        if len(self._outputs) > 1:
            raise TypeError(f"run returned {type(found).__name__}, not a dict of its outputs")
        return {self._outputs[0][0]: found}


def load(source: bytes, start: Mapping[str, Any]) -> Any:
    """Return the function of arrays that a source of Python is: its class, or a model of Triton's Python backend."""
    place = os.path.join(start["folder"], start["file"])  # noqa: PTH118
    module = ModuleType(start["file"].removesuffix(".py"))
    module.__file__ = place
    sys.modules[module.__name__] = module
    sys.modules["triton_python_backend_utils"] = triton_python.backend_utils(start["folder"])
    sys.path.append(start["folder"])
    exec(compile(source, place, "exec"), module.__dict__)  # noqa: S102  the release's own code, which is why it is here
    found = getattr(module, start["class"], None)
    if not isinstance(found, type):
        raise TypeError(f"{start['file']} has no class {start['class']}")
    return triton_python.PythonModel(found, start) if hasattr(found, "execute") else LoadedStep(found, start)


def words_of(error: BaseException, file: str) -> str:
    """Return an error of the code with the last line of its file that it came through."""
    found = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in found if frame.filename.endswith(f"/{file}")]
    place = f" ({file} line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}"[:WORDS_CHARS] + place


def write(place: int, specs: Specs, found: Mapping[str, Any], rows: int | None) -> list[Entry]:
    """Write the outputs, as declared, one after the other; return the shape and bytes of each. Raises ValueError."""
    entries, offset = list[Entry](), 0
    for name, label, shape in specs:
        if name not in found:
            raise ValueError(f"the answer lacks the output {name}; it has {', '.join(map(str, found)) or 'none'}")
        datatype = DATATYPES[label]
        array = _texts(found[name]) if datatype is Datatype.BYTES else np.asarray(found[name])
        if datatype is Datatype.BYTES and array.ndim == len(shape) + 1 and array.shape[-1] == 1:
            array = array[..., 0]
        wanted = [rows if rows is not None and axis == 0 else size for axis, size in enumerate(shape)]
        sizes = list(array.shape)
        if sizes != wanted and (
            len(sizes) != len(wanted) or any(w not in {-1, n} for w, n in zip(wanted, sizes, strict=True))
        ):
            raise ValueError(f"output {name} has the shape {sizes}, expected {wanted}")
        if datatype is not Datatype.BYTES and array.dtype != datatype.dtype:
            if not np.can_cast(array.dtype, datatype.dtype, "same_kind"):
                raise ValueError(f"output {name} is {array.dtype}, expected {label}")
            array = array.astype(datatype.dtype)
        content: Any = encode_bytes(array) if datatype is Datatype.BYTES else np.ascontiguousarray(array)
        size = len(content) if isinstance(content, bytes) else content.nbytes
        try:
            done = os.pwrite(place, content, offset) if size else 0
        except OSError:
            done = -1
        if done != size:
            raise ValueError(f"the answer is larger than the gateway takes ({offset + size} bytes)")
        entries.append((sizes, size))
        offset += size
    return entries


def _texts(value: Any) -> Array:
    array = np.asarray(value, object)
    coded = [each.encode() if isinstance(each, str) else bytes(each) for each in array.flat]
    texts = np.empty(len(coded), object)
    texts[:] = coded
    return texts.reshape(array.shape)


def _read(place: int, specs: Specs, entries: Sequence[Entry]) -> list[Array]:
    arrays, offset = list[Array](), 0
    for (name, label, _), (shape, size) in zip(specs, entries, strict=True):
        if label == "BYTES":
            arrays.append(decode_bytes(os.pread(place, size, offset), math.prod(shape), name).reshape(shape))
        else:
            arrays.append(np.empty(shape, DATATYPES[label].dtype))
            os.preadv(place, [arrays[-1].data], offset)
        offset += size
    return arrays


def _say(control: socket.socket, answer: Mapping[str, Any]) -> None:
    control.send(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
