"""Promises of llama.cpp's runtime: answers in parts, the same alone and together, refusals in words, no listener."""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from queue import Queue
from random import Random
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Artifact
from gateway.common.domain.tensor import Tensors
from gateway.common.domain.text_model import TEXT_INPUTS, TEXT_OUTPUTS
from gateway.common.domain.verdict import SessionBudget, Signature
from gateway.serving.domain.isolation import WorkerPolicy
from gateway.serving.runtimes import isolated
from gateway.serving.runtimes.isolated import IsolatedSession
from gateway.serving.runtimes.llamacpp import LlamaCppRuntime, precision_of
from tests.simulators import gguf_made
from tests.simulators.gguf_made import inputs

RUNS, WAIT_S = 8, 60.0
PROMPTS = [f"prompt {number} " + "x" * number for number in range(24)]


def opened(folder: Path, runs: int = RUNS) -> Any:
    manifest = gguf_made.manifest()
    return LlamaCppRuntime().open(manifest, manifest.variants[0], folder, SessionBudget(runs=runs))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_made.write(tmp_path_factory.mktemp("models") / "tiny.gguf").parent


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[Any]:
    session = opened(folder)
    session.widen(RUNS)
    yield session
    session.close()


def text(outputs: Tensors, name: str = "text_output") -> str:
    return str(outputs[name][0].decode())


def document(outputs: Tensors) -> Any:
    return json.loads(outputs["response"][0])


def chat(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields}


def schema(content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": content}}


# ---- answers ---------------------------------------------------------------------------------------------------------
def test_the_same_prompt_has_the_same_answer_and_another_one_another(session: Any) -> None:
    first = session.run(inputs("hello", max_tokens=20))
    assert {name: array.shape for name, array in first.items()} == {spec.name: (1,) for spec in TEXT_OUTPUTS}
    assert (len(text(first)), text(first, "finish_reason")) == (20, "length")
    assert (first["num_input_tokens"][0], first["num_output_tokens"][0]) == (6, 20)
    assert text(session.run(inputs("hello", max_tokens=20))) == text(first)
    assert text(session.run(inputs("other", max_tokens=20))) != text(first)


def test_a_seed_decides_what_is_drawn(session: Any) -> None:
    drawn = [
        text(session.run(inputs("a", max_tokens=20, temperature=1.0, seed=seed))) for seed in (1, 1, 2, -1 % 2**64)
    ]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


def test_eight_at_a_time_answer_as_one_at_a_time(session: Any) -> None:
    alone = [text(session.run(inputs(prompt, max_tokens=24))) for prompt in PROMPTS]
    sessions = [session, *session.peers]
    assert len(sessions) == RUNS

    def answered(number: int) -> list[str]:
        return [text(sessions[number].run(inputs(prompt, max_tokens=24))) for prompt in PROMPTS[number::RUNS]]

    with ThreadPoolExecutor(RUNS) as threads:
        together = list(threads.map(answered, range(RUNS)))
    assert together == [alone[number::RUNS] for number in range(RUNS)]


def test_parts_are_the_whole_and_a_stop_ends_the_run(session: Any) -> None:
    parts: list[str] = []

    def listen(outputs: Tensors) -> bool:
        parts.extend([text(outputs)] if outputs else [])
        return True

    whole = session.run_in_parts(inputs("hello", max_tokens=12), listen)
    assert "".join(parts) == text(whole)
    assert len(parts) > 1
    stopped = session.run_in_parts(inputs("hello", max_tokens=400), lambda outputs: not outputs)
    assert text(whole).startswith(text(stopped)[:12])
    assert len(text(stopped)) < 12


def test_parts_of_a_chat_are_openais_chunks(session: Any) -> None:
    chunks: list[Any] = []

    def listen(outputs: Tensors) -> bool:
        chunks.extend([document(outputs)] if outputs else [])
        return True

    whole = document(session.run_in_parts(inputs(request=chat()), listen))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    (choice,) = whole["choices"]
    assert whole["object"] == "chat.completion"
    assert choice["message"] == {"role": "assistant", "content": "".join(deltas)}
    assert whole["usage"]["prompt_tokens"] == 1 + len("<user>hi\n<assistant>")


def test_a_stop_string_ends_the_text_before_it(session: Any) -> None:
    whole = text(session.run(inputs("hello", max_tokens=20)))
    outputs = session.run(inputs("hello", max_tokens=20, stop=[whole[5:8]]))
    assert text(outputs) == whole[: whole.index(whole[5:8])]
    assert text(outputs, "finish_reason") == "stop"


def test_a_schema_decides_the_form(session: Any) -> None:
    properties = {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}}
    asked = schema({"type": "object", "properties": properties, "required": ["a", "b"], "additionalProperties": False})
    answer = document(session.run(inputs(request=chat(max_tokens=200, response_format=asked))))
    found = json.loads(answer["choices"][0]["message"]["content"])
    assert found["a"] in {"x", "y"}
    assert isinstance(found["b"], bool)


