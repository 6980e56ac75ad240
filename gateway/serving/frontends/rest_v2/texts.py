"""Requests and answers of Triton's generate extension, for models with one text input and output. Pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.domain.infer import InferRequest, InferResponse, Parameter, RequestedOutput
from gateway.serving.domain.parameters import deadline_ns, read_parameters
from gateway.serving.frontends.oip_json_literals import malformed

TEXT_INPUT, TEXT_OUTPUT = "text_input", "text_output"
_BODY = msgspec.json.Decoder(dict[str, Parameter | dict[str, Parameter | None] | None])


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
