"""Requests and answers of Triton's generate extension. Pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.common.domain.text_model import PARAMETERS, REQUEST, RESPONSE, TEXT, TEXT_INPUTS, TEXT_OUTPUTS
from gateway.serving.domain.infer import InferRequest, InferResponse, Parameter, RequestedOutput
from gateway.serving.domain.parameters import KNOWN, deadline_ns, read_parameters
from gateway.serving.frontends.oip_json_literals import malformed

TEXT_INPUT, TEXT_OUTPUT = "text_input", "text_output"
_BODY = msgspec.json.Decoder(dict[str, Parameter | dict[str, Parameter | None] | None])
_DOCUMENT = msgspec.json.Decoder(dict[str, Any])
_OWN = frozenset({"id", *KNOWN, *(spec.name for spec in TEXT_INPUTS)})
"""Keys of a request to a language model that are not for sampling."""


@dataclass(frozen=True, slots=True)
class TextModel:
    """Text input and output of a model: their names, and the shape of one text."""

    name: str
    given: str
    wanted: str
    shape: tuple[int, ...]


def text_model(manifest: ModelManifest) -> TextModel:
    """Return the text input and output of a model. Raises RequestError INVALID if it has not one of each."""
    given = [spec for spec in manifest.inputs if spec.default is None]
    wanted = [spec.name for spec in manifest.outputs if spec.datatype is Datatype.BYTES]
    shape = tuple(1 if size < 0 else size for size in given[0].shape) if given else ()
    if [spec.datatype for spec in given] != [Datatype.BYTES] or len(wanted) != 1 or math.prod(shape) != 1:
        problem = f"model '{manifest.name}' has not one text input and one text output; send its tensors to /infer"
        raise RequestError(Fault.INVALID, problem)
    return TextModel(manifest.name, given[0].name, wanted[0], shape)


def text_request(body: bytes, model: TextModel, version: str, *, caller: str, now_ns: int) -> tuple[InferRequest, str]:
    """Return the request, and the name of the text in its answer: the output's own if the input's own was sent.

    Keys that are neither text nor `id` are parameters. Raises RequestError INVALID.
    """
    try:
        sent = _BODY.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        problem = malformed(body, error)
        raise RequestError(Fault.INVALID, f"the request body is no JSON object of values: {problem}") from None
    key = model.given if model.given in sent else TEXT_INPUT
    text, request_id, nested = sent.pop(key, None), sent.pop("id", None) or "", sent.pop("parameters", None) or {}
    if not isinstance(text, str) or not isinstance(request_id, str) or not isinstance(nested, dict):
        what = f"'{key}' and 'id' must be strings and 'parameters' an object; the text for model '{model.name}'"
        raise RequestError(Fault.INVALID, f"{what} belongs in '{TEXT_INPUT}'")
    flat = {name: value for name, value in (sent | nested).items() if value is not None and not isinstance(value, dict)}
    parameters = read_parameters(flat)
    array = np.empty(model.shape, object)
    array.fill(text.encode())
    request = InferRequest(
        model.name,
        {model.given: Tensor(Datatype.BYTES, array)},
        version,
        id=request_id,
        outputs=(RequestedOutput(model.wanted),),
        deadline_ns=deadline_ns(now_ns, timeout_us=parameters.timeout_us),
        priority=parameters.priority,
        caller=caller,
        stream=parameters.stream,
        ignored_parameters=parameters.ignored,
        place=parameters.place,
    )
    return request, TEXT_OUTPUT if key == TEXT_INPUT else model.wanted


def text_answer(response: InferResponse, name: str) -> bytes:
    """Return the JSON object of an answer, with an array if its output `name` has several texts.

    Raises RequestError INVALID for bytes that are not UTF-8.
    """
    (output,) = response.outputs.values()
    try:
        texts = [bytes(each).decode() for each in output.array.ravel()]
    except UnicodeDecodeError:
        raise RequestError(Fault.INVALID, "the answer is not UTF-8; request it as binary data from /infer") from None
    answer = {"model_name": response.model, "model_version": response.version} | (
        {"id": response.id} if response.id else {}
    )
    return msgspec.json.encode({**answer, name: texts[0] if len(texts) == 1 else texts})


def language_request(body: bytes, model: str, version: str, *, caller: str, now_ns: int) -> InferRequest:
    """Return the request to a language model. Keys that name no input and no parameter of a request are for sampling.

    They may be in `parameters`, as Triton's clients send them to vLLM. Raises RequestError INVALID.
    """
    sent = _object(body, "the request body")
    sent |= _object(sent.pop("parameters", None) or {}, "'parameters'")
    given = {name: value for name, value in sent.items() if value is not None}
    sampling = _object(given.pop(PARAMETERS, {}), f"'{PARAMETERS}'")
    given[PARAMETERS] = sampling | {name: given.pop(name) for name in given.keys() - _OWN}
    request_id = given.pop("id", "")
    tensors = {spec.name: _tensor(spec, given.pop(spec.name), model) for spec in TEXT_INPUTS if spec.name in given}
    parameters = read_parameters(given)
    if not isinstance(request_id, str):
        raise RequestError(Fault.INVALID, f"'id' of a request to model '{model}' must be a string")
    wanted = [spec.name for spec in TEXT_OUTPUTS if spec.name != RESPONSE or REQUEST in tensors]
    return InferRequest(
        model,
        tensors,
        version,
        id=request_id,
        outputs=tuple(map(RequestedOutput, wanted)),
        deadline_ns=deadline_ns(now_ns, timeout_us=parameters.timeout_us),
        priority=parameters.priority,
        caller=caller,
        stream=parameters.stream,
    )


def _object(content: Any, what: str) -> dict[str, Any]:
    """Return an object, which may be JSON in a string. Raises RequestError INVALID."""
    try:
        return content if isinstance(content, dict) else _DOCUMENT.decode(content)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        text = content.encode() if isinstance(content, str) else content
        problem = malformed(text, error)
    except TypeError:
        problem = f"it is {type(content).__name__}"
    raise RequestError(Fault.INVALID, f"{what} is no JSON object: {problem}")


def _tensor(spec: TensorSpec, value: Any, model: str) -> Tensor:
    """Return an input of a language model. Raises RequestError INVALID."""
    if spec.datatype is Datatype.BOOL and isinstance(value, bool):
        return Tensor(Datatype.BOOL, np.array([value]))
    if spec.datatype is Datatype.BYTES and isinstance(value, str if spec.name == TEXT else (str, dict)):
        array = np.empty(1, object)
        array[0] = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        return Tensor(Datatype.BYTES, array)
    kind = "true or false" if spec.datatype is Datatype.BOOL else "a string"
    raise RequestError(Fault.INVALID, f"'{spec.name}' of a request to model '{model}' must be {kind}")


def language_answer(response: InferResponse) -> bytes:
    """Return the JSON object of an answer of a language model, or of a part of one. Raises RequestError INVALID."""
    answer: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    answer |= {"id": response.id} if response.id else {}
    for name, tensor in response.outputs.items():
        (value,) = tensor.array.ravel().tolist()
        try:
            answer[name] = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            raise RequestError(Fault.INVALID, f"'{name}' is not UTF-8; request it as binary data from /infer") from None
    return msgspec.json.encode(answer)
