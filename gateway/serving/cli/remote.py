"""Inference requests to a running daemon over HTTP: requests in the binary tensor extension, answers in JSON."""

from __future__ import annotations

import argparse
import http
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote

from gateway.common.domain.errors import Fault, RequestError, UnreachableError
from gateway.common.domain.problem import HTTP_STATUS
from gateway.common.domain.tensor import Tensor, encode_raw
from gateway.common.domain.text_model import REQUEST, RESPONSE, TEXT
from gateway.serving.cli.files import chat, images, read_file, tensors, texts
from gateway.serving.cli.http_client import GatewayAddress, GatewayClient, Keys
from gateway.serving.frontends.documents import PREPROCESS

Answer = TypeVar("Answer")
Say = Callable[[str], object]
"""Function that gets what is new of a text."""
WHOLE = "text_output"
"""Member of a language model's last answer: its whole text."""
ANSWER_KEYS = ("model_name", "model_version", "outputs")
"""Members that every answer to an inference request has."""
FAULTS = {status: fault for fault, status in HTTP_STATUS.items()}
"""Fault of each status; 503 is UNAVAILABLE: the text tells a model that is overloaded from one that is loading."""


def ask(
    arguments: argparse.Namespace, place: GatewayAddress, keys: Keys, say: Say = lambda _: None
) -> tuple[dict[str, Any], bool]:
    """Send an inference request; return the JSON object of the answer, and whether images are turned upright.

    `say` gets what a language model answers to a text, as it comes; its answer has WHOLE in place of outputs.

    Raises UnreachableError if no gateway answers, RequestError with the daemon's message if it refuses.
    """
    base = model_path(arguments.model, arguments.model_version)
    with GatewayClient(place, keys) as client, checked(place):
        config = {} if arguments.json else read_object(*client.exchange("GET", f"{base}/config"))
        if arguments.json:
            body, headers = read_file(arguments.json), {"Content_Type": "application/json"}
        else:
            if arguments.text and REQUEST in (names := [line["name"] for line in config["input"]]) and TEXT in names:
                asked = chat(arguments.text, arguments.max_tokens)[REQUEST].array[0].decode()
                events = client.events(f"{base}/generate_stream", json.dumps({REQUEST: asked}).encode())
                return _told(events, say), False
            body, headers = _binary(request_inputs(arguments.image, arguments.npz, config, arguments.text))
        answer = read_object(*client.exchange("POST", f"{base}/infer", body, **headers))
        keys_of_images = [f"{PREPROCESS}{line['name']}" for line in config.get("input", ())]
        declared = [config["parameters"][key] for key in keys_of_images if key in config["parameters"]]
        upright = any(json.loads(each["string_value"]).get("orientation") == "upright" for each in declared)
        return {**answer, **{key: answer[key] for key in ANSWER_KEYS}}, upright


def _told(events: Iterator[tuple[int, bytes]], say: Say) -> dict[str, Any]:
    """Pass on what is new in each event of a chat. Return the last one."""
    last: dict[str, Any] = {}
    for status, content in events:
        last = read_object(status, content)
        if "error" in last:
            raise RequestError(Fault.INTERNAL, f"the answer ends here: {last['error']}")
        say(new_text(last.get(RESPONSE) or ""))
    if WHOLE not in last:
        raise UnreachableError("the answer ends before its last part; ask again")
    return {key: value for key, value in last.items() if key != RESPONSE}


def new_text(chunk: str) -> str:
    """Return the text in a part of a chat, or in an answer without parts."""
    choices = json.loads(chunk)["choices"] if chunk else ()
    return "".join((each.get("delta") or each.get("message") or {}).get("content") or "" for each in choices)


@contextmanager
def checked(place: GatewayAddress) -> Iterator[None]:
    """Convert the errors that unexpected JSON raises to UnreachableError."""
    try:
        yield
    except (TypeError, KeyError, AttributeError):
        raise UnreachableError(
            f"what answers at {place} is no gateway, or one of another version; name another address with --url"
        ) from None


def model_path(model: str, version: str = "") -> str:
    """Return the path of a model, or of one of its versions."""
    return f"/v2/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def request_inputs(
    image_files: list[str] | None, npz: str, config: Mapping[str, Any], given: list[str] | None = None
) -> dict[str, Tensor]:
    """Return the inputs that image files, an npz file or texts give to a model, by its `config` (Triton's ModelConfig).

    Texts are for the first input of texts. Images are for the input that declares how they become values; arrays may
    leave out inputs with a default. Raises as `images` and `tensors` do, RequestError without an input for texts.
    """
    names = [line["name"] for line in config["input"]]
    if image_files:
        declared = (name for name in names if PREPROCESS + name in config["parameters"])
        return {next(declared, names[0]): images(image_files)}
    if given:
        rows = [-1] if config.get("max_batch_size") else []
        for line in config["input"]:
            if line["data_type"] == "TYPE_STRING":
                return {line["name"]: texts(given, [*rows, *line["dims"]])}
        raise RequestError(Fault.INVALID, f"model '{config['name']}' takes no text; its inputs are {', '.join(names)}")
    optional = [line["name"] for line in config["input"] if line.get("optional")]
    return tensors(npz, [name for name in names if name not in optional], optional)


def _binary(tensors: dict[str, Tensor]) -> tuple[bytes, dict[str, str]]:
    raw = {name: encode_raw(tensor.datatype, tensor.array) for name, tensor in tensors.items()}
    header = {
        "inputs": [
            {
                "name": name,
                "datatype": tensor.datatype.label,
                "shape": list(tensor.array.shape),
                "parameters": {"binary_data_size": len(raw[name])},
            }
            for name, tensor in tensors.items()
        ]
    }
    text = json.dumps(header).encode()
    headers = {"Content_Type": "application/octet-stream", "Inference_Header_Content_Length": str(len(text))}
    return b"".join((text, *raw.values())), headers


def read_object(status: int, content: bytes) -> dict[str, Any]:
    """Return the JSON object of an answer.

    Raises UnreachableError for anything else, RequestError if the request was refused.
    """
    return _read_answer(status, content, dict, "object")


def read_array(status: int, content: bytes) -> list[Any]:
    """Return the JSON array of an answer. Raises as `read_object` does."""
    return _read_answer(status, content, list, "array")


def _read_answer(status: int, content: bytes, kind: type[Answer], name: str) -> Answer:
    try:
        answer = json.loads(content)
    except ValueError:
        raise UnreachableError(f"the answer (HTTP {status}) is not JSON; is this address a gateway's?") from None
    if status != http.HTTPStatus.OK:
        fault = FAULTS.get(status, Fault.INTERNAL)
        detail = answer.get("error", answer.get("detail", "")) if isinstance(answer, dict) else ""
        remedy = "; name the file that holds it with --token-file FILE" if fault is Fault.UNAUTHENTICATED else ""
        raise RequestError(fault, f"HTTP {status}: {detail or content[:200].decode('utf-8', 'replace')}{remedy}")
    if not isinstance(answer, kind):
        raise UnreachableError(f"the answer (HTTP {status}) is no JSON {name}; is this address a gateway's?")
    return answer
