"""Inference requests to a running daemon over HTTP: requests in the binary tensor extension, answers in JSON."""

from __future__ import annotations

import argparse
import http
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote

from gateway.common.domain.errors import Fault, RequestError, UnreachableError
from gateway.common.domain.problem import HTTP_STATUS
from gateway.common.domain.tensor import Tensor, encode_raw
from gateway.serving.cli.files import images, read_file, tensors
from gateway.serving.cli.http_client import GatewayAddress, GatewayClient, Keys
from gateway.serving.frontends.documents import PREPROCESS

Answer = TypeVar("Answer")
ANSWER_KEYS = ("model_name", "model_version", "outputs")
"""Members that every answer to an inference request has."""
FAULTS = {status: fault for fault, status in HTTP_STATUS.items()}
"""Fault of each status; 503 is UNAVAILABLE: the text tells a model that is overloaded from one that is loading."""


def ask(arguments: argparse.Namespace, place: GatewayAddress, keys: Keys) -> tuple[dict[str, Any], bool]:
    """Send an inference request; return the JSON object of the answer, and whether images are turned upright.

    Raises UnreachableError if no gateway answers, RequestError with the daemon's message if it refuses.
    """
    base = model_path(arguments.model, arguments.model_version)
    with GatewayClient(place, keys) as client, checked(place):
        config = {} if arguments.json else read_object(*client.exchange("GET", f"{base}/config"))
        if arguments.json:
            body, headers = read_file(arguments.json), {"Content_Type": "application/json"}
        else:
            body, headers = _binary(request_inputs(arguments.image, arguments.npz, config))
        answer = read_object(*client.exchange("POST", f"{base}/infer", body, **headers))
        keys_of_images = [f"{PREPROCESS}{line['name']}" for line in config.get("input", ())]
        declared = [config["parameters"][key] for key in keys_of_images if key in config["parameters"]]
        upright = any(json.loads(each["string_value"]).get("orientation") == "upright" for each in declared)
        return {**answer, **{key: answer[key] for key in ANSWER_KEYS}}, upright


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


def request_inputs(image_files: list[str] | None, npz: str, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the inputs that image files or an npz file give to a model, by its `config` (Triton's ModelConfig).

    Images are for the input that declares how they become values; arrays may leave out inputs with a default. Raises
    as `images` and `tensors` do.
    """
    names = [line["name"] for line in config["input"]]
    if image_files:
        declared = (name for name in names if PREPROCESS + name in config["parameters"])
        return {next(declared, names[0]): images(image_files)}
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
