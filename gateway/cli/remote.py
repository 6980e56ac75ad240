"""Asking a running daemon over HTTP, on TCP or a UNIX socket: the binary tensor extension going, JSON coming."""

from __future__ import annotations

import argparse
import http.client
import json
import socket
from typing import Any

from gateway.cli.files import images, read_file, tensors
from gateway.domain.access import Address, read_address
from gateway.domain.errors import ConfigurationError, Fault, RequestError, UnreachableError
from gateway.domain.tensor import Tensor, encode_raw
from gateway.frontends.status import STATUS

TIMEOUT_S = 60.0
ANSWER_LIMIT_BYTES = 256 * 1_048_576


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


def ask(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answer as its JSON object.

    Raises UnreachableError where nobody answers, RequestError with the daemon's words where it refuses.
    """
    address = read_address(arguments.url, "--url", "")
    if address is None:
        raise ConfigurationError("--url takes host:port or unix:/path")
    version = f"/versions/{arguments.model_version}" if arguments.model_version else ""
    base = f"/v2/models/{arguments.model}{version}"
    connection = _connection(address)
    try:
        body, headers = _body(arguments, connection, base)
        status, content = _exchange(connection, "POST", f"{base}/infer", body, headers | _token(arguments))
    except (OSError, http.client.HTTPException, UnicodeError) as error:  # UnicodeError: a host that no DNS name can be
        raise UnreachableError(
            f"no daemon answers at {address}: {error}; is edge-gateway run up, with HTTP on?"
        ) from error
    finally:
        connection.close()
    return _answer(status, content)


def _connection(address: Address) -> http.client.HTTPConnection:
    if address.path:
        return _UnixConnection(address.path)
    return http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT_S)


def _exchange(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, bytes]:
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, response.read(ANSWER_LIMIT_BYTES)


def _body(
    arguments: argparse.Namespace, connection: http.client.HTTPConnection, base: str
) -> tuple[bytes, dict[str, str]]:
    if arguments.json:
        return read_file(arguments.json), {"Content-Type": "application/json"}
    status, content = _exchange(connection, "GET", base, b"", _token(arguments))
    names = [line["name"] for line in _answer(status, content)["inputs"]]
    if arguments.image:
        return _binary({names[0]: images(arguments.image)})
    return _binary(tensors(arguments.npz, names))


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
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(text))}
    return b"".join((text, *raw.values())), headers


def _token(arguments: argparse.Namespace) -> dict[str, str]:
    if not arguments.token_file:
        return {}
    return {"Authorization": f"Bearer {read_file(arguments.token_file).decode().strip()}"}


def _answer(status: int, content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except ValueError:
        raise UnreachableError(f"the answer (HTTP {status}) is not JSON; is this address a gateway's?") from None
    if status != http.HTTPStatus.OK:
        fault = next((fault for fault, wire in STATUS.items() if wire.http == status), Fault.INTERNAL)
        raise RequestError(fault, f"HTTP {status}: {answer.get('error', content[:200])}")
    return dict(answer)