def test_the_prompt_comes_first_if_it_is_wanted(session: Any) -> None:
    wanted = inputs("hello", max_tokens=5)
    wanted["exclude_input_in_output"][0] = False
    assert text(session.run(wanted)) == "hello" + text(session.run(inputs("hello", max_tokens=5)))


DOUBLING = {
    "$defs": {f"r{n}": {"anyOf": [{"$ref": f"#/$defs/r{n + 1}"}] * 2} for n in range(40)} | {"r40": {"const": "a"}},
    "$ref": "#/$defs/r0",
}
"""Forty short rules, of which llama.cpp makes 2^40 states before it takes the next step of any request."""


# ---- refusals --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "asked",
    {
        "empty": inputs(""),
        "longer than the context": inputs("x" * 5_000),
        "ten megabytes": inputs("x" * 10_000_000),
        "no UTF-8": inputs(b"\xed\xa0\x80"),
        "lone surrogate": inputs(request=rb'{"messages": [{"role": "user", "content": "\ud800"}]}'),
        "no JSON": inputs(request=b"{"),
        "no object": inputs(request=b"[1]"),
        "deep": inputs(request=b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "NaN": inputs(request=b'{"prompt": "a", "temperature": NaN}'),
        "no messages": inputs(request={"messages": []}),
        "messages of another type": inputs(request={"messages": 3}),
        "content of another type": inputs(request=chat({"a": 1})),
        "prompt of another type": inputs(request={"prompt": {"a": [1]}}),
        "unknown field": inputs("a", n_predict=3),
        "no tokens": inputs("a", max_tokens=0),
        "negative tokens": inputs("a", max_tokens=-5),
        "tokens as text": inputs("a", max_tokens="many"),
        "temperature as text": inputs("a", temperature="hot"),
        "stop strings": inputs("a", stop=["b"] * 10_000),
        "grammar": inputs("a", grammar='root ::= "a"'),
        "alternatives": inputs("a", logprobs=10**9),
        "schema that doubles": inputs("a", json_schema=DOUBLING),
        "deep schema": inputs("a", json_schema=json.loads('{"items":' * 100 + "{}" + "}" * 100)),
        "schema": inputs(request=chat(response_format=schema({"type": "unheard-of"}))),
    }.items(),
    ids=lambda pair: str(pair[0]),
)
def test_what_cannot_be_answered_is_refused_and_the_next_one_answered(session: Any, asked: Any) -> None:
    expected = text(session.run(inputs("hello", max_tokens=8)))
    with pytest.raises(VariantError, match=r"^the request: "):
        session.run(asked[1])
    assert text(session.run(inputs("hello", max_tokens=8))) == expected


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 1e308},
        {"temperature": -1e9},
        {"top_p": -1.0},
        {"top_k": 10**9},
        {"top_k": -(10**9)},
        {"min_p": 1e30},
        {"seed": 2**63},
        {"repeat_penalty": 0.0},
        {"presence_penalty": -1e30},
        {"frequency_penalty": 1e300},
        {"logit_bias": {"70": 1e300}},
        {"max_tokens": 2**40},
        {"json_schema": {"type": "string", "minLength": 10**9}},
        {"json_schema": {"type": "string", "pattern": "^((a|b){1,1000}){1,1000}$"}},
        {"json_schema": {"type": "array", "minItems": 10**6, "items": {"type": "array", "minItems": 10**6}}},
    ],
    ids=json.dumps,
)
def test_huge_and_negative_parameters_harm_nobody(session: Any, parameters: dict[str, Any]) -> None:
    try:
        outputs = session.run(inputs("hello", **{"max_tokens": 8, **parameters}))
    except VariantError as error:
        assert str(error).startswith("the request: ")  # noqa: PT017
    else:
        assert outputs["num_output_tokens"][0] <= gguf_made.CONTEXT
    assert len(text(session.run(inputs("hello", max_tokens=8)))) == 8


