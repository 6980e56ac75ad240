"""Bodies of OpenAI's API: their fields with bounds, and the documents for engines that they become. Pure functions.

A field that is typed `None` is one of OpenAI's that is not offered. Fields of `Ignored` change no answer here.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw

from gateway.common.domain.errors import Fault
from gateway.common.domain.text_model import ADAPTER, TOKENS_LIMIT
from gateway.serving.frontends.oip_json_literals import malformed
from gateway.serving.frontends.openai.errors import FieldError

BODY_BYTES = 4 * 1024 * 1024
"""Largest body: the longest context of small models, 131,072 tokens, is about 0.5 MB of text."""
DOCUMENT_BYTES = 65_536
"""Largest JSON schema of an answer or of one tool's parameters, and largest `logit_bias`."""
INPUTS_LIMIT = 2048
"""Most texts of one request for embeddings, as OpenAI's."""
CHOICES_LIMIT = 8
"""Most choices of one request (`n`): each is a request to the engine."""

_NOTHING = Raw(b"null")
Ignored = Raw
Name = Annotated[str, Meta(min_length=1, max_length=256)]
TokenCount = Annotated[int, Meta(ge=1, le=TOKENS_LIMIT)]
PartOfOne = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Stop = Annotated[str, Meta(min_length=1, max_length=256)]
_Text = Annotated[str, Meta(min_length=1)]
_Body = TypeVar("_Body", bound=msgspec.Struct)


