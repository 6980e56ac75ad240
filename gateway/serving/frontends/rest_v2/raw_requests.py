"""Small requests of numbers as JSON for the engine's raw batches: texts become bytes, and bytes become texts again.

A request is known by its model, names, datatypes, shapes and requested outputs, once one like it was answered. Whatever
is not known, or does not fit, takes the usual way, which alone refuses requests. Tests require equal answers of both.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import msgspec
import numpy as np

from gateway.common.domain.errors import RequestError
from gateway.common.domain.tensor import CONVERTED, Datatype, Raw, Tensor, datatype_named
from gateway.serving.domain.infer import InferRequest, InferResponse, ResponseForm
from gateway.serving.domain.ports import RawBatch, Submission
from gateway.serving.frontends.oip_json import JsonBody
from gateway.serving.frontends.oip_json_arrays import number_decoder, packed

KNOWN_LIMIT = 256
"""Most requests that are known, and most forms of answers. At one more, all are forgotten."""
ELEMENTS_LIMIT = 8192
"""Most numbers of a request that is converted on the event loop at once: 0.3 ms."""
INPUTS_LIMIT = 16
"""Most inputs of such a request."""
ANSWER_ELEMENTS = 512
"""Most numbers of an answer that is written at once: 0.03 ms."""
_FORMATS: Mapping[str, str] = {
    datatype.label: datatype.dtype.char for datatype in Datatype if datatype not in CONVERTED
} | {"INT64": "q", "UINT64": "Q"}
"""Formats of `struct` by datatype: numpy's characters, but for the two whose size depends on the platform."""

Key = tuple[object, ...]


@dataclass(slots=True)
class _Numbers:
    """One input: decoder of its flat array, and the layout of its bytes."""

    decoder: msgspec.json.Decoder[list[float]]
    layout: struct.Struct
    count: int
    datatype: Datatype
    shape: tuple[int, ...]


@dataclass(slots=True)
class KnownRequest:
    """Properties of all requests of one key. `limit_bytes`: largest body that the model accepts."""

    batch: RawBatch
    limit_bytes: int
    numbers: tuple[_Numbers, ...]

    def contents(self, parsed: JsonBody) -> list[bytes] | None:
        """Return the bytes of each input, or None if one does not fit."""
        contents: list[bytes] = []
        try:
            for given, each in zip(parsed.inputs, self.numbers, strict=True):
                text = given.data
                if bytes(memoryview(text)[1:2]) == b"[":
                    contents.append(packed(each.datatype, each.shape, bytes(text)))
                    continue
                values = each.decoder.decode(text)
                if len(values) != each.count:
                    return None
                contents.append(each.layout.pack(*values))
        except (RequestError, msgspec.MsgspecError, struct.error, ValueError, OverflowError, RecursionError):
            return None
        return contents


class RawRequests:
    """Requests of one frontend that are known, and the forms of their answers. Used on the event loop only."""

    def __init__(self, engine: Submission) -> None:
        self._engine = engine
        self.known: dict[Key, KnownRequest] = {}
        self._forms: dict[ResponseForm, AnswerForm] = {}

    def key(self, names: tuple[str, str], parsed: JsonBody) -> Key | None:
        """Return what requests like this one share, for model and version `names`; None if they have parameters."""
        if parsed.parameters or len(parsed.inputs) > INPUTS_LIMIT:
            return None
        key: list[object] = [*names]
        for given in parsed.inputs:
            if given.parameters:
                return None
            key += (given.name, given.datatype, *given.shape)
        for output in parsed.outputs or ():
            if output.parameters:
                return None
            key += (None, output.name)
        return tuple(key)

    def learn(self, key: Key | None, parsed: JsonBody | None, request: InferRequest, limit_bytes: int) -> None:
        """Remember `request`, which was submitted, if it has a key and the engine collects its like as bytes."""
        if key is None or parsed is None:
            return
        numbers: list[_Numbers] = []
        for given in parsed.inputs:
            datatype, count = datatype_named(given.datatype, given.name), prod(given.shape)
            if datatype in CONVERTED or not 0 < count <= ELEMENTS_LIMIT:
                return
            layout = struct.Struct(f"<{count}{_FORMATS[datatype.label]}")
            numbers.append(_Numbers(number_decoder(datatype, 1), layout, count, datatype, tuple(given.shape)))
        batch = self._engine.raw_batch(request)
        if batch is not None and sum(each.count for each in numbers) <= ELEMENTS_LIMIT:
            if len(self.known) >= KNOWN_LIMIT:
                self.known.clear()
            self.known[key] = KnownRequest(batch, limit_bytes, tuple(numbers))

    def answer(self, form: ResponseForm, ident: str, contents: Sequence[Raw]) -> bytes | None:
        """Return the answer as JSON; None for a large one."""
        known = self._forms.get(form)
        if known is None:
            if len(self._forms) >= KNOWN_LIMIT:
                self._forms.clear()
            known = self._forms[form] = AnswerForm.of(form)
        return known.fill(ident, contents) if known.elements <= ANSWER_ELEMENTS else None


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Texts of all answers of a form: before the id, before each output's numbers; and the layouts of those."""

    start: bytes
    before: tuple[bytes, ...]
    layouts: tuple[struct.Struct, ...]
    elements: int

    @classmethod
    def of(cls, form: ResponseForm) -> AnswerForm:
        """Return the texts that `answer_steps` writes."""
        start = msgspec.json.encode({"model_name": form.model, "model_version": form.version})[:-1] + b","
        before, layouts, elements = list[bytes](), list[struct.Struct](), 0
        for name, datatype, shape in form.outputs:
            line = msgspec.json.encode({"name": name, "datatype": datatype.label, "shape": list(shape)})
            before.append((b"]}," if before else b'"outputs":[') + line[:-1] + b',"data":[')
            layouts.append(struct.Struct(f"<{prod(shape)}{_FORMATS[datatype.label]}"))
            elements += prod(shape)
        return cls(start, tuple(before), tuple(layouts), elements)

    def fill(self, ident: str, contents: Sequence[Raw]) -> bytes:
        """Return the answer with these contents of its outputs."""
        pieces = [self.start, b'"id":%b,' % msgspec.json.encode(ident) if ident else b""]
        for before, layout, content in zip(self.before, self.layouts, contents, strict=True):
            values = layout.unpack(content)
            text = msgspec.json.encode(values)
            if b"null" in text:  # msgspec's form of NaN and infinity
                text = json.dumps(values, separators=(",", ":")).encode()
            pieces += (before, text[1:-1])
        pieces.append(b"]}]}")
        return b"".join(pieces)


def response_of(form: ResponseForm, ident: str, contents: Sequence[Raw]) -> InferResponse:
    """Return a raw answer as the response that the usual way encodes."""
    outputs = {
        name: Tensor(datatype, np.frombuffer(content, datatype.dtype).reshape(shape))
        for (name, datatype, shape), content in zip(form.outputs, contents, strict=True)
    }
    return InferResponse(form.model, form.version, ident, outputs, form.variant)