# ---- files -----------------------------------------------------------------------------------------------------------
def header(name: bytes, kind: int, rest: bytes = b"", entries: int = 1) -> bytes:
    return struct.pack("<4sIQQQ", b"GGUF", 3, 0, entries, len(name)) + name + struct.pack("<I", kind) + rest


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "damaged"),
        (b"GGUF", "damaged"),
        (b"ONNX" + bytes(60), "no GGUF file of version"),
        (gguf_made.content()[:100], "damaged"),
        (struct.pack("<4sIQQ", b"GGUF", 9, 0, 0), "no GGUF file of version"),
        (header(b"a", 8, struct.pack("<Q", 10 * 2**30)), "damaged"),
        (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 2**63, 10 * 2**30), "damaged"),
        (header(b"a", 9, struct.pack("<IQ", 8, 2**62)), "damaged"),
        (header(b"a", 9, struct.pack("<IQ", 4, 2**62)), "damaged"),
        (header(b"a", 99), "damaged"),
        (gguf_made.content(general__architecture=None), "damaged"),
        (gguf_made.content(general__type="adapter"), "'adapter'"),
    ],
    ids=[
        *("empty", "magic", "other", "cut", "version", "long text", "many", "texts", "numbers", "kind"),
        *("architecture", "adapter"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_model_is_refused_in_words(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(content)
    with pytest.raises(VariantError, match=words):
        LlamaCppRuntime().inspect(file)


def test_a_file_with_half_its_weights_is_refused(tmp_path: Path) -> None:
    content = gguf_made.content()
    (tmp_path / "tiny.gguf").write_bytes(content[: len(content) // 2])
    with pytest.raises(VariantError, match=r"cannot load tiny\.gguf"):
        opened(tmp_path)


# ---- calls ----------------------------------------------------------------------------------------------------------
def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"]}
TOOLS = [
    tool("weather", **CITY, additionalProperties=False, **{"$defs": {"city": {"enum": ["Oslo", "Rome"]}}}),
    tool("time", type="object", properties={}, additionalProperties=False),
]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "time"}),
        *(({"type": "function", "function": {"name": n}}, {n}) for n in ("weather", "time")),
    ],
)
def test_a_chat_that_must_call_a_tool_calls_one(session: Any, choice: Any, names: set[str]) -> None:
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    for messages in (system, system[1:]):
        asked = {"messages": messages, "tools": TOOLS, "tool_choice": choice, "max_tokens": 200}
        outputs = session.run(inputs(request=asked))
        answer = document(outputs)["choices"][0]
        assert (answer["finish_reason"], answer["message"]["content"]) == ("tool_calls", None)
        (call,) = answer["message"]["tool_calls"]
        assert call["function"]["name"] in names
        arguments = json.loads(call["function"]["arguments"])
        assert arguments == {} if call["function"]["name"] == "time" else arguments["city"] in {"Oslo", "Rome"}
        assert text(outputs) == ""


def test_a_call_that_was_cut_is_no_call(session: Any) -> None:
    asked = chat(tools=TOOLS, tool_choice="required", max_tokens=3)
    answer = document(session.run(inputs(request=asked)))["choices"][0]
    assert answer["finish_reason"] == "length"
    assert "tool_calls" not in answer["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": "required", "tools": []},
        {"tool_choice": {"type": "function", "function": {"name": "other"}}, "tools": TOOLS},
        {"tool_choice": {"function": 1}, "tools": TOOLS},
        {"tool_choice": "required", "tools": [1]},
        {"tool_choice": 7, "tools": TOOLS},
    ],
)
def test_a_choice_of_tools_that_cannot_be_is_refused(session: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(VariantError, match="the request: 'tool"):
        session.run(inputs(request=chat(**fields)))


# ---- embeddings ------------------------------------------------------------------------------------------------------
def given(*contents: bytes) -> dict[str, Any]:
    array = np.empty(len(contents), object)
    array[:] = contents
    return {"text": array}


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = gguf_made.write(tmp_path_factory.mktemp("embedding") / "tiny.gguf", llama__pooling_type=1).parent
    signature = LlamaCppRuntime().inspect(folder / "tiny.gguf")
    assert [(spec.name, spec.shape) for spec in (*signature.inputs, *signature.outputs)] == [
        ("text", (-1,)),
        ("embedding", (-1, gguf_made.WIDTH)),
    ]
    manifest = replace(gguf_made.manifest(), inputs=signature.inputs, outputs=signature.outputs, batch=None)
    session = LlamaCppRuntime().open(manifest, manifest.variants[0], folder, SessionBudget(runs=RUNS))
    session.widen(RUNS)
    yield session
    session.close()


def test_texts_have_the_same_vectors_alone_and_together(embedding: Any) -> None:
    contents = [prompt.encode() for prompt in PROMPTS[:RUNS]]
    alone = np.concatenate([embedding.run(given(each))["embedding"] for each in contents])
    assert (alone.dtype, alone.shape) == (np.float32, (RUNS, gguf_made.WIDTH))
    assert len({each.tobytes() for each in alone}) == RUNS
    assert np.allclose(embedding.run(given(*contents))["embedding"], alone, atol=2e-3)
    with ThreadPoolExecutor(RUNS) as threads:
        found = threads.map(
            lambda pair: pair[0].run(given(pair[1])), zip((embedding, *embedding.peers), contents, strict=True)
        )
        assert np.allclose(np.concatenate([each["embedding"] for each in found]), alone, atol=2e-3)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x" * 3000, "3001 tokens are more than the context of 512"),
        (b"\xff", "a text is not UTF-8"),
        (b"x" * 1_048_577, "more than 1048576 bytes"),
    ],
)
def test_a_text_that_cannot_be_embedded_is_the_callers_fault(embedding: Any, content: bytes, words: str) -> None:
    with pytest.raises(VariantError, match=f"the request: .*{words}"):
        embedding.run(given(b"hello", content))
    assert embedding.run(given(b"", "é".encode()))["embedding"].shape == (2, gguf_made.WIDTH)


