"""Requests to engines, and answers of OpenAI's API from their documents. Pure functions."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ROWS, ModelManifest
from gateway.common.domain.tensor import Array, Datatype, Steps, Tensor
from gateway.common.domain.text_model import GIVEN, REQUEST, RESPONSE, WRITTEN, is_generative
from gateway.common.wire.events import event
from gateway.serving.domain.infer import InferRequest, InferResponse, RequestedOutput
from gateway.serving.frontends.openai.errors import FieldError

_FLOATS = frozenset({Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64})

DONE = event(b"[DONE]")
Document = dict[str, Any]


def language_request(document: bytes, model: str, version: str, caller: str) -> InferRequest:
    """Return the request for an engine's document."""
    text = np.empty(1, object)
    text[0] = document
    outputs = tuple(map(RequestedOutput, (RESPONSE, GIVEN, WRITTEN)))
    return InferRequest(model, {REQUEST: Tensor(Datatype.BYTES, text)}, version, outputs=outputs, caller=caller)


@dataclass(slots=True)
class Completions:
    """Answer to one request, whose choices come from as many requests to the engine, `n` for each prompt.

    `usage`: a stream ends with the numbers of tokens.
    """

    ident: str
    created_s: int
    model: str
    is_chat: bool
    n: int
    usage: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def whole(self, responses: Sequence[InferResponse]) -> bytes:
        """Return the answer to a request that did not ask for parts."""
        choices: list[Document] = []
        for place, response in enumerate(responses):
            choices += self._choices(place, response)
            self._count(place, response)
        head = self._head(responses[0], "chat.completion" if self.is_chat else "text_completion")
        return msgspec.json.encode({**head, "choices": choices, "usage": self._tokens()})

    def part(self, place: int, response: InferResponse, *, is_last: bool) -> bytes:
        """Return the event of a part of the choice `place`, b"" if it has nothing. `is_last`: the choice is complete.

        An engine without parts has one whole choice, which becomes the only part.
        """
        choices = self._choices(place, response)
        for each in choices:
            if "message" in each:
                calls = [{"index": index, **call} for index, call in enumerate(each["message"].get("tool_calls") or ())]
                each["delta"] = each.pop("message") | ({"tool_calls": calls} if calls else {})
        if is_last:
            self._count(place, response)
        return event(msgspec.json.encode(self._chunk(response) | {"choices": choices})) if choices else b""

    def end(self, response: InferResponse) -> bytes:
        """Return the events after all choices: the numbers of tokens, if they are asked for, and the end."""
        counted = msgspec.json.encode(self._chunk(response) | {"choices": [], "usage": self._tokens()})
        return (event(counted) if self.usage else b"") + DONE

    def _choices(self, place: int, response: InferResponse) -> list[Document]:
        text = text_of(response)
        found: list[Document] = msgspec.json.decode(text)["choices"] if text else []
        if not self.is_chat:
            found = [each | {"logprobs": _token_logprobs(each.get("logprobs"))} for each in found]
        return [each | {"index": place} for each in found]

    def _chunk(self, response: InferResponse) -> Document:
        head = self._head(response, "chat.completion.chunk" if self.is_chat else "text_completion")
        return head | ({"usage": None} if self.usage else {})

    def _head(self, response: InferResponse, kind: str) -> Document:
        return {
            "id": self.ident,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": f"{response.version}-{response.variant}",
        }

    def _count(self, place: int, response: InferResponse) -> None:
        self.prompt_tokens += 0 if place % self.n else count(response, GIVEN)  # a prompt counts once, as OpenAI counts
        self.completion_tokens += count(response, WRITTEN)

    def _tokens(self) -> Document:
        given, written = self.prompt_tokens, self.completion_tokens
        return {"prompt_tokens": given, "completion_tokens": written, "total_tokens": given + written}


