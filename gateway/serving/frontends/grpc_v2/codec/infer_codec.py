"""Codec of ModelInfer's messages on the hot path: reads and writes repeated parts once.

The requests of a camera or a sensor differ in their tensors' bytes and perhaps in their id. Their answers do likewise
(`patterns`, `templates`). The protobuf messages (`decode`, `encode`) remain the reference: a message without a known
pattern is processed by them, and tests require equal results of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway.common.domain.tensor import ELEMENTS_LIMIT, Raw, encode_raw
from gateway.serving.domain.infer import InferRequest, InferResponse, RequestedOutput, ResponseForm
from gateway.serving.frontends.grpc_v2.calls import CallInfo, parse_message
from gateway.serving.frontends.grpc_v2.codec.decode import decode_request
from gateway.serving.frontends.grpc_v2.codec.encode import encode_response
from gateway.serving.frontends.grpc_v2.codec.outline import TENSORS_LIMIT
from gateway.serving.frontends.grpc_v2.codec.patterns import (
    CONVERTED_ELEMENTS,
    COPIED_BYTES,
    WHOLE_BYTES,
    Pattern,
    largely_converted,
    pattern_of,
)
from gateway.serving.frontends.grpc_v2.codec.protobuf import RequestLayout, cutter, layout_of
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.codec.templates import (
    Template,
    content_of,
    form_of,
    sent_as_in_memory,
    shape_of,
    template_of,
)
from gateway.serving.frontends.grpc_v2.framing import PREFIX, Encoded, prefixed
from gateway.serving.frontends.regions import Regions

PATTERNS_LIMIT = 256
"""Most remembered requests that differ in more than tensors and id. At one more, all are forgotten."""
LAYOUTS_LIMIT = 8
"""Most remembered layouts of messages of one length: each is tried."""
TEMPLATES_LIMIT = 256
"""Most models and shapes whose replies are remembered. At one more, all are forgotten."""

KnownLayout = tuple[RequestLayout, dict[tuple[bytes, ...], Pattern], Callable[[Raw], tuple[bytes, ...]]]
"""Layout, its patterns by their fixed bytes, and a function that cuts these out of a message."""
Known = tuple[Pattern, str]
"""Pattern that a message fits, and its id."""


class InferCodec:
    """Codec of one service, with the `regions` of that service. Used on the event loop only."""

    def __init__(self, regions: Regions | None) -> None:
        self._regions = regions
        self._layouts: dict[int, list[KnownLayout]] = {}
        self._known = 0
        self._templates: dict[object, Template] = {}

    def decode(self, raw: Raw, call: CallInfo, now_ns: int, *, lent: bool) -> InferRequest | None:
        """Return the request in `raw`, or None if reading it may take long: `LargeRequestReader` reads it then.

        `lent`: the transport reuses the memory afterwards, so tensors are copied. Otherwise aligned tensors are arrays
        over that memory. Raises as `decode_request` does.
        """
        return self.decode_as(self.find(raw), raw, call, now_ns, lent=lent)

    def decode_as(
        self, known: Known | None, raw: Raw, call: CallInfo, now_ns: int, *, lent: bool
    ) -> InferRequest | None:
        """Return what `decode` returns. `known`: what `find` returned."""
        if known is None:
            return self._learn(raw, call, now_ns)
        pattern, ident = known
        return pattern.request(raw, ident, call, now_ns, lent=lent)

    def find(self, raw: Raw) -> Known | None:
        """Return the pattern that a message fits, and its id, or None if its like is unknown."""
        for layout, patterns, fixed in self._layouts.get(len(raw), ()):
            pattern = patterns.get(fixed(raw))
            if pattern is not None:
                try:
                    return pattern, layout.ident(raw) if layout.id[1] else ""
                except UnicodeDecodeError:
                    break  # the id is no text; the parser has the error message
        return None

    def encode(self, response: InferResponse, asked: Sequence[RequestedOutput]) -> Encoded | None:
        """Return the reply, or None if encoding it may take long: `reply_steps` encodes it then.

        Raises as `encode_response` does.
        """
        if not (response.parameters or (asked and any(output.destination is not None for output in asked))):
            key = shape_of(response)
            template = self._templates.get(key)
            if template is None:
                template = template_of(form_of(response), plain=sent_as_in_memory(response))
                self._remember_template(key, template)
            if template.plain:
                return template.fill(response.id, [content_of(each.array) for each in response.outputs.values()])
        else:
            template = None
        for tensor in response.outputs.values():
            if tensor.array.size > CONVERTED_ELEMENTS.get(tensor.datatype.label, ELEMENTS_LIMIT):
                return None
        if template is None:
            return prefixed(encode_response(response, asked).SerializeToString())
        return template.fill_sized(response.id, [encode_raw(t.datatype, t.array) for t in response.outputs.values()])

    def encode_raw(self, form: ResponseForm, ident: str, contents: Sequence[Raw]) -> Encoded:
        """Return the reply of a raw answer."""
        template = self._templates.get(form)
        if template is None:
            template = template_of(form)
            self._remember_template(form, template)
        if len(contents) == 1 and not ident:
            return [template.anonymous, contents[0]], template.size + PREFIX.size
        return template.fill(ident, contents)

    def lead(self, total: int) -> int:
        """Return the offset of the first tensor in the last known request of `total` bytes; 0 if there is none."""
        known = self._layouts.get(total)
        return known[-1][0].raws[0][0] if known and known[-1][0].raws else 0

    def learn(self, raw: Raw, sent: Any, request: InferRequest) -> None:
        """Remember the meaning of `raw`, which was parsed as `sent`."""
        self._keep(raw, layout_of(raw), sent, request)

    def _learn(self, raw: Raw, call: CallInfo, now_ns: int) -> InferRequest | None:
        small = len(raw) <= WHOLE_BYTES
        layout = None if small else layout_of(raw)
        if not small and (layout is None or len(raw) > COPIED_BYTES):
            return None
        content = bytes(raw)
        sent = parse_message(message("inference.ModelInferRequest"), content)
        if any(largely_converted(each) for each in sent.inputs[:TENSORS_LIMIT]):
            return None
        if small and not any(each.contents.bytes_contents for each in sent.inputs[:1]):  # such vary in their lengths
            layout = layout_of(content)
        request = decode_request(sent, call, now_ns, self._regions)
        self._keep(content, layout, sent, request)
        return request

    def _keep(self, raw: Raw, layout: RequestLayout | None, sent: Any, request: InferRequest) -> None:
        if layout is not None and (pattern := pattern_of(sent, request, layout, self._regions)) is not None:
            self._known += 1
            if self._known > PATTERNS_LIMIT:
                self._layouts.clear()
                self._known = 1
            layouts = self._layouts.setdefault(layout.total, [])
            known = next((each for each in layouts if each[0] == layout), None)
            if known is None:
                known = layout, {}, cutter(layout.total, [(part.start, part.stop) for part in layout.fixed]).unpack
                layouts.append(known)
                del layouts[:-LAYOUTS_LIMIT]
            known[1][known[2](raw)] = pattern

    def _remember_template(self, key: object, template: Template) -> None:
        if len(self._templates) >= TEMPLATES_LIMIT:
            self._templates.clear()
        self._templates[key] = template
