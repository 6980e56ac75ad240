"""/v1/responses: its body as a chat, and its answer as items that grow by the engine's parts. Pure functions.

Nothing is stored: a conversation is sent as a whole with each request. A field that is typed `None` is not offered.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from gateway.common.domain.text_model import GIVEN, WRITTEN
from gateway.common.wire.events import event
from gateway.serving.domain.infer import InferResponse
from gateway.serving.frontends.openai import bodies
from gateway.serving.frontends.openai.answers import Document, count, text_of
from gateway.serving.frontends.openai.bodies import GivenObject, Ignored, Name, PartOfOne, TokenCount
from gateway.serving.frontends.openai.errors import FieldError

NOTHING = Raw(b"null")
CONTENTS = ("input_text", "output_text", "refusal")
"""Kinds of parts of messages."""
ITEMS_LIMIT = 1024
"""Most items of the input, as messages of a chat."""


class ItemContent(GivenObject, forbid_unknown_fields=False):
    """Part of a message, or of what a function gave. Clients send items of answers back, with fields of their own."""

    type: str
    text: str = ""
    refusal: str = ""


class Item(GivenObject, forbid_unknown_fields=False):
    """Item of the input: a message, a call of a function in an earlier answer, or what that gave."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Annotated[list[ItemContent], Meta(max_length=ITEMS_LIMIT)] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | Annotated[list[ItemContent], Meta(max_length=ITEMS_LIMIT)] | None = None


class FunctionTool(bodies.Function, kw_only=True):
    """Tool of a request."""

    type: Literal["function"]


class NamedTool(GivenObject):
    """Tool that the model must call."""

    type: Literal["function"]
    name: str


class TextFormat(GivenObject):
    """Form of an answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str = "answer"
    schema: Raw = NOTHING
    description: str | None = None
    strict: bool | None = None


class TextOptions(GivenObject):
    """Options of an answer's text."""

    format: TextFormat | None = None
    verbosity: None = None


class Body(GivenObject):
    """Body of /v1/responses."""

    model: Name
    input: str | Annotated[list[Item], Meta(min_length=1, max_length=ITEMS_LIMIT)]
    instructions: str | None = None
    max_output_tokens: TokenCount | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: PartOfOne | None = None
    stream: bool | None = None
    stream_options: bodies.StreamOptions | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    previous_response_id: None = None
    conversation: None = None
    prompt: None = None
    reasoning: None = None
    max_tool_calls: None = None
    top_logprobs: None = None
    include: Ignored = NOTHING
    store: Ignored = NOTHING
    metadata: Raw = NOTHING
    user: Ignored = NOTHING
    service_tier: Ignored = NOTHING
    safety_identifier: Ignored = NOTHING
    prompt_cache_key: Ignored = NOTHING

    def documents(self, adapter: str) -> list[bytes]:
        """Return the engine's document, in a list. Raises FieldError."""
        messages = [bodies.ChatMessage("system", self.instructions)] if self.instructions else []
        items = [Item(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        for index, item in enumerate(items):
            _add(messages, item, f"input[{index}]")
        if not messages:
            raise FieldError("'input' has no message", "input", "invalid_value")
        given = [
            bodies.Function(each.name, each.description, each.parameters, each.strict) for each in self.tools or ()
        ]
        choice = self.tool_choice
        asked = bodies.Chat(
            model=self.model,
            messages=messages,
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            tools=[bodies.Tool(function, "function") for function in given] or None,
            tool_choice=bodies.ChosenTool(bodies.ChosenFunction(choice.name), "function")
            if isinstance(choice, NamedTool)
            else choice,
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=self._format(),
        )
        try:
            return bodies.documents(asked, adapter)
        except FieldError as error:  # it names fields of chats
            message, param = (
                words.replace("response_format.json_schema", "text.format").replace(".function.", ".")
                for words in (error.message, error.param or "")
            )
            raise FieldError(message, param or None, error.code, error.fault) from None

    def _format(self) -> bodies.ResponseFormat | None:
        form = self.text.format if self.text else None
        if form is None:
            return None
        schema = bodies.Schema(form.name, form.schema, form.description, form.strict)
        return bodies.ResponseFormat(form.type, schema if form.type == "json_schema" else None)


def _add(messages: list[bodies.ChatMessage], item: Item, param: str) -> None:
    """Add the message of an item. Calls of functions in a row are one message. Raises FieldError."""
    if item.type == "reasoning":
        return
    if item.type == "message":
        if item.role is None or item.content is None:
            missing = "role" if item.role is None else "content"
            raise FieldError(f"'{param}.{missing}' is missing", f"{param}.{missing}", "missing_required_parameter")
        messages.append(bodies.ChatMessage(item.role, _joined(item.content, f"{param}.content")))
        return
    needed = ("call_id", "name", "arguments") if item.type == "function_call" else ("call_id", "output")
    if missing := next((name for name in needed if getattr(item, name) is None), ""):
        raise FieldError(f"'{param}.{missing}' is missing", f"{param}.{missing}", "missing_required_parameter")
    if item.type == "function_call_output":
        messages.append(
            bodies.ChatMessage("tool", _joined(item.output or "", f"{param}.output"), tool_call_id=item.call_id)
        )
        return
    called = bodies.CalledFunction(item.name or "", item.arguments or "")
    call = bodies.ToolCall(item.call_id or "", called, "function")
    if not (messages and messages[-1].role == "assistant"):  # a text before its calls is of one message
        messages.append(bodies.ChatMessage("assistant", tool_calls=[]))
    messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), call]


