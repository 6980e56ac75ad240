"""Language models and models of embeddings in GGUF files, by llama.cpp.

The wheel xllamacpp has llama.cpp's server in the process. It joins the steps of its requests (continuous batching): a
session takes as many runs at a time as its budget says, each in a slot with a context of its own. It also has a
listener, which is closed as soon as it is open.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from gateway.common.domain.errors import VariantError
from gateway.common.domain.inventory import CPU
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec, Variant
from gateway.common.domain.tensor import Datatype, Tensors
from gateway.common.domain.text_model import (
    ADAPTER,
    PARAMETERS,
    REQUEST,
    RESPONSE,
    TEXT,
    TEXT_INPUTS,
    TEXT_OUTPUTS,
    TOKENS_LIMIT,
    TOO_LONG,
)
from gateway.common.domain.verdict import SessionBudget, Signature
from gateway.serving.domain.ports import Part, RowProof, RowTensors, Session
from gateway.serving.runtimes.adapter_turns import AdapterTurns
from gateway.serving.runtimes.installed import require
from gateway.serving.runtimes.opening import check_accelerator, existing, model_file, read_options

CONTEXT_TOKENS, LEAST_CONTEXT_TOKENS = 2048, 64
"""Tokens of a prompt with its answer, for each run at a time. The ladder's option `context_tokens` sets others."""
STEP_TOKENS = 64
"""Most tokens of prompts in a step: between two of them a run can end."""
DEFAULT_TOKENS = 16
"""Most tokens of a completion that states no `max_tokens` (OpenAI's default)."""
REQUEST_BYTES = 1_048_576
"""Longest request: a hundred times what the usual context holds."""
STOPS = 16
"""Most stop strings."""
VERSIONS = (2, 3)
"""Versions of GGUF that llama.cpp reads on machines of this byte order."""
TEXT_BYTES, ENTRIES = 65_536, 4_096
"""Longest text, and most entries, that are read of the metadata of a file."""
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY, _UINT32 = 8, 9, 4
"""Types of metadata: bytes of each, and those that are read."""
_FLOATS = {0: "fp32", 1: "fp16", 32: "bf16"}
"""Precision by `general.file_type`: all other ones are quantized."""
SAMPLING = frozenset({
    *("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop"),
    *("presence_penalty", "frequency_penalty", "repeat_penalty", "logit_bias", "logprobs", "top_logprobs"),
    *("response_format", "json_schema", ADAPTER),
})  # fmt: skip
"""Fields of requests: OpenAI's, and those of llama.cpp for sampling.

Not its `grammar`: thirty short rules hold up the steps of all requests for minutes, and deep ones end the process.
"""
FORMS = "response_format", "json_schema", "tools"
"""Fields that become a grammar, within these bounds: bytes of JSON, values and depth, characters of a pattern."""
FORM_BYTES, FORM_NODES, FORM_DEPTH, PATTERN_CHARS = 65_536, 4_096, 64, 256
CALL = 'Answer with a call of a function, as {"name": …, "arguments": {…}}. The functions are: '
"""Instruction of a chat whose answer must be a call."""
LOGPROBS = 20
"""Most alternatives of a token (OpenAI's limit)."""
CHAT = frozenset({"messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs"})
POOLINGS, RANKS = (1, 2, 3), 4
"""Values of `pooling_type`: the mean, the first, the last token; a comparison of two texts."""
EMBEDDED = "text"
"""Input of a model of embeddings without a manifest."""
_LONG = re.compile(r"input \((\d+) tokens\) is (?:too large|larger).*?size: (\d+)", re.DOTALL)
_DOCUMENT = msgspec.json.Decoder(dict[str, Any])