def test_a_file_that_compares_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VariantError, match="compares texts"):
        LlamaCppRuntime().inspect(gguf_made.write(tmp_path / "tiny.gguf", llama__pooling_type=4))


# ---- adapters --------------------------------------------------------------------------------------------------------
ADAPTERS = ("red", "green", "blue", "black")


def with_adapters(folder: Path) -> Any:
    """Open the model with four adapters."""
    paths = {name: f"{name}.gguf" for name in ADAPTERS}
    for seed, path in enumerate(paths.values()):
        (folder / path).write_bytes(gguf_made.adapter(seed))
    manifest = gguf_made.manifest()
    artifacts = (*manifest.variants[0].artifacts, *(Artifact(path, "", 0) for path in paths.values()))
    variant = replace(manifest.variants[0], artifacts=artifacts, adapters=paths)
    return LlamaCppRuntime().open(manifest, variant, folder, SessionBudget(runs=RUNS))


def adapted(name: str) -> dict[str, str]:
    return {"lora_name": name} if name else {}


@pytest.fixture(scope="module")
def adapting(folder: Path) -> Iterator[Any]:
    session = with_adapters(folder)
    session.widen(RUNS)
    yield session
    session.close()


def test_an_adapter_changes_the_text_and_none_stays_behind(session: Any, adapting: Any) -> None:
    base = text(session.run(inputs("hello", max_tokens=20)))
    found = {}
    for name in ("", *ADAPTERS, "", *ADAPTERS[::-1], ""):
        answer = text(adapting.run(inputs("hello", max_tokens=20, **adapted(name))))
        assert found.setdefault(name, answer) == answer
    assert found[""] == base
    assert len(set(found.values())) == 5
    assert text(adapting.run(inputs(request=chat(**adapted("red"))))) != text(adapting.run(inputs(request=chat())))


