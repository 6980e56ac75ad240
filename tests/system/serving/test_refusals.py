"""Bad input over gRPC and HTTP: the same fault in the protocol's terms, the same words, no other client affected."""

import io
import json
import struct
import subprocess
import zlib

import grpc
import numpy as np
import pytest
from PIL import Image
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.simulators.daemon import golden

LIMIT_BYTES = 65 * 2**20
CODES = {
    "INVALID": (grpc.StatusCode.INVALID_ARGUMENT, 400),
    "NOT_FOUND": (grpc.StatusCode.NOT_FOUND, 404),
    "TOO_LARGE": (grpc.StatusCode.RESOURCE_EXHAUSTED, 413),
}
ROWS = golden("meter-reader", 1).rows
RAW = ROWS.tobytes()


def over_grpc(address, question):
    """Return (status code, message) of a question.

    The question is {model, version, inputs: [(name, datatype, shape, raw)], outputs, …}.
    """
    asked = service_pb2.ModelInferRequest(model_name=question["model"], model_version=question.get("version", ""))
    for name, datatype, shape, raw in question["inputs"]:
        asked.inputs.add(name=name, datatype=datatype, shape=shape)
        asked.raw_input_contents.append(raw)
    for name in question.get("outputs", ()):
        asked.outputs.add(name=name)
    for key, value in question.get("parameters", {}).items():
        setattr(asked.parameters[key], "int64_param" if isinstance(value, int) else "string_param", value)
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options=options) as channel:
        try:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(asked, timeout=30)
        except grpc.RpcError as error:
            return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def over_http(address, question):
    """Return (status code, message) of the same question with binary tensors."""
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(raw)}}
        for name, datatype, shape, raw in question["inputs"]
    ]
    head = {"inputs": inputs, "outputs": [{"name": name} for name in question.get("outputs", ())]}
    head["parameters"] = question.get("parameters", {})
    text = json.dumps({key: value for key, value in head.items() if value or key == "inputs"}).encode()
    version = f"/versions/{question['version']}" if question.get("version") else ""
    url = f"http://{address}/v2/models/{question['model']}{version}/infer"
    options = ("-H", f"Inference-Header-Content-Length: {len(text)}", "-H", "Expect:", "--max-time", "30")
    command = ["curl", "-sS", "-w", "\n%{http_code}", *options, "--data-binary", "@-", url]
    done = subprocess.run(
        command, input=text + b"".join(raw for *_, raw in question["inputs"]), capture_output=True, check=False
    )
    body, _, status = done.stdout.decode().rpartition("\n")
    return int(status), json.loads(body).get("error", "") if body else ""


def image(raw=RAW, *, name="image", datatype="FP32", shape=(1, 1, 8, 8)):
    return name, datatype, list(shape), raw


def encoded(*contents):
    raw = b"".join(struct.pack("<I", len(content)) + content for content in contents)
    return image(raw, datatype="BYTES", shape=[len(contents)])


def asking(*inputs, model="meter-reader", **more):
    return {"model": model, "inputs": list(inputs), **more}


def jpeg():
    content = io.BytesIO()
    Image.effect_noise((320, 240), 60).save(content, "JPEG")
    return content.getvalue()