def _joined(content: str | list[ItemContent], param: str) -> str:
    if isinstance(content, str):
        return content
    for index, each in enumerate(content):
        if each.type not in CONTENTS:
            words = f"'{param}[{index}].type': '{each.type:.50}' is not offered here; send one of {', '.join(CONTENTS)}"
            raise FieldError(words, f"{param}[{index}].type", "invalid_value")
    return "\n".join(each.text or each.refusal for each in content)


@dataclass(slots=True)
class ResponseItems:
    """Answer to one request. Each part of the engine changes an item, or begins one, and events say so.

    `call`: the index of the function's call that the last item is; None: it is a message, or over.
    """

    ident: str
    created_s: int
    asked: Body
    items: list[Document] = field(default_factory=list)
    status: str = "in_progress"
    usage: Document | None = None
    sequence: int = 0
    is_open: bool = False
    call: int | None = None

    def whole(self, responses: Sequence[InferResponse]) -> bytes:
        """Return the answer to a request that did not ask for parts."""
        self._take(responses[0])
        self._end(responses[0])
        return msgspec.json.encode(self._document())

    def part(self, _place: int, response: InferResponse, *, is_last: bool) -> bytes:
        """Return the events of a part; before the first one, those of the beginning."""
        del is_last
        begun = [] if self.sequence else [self._event(f"response.{name}", response=self._document()) for name in BEGUN]
        return b"".join([*begun, *self._take(response)])

    def end(self, response: InferResponse) -> bytes:
        """Return the events of the end."""
        closed = self._end(response)
        return b"".join([*closed, self._event(f"response.{self.status}", response=self._document())])

    def _take(self, response: InferResponse) -> list[bytes]:
        events = list[bytes]()
        for choice in msgspec.json.decode(text)["choices"] if (text := text_of(response)) else ():
            new = choice.get("delta") or choice.get("message") or {}
            if choice.get("finish_reason") == "length":
                self.status = "incomplete"
            if new.get("content"):
                events += self._write(new["content"])
            for place, call in enumerate(new.get("tool_calls") or ()):
                events += self._call(call.get("index", place), call)
        return events

    def _write(self, text: str) -> list[bytes]:
        events = list[bytes]()
        if not self.is_open or self.call is not None:
            content = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            events = self._begin("msg", {"type": "message", "role": "assistant", "content": []}, None)
            self.items[-1]["content"] = [content]
            events.append(self._of_item("response.content_part.added", content_index=0, part=content))
        self.items[-1]["content"][0]["text"] += text
        delta = {"content_index": 0, "delta": text, "logprobs": []}
        return [*events, self._of_item("response.output_text.delta", **delta)]

    def _call(self, index: int, call: Document) -> list[bytes]:
        events, function = list[bytes](), call.get("function") or {}
        if not self.is_open or self.call != index:
            named = {"call_id": call.get("id") or f"call_{secrets.token_hex(12)}", "name": function.get("name", "")}
            events = self._begin("fc", {"type": "function_call", **named, "arguments": ""}, index)
        if arguments := function.get("arguments"):
            self.items[-1]["arguments"] += arguments
            events.append(self._of_item("response.function_call_arguments.delta", delta=arguments))
        return events

    def _begin(self, kind: str, item: Document, call: int | None) -> list[bytes]:
        """Begin an item, after the end of the one before."""
        events = self._close()
        self.items.append({"id": f"{kind}_{secrets.token_hex(12)}", "status": "in_progress", **item})
        self.is_open, self.call = True, call
        place = len(self.items) - 1
        return [*events, self._event("response.output_item.added", output_index=place, item=self.items[-1])]

    def _close(self) -> list[bytes]:
        """End the last item."""
        if not self.is_open:
            return []
        item, self.is_open = self.items[-1], False
        item["status"] = "incomplete" if self.status == "incomplete" else "completed"
        if item["type"] == "message":
            (content,) = item["content"]
            done = [
                self._of_item("response.output_text.done", content_index=0, text=content["text"], logprobs=[]),
                self._of_item("response.content_part.done", content_index=0, part=content),
            ]
        else:
            named = {"name": item["name"], "arguments": item["arguments"]}
            done = [self._of_item("response.function_call_arguments.done", **named)]
        return [*done, self._event("response.output_item.done", output_index=len(self.items) - 1, item=item)]

    def _end(self, response: InferResponse) -> list[bytes]:
        events = self._close()
        self.status = "completed" if self.status == "in_progress" else self.status
        given, written = count(response, GIVEN), count(response, WRITTEN)
        self.usage = {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + written,
        }
        return events

    def _of_item(self, kind: str, **fields: Any) -> bytes:
        place = len(self.items) - 1
        return self._event(kind, item_id=self.items[place]["id"], output_index=place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self.sequence += 1
        document = {"type": kind, "sequence_number": self.sequence - 1, **fields}
        return event(msgspec.json.format(msgspec.json.encode(document), indent=-1), name=kind)  # no line breaks of Raw

    def _document(self) -> Document:
        asked = self.asked
        reason = {"reason": "max_output_tokens"} if self.status == "incomplete" else None
        return {
            "id": self.ident,
            "object": "response",
            "created_at": self.created_s,
            "status": self.status,
            "error": None,
            "incomplete_details": reason,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata,
            "model": asked.model,
            "output": self.items,
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": asked.temperature,
            "text": asked.text or {"format": {"type": "text"}},
            "tool_choice": asked.tool_choice or "auto",
            "tools": asked.tools or [],
            "top_p": asked.top_p,
            "truncation": "disabled",
            "usage": self.usage,
        }


BEGUN = ("created", "in_progress")
"""Events at the beginning of a stream."""