def test_mixed_adapters_at_a_time_answer_as_each_alone(adapting: Any) -> None:
    names, random = ("", *ADAPTERS), Random(1)
    alone = {
        (name, prompt): text(adapting.run(inputs(prompt, max_tokens=12, **adapted(name))))
        for name in names
        for prompt in PROMPTS[:4]
    }
    asked, free = [random.choice(list(alone)) for _ in range(200)], Queue[Any]()
    for each in (adapting, *adapting.peers):
        free.put(each)

    def answered(pair: tuple[str, str]) -> str:
        own = free.get()
        try:
            return text(own.run(inputs(pair[1], max_tokens=12, **adapted(pair[0]))))
        finally:
            free.put(own)

    with ThreadPoolExecutor(RUNS) as threads:
        assert list(threads.map(answered, asked)) == [alone[pair] for pair in asked]


@pytest.mark.parametrize(
    ("name", "words"),
    [("pink", "there is no adapter 'pink'; adapters of this model: red"), (3, "'lora_name' must be the name")],
)
def test_an_adapter_that_does_not_exist_is_refused(adapting: Any, name: Any, words: str) -> None:
    with pytest.raises(VariantError, match=f"the request: {words}"):
        adapting.run(inputs("hello", lora_name=name))


def test_a_model_without_adapters_says_so(session: Any) -> None:
    with pytest.raises(VariantError, match="the request: there is no adapter"):
        session.run(inputs("hello", lora_name="red"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gguf_made.content(), "is no adapter"),
        (gguf_made.adapter(1)[:700], "damaged|cannot load"),
        (gguf_made.adapter(1, **{"general.architecture": "bert"}), "cannot load"),
    ],
)
def test_what_is_no_adapter_of_the_model_is_refused_when_it_is_opened(
    tmp_path: Path, content: bytes, words: str
) -> None:
    gguf_made.write(tmp_path / "tiny.gguf")
    (tmp_path / "other.gguf").write_bytes(content)
    manifest = gguf_made.manifest()
    variant = replace(manifest.variants[0], adapters={"other": "other.gguf"})
    with pytest.raises(VariantError, match=words):
        LlamaCppRuntime().open(manifest, variant, tmp_path, SessionBudget())


# ---- files -----------------------------------------------------------------------------------------------------------
def test_every_model_has_the_same_tensors(folder: Path) -> None:
    assert LlamaCppRuntime().inspect(folder / "tiny.gguf") == Signature(TEXT_INPUTS, TEXT_OUTPUTS)


@pytest.mark.parametrize(("kind", "precision"), [(0, "fp32"), (1, "fp16"), (3, "int8"), (32, "bf16"), (None, "fp32")])
def test_the_header_tells_the_precision(tmp_path: Path, kind: int | None, precision: str) -> None:
    assert precision_of(gguf_made.write(tmp_path / "a.gguf", general__file_type=kind)) == precision


# ---- worker processes ------------------------------------------------------------------------------------------------
@pytest.fixture
def worker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IsolatedSession]:
    for name, value in gguf_made.given().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(isolated, "WAIT_S", WAIT_S)  # a start takes long on a busy machine
    manifest = gguf_made.manifest()
    budget, policy = SessionBudget(runs=2), WorkerPolicy(spare=False)
    session = IsolatedSession(manifest, manifest.variants[0], lambda: nullcontext(folder), budget, policy)
    session.widen(2)
    yield session
    session.close()


def test_a_sandboxed_worker_answers_and_a_killed_one_is_replaced(worker: IsolatedSession, session: Any) -> None:
    expected = text(session.run(inputs("hello", max_tokens=8)))
    assert text(worker.run(inputs("hello", max_tokens=8))) == expected
    with pytest.raises(VariantError, match="the request: "):
        worker.run(inputs("x" * 5_000))
    (process,) = worker.keeper.workers
    os.kill(process.pid, signal.SIGKILL)
    assert text(worker.peers[0].run(inputs("hello", max_tokens=8))) == expected
