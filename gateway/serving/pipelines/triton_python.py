"""Models of Triton's Python backend, of the plain form, as Python code of a step.

`backend_utils` makes the module `triton_python_backend_utils` that such code imports, with what it has for one answer
to one request. Calls of other models, answers in parts and metrics are left out: code that names them fails by name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from gateway.common.domain.tensor import DATATYPES, Array, Datatype, datatype_of, decode_bytes, encode_bytes

FAULTS = {3: "INVALID", 4: "UNAVAILABLE"}
"""Fault by the code of a TritonError; of others it is INTERNAL."""


class TritonModelException(Exception):  # noqa: N818  the name that such code imports
    """Error that such code raises."""


class TritonError(Exception):
    """Error of one answer."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        super().__init__(message)
        self._message, self._code = str(message), code

    def message(self) -> str:
        """Return the message."""
        return self._message

    def code(self) -> int:
        """Return the code."""
        return self._code


class PythonTensor:
    """Named array; `pb_utils.Tensor`."""

    def __init__(self, name: str, array: Array) -> None:
        self._name, self._array = name, np.asarray(array)

    def name(self) -> str:
        """Return the name."""
        return self._name

    def as_numpy(self) -> Array:
        """Return the array."""
        return self._array

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self._array.shape)

    def triton_dtype(self) -> str:
        """Return the datatype as configurations name it."""
        label = datatype_of(self._array.dtype).label
        return f"TYPE_{'STRING' if label == 'BYTES' else label}"

    def is_cpu(self) -> bool:
        """Return True."""
        return True


class PythonRequest:
    """Request of one run; `pb_utils.InferenceRequest`."""

    def __init__(self, *_: Any, **named: Any) -> None:
        if "tensors" not in named:
            raise TritonModelException("calls of other models are not offered: write them as steps of the pipeline")
        self._tensors, self._wanted, self._stream = named["tensors"], named["wanted"], named["stream"]

    def inputs(self) -> list[PythonTensor]:
        """Return the inputs."""
        return list(self._tensors)

    def requested_output_names(self) -> list[str]:
        """Return the names of all outputs."""
        return list(self._wanted)

    def request_id(self) -> str:
        """Return no id: runs are of rows of several requests."""
        return ""

    def correlation_id(self) -> str | int:
        """Return the `sequence_id`: a number if it is one; 0 for a step without `stream = true`."""
        text = self._stream.id if self._stream else ""
        return int(text) if text.isdecimal() else text or 0

    def flags(self) -> int:
        """Return the flags of a sequence: 1 for its start, 2 for its end."""
        return self._stream.place if self._stream else 0

    def parameters(self) -> str:
        """Return no parameters."""
        return "{}"

    def timeout(self) -> int:
        """Return 0: the gateway ends what takes too long."""
        return 0

    def is_cancelled(self) -> bool:
        """Return False."""
        return False


class PythonResponse:
    """Answer to a request; `pb_utils.InferenceResponse`."""

    def __init__(self, output_tensors: Iterable[PythonTensor] = (), error: TritonError | None = None) -> None:
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[PythonTensor]:
        """Return the outputs."""
        return self._tensors

    def has_error(self) -> bool:
        """Return True if it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error."""
        return self._error


class Logger:
    """Log of such code: its lines go to stderr, of which the gateway keeps the end."""

    INFO, WARNING, ERROR, VERBOSE = range(4)

    @staticmethod
    def log(message: str, level: int = 0) -> None:
        """Write a line."""
        sys.stderr.write(f"{level} {message}\n")

    log_info = log_warn = log_error = log_verbose = log