class LlamaCppRuntime:
    """Runtime for GGUF files. Implements `serving.domain.ports.Runtime`."""

    name = "llamacpp"

    def version(self) -> str:
        """Return the installed version. Raises VariantError."""
        return require(self.name)

    def import_engine(self) -> None:
        """Import the package. Raises VariantError."""
        _engine()

    def devices(self, plugin: str = "") -> Sequence[str]:
        """Return the CPU: the wheels of the registry have no other."""
        return ("CPU",)

    def open(self, manifest: ModelManifest, variant: Variant, files: Path, budget: SessionBudget) -> Session:
        """Load the model, with a slot for each run at a time. Raises VariantError."""
        check_accelerator(self.name, budget, (CPU,))
        wanted = read_options(self.name, budget, {"context_tokens": ()}).get("context_tokens", str(CONTEXT_TOKENS))
        if not wanted.isdecimal() or not LEAST_CONTEXT_TOKENS <= int(wanted) <= TOKENS_LIMIT:
            problem = f"option 'context_tokens' must be {LEAST_CONTEXT_TOKENS} to {TOKENS_LIMIT}, not {wanted!r}"
            raise VariantError(problem, remedy="correct [ladder.options] of the device profile")
        file = model_file(variant, files, ".gguf")
        header = _header(file)
        tokens = min(int(wanted), _number(header, "context_length") or int(wanted))
        adapters = {name: files / path for name, path in variant.adapters.items()}
        for path in adapters.values():
            if not is_adapter(existing(path)):
                raise VariantError(f"{path.name} is no adapter", remedy="remove it from [variant.adapters]")
        pooling = _pooling(header, file)
        if pooling and adapters:
            raise VariantError("a model of embeddings has no adapters", remedy="remove [variant.adapters]")
        server = _Server(file, max(1, budget.runs), tokens, budget.threads, adapters, pooling)
        if not pooling:
            return LlamaCppSession(server, 0)
        return EmbeddingSession(server, 0, (manifest.inputs[0].name, manifest.outputs[0].name))

    def inspect(self, file: Path) -> Signature:
        """Return the tensors of every language model, or texts and vectors of a model of embeddings.

        Raises VariantError for a file that is neither.
        """
        header = _header(existing(file))
        if not _pooling(header, file):
            return Signature(TEXT_INPUTS, TEXT_OUTPUTS)
        width = _number(header, "embedding_length")
        text = TensorSpec(EMBEDDED, Datatype.BYTES, (ROWS,))
        return Signature((text,), (TensorSpec("embedding", Datatype.FP32, (ROWS, width)),))

    def prove_rows(self, variant: Variant, files: Path, tensors: RowTensors) -> RowProof:
        """Return that nothing is proved: a run has one request, and the engine joins the steps."""
        return RowProof(reason="the engine joins the requests by itself")

    def operators(self, variant: Variant, files: Path) -> frozenset[str]:
        """Return nothing: the file has weights, and its architecture names the graph."""
        return frozenset()


class LlamaCppSession:
    """One run at a time of a server. Implements `serving.domain.ports.Session`."""

    lends, in_parts, rows = False, True, None
    remarks: tuple[str, ...] = ()

    def __init__(self, server: _Server, index: int, names: tuple[str, str] = ("", "")) -> None:
        self._server, self._index, self._names = server, index, names
        self._cancelled = threading.Event()
        self.peers: list[LlamaCppSession] = []

    def run(self, inputs: Tensors) -> Tensors:
        """Implement `Session.run`."""
        return self.run_in_parts(inputs, lambda _outputs: True)

    def run_in_parts(self, inputs: Tensors, part: Part) -> Tensors:
        """Implement `Session.run_in_parts`. "the request: " begins the reasons that are the caller's fault."""
        self._cancelled.clear()
        document, shown = asked({name: array.ravel()[0] for name, array in inputs.items()})
        adapter, is_call = document.pop(ADAPTER, ""), must_call(document)
        is_request = bool(inputs[REQUEST].ravel()[0])
        answer = Answer(part, shown, is_request=is_request, is_call=is_call, is_cancelled=self._cancelled.is_set)
        try:
            with self._server.adapted(
                document, adapter, lambda: not self._cancelled.is_set() and part({})
            ) as is_wanted:
                if is_wanted:
                    self._server.handle(document, answer.take)
        except ValueError as error:
            raise VariantError(f"the request: {error}") from None
        except RuntimeError as error:
            raise VariantError(str(error)) from None
        if self._cancelled.is_set():
            raise VariantError("the run was cancelled")
        return answer.outputs("messages" in document)

    def cancel(self) -> bool:
        """Implement `Session.cancel`: the run ends with its next step."""
        self._cancelled.set()
        return True

    def widen(self, runs: int) -> None:
        """Implement `Session.widen`. Raises VariantError: slots are made when the model is opened."""
        if runs > self._server.runs:
            raise VariantError(f"the model was opened for {self._server.runs} runs at a time")
        indices = range(len(self.peers) + 1, runs)
        self.peers += [type(self)(self._server, index, self._names) for index in indices]

    def close(self) -> None:
        """Implement `Session.close`."""
        if self._index == 0:
            self._server.close()


