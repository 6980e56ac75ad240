"""Way of ModelInferRequests into the engine: as bytes in a batch of their like, or as an InferRequest."""

from __future__ import annotations

from typing import Any

from gateway.common.domain.rights import Rights, check_model
from gateway.common.domain.tensor import Raw
from gateway.serving.domain.infer import InferRequest
from gateway.serving.domain.ports import Pending, RawSink, Sink, Submission
from gateway.serving.frontends.grpc_v2.calls import CallInfo
from gateway.serving.frontends.grpc_v2.codec.infer_codec import InferCodec, Known


class InferSubmission:
    """Requests of one server. `find` and `encode_raw` are those of its codec."""

    def __init__(self, codec: InferCodec, engine: Submission) -> None:
        self._codec, self._engine = codec, engine
        self.find, self.encode_raw = codec.find, codec.encode_raw

    def collect(self, sink: RawSink, token: tuple[Any, ...], rights: Rights, now_ns: int, ends_ns: int | None) -> bool:
        """Add a request to the engine's batch for its pattern. Return False if it must be submitted.

        `token` ends with the message and what `find` returned for it.
        """
        raw, (pattern, _) = token[-2:]
        batch = pattern.batch
        if batch is None or (rights.models and not rights.sees(pattern.like.model)):
            return False
        return bool(batch.add(sink, token, pattern.cut(raw), now_ns, ends_ns))

    def submit(
        self, sink: Sink, token: Any, content: Raw, known: Known | None, info: CallInfo, *, now_ns: int, lent: bool
    ) -> tuple[InferRequest, Pending] | None:
        """Submit a request; return None if decoding it may take long. Raises as `decode` and the engine do."""
        request = self._codec.decode_as(known, content, info, now_ns, lent=lent)
        if request is None:
            return None
        if info.rights.models:
            check_model(info.caller, info.rights, request.model)
        pending = self._engine.submit(request, sink, token)
        self.find_batch(known, request)
        return request, pending

    def find_batch(self, known: Known | None, request: InferRequest) -> None:
        """Ask the engine for a batch for requests like `request`, whose pattern is known."""
        if known is not None and known[0].batches:
            known[0].batch = self._engine.raw_batch(request)
