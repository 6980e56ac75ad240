"""Fields and contents of answers of inference over HTTP, for direct requests and for ASGI."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gateway.serving.frontends.http.body import accepted_encoding, compress_steps
from gateway.serving.frontends.oip_json_answers import JsonAnswer
from gateway.serving.frontends.rest_v2.requests import HEADER_LENGTH, RestPorts
from gateway.serving.frontends.rest_v2.settings import RestSettings

PIECE_BYTES = 256 * 1024
"""Larger answers are sent in pieces of about this size, at most twice as much."""

Fields = dict[str, str]


def encoding_of(answer: JsonAnswer, accept: str, settings: RestSettings) -> str:
    """Return the Content-Encoding of an answer to a caller that accepts `accept`."""
    return accepted_encoding(accept) if len(answer) >= settings.compress_from_bytes else "identity"


def fields_of(answer: JsonAnswer) -> Fields:
    """Return the header fields of an answer, by name."""
    if not answer.tensors:
        return {"content-type": "application/json"}
    return {HEADER_LENGTH: str(sum(map(len, answer.pieces))), "content-type": "application/octet-stream"}


@dataclass(frozen=True, slots=True)
class AnswerContent:
    """Content of an answer, in pieces of `size` bytes together."""

    fields: Fields
    pieces: Iterable[bytes]
    size: int


async def encoded(answer: JsonAnswer, accept: str, ports: RestPorts, caller: str) -> AnswerContent:
    """Return the content of an answer with its fields, compressed if the caller accepts that."""
    settings, fields = ports.settings, fields_of(answer)
    encoding = encoding_of(answer, accept, settings)
    if encoding == "identity":
        return AnswerContent(fields, _pieces(answer), len(answer))
    fields["content-encoding"], fields["vary"] = encoding, "accept-encoding"
    steps = compress_steps((*answer.pieces, *answer.tensors), encoding, settings.compression_level)
    content = await ports.inference.decoding.run(caller, steps, apart=True)
    return AnswerContent(fields, (content,), len(content))


def _pieces(answer: JsonAnswer) -> Iterator[bytes]:
    gathered = bytearray()
    for piece in (*answer.pieces, *answer.tensors):
        for begin in range(0, len(piece), PIECE_BYTES):
            gathered += piece[begin : begin + PIECE_BYTES]
            if len(gathered) >= PIECE_BYTES:
                yield bytes(gathered)
                gathered.clear()
    yield bytes(gathered)