class EmbeddingSession(LlamaCppSession):
    """One run at a time of a server that gives vectors: of a text for each row."""

    in_parts = False

    def run(self, inputs: Tensors) -> Tensors:
        """Return the vector of each text. "the request: " begins the reasons that are the caller's fault."""
        given, wanted = self._names
        found = [bytes(each) for each in inputs[given].ravel()]
        if sum(map(len, found)) > REQUEST_BYTES:
            raise VariantError(f"the request: its texts have more than {REQUEST_BYTES} bytes; send fewer")
        try:
            return {wanted: self._server.embed([each.decode() for each in found])}
        except UnicodeDecodeError as error:
            raise VariantError(f"the request: a text is not UTF-8: {error}") from None

    def cancel(self) -> bool:
        """Implement `Session.cancel`: a run is one step."""
        return False


class _Server:
    """llama.cpp's server without a listener. `pooling`: how tokens become one vector (0: the model writes text)."""

    def __init__(  # noqa: PLR0917  what a server is made of
        self, file: Path, runs: int, tokens: int, threads: int, adapters: Mapping[str, Path], pooling: int
    ) -> None:
        engine = _engine()
        given = engine.CommonParams()
        given.lora_init_without_apply, loras = True, []
        for path in adapters.values():
            loras.append(engine.CommonAdapterLoraInfo())
            loras[-1].path, loras[-1].scale = str(path), 0.0
        given.lora_adapters = loras
        given.model.path, given.n_parallel, given.n_ctx = str(file), runs, runs * tokens
        given.cpuparams.n_threads = given.cpuparams_batch.n_threads = threads
        given.n_batch = given.n_ubatch = tokens if pooling else STEP_TOKENS  # a text is embedded in one step
        if pooling:
            given.embedding, given.pooling_type = True, engine.llama_pooling_type(pooling)
            given.kv_unified = True  # else texts of one step are cut into chunks, and pooled from their last ones
        given.n_gpu_layers, given.warmup, given.fit_params, given.verbosity = 0, False, False, -1
        given.cache_ram_mib, given.n_ctx_checkpoints, given.use_jinja = 0, 0, True
        # The server cannot do without a listener. This one has no file and no port, and is closed below.
        given.hostnames, given.api_keys = [f"\0edge-gateway-{secrets.token_hex(16)}.sock"], [secrets.token_hex(32)]
        given.n_threads_http, given.ui, given.endpoint_slots = 1, False, False
        self.runs = runs
        self._adapters, self._turns = tuple(adapters), AdapterTurns()
        try:
            self._server: Any = engine.Server(given)
        except RuntimeError as error:
            remedy = "check the file and the memory: the log has llama.cpp's words"
            raise VariantError(f"llama.cpp cannot load {file.name}: {error}", remedy=remedy) from None
        for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
            with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as opened:
                if opened.family == socket.AF_UNIX and opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    opened.shutdown(socket.SHUT_RDWR)
        # A server that is closed before its loop runs never ends: a first request tells that it does.
        if pooling:
            self._server.handle_embeddings({"input": " "})
        else:
            self._server.handle_completions({"prompt": " ", "max_tokens": 1, "stream": True}, lambda _chunk: False)

    @contextmanager
    def adapted(self, document: dict[str, Any], adapter: str, wanted: Callable[[], bool]) -> Iterator[bool]:
        """Let the block, which handles a document, be a run with an adapter. Yield False if it is not wanted any more.

        Raises VariantError if there is no such adapter.
        """
        if not self._adapters and not adapter:
            yield True
            return
        if adapter and adapter not in self._adapters:
            names = ", ".join(self._adapters) or "none"
            raise VariantError(f"the request: there is no adapter '{adapter:.128}'; adapters of this model: {names}")
        document["lora"] = [{"id": self._adapters.index(adapter), "scale": 1.0}] if adapter else []
        document["cache_prompt"] = False  # a slot would answer without an adapter by what it computed with one
        with self._turns.turn(adapter, wanted) as is_wanted:
            yield is_wanted

    def handle(self, document: dict[str, Any], take: Any) -> None:
        """Pass a request to the server, and each of its chunks to `take`, until that returns True.

        Raises ValueError and RuntimeError.
        """
        if (server := self._server) is None:
            raise RuntimeError("the model is closed")
        (server.handle_chat_completions if "messages" in document else server.handle_completions)(document, take)

    def embed(self, given: list[str]) -> Any:
        """Return a vector for each text, FP32 (texts, width). Raises VariantError."""
        if (server := self._server) is None:
            raise VariantError("the model is closed")
        answer = server.handle_embeddings({"input": given})
        if error := answer.get("error"):
            if found := _LONG.search(str(error["message"])):
                raise VariantError(f"the request: {found[1]} {TOO_LONG} of {found[2]} has; send shorter texts")
            raise VariantError(str(error["message"]))
        data = sorted(answer["data"], key=lambda each: int(each["index"]))
        return np.array([each["embedding"] for each in data], np.float32)

    def close(self) -> None:
        """End the server, which frees its memory. Calling it twice is harmless."""
        self._server = None


