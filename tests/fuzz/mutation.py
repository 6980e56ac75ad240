"""Bytes to begin with, and ways to spoil them: frames are taken apart and put together wrongly, bytes are changed."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import hpack
import onnx

from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.hpack import encode
from tests.simulators.http2_peer import ASKED, REQUEST, asked, data, headers

frame = frames.frame
EDGES = (0, 1, 2, 3, 5, 0x7F, 0x80, 0xFF)
NUMBERS = (0, 1, 2, 3, 5, 7, 9, 2**31 - 1)


def conversations() -> list[bytes]:
    """Return correct conversations of peers: one frame of each kind and more."""
    encoder = hpack.Encoder()
    fields = [(name.decode(), value.decode()) for name, value in ASKED]
    first, second = encoder.encode(fields), encoder.encode([*fields, ("x", "y" * 200)])
    large = encode((*ASKED, (b"x", bytes(3000))))
    return [
        asked(1) + asked(3) + asked(5, b""),
        headers(1, 0, first) + data(1, b"part") + headers(3, 1, second) + data(1, b"rest", 1),
        headers(1) + data(1, b"padded", 0, 5) + data(1, b"", 1, 200) + frame(frames.PING, 0, 0, b"12345678"),
        frame(1, 1, 1, large[:1000]) + frame(9, 0, 1, large[1000:2000]) + frame(9, 4, 1, large[2000:]),
        frame(1, 0x2D, 1, b"\x0512345" + REQUEST + b"-----") + frame(frames.PRIORITY, 0, 1, bytes(5)),
        frames.settings_frame({1: 4096, 2: 0, 3: 9, 4: 70_000, 5: 20_000, 6: 9}) + asked(1) + frames.window_frame(1, 9),
        headers(1) + frames.reset_frame(1, 8) + data(1, b"late") + headers(1, 1, b"") + frames.window_frame(0, 5),
        asked(1) * 1 + frame(frames.GOAWAY, 0, 0, bytes(8) + b"bye") + frame(99, 3, 7, b"unknown") + asked(3),
        headers(1) + data(1, bytes(16_000)) * 4 + data(1, b"", 1) + frames.settings_frame({4: 0}) + asked(3),
        headers(1) + headers(1, 1, encode(((b"x", b"y"),))) + headers(3, 0, encode((*ASKED, (b"X", b"")))),
        b"".join(headers(number) for number in range(1, 15, 2)),
        frame(frames.SETTINGS, frames.ACK, 0) + frame(frames.PING, frames.ACK, 0, bytes(8)) + frame(5, 4, 1, bytes(9)),
    ]


def blocks() -> list[bytes]:
    """Return header blocks after their lengths, as one encoder writes them."""
    encoder, said = hpack.Encoder(), b""
    for number in range(6):
        if number == 3:
            encoder.header_table_size = 100
        fields = [("a", str(number)), (":path", "/x" * number), ("te", "trailers"), ("grpc-timeout", "1S")]
        block = encoder.encode(fields, huffman=bool(number % 2))
        said += bytes([len(block)]) + block
    return [said, b"\x04\x40\x01a\x00" * 3 + b"\x01\xbe", b"\x03\x3f\xe1\x1f" + b"\x02\x20\x82"]


def requests() -> list[bytes]:
    """Return ModelInferRequests after their lengths: of one layout, and of others."""
    kind = message("inference.ModelInferRequest")
    made = []
    for ident, name, datatype, shape, raw in (
        ("1", "x", "FP32", [2], struct.pack("<2f", 1, 2)),
        ("2", "x", "FP32", [2], struct.pack("<2f", 3, 4)),
        ("2", "y", "FP32", [2], struct.pack("<2f", 3, 4)),
        ("", "x", "BYTES", [1], b"\x02\0\0\0ab"),
        ("long", "x", "BOOL", [3], b"\0\1\1"),
        ("long", "x", "INT64", [1, 1], bytes(8)),
    ):
        request = kind(model_name="m", id=ident)
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.parameters["priority"].int64_param = len(name)
        request.raw_input_contents.append(raw)
        made.append(request.SerializeToString())
    return [b"".join(len(raw).to_bytes(2, "big") + raw for raw in made), len(made[0]).to_bytes(2, "big") + made[0]]


def large() -> list[bytes]:
    """Return ModelInferRequests whose contents protobuf's parser does not see."""
    kind = message("inference.ModelInferRequest")
    made = []
    for datatype, field, values in (
        ("INT64", "int64_contents", [1, -1, 2**40] * 700),
        ("UINT8", "uint_contents", [0, 255, 7] * 1500),
        ("FP32", "fp32_contents", [1.5] * 2000),
        ("BYTES", "bytes_contents", [b"", b"abc"] * 900),
    ):
        request = kind(model_name="m", id="1")
        request.inputs.add(name="x", datatype=datatype, shape=[len(values)])
        getattr(request.inputs[0].contents, field).extend(values)
        made.append(request.SerializeToString())
    request = kind(model_name="m", raw_input_contents=[bytes(6000)])
    request.inputs.add(name="x", datatype="BOOL", shape=[2, 3000])
    return [*made, request.SerializeToString()]


def bodies() -> list[bytes]:
    """Return inference requests in JSON: numbers, text and what looks like a number in text."""
    texts = (
        rb'{"id":"NaN \" [","inputs":[{"name":"x","datatype":"BYTES","shape":[3],"data":["-Infinity","\\","a\"NaN,"]}'
    )
    floats = b'{"name":"y","datatype":"FP32","shape":[2,2],"data":[[NaN,1.5],[-Infinity,Infinity]]}'
    whole = b'{"name":"z","datatype":"INT8","shape":[4],"data":[1,-2,3,127]}'
    truths = b'{"name":"b","datatype":"BOOL","shape":[1,2],"data":[true, false]}'
    return [
        texts + b"," + floats + b"]}",
        b'{"inputs":[' + whole + b"," + truths + b'],"parameters":{"priority":1}}',
        b'{"inputs":[' + floats + b',{"name":"e","datatype":"FP64","shape":[0,2],"data":[]}],"outputs":[{"name":"y"}]}',
    ]