class PythonModel:
    """Object of a TritonPythonModel. Raises what its code raises."""

    def __init__(self, found: type[Any], start: Mapping[str, Any]) -> None:
        self._start, self.instance = start, found()
        model = {"name": start["name"], "max_batch_size": start["rows"] if start["batch"] else 0, "backend": "python"}
        for key, side in (("input", "inputs"), ("output", "outputs")):
            model[key] = [_described(*spec, batch=start["batch"]) for spec in start[side]]
        model["parameters"] = {key: {"string_value": value} for key, value in start["parameters"].items()}
        arguments = {
            "model_config": json.dumps(model),
            "model_name": start["name"],
            "model_version": start["version"],
            "model_repository": start["folder"],
            "model_instance_kind": "CPU",
            "model_instance_name": f"{start['name']}_0_0",
            "model_instance_device_id": "0",
        }
        if hasattr(self.instance, "initialize"):
            self.instance.initialize(arguments)

    def __call__(self, arrays: Sequence[Array], stream: Any = None) -> Mapping[str, Any]:
        """Return the outputs of a run by name: the rows are one request."""
        tensors = [
            PythonTensor(name, array[..., np.newaxis] if label == "BYTES" else array)
            for (name, label, _), array in zip(self._start["inputs"], arrays, strict=True)
        ]
        wanted = [name for name, *_ in self._start["outputs"]]
        request = PythonRequest(tensors=tensors, wanted=wanted, stream=stream)
        answers = self.instance.execute([request])
        if not isinstance(answers, Sequence) or len(answers) != 1 or not isinstance(answers[0], PythonResponse):
            raise TritonModelException("execute must return one InferenceResponse for each request")
        if (error := answers[0].error()) is not None:
            raise error if isinstance(error, TritonError) else TritonError(str(error))
        return {tensor.name(): tensor.as_numpy() for tensor in answers[0].output_tensors()}


def backend_utils(folder: str) -> ModuleType:
    """Return the module that code of Triton's Python backend imports."""
    module = ModuleType("triton_python_backend_utils")
    own = {
        "Tensor": PythonTensor,
        "InferenceRequest": PythonRequest,
        "InferenceResponse": PythonResponse,
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START": 1,
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END": 2,
        "TritonError": TritonError,
        "TritonModelException": TritonModelException,
        "Logger": Logger,
        "get_input_tensor_by_name": lambda request, name: _named(request.inputs(), name),
        "get_output_tensor_by_name": lambda response, name: _named(response.output_tensors(), name),
        "get_input_config_by_name": lambda config, name: _configured(config, "input", name),
        "get_output_config_by_name": lambda config, name: _configured(config, "output", name),
        "using_decoupled_model_transaction_policy": lambda _config: False,
        "triton_string_to_numpy": _numpy_type,
        "triton_to_np_dtype": lambda label: DATATYPES[label].dtype.type,
        "np_to_triton_dtype": lambda dtype: datatype_of(np.dtype(dtype)).label,
        "serialize_byte_tensor": lambda array: np.frombuffer(encode_bytes(array), np.uint8),
        "deserialize_bytes_tensor": lambda raw: _parted(bytes(raw)),
        "get_model_dir": lambda: folder,
    }
    module.__dict__.update(own)
    return module


def _parted(raw: bytes) -> Array:
    count, offset = 0, 0
    while offset + 4 <= len(raw):
        offset, count = offset + 4 + int.from_bytes(raw[offset : offset + 4], "little"), count + 1
    return decode_bytes(raw, count, "bytes")


def _described(name: str, label: str, shape: Sequence[int], *, batch: bool) -> dict[str, Any]:
    is_text = label == "BYTES"
    dims = [*(shape[1:] if batch else shape), *([1] if is_text else [])]
    return {"name": name, "data_type": f"TYPE_{'STRING' if is_text else label}", "dims": dims}


def _named(tensors: Iterable[PythonTensor], name: str) -> PythonTensor | None:
    return next((tensor for tensor in tensors if tensor.name() == name), None)


def _configured(config: Mapping[str, Any], key: str, name: str) -> Any:
    return next((each for each in config.get(key, ()) if each["name"] == name), None)


def _numpy_type(label: str) -> Any:
    label = label.removeprefix("TYPE_")
    datatype = Datatype.BYTES if label == "STRING" else DATATYPES[label]
    return np.object_ if datatype is Datatype.BYTES else datatype.dtype.type