class GivenObject(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Object whose fields are all known."""


class StreamOptions(GivenObject):
    """Options of an answer in parts."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Content(GivenObject):
    """Part of a message."""

    type: Literal["text"]
    text: str = ""
    image_url: None = None
    input_audio: None = None
    file: None = None


class CalledFunction(GivenObject):
    """Function that the model called, with its arguments as JSON."""

    name: str
    arguments: str


class ToolCall(GivenObject):
    """Call of a tool in an earlier answer."""

    id: str
    function: CalledFunction
    type: Literal["function"]
    index: int = 0


class ChatMessage(GivenObject):
    """Message of a chat. Answers of the model may be sent back as they came."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Content], Meta(max_length=1024)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=128)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: Ignored = _NOTHING
    annotations: Ignored = _NOTHING
    audio: None = None
    function_call: None = None


class Function(GivenObject):
    """Function that the model may call."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: Raw = _NOTHING
    strict: bool | None = None


class Tool(GivenObject):
    """Tool of a request."""

    function: Function
    type: Literal["function"]


class ChosenFunction(GivenObject):
    """Name of a function."""

    name: str


class ChosenTool(GivenObject):
    """Tool that the model must call."""

    function: ChosenFunction
    type: Literal["function"]


class Schema(GivenObject):
    """JSON schema of an answer."""

    name: str
    schema: Raw = _NOTHING
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(GivenObject):
    """Form of an answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None


class Sampling(GivenObject):
    """Fields of chats and of completions."""

    model: Name
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=CHOICES_LIMIT)] | None = None
    max_tokens: TokenCount | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: PartOfOne | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1_048_576)] | None = None
    min_p: PartOfOne | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=4)] | None = None
    logit_bias: Raw = _NOTHING
    user: Ignored = _NOTHING
    metadata: Ignored = _NOTHING
    store: Ignored = _NOTHING
    service_tier: Ignored = _NOTHING
    safety_identifier: Ignored = _NOTHING
    prompt_cache_key: Ignored = _NOTHING

    def given(self) -> dict[str, Any]:
        """Return what the engine gets of these fields. Raises FieldError."""
        names = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "presence_penalty")
        found = {name: getattr(self, name) for name in (*names, "frequency_penalty", "seed")}
        found["stop"] = [self.stop] if isinstance(self.stop, str) else self.stop or None
        found["logit_bias"] = _object(self.logit_bias, "logit_bias")
        if self.stream_options is not None and not self.stream:
            raise FieldError("'stream_options' is for answers with \"stream\": true", "stream_options")
        return found


class Chat(Sampling, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=1024)]
    max_completion_tokens: TokenCount | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    audio: None = None
    modalities: list[Literal["text"]] | None = None
    functions: None = None
    function_call: None = None
    prediction: None = None
    reasoning_effort: None = None
    verbosity: None = None
    web_search_options: None = None

    def given(self) -> dict[str, Any]:
        """Return what the engine gets. Raises FieldError."""
        names = ("response_format", "tools", "tool_choice", "parallel_tool_calls", "logprobs", "top_logprobs")
        found = super().given() | {name: getattr(self, name) for name in names}
        found["max_tokens"] = self.max_completion_tokens or self.max_tokens
        found["messages"] = [_message(each, f"messages[{index}]") for index, each in enumerate(self.messages)]
        for index, tool in enumerate(self.tools or ()):
            _object(tool.function.parameters, f"tools[{index}].function.parameters")
        form, param = self.response_format, "response_format.json_schema"
        if form is not None and form.type == "json_schema":
            schema = form.json_schema.schema if form.json_schema else _NOTHING
            if _object(schema, f"{param}.schema") is None:
                raise FieldError("'json_schema' with 'schema' is missing", param)
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise FieldError("'tool_choice' is for requests with 'tools'", "tool_choice")
        return found


class Completion(Sampling, kw_only=True):
    """Body of /v1/completions."""

    prompt: str | Annotated[list[str], Meta(min_length=1, max_length=CHOICES_LIMIT)]
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: None = None


class Embeddings(GivenObject):
    """Body of /v1/embeddings."""

    model: Name
    input: _Text | Annotated[list[_Text], Meta(min_length=1, max_length=INPUTS_LIMIT)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: Ignored = _NOTHING


def read(body: bytes, kind: type[_Body]) -> _Body:
    """Return the body. Raises FieldError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FieldError(f"the request body is no JSON: {malformed(body, error)}", None) from None


def documents(asked: Chat | Completion, adapter: str = "") -> list[bytes]:
    """Return a document for each choice: those of the first prompt, then of the next. Raises FieldError.

    Choices of one seed have seeds one after the other: with one seed they would be equal.
    """
    given = {name: value for name, value in asked.given().items() if value is not None}
    given |= {ADAPTER: adapter} if adapter else {}
    choices = range(asked.n or 1)
    prompts: list[dict[str, Any]] = [{}]
    if isinstance(asked, Completion):
        given |= {} if asked.logprobs is None else {"logprobs": asked.logprobs}
        prompts = [{"prompt": each} for each in ([asked.prompt] if isinstance(asked.prompt, str) else asked.prompt)]
    if len(prompts) * len(choices) > CHOICES_LIMIT:
        raise FieldError(f"at most {CHOICES_LIMIT} choices are written for one request, of all its prompts", "n")
    seeds = [{} if asked.seed is None else {"seed": (asked.seed + i + 2**63) % 2**64 - 2**63} for i in choices]
    return [msgspec.json.encode(given | prompt | seed) for prompt in prompts for seed in seeds]


def _message(message: ChatMessage, param: str) -> dict[str, Any]:
    """Return a message as templates of chats know it: with one text, and no role "developer"."""
    content = message.content
    if isinstance(content, list):
        content = "\n".join(each.text for each in content)
    if content is None and not (message.role == "assistant" and message.tool_calls):
        raise FieldError(f"'content' of a message by '{message.role}' is missing", f"{param}.content")
    role = "system" if message.role == "developer" else message.role
    names = ("name", "tool_calls", "tool_call_id", "reasoning_content")
    more = {name: value for name in names if (value := getattr(message, name)) is not None}
    return {"role": role, "content": content, **more}


def _object(raw: Raw, param: str) -> Any:
    """Return `raw` if it is a JSON object, None if it is null. Raises FieldError."""
    text = bytes(raw)
    if len(text) > DOCUMENT_BYTES:
        raise FieldError(f"'{param}' has more than {DOCUMENT_BYTES} bytes", param, fault=Fault.TOO_LARGE)
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FieldError(f"'{param}' is no JSON: {malformed(text, error)}", param) from None
    if not isinstance(found, dict | None):
        raise FieldError(f"'{param}' must be a JSON object", param, "invalid_type")
    return None if found is None else raw


_FAULT = re.compile(r"(.*?)(?: - at `\$\.?(.*?)`)?", re.DOTALL)
_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)


def _field_error(words: str) -> FieldError:
    """Return the refusal for a violation that msgspec reports."""
    found = _FAULT.fullmatch(words)
    problem, place = (found[1], found[2] or "") if found else (words, "")
    if field := _FIELD.fullmatch(problem):
        param = ".".join(filter(None, (place, field[2])))
        if field[1] == "missing required":
            return FieldError(f"'{param:.200}' is missing", param[:200], "missing_required_parameter")
        return FieldError(f"'{param:.200}' is not known here; leave it out", param[:200], "unknown_parameter")
    if problem.startswith("Expected `null`"):
        return FieldError(f"'{place}' is not offered here; leave it out", place, "unsupported_parameter")
    if place.startswith(("input", "prompt")) and "got `" in problem:
        problem += "; send texts: numbers of tokens are another tokenizer's"
    return FieldError(f"'{place or 'the body'}': {problem[:1].lower()}{problem[1:]}", place or None, "invalid_value")