@dataclass(frozen=True, slots=True)
class Embedder:
    """Text input and vector output of a model. `shape`: that of one text. `rows`: a run takes several."""

    given: str
    wanted: str
    shape: tuple[int, ...]
    rows: bool

    def request(self, texts: list[str], manifest: ModelManifest, version: str, caller: str) -> InferRequest:
        """Return the request for some texts, or for one text of a model whose runs take one."""
        array = np.empty(len(texts), object)
        array[:] = [text.encode() for text in texts]
        shaped = array.reshape((len(texts), *self.shape) if self.rows else self.shape)
        inputs = {self.given: Tensor(Datatype.BYTES, shaped)}
        return InferRequest(manifest.name, inputs, version, outputs=(RequestedOutput(self.wanted),), caller=caller)

    def vectors(self, response: InferResponse, texts: int) -> list[Array]:
        """Return the vector of each text."""
        return list(np.asarray(response.outputs[self.wanted].array, np.float32).reshape(texts, -1))


def embedder(manifest: ModelManifest) -> Embedder | None:
    """Return how a model embeds: by its only text input and its only output of one vector a text. None: it does not."""
    rows = all(spec.shape[:1] == (ROWS,) for spec in (*manifest.inputs, *manifest.outputs))
    skipped = 1 if rows else 0
    given = [spec for spec in manifest.inputs if spec.default is None]
    floats = [spec for spec in manifest.outputs if spec.datatype in _FLOATS]
    vectors = [spec.name for spec in floats if len([size for size in spec.shape[skipped:] if size != 1]) == 1]
    if [spec.datatype for spec in given] != [Datatype.BYTES] or given[0].takes_encoded or len(vectors) != 1:
        return None
    shape = tuple(abs(size) for size in given[0].shape[skipped:])
    return Embedder(given[0].name, vectors[0], shape, rows) if math.prod(shape) == 1 else None


def serves(manifest: ModelManifest) -> bool:
    """Return True if a model answers a request of this API."""
    return is_generative(manifest) or embedder(manifest) is not None


def embedding_steps(
    vectors: list[Array], model: str, form: Literal["float", "base64"] | None, dimensions: int | None
) -> Steps[bytes]:
    """Return the answer with a vector for each text, one of them a step.

    No tokens are counted. Raises RequestError.
    """
    pieces = []
    for index, vector in enumerate(vectors):
        if dimensions not in {None, vector.size}:
            words = f"model '{model}' gives vectors of {vector.size} numbers; leave 'dimensions' out"
            raise FieldError(words, "dimensions", "invalid_value")
        if not np.isfinite(vector).all():
            raise RequestError(Fault.INTERNAL, f"model '{model}' gave a vector with NaN or infinity for input {index}")
        content: Any = vector.tolist()
        if form == "base64":
            content = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        pieces.append(msgspec.json.encode({"object": "embedding", "index": index, "embedding": content}))
        yield
    tail = msgspec.json.encode({"model": model, "usage": {"prompt_tokens": 0, "total_tokens": 0}})
    return b'{"object":"list","data":[' + b",".join(pieces) + b"]," + tail[1:]


def _token_logprobs(logprobs: Document | None) -> Document | None:
    """Return probabilities in the form of completions, which is not that of chats."""
    if not logprobs or not (tokens := logprobs.get("content")):
        return None
    return {
        "tokens": [each["token"] for each in tokens],
        "token_logprobs": [each["logprob"] for each in tokens],
        "top_logprobs": [{top["token"]: top["logprob"] for top in each.get("top_logprobs", ())} for each in tokens],
    }


def count(response: InferResponse, name: str) -> int:
    """Return a number of tokens, an output of a language model."""
    return int(response.outputs[name].array.ravel()[0])


def text_of(response: InferResponse) -> bytes:
    """Return the engine's document, b"" if a response has none."""
    return bytes(response.outputs[RESPONSE].array.ravel()[0]) if RESPONSE in response.outputs else b""