def asked(given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the document for the server, and the text that comes before the answer. Raises VariantError."""
    own, text = bytes(given[REQUEST]), bytes(given[TEXT])
    content = own or bytes(given[PARAMETERS])
    if len(content) + len(text) > REQUEST_BYTES:
        raise VariantError(f"the request: it has more than {REQUEST_BYTES} bytes; send a shorter one")
    try:
        document, prompt = _DOCUMENT.decode(content), text.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        name = REQUEST if own else PARAMETERS
        raise VariantError(f"the request: '{name}' is no JSON object in UTF-8, or the text is none: {error}") from None
    if not own:
        document = {"temperature": 0.0, **document, "prompt": prompt}
    is_chat = "messages" in document
    most = document.pop("max_completion_tokens", document.get("max_tokens"))
    if fault := _fault(document, most, is_chat=is_chat):
        raise VariantError(f"the request: {fault}")
    if isinstance(seed := document.get("seed"), int):
        document["seed"] = seed & 0xFFFF_FFFF
    if most is not None or not is_chat:
        document["max_tokens"] = min(most or DEFAULT_TOKENS, 2**31 - 1)
    document |= {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
    return document, "" if own or given["exclude_input_in_output"] else prompt


def _fault(document: Mapping[str, Any], most: Any, *, is_chat: bool) -> str:
    """Return what is wrong with a document that the engine would not refuse, or only after long, or ""."""
    if not is_chat and "prompt" not in document:
        return "it has neither 'messages' nor 'prompt'"
    if unknown := sorted(document.keys() - SAMPLING - (CHAT if is_chat else {"prompt"})):
        return f"there is no field '{unknown[0]}' for {'chats' if is_chat else 'texts'}"
    if not document["messages" if is_chat else "prompt"]:
        return "it has no messages" if is_chat else "the prompt is empty"
    if not isinstance(document.get(ADAPTER, ""), str):
        return f"'{ADAPTER}' must be the name of an adapter, not {str(document[ADAPTER])[:40]}"
    if isinstance(stops := document.get("stop"), list) and len(stops) > STOPS:
        return f"'stop' has {len(stops)} texts, {STOPS} are the most"
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        return f"'max_tokens' must be 1 or more, not {str(most)[:40]}"
    for name in ("logprobs", "top_logprobs"):
        count = document.get(name) or 0
        if not isinstance(count, int) or not 0 <= count <= LOGPROBS:
            return f"'{name}' must be 0 to {LOGPROBS}, not {str(count)[:40]}"
    return next(filter(None, (form_fault(name, document[name]) for name in FORMS if document.get(name))), "")


def must_call(document: dict[str, Any]) -> bool:
    """Let the answer of a chat that must call a tool be one call, by a schema; return whether it must.

    llama.cpp leaves `tool_choice` out where the template of a model knows no tools. Raises VariantError.
    """
    choice = document.get("tool_choice")
    if choice in (None, "none", "auto"):
        return False
    try:
        named = "" if choice == "required" else choice["function"]["name"]
        tools = [tool["function"] for tool in document["tools"] if named in {"", tool["function"]["name"]}]
        names, shapes = [tool["name"] for tool in tools], [tool.get("parameters") or {} for tool in tools]
        defined: dict[str, Any] = {}
        for shape in shapes:
            for key in ("$defs", "definitions"):  # references in them are from the root
                defined.setdefault(key, {}).update(shape.get(key) or {})
    except (KeyError, TypeError, AttributeError):
        raise VariantError("the request: 'tool_choice' needs 'tools' of functions with names") from None
    if not tools:
        raise VariantError(f"the request: 'tool_choice' names '{named!s:.64}', which is none of the tools")
    calls = [
        {"type": "object", "properties": {"name": {"const": name}, "arguments": {"type": "object", **shape}}}
        | {"required": ["name", "arguments"], "additionalProperties": False}
        for name, shape in zip(names, shapes, strict=True)
    ]
    for name in ("tools", "tool_choice", "parallel_tool_calls", "response_format"):
        document.pop(name, None)
    document["json_schema"] = {**(calls[0] if len(calls) == 1 else {"anyOf": calls}), **defined}
    words, messages = CALL + msgspec.json.encode(tools).decode(), list(document["messages"])
    if messages[0].get("role") == "system":
        words = f"{messages.pop(0).get('content') or ''}\n\n{words}"
    document["messages"] = [{"role": "system", "content": words}, *messages]
    return True


def form_fault(name: str, form: Any) -> str:
    """Return why the grammar of a field would not be small, or "": the engine takes no step while it makes one."""
    if len(msgspec.json.encode(form)) > FORM_BYTES:
        return f"'{name}' has more than {FORM_BYTES} bytes"
    left, waiting = FORM_NODES, [(form, form, 0, frozenset[str]())]
    while waiting:
        value, root, depth, within = waiting.pop()
        left -= 1
        if left < 0 or depth > FORM_DEPTH:
            much = f"more than {FORM_NODES} values, or is deeper than {FORM_DEPTH}, with each '$ref' in place"
            return f"'{name}' has {much}; simplify the schema"
        if isinstance(value, list):
            waiting += [(each, root, depth + 1, within) for each in value]
        for key, each in value.items() if isinstance(value, dict) else ():
            if key == "pattern" and isinstance(each, str) and len(each) > PATTERN_CHARS:
                return f"'{name}' has a pattern of more than {PATTERN_CHARS} characters"
            if key == "$ref" and isinstance(each, str) and each not in within:
                waiting.append((_referred(each, root), root, depth + 1, within | {each}))
            else:
                inner = each if key in {"schema", "parameters"} and isinstance(each, dict) else root
                waiting.append((each, inner, depth + 1, within))
    return ""


def _referred(reference: str, root: Any) -> Any:
    """Return what a `$ref` within a schema names; None for any other, which the engine refuses."""
    for part in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
        root = root.get(part) if isinstance(root, dict) else None
    return root


class Answer:
    """Answer to one request, put together of the server's chunks. `part` gets what is new.

    `is_call`: the text is a call of a tool, which has no parts.
    """

    def __init__(self, part: Part, shown: str, *, is_request: bool, is_cancelled: Any, is_call: bool = False) -> None:
        self._part, self._shown, self._is_request, self._is_cancelled = part, shown, is_request, is_cancelled
        self._is_call = is_call
        self._texts: list[str] = []
        self._message: dict[str, Any] = {}
        self._logprobs: list[Any] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish, self._usage = "", {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        self._error: Mapping[str, Any] = {}

    def take(self, chunk: dict[str, Any]) -> bool:
        """Take a chunk; return True if no more is wanted. The server calls it, and swallows exceptions."""
        try:
            return self._take(chunk)
        except Exception as error:  # noqa: BLE001  the engine's boundary: the run fails with it
            self._error = {"code": 500, "message": f"a chunk cannot be read: {type(error).__name__}: {error}"}
            return True

    def _take(self, chunk: dict[str, Any]) -> bool:
        if self._is_cancelled():
            return True
        if error := chunk.get("error"):
            self._error = error
            return True
        if usage := chunk.get("usage"):
            self._usage = {name: usage[name] for name in self._usage}
        text = "".join(self._merge(choice) for choice in chunk.get("choices", ()))
        if "prompt_progress" in chunk or self._is_call:
            return not self._part({})
        new: dict[str, Any] = {}
        if self._is_request:
            kept = {name: chunk[name] for name in ("object", "choices", "usage") if name in chunk}
            new = {RESPONSE: texts(msgspec.json.encode(kept))}
        elif text:
            new, self._shown = {"text_output": texts((self._shown + text).encode())}, ""
        return not self._part(new)

    def _merge(self, choice: Mapping[str, Any]) -> str:
        delta = choice.get("delta") or {}
        text = str(choice.get("text") or delta.get("content") or "")
        self._texts.append(self._shown + text if self._shown and text else text)
        self._finish = choice.get("finish_reason") or self._finish
        self._logprobs += (choice.get("logprobs") or {}).get("content") or () if self._is_request else ()
        if reasoning := delta.get("reasoning_content"):
            self._message["reasoning_content"] = self._message.get("reasoning_content", "") + reasoning
        for call in delta.get("tool_calls") or ():
            whole = self._calls.setdefault(call["index"], {"id": "", "type": "function", "function": {"arguments": ""}})
            whole["id"] = call.get("id") or whole["id"]
            function = call.get("function") or {}
            whole["function"] |= {"name": function["name"]} if function.get("name") else {}
            whole["function"]["arguments"] += function.get("arguments") or ""
        return text

    def outputs(self, is_chat: bool) -> Tensors:
        """Return the whole answer. Raises VariantError if the server refused the request, or failed."""
        if self._error:
            words = str(self._error.get("message", self._error))
            if self._error.get("type") == "exceed_context_size_error":
                words = (
                    f"{self._error['n_prompt_tokens']} {TOO_LONG} of {self._error['n_ctx']} has; send a shorter text"
                )
            raise VariantError(f"the request: {words}" if 400 <= self._error.get("code", 500) < 500 else words)
        whole = "".join(self._texts)
        if self._is_call and self._finish == "stop":
            call = msgspec.json.decode(whole)
            function = {"name": call["name"], "arguments": msgspec.json.encode(call["arguments"]).decode()}
            self._calls[0] = {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
            whole, self._finish = "", "tool_calls"
        choice: dict[str, Any] = {"index": 0, "finish_reason": self._finish or None, "logprobs": None}
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs}
        if is_chat:
            calls = {"tool_calls": [self._calls[index] for index in sorted(self._calls)]} if self._calls else {}
            choice["message"] = {"role": "assistant", "content": whole or None, **self._message, **calls}
        else:
            choice["text"] = whole
        kind = "chat.completion" if is_chat else "text_completion"
        document = {"object": kind, "choices": [choice], "usage": self._usage} if self._is_request else {}
        return {
            "text_output": texts(whole.encode()),
            "finish_reason": texts(self._finish.encode()),
            "num_input_tokens": np.array([self._usage["prompt_tokens"]], np.uint32),
            "num_output_tokens": np.array([self._usage["completion_tokens"]], np.uint32),
            RESPONSE: texts(msgspec.json.encode(document) if document else b""),
        }


def texts(content: bytes) -> Any:
    """Return a tensor of one text."""
    array = np.empty(1, object)
    array[0] = content
    return array


def _number(header: Mapping[str, Any], name: str) -> int:
    """Return a number of the network (0: the file does not say)."""
    found = header.get(f"{header['general.architecture']}.{name}", 0)
    return found if isinstance(found, int) else 0


def _pooling(header: Mapping[str, Any], file: Path) -> int:
    """Return how the tokens of a model of embeddings become one vector (0: it writes text). Raises VariantError."""
    pooling = _number(header, "pooling_type")
    if pooling == RANKS:
        raise VariantError(f"{file.name} compares texts, and gives no vectors", remedy="serve a model of embeddings")
    if pooling not in POOLINGS and header.get(f"{header['general.architecture']}.attention.causal") == b"\0":
        return POOLINGS[0]
    return pooling if pooling in POOLINGS else 0


def is_adapter(file: Path) -> bool:
    """Return True if a GGUF file has an adapter (LoRA) in place of a model. Raises VariantError."""
    return _header(file, adapter=True).get("general.type") == "adapter"


def precision_of(file: Path) -> str:
    """Return the precision of most weights; `int8` for all that have 8 bits or less. Raises VariantError."""
    return _FLOATS.get(_header(file).get("general.file_type", 0), "int8")


def _header(file: Path, *, adapter: bool = False) -> Mapping[str, Any]:
    """Return what comes before the vocabulary: architecture and sizes of the network. Raises VariantError.

    `adapter`: the file may be an adapter.
    """
    with file.open("rb") as stream:
        try:
            return _entries(stream, file, ("model", "adapter") if adapter else ("model",))
        except (struct.error, ValueError, OverflowError, KeyError, OSError):  # not UTF-8, or beyond the end of any file
            remedy = "fetch the file again, whole"
            raise VariantError(f"{file.name} is no whole GGUF file: its header is damaged", remedy=remedy) from None


def _entries(stream: BinaryIO, file: Path, kinds: Sequence[str]) -> Mapping[str, Any]:
    magic, version, _, entries = struct.unpack("<4sIQQ", stream.read(24))
    if magic != b"GGUF" or version not in VERSIONS:
        versions = " or ".join(map(str, VERSIONS))
        raise VariantError(f"{file.name} is no GGUF file of version {versions}", remedy="convert the model to GGUF")
    found: dict[str, Any] = {}
    for _ in range(min(entries, ENTRIES)):
        name = _text(stream)
        if name.startswith("tokenizer."):
            break
        (kind,) = struct.unpack("<I", stream.read(4))
        if kind == _STRING:
            found[name] = _text(stream)
        elif kind == _ARRAY:
            inner, count = struct.unpack("<IQ", stream.read(12))
            if inner == _STRING and count <= ENTRIES:
                for _ in range(count):
                    _text(stream)
            else:
                stream.seek(_SIZES[inner] * count, os.SEEK_CUR)
        else:
            content = stream.read(_SIZES[kind])
            found[name] = struct.unpack("<I", content)[0] if kind == _UINT32 else content
    if (kind := found.get("general.type", "model")) not in kinds:
        remedy = "serve the model that it belongs to"
        raise VariantError(f"{file.name} is no language model but '{str(kind)[:40]}'", remedy=remedy)
    found["general.architecture"]  # without it the file is damaged
    return found


def _text(stream: BinaryIO) -> str:
    (size,) = struct.unpack("<Q", stream.read(8))
    if size > TEXT_BYTES:
        raise OverflowError
    return stream.read(size).decode()


def _engine() -> Any:
    require("llamacpp")
    import xllamacpp

    return xllamacpp
