"""The writer as a language model that reads documents of OpenAI's form: its last message, or its prompt, is written.

A text that is a JSON object has the parameters of the writer, and the `prompt`. `drop` ends a choice without its
`finish_reason`, `whole` gives no parts. `input` gives a vector of each text's length.
"""

from __future__ import annotations

import json
from typing import Any

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.common.domain.tensor import Tensors
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.domain.ports import Part
from tests.simulators.writer import WriterRuntime, WriterSession, text


class TalkerSession(WriterSession):
    """Session that keeps the documents that it got in `documents`."""

    documents: list[dict[str, Any]]

    def __init__(self) -> None:
        super().__init__()
        self.documents = []

    def run_in_parts(self, inputs: Tensors, part: Part) -> Tensors:
        if not inputs["request"][0]:
            return super().run_in_parts(inputs, part)
        asked = json.loads(inputs["request"][0])
        self.documents.append(asked)
        said = asked["prompt"] if "prompt" in asked else asked["messages"][-1]["content"]
        given = json.loads(said) if said.startswith("{") else {"prompt": said}
        if (size := len(said)) > 4096:
            raise VariantError(f"the request: it has {size} tokens, more than the context of 4096")
        sampling = {"max_tokens": asked.get("max_tokens", 3), **given}
        writing = {**inputs, "text_input": text(given["prompt"]), "sampling_parameters": text(json.dumps(sampling))}
        is_chat = "messages" in asked

        def passed(outputs: Tensors) -> bool:
            if not outputs or given.get("whole"):
                return part({})
            return part(
                {"response": text(json.dumps(_chunk(outputs["text_output"][0].decode(), None, is_chat=is_chat)))}
            )

        outputs = super().run_in_parts(writing, passed)
        finish, written = outputs["finish_reason"][0].decode(), outputs["text_output"][0].decode()
        if not given.get("whole"):
            part({"response": text(json.dumps(_chunk("", finish, is_chat=is_chat)))})
        choice: dict[str, Any] = (
            {"message": {"role": "assistant", "content": written}} if is_chat else {"text": written}
        )
        if asked.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": "w0 ", "logprob": -0.5, "top_logprobs": []}]}
        whole = {"id": "engine", "choices": [{"index": 0, "finish_reason": finish, **choice}], "usage": {}}
        return {**outputs, "response": text(json.dumps(whole))}


def _chunk(words: str, finish: str | None, *, is_chat: bool) -> dict[str, Any]:
    content = {"delta": {"content": words} if words else {}} if is_chat else {"text": words}
    return {"object": "the engine's", "choices": [{"index": 0, "finish_reason": finish, **content}]}


class TalkerRuntime(WriterRuntime):
    """Runtime of the talker."""

    def open(self, manifest: ModelManifest, variant: Variant, files: Any, budget: SessionBudget) -> Any:
        self.opened.append(variant.name)
        session = TalkerSession()
        self.sessions.append(session)  # type: ignore[arg-type]
        return session