def bomb():
    """Return a PNG of 30000×30000 pixels in a few hundred bytes: its header says it all."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def with_value(value):
    rows = ROWS.copy()
    rows[0, 0, 3, 3] = value
    return image(rows.tobytes())


BAD = {
    "unknown model": ("NOT_FOUND", asking(image(), model="nobody"), "Request for unknown model: 'nobody' is not found"),
    "unknown version": ("NOT_FOUND", asking(image(), version="7"), "version 7 is not found"),
    "wrong name": ("INVALID", asking(image(name="picture")), "unexpected inference input 'picture'"),
    "no input": ("INVALID", asking(), "input 'image' is missing"),
    "twice": ("INVALID", asking(image(), image()), "image"),
    "wrong datatype": ("INVALID", asking(image(ROWS.astype("f8").tobytes(), datatype="FP64")), "has datatype FP64"),
    "unknown datatype": ("INVALID", asking(image(datatype="FLOAT")), "unknown datatype 'FLOAT'"),
    "wrong shape": ("INVALID", asking(image(shape=(1, 8, 8, 1))), "has shape [1, 8, 8, 1], expected [-1, 1, 8, 8]"),
    "wrong rank": ("INVALID", asking(image(shape=(64,))), "has shape [64]"),
    "negative shape": ("INVALID", asking(image(shape=(-1, 1, 8, 8))), "image"),
    "absurd shape": ("INVALID", asking(image(shape=(2**40, 2**40, 8, 8))), "image"),
    "no rows": ("INVALID", asking(image(b"", shape=(0, 1, 8, 8))), "batch of 0 rows"),
    "too many rows": ("INVALID", asking(image(bytes(256 * 1025), shape=(1025, 1, 8, 8))), "batch of 1025 rows"),
    "too few bytes": ("INVALID", asking(image(RAW[:-1])), "255"),
    "too many bytes": ("INVALID", asking(image(RAW + b"1")), "257"),
    "truncated BYTES": ("INVALID", asking(image(b"\x10\0\0\0abc", datatype="BYTES", shape=[1])), "image"),
    "too few BYTES": ("INVALID", asking(image(encoded(b"a")[3], datatype="BYTES", shape=[2])), "image"),
    "NaN": ("INVALID", asking(with_value(np.nan)), "holds NaN or infinity, which this model refuses"),
    "infinity": ("INVALID", asking(with_value(-np.inf)), "holds NaN or infinity"),
    "unknown output": ("INVALID", asking(image(), outputs=["labels"]), "unexpected inference output 'labels'"),
    "output twice": ("INVALID", asking(image(), outputs=["scores", "scores"]), "'scores' already exists in request"),
    "parameter of a wrong type": ("INVALID", asking(image(), parameters={"priority": "high"}), "priority"),
    "no image": (
        "INVALID",
        asking(encoded(b"GIF89a, or is it")),
        "image 0 of input 'image' is not a jpeg or png image",
    ),
    "truncated JPEG": ("INVALID", asking(encoded(jpeg()[:2000])), "image 0 of input 'image' is broken"),
    "second image broken": ("INVALID", asking(encoded(jpeg(), b"?")), "image 1 of input 'image'"),
    "decompression bomb": ("TOO_LARGE", asking(encoded(bomb())), "more than 40000000 pixels"),
}


@pytest.mark.parametrize("name", BAD)
def test_both_protocols_refuse_alike(gateway, name):
    fault, question, words = BAD[name]
    code, said = over_grpc(gateway.grpc, question)
    status, told = over_http(gateway.http, question)
    assert (code, status) == CODES[fault], (said, told)
    assert words in said
    assert words in told


def test_the_words_are_the_same(gateway):
    """If the refusal is the engine's own, both protocols carry it letter by letter."""
    for name in ("unknown model", "wrong shape", "NaN", "unknown output", "truncated JPEG", "decompression bomb"):
        question = BAD[name][1]
        assert over_grpc(gateway.grpc, question)[1] == over_http(gateway.http, question)[1]


def test_65_mib_are_too_large_for_both(gateway):
    question = asking(image(bytes(LIMIT_BYTES), shape=(LIMIT_BYTES // 256, 1, 8, 8)))
    code, said = over_grpc(gateway.grpc, question)
    assert (code, "at most 67108864 are read" in said) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
    status, told = over_http(gateway.http, question)
    assert status == 413
    assert str(64 * 2**20) in told


def test_the_daemon_serves_on(gateway):
    assert over_grpc(gateway.grpc, asking(image())) == (grpc.StatusCode.OK, "")
    assert over_http(gateway.http, asking(image())) == (200, "")
    assert not [line for line in gateway.lines() if line["level"] in {"error", "critical"}]