def models() -> list[bytes]:
    """Return ONNX files: external data in an initializer, an attribute and a subgraph; lists of numbers."""
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    branch = onnx.helper.make_graph([onnx.helper.make_node("Relu", [], [])], "then", [], [], [tensor])
    nodes = [
        onnx.helper.make_node("If", [], [], then_branch=branch),
        onnx.helper.make_node("Tree", [], [], domain="ai.onnx.ml", ints=[1, -1], floats=[0.5], value=tensor),
    ]
    graph = onnx.helper.make_graph(nodes, "g", [], [], [tensor])
    return [onnx.helper.make_model(each).SerializeToString() for each in (graph, branch)]


PIPELINE = """schema = 1
name = "chain"
version = "1"
[input]
image = "image"
x = "FP32[4]"
n = "INT64[]"
t = "text"
[[step]]
name = "one"
model = "four@1"
of = "x * 2 - softmax(x)"
when = "n > 1 and t in ['a', 'b'] or not contains(lower(t), 'x')"
deadline_s = 0.5
fallback = { y = 1.5 }
[[step]]
name = "parts"
tile = "image"
size = [64, 32]
overlap = 0.2
[[step]]
name = "cars"
model = "find"
of = "parts.image"
[[step]]
name = "all"
merge = ["cars"]
nms_iou = 0.5
[[step]]
name = "best"
select = "all"
where = "score > 0.5 and class == 1"
by = "area(box) / n"
top = 3
[[step]]
name = "crops"
model = "find"
inputs = { image = "crop(image, best.box, 1.1)" }
[[step]]
name = "who"
match = "people.npz"
of = "default(one.y, x)"
[[step]]
name = "policy"
rule = { ok = "n > 1 if present(one.y) else max(best.score, default=0) < 2", text = "vote(who.label, t)" }
[[step]]
name = "moved"
track = "best"
high = 0.6
low = 0.2
lost = 9
[[step]]
name = "passed"
count = "moved"
image = "image"
lines = { door = [0.1, 0.5, 0.9, 0.5] }
zones = { yard = [[0.1, 0.1], [0.9, 0.1], [0.5, 0.9]] }
[state]
keys = 9
idle_s = 2.5
[output]
number = "count(best) + count(best.score > 0.3)"
moved = "count(moved.frames > 3) + passed.door_in + passed.yard_s"
things = { box = "best.box", kind = "first(crops.label)" }
maybe = "max(best.score)"
"""


def documents() -> list[bytes]:
    """Return documents of pipelines."""
    return [PIPELINE.encode(), PIPELINE.replace(" = ", "=").encode()]


SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "connection": lambda: [bytes([how]) + words for how in (0, 1, 4, 5) for words in conversations()],
    "hpack_blocks": blocks,
    "huffman_code": lambda: [b"www.example.com", bytes.fromhex("f1e3c2e5f23a6ba0ab90f4ff"), b""],
    "infer_codec": requests,
    "json_body": bodies,
    "large_message": large,
    "onnx_facts": models,
    "pipelines": documents,
}


def spoil(words: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """Make one to four changes."""
    for _ in range(chance.randint(1, 4)):
        words = chance.choice(WAYS)(words, chance, others)
    return words[:100_000]


def _byte(words: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    spoilt = bytearray(words or b"\0")
    place = chance.randrange(len(spoilt))
    spoilt[place] = chance.choice(
        (chance.choice(EDGES), spoilt[place] ^ 1 << chance.randrange(8), chance.randrange(256))
    )
    return bytes(spoilt)


def _cut(words: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    start, stop = sorted(chance.randrange(len(words) + 1) for _ in range(2))
    return words[:start] + words[stop:] if stop - start < 200 else words[:stop]


def _repeat(words: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    start, stop = sorted(chance.randrange(len(words) + 1) for _ in range(2))
    return words[:stop] + words[start : start + 400] * chance.choice((1, 1, 2, 30)) + words[stop:]


def _splice(words: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    other = chance.choice(others)
    return words[: chance.randrange(len(words) + 1)] + other[chance.randrange(len(other) + 1) :]


def _insert(words: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    place = chance.randrange(len(words) + 1)
    return words[:place] + chance.randbytes(chance.choice((1, 2, 9))) + words[place:]


def _frames(words: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    """Change frames of a conversation in kind, flags, stream and order."""
    found, place = [], 1
    while place + frames.HEADER_BYTES <= len(words):
        high, low, kind, flags, number = frames.HEADER.unpack_from(words, place)
        stop = place + frames.HEADER_BYTES + (high << 16 | low)
        found.append((kind, flags, number, words[place + frames.HEADER_BYTES : stop]))
        place = stop
    if not found:
        return words
    spot = chance.randrange(len(found))
    kind, flags, number, payload = found[spot]
    changed = (
        (chance.randrange(11), flags, number, payload),
        (kind, flags ^ 1 << chance.randrange(8), number, payload),
        (kind, flags, chance.choice(NUMBERS), payload),
        (kind, flags, number, payload[: chance.randrange(len(payload) + 1)]),
        (kind, flags, number, payload + payload),
    )
    found[spot] = chance.choice(changed)
    if chance.random() < 0.3:
        chance.shuffle(found)
    return words[:1] + b"".join(frame(*each) for each in found)


WAYS = (_byte, _byte, _cut, _repeat, _splice, _insert, _frames, _frames)
