"""OpenAI's API on the HTTP port, by the real engine: answers, parts, refusals in its form, clients that leave."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from gateway.common.domain.access import Security, read_tokens
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.domain.infer import InferRequest, InferResponse
from gateway.serving.engine.settings import QuotaSettings
from gateway.serving.frontends.openai import bodies, routes
from tests.simulators.inference import VARIANT, SimulatedInference
from tests.simulators.rest_gateway import serving
from tests.simulators.talking import Served, talking
from tests.simulators.writer import words
from tests.simulators.writing import until

pytestmark = pytest.mark.asyncio
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
ENDLESS = 1_048_576


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    async with talking() as each:
        yield each


def chat(content: Any = "w", **fields: Any) -> dict[str, Any]:
    said = json.dumps(content) if isinstance(content, dict) else content
    return {"model": "writer", "messages": [{"role": "user", "content": said}], **fields}


def events(content: str) -> list[Any]:
    """Return the documents of a stream, without comments; the last one is "[DONE]" as text."""
    assert content.endswith("\n\n")
    found = [each.removeprefix("data: ") for each in content.rstrip("\n").split("\n\n") if not each.startswith(":")]
    return [each if each == "[DONE]" else json.loads(each) for each in found]


def error_of(answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()
    assert found.keys() == {"error"}
    assert found["error"].keys() == {"message", "type", "param", "code"}
    return dict(found["error"])


# ---- models ----------------------------------------------------------------------------------------------------------
async def test_models_that_answer_here_are_listed(served: Served) -> None:
    found = (await served.http.get("/v1/models")).json()
    assert found["object"] == "list"
    assert [each["id"] for each in found["data"]] == ["writer", "writer@1"]
    assert all(each["object"] == "model" and isinstance(each["created"], int) for each in found["data"])
    assert (await served.http.get("/v1/models/writer@1")).json()["id"] == "writer@1"
    for name in ("nobody", "writer@2", "writer:french", "writer@"):
        answer = await served.http.get(f"/v1/models/{name}")
        if name != "writer@":  # no version: the default
            assert (answer.status_code, error_of(answer)["code"]) == (404, "model_not_found")
            assert ("has no adapter 'french'; it has none" in error_of(answer)["message"]) == (name == "writer:french")


async def test_without_such_models_the_list_is_empty() -> None:
    async with serving() as gateway:
        assert (await gateway.client.get("/v1/models")).json() == {"object": "list", "data": []}
        answer = await gateway.client.post(CHAT, json=chat())
        assert (answer.status_code, error_of(answer)["code"]) == (404, "model_not_found")
        assert "how to add one" in error_of(answer)["message"]
        answer = await gateway.client.get("/v1/models/identity_fp32")
        assert (answer.status_code, error_of(answer)["param"]) == (400, "model")


# ---- whole answers ---------------------------------------------------------------------------------------------------
async def test_a_chat_is_answered(served: Served) -> None:
    answer = await served.http.post(CHAT, json=chat(max_tokens=2, seed=5, temperature=0, stop="x", user="me"))
    found = answer.json()
    assert found["id"].startswith("chatcmpl-")
    assert isinstance(found["created"], int)
    del found["id"], found["created"]
    assert found == {
        "object": "chat.completion",
        "model": "writer",
        "system_fingerprint": "1-writer",
        "choices": [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": words(2)}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    }
    messages = [{"role": "user", "content": "w"}]
    sent = {"messages": messages, "max_tokens": 2, "temperature": 0.0, "seed": 5, "stop": ["x"]}
    assert served.documents() == [sent]


async def test_a_completion_has_choices_for_each_prompt(served: Served) -> None:
    body = {"model": "writer@1", "prompt": ["a", "b"], "n": 2, "max_tokens": 2, "seed": 7}
    found = (await served.http.post(COMPLETIONS, json=body)).json()
    assert (found["object"], found["model"], found["id"][:5]) == ("text_completion", "writer@1", "cmpl-")
    texts = [(each["index"], each["text"]) for each in found["choices"]]
    assert texts == [(0, words(2, "a")), (1, words(2, "a")), (2, words(2, "b")), (3, words(2, "b"))]
    assert found["usage"] == {"prompt_tokens": 2, "completion_tokens": 8, "total_tokens": 10}
    assert sorted(each["seed"] for each in served.documents()) == [7, 7, 8, 8]


async def test_logprobs_have_the_form_of_the_endpoint(served: Served) -> None:
    answer = await served.http.post(CHAT, json=chat(max_tokens=1, logprobs=True, top_logprobs=0))
    found = answer.json()["choices"][0]["logprobs"]
    assert found == {"content": [{"token": "w0 ", "logprob": -0.5, "top_logprobs": []}]}
    answer = await served.http.post(COMPLETIONS, json={"model": "writer", "prompt": "w", "logprobs": 1})
    found = answer.json()["choices"][0]["logprobs"]
    assert found == {"tokens": ["w0 "], "token_logprobs": [-0.5], "top_logprobs": [{}]}


async def test_messages_and_tools_reach_the_engine_as_its_templates_know_them(served: Served) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "number"}}}
    tool = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": parameters}}
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        {"role": "user", "content": parts},
    ]
    choice = {"type": "function", "function": {"name": "add"}}
    body = {"model": "writer", "messages": messages, "tools": [tool], "tool_choice": choice, "response_format": form}
    assert (await served.http.post(CHAT, json=body)).status_code == 200
    (document,) = served.documents()
    assert document["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        {"role": "user", "content": "a\nb"},
    ]  # fmt: skip
    assert (document["tools"], document["tool_choice"], document["response_format"]) == ([tool], choice, form)


# ---- streams ---------------------------------------------------------------------------------------------------------
async def test_a_chat_in_parts(served: Served) -> None:
    answer = await served.http.post(CHAT, json=chat(max_tokens=2, stream=True, stream_options={"include_usage": True}))
    assert answer.headers["content-type"].startswith("text/event-stream")
    *found, usage, done = events(answer.text)
    assert done == "[DONE]"
    assert {(each["object"], each["model"], each["id"]) for each in (*found, usage)} == {
        ("chat.completion.chunk", "writer", usage["id"])
    }
    assert [each["choices"][0]["delta"].get("content") for each in found] == ["w0 ", "w1 ", None]
    assert [each["choices"][0]["finish_reason"] for each in found] == [None, None, "length"]
    assert all(each["usage"] is None for each in found)
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 3)


async def test_choices_in_parts_have_their_own_indices(served: Served) -> None:
    body = {"model": "writer", "prompt": ["a", "b"], "n": 2, "max_tokens": 3, "stream": True}
    *found, done = events((await served.http.post(COMPLETIONS, json=body)).text)
    texts = dict.fromkeys(range(4), "")
    for each in found:
        (choice,) = each["choices"]
        texts[choice["index"]] += choice["text"]
        assert "usage" not in each
    assert texts == {0: words(3, "a"), 1: words(3, "a"), 2: words(3, "b"), 3: words(3, "b")}
    assert done == "[DONE]"


async def test_an_engine_without_parts_streams_one_chunk(served: Served) -> None:
    answer = await served.http.post(CHAT, json=chat({"prompt": "w", "whole": True}, max_tokens=2, stream=True))
    chunk, done = events(answer.text)
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": words(2)}
    assert done == "[DONE]"


async def test_a_stream_that_is_silent_sends_comments(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "PING_S", 0.01)
    for session in served.sessions:
        session.gate.clear()
    async with served.http.stream("POST", CHAT, json=chat(max_tokens=1, stream=True)) as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == ": ping"
        for session in served.sessions:
            session.gate.set()
        assert [line async for line in lines][-2:] == ["data: [DONE]", ""]


async def test_an_error_after_a_part_is_the_last_event(served: Served) -> None:
    answer = await served.http.post(CHAT, json=chat({"prompt": "w", "fail_after": 1}, max_tokens=3, stream=True))
    first, last = events(answer.text)
    assert first["choices"][0]["delta"] == {"content": "w0 "}
    assert last["error"].keys() == {"message", "type", "param", "code"}
    assert "the engine failed" in last["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_part_has_a_status(served: Served, stream: bool) -> None:
    answer = await served.http.post(CHAT, json=chat("a" * 5000, stream=stream))
    assert answer.status_code == 400
    assert "more than the context" in error_of(answer)["message"]
    answer = await served.http.post(COMPLETIONS, json={"model": "writer", "prompt": ["w", "bad"], "stream": stream})
    assert stream or answer.status_code == 400  # as a stream, the other prompt may have begun
    await served.is_free()


async def test_a_client_that_leaves_ends_all_its_choices(served: Served) -> None:
    body = chat({"prompt": "w", "pause_s": 0.001}, max_tokens=ENDLESS, n=3, stream=True)
    async with served.http.stream("POST", CHAT, json=body) as answer:
        await anext(answer.aiter_bytes())
    await served.is_free()
    assert served.rig.engine.statistics("writer")[0].drops == {"cancelled": 3}
    reader, writer = await asyncio.open_connection(served.address.host, served.address.port)
    writer.write(post(chat({"prompt": "w", "pause_s": 0.001}, max_tokens=ENDLESS, n=2)))
    await until(lambda: served.rig.engine.statistics("writer")[0].busy)
    writer.transport.abort()
    del reader
    await served.is_free()
    assert served.rig.engine.statistics("writer")[0].drops == {"cancelled": 5}


def post(body: dict[str, Any], path: str = CHAT) -> bytes:
    content = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content


async def test_a_client_that_does_not_read_ends_the_run(served: Served) -> None:
    _, writer = await asyncio.open_connection(served.address.host, served.address.port, limit=1024)
    writer.write(post(chat({"prompt": "w", "part_bytes": 60_000}, max_tokens=ENDLESS, stream=True)))
    await until(lambda: served.rig.engine.statistics("writer")[0].parts > 0)
    await served.is_free()
    writer.transport.abort()
    assert served.rig.engine.statistics("writer")[0].drops == {"cancelled": 1}


async def test_two_streams_on_one_connection_come_one_after_the_other(served: Served) -> None:
    reader, writer = await asyncio.open_connection(served.address.host, served.address.port)
    writer.write(post(chat("a", max_tokens=1, stream=True)) + post(chat("b", max_tokens=1, stream=True)))
    content = b""
    while content.count(b"[DONE]") < 2:
        content += await reader.read(65_536)
    assert content.index(b"a0 ") < content.index(b"[DONE]") < content.index(b"b0 ")
    writer.close()


# ---- refusals --------------------------------------------------------------------------------------------------------
REFUSED_FIELDS: list[Any] = [
    ({"temperature": 3}, "temperature", "<= 2"),
    ({"temperature": "hot"}, "temperature", "got `str`"),
    ({"max_tokens": -1}, "max_tokens", ">= 1"),
    ({"max_tokens": 10**30}, "max_tokens", "`int`"),
    ({"max_completion_tokens": 2**40}, "max_completion_tokens", "<= 1048576"),
    ({"n": 9}, "n", "<= 8"),
    ({"n": 0}, "n", ">= 1"),
    ({"seed": 2**70}, "seed", "<= 9223372036854775807"),
    ({"stop": ["a"] * 10_000}, "stop", "length <= 4"),
    ({"stop": [1]}, "stop[0]", "got `int`"),
    ({"stop": [""]}, "stop[0]", "length >= 1"),
    ({"messages": []}, "messages", "length >= 1"),
    ({"messages": [{"role": "owner", "content": "a"}]}, "messages[0].role", "owner"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "is missing"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
     "messages[0].content[0].type", "image_url"),
    ({"functions": []}, "functions", "not offered"),
    ({"foo": 1}, "foo", "not known"),
    ({"messages": [{"role": "user", "content": "a", "x": 1}]}, "messages[0].x", "not known"),
    ({"logit_bias": [1]}, "logit_bias", "must be a JSON object"),
    ({"logit_bias": {str(each): 1 for each in range(10_000)}}, "logit_bias", "65536 bytes"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "matching"),
    ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 7}}]},
     "tools[0].function.parameters", "must be a JSON object"),
    ({"tool_choice": "required"}, "tool_choice", "'tools'"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"model": "nobody"}, "model", "no model"),
    ({"model": 7}, "model", "got `int`"),
]  # fmt: skip


async def test_a_field_that_is_refused_is_named(served: Served) -> None:
    for fields, param, problem in REFUSED_FIELDS:
        answer = await served.http.post(CHAT, json=chat(**fields))
        found = error_of(answer)
        assert answer.status_code == (404 if fields == {"model": "nobody"} else 413 if "bytes" in problem else 400)
        assert (found["param"], found["type"]) == (param, "invalid_request_error")
        assert problem in found["message"]
        assert served.documents() == []


REFUSED_BODIES: list[Any] = [
    (b"", 400, "no JSON"),
    (b"[]", 400, "expected `object`"),
    (b"\xff", 400, "no JSON"),
    (b'{"model":"writer","messages":[{"role":"user","content":"\\ud800"}]}', 400, "surrogate"),
    (b'{"model":"writer","messages":[{"role":"user","content":"a"}],"top_p":NaN}', 400, "no JSON"),
    (b'{"model":"writer","messages":[{"role":"user","content":"a"}],"user":' + b"[" * 100_000, 400, "no JSON"),
    (b'{"model":"writer","messages":[{"role":"user","content":"a"}],"logit_bias":' + b'{"a":' * 2000 + b"1"
     + b"}" * 2000 + b"}", 400, "no JSON"),
    (b'{"model":"writer","messages":[{"role":"user","content":"' + b"a" * 10_000_000 + b'"}]}', 413, "4194304"),
]  # fmt: skip


async def test_bodies_that_are_refused(served: Served) -> None:
    for content, status, problem in REFUSED_BODIES:
        answer = await served.http.post(CHAT, content=content)
        assert answer.status_code == status
        assert problem in error_of(answer)["message"]


async def test_the_last_of_two_equal_keys_counts(served: Served) -> None:
    body = b'{"model":"writer","messages":[{"role":"user","content":"a"}],"max_tokens":5,"max_tokens":1}'
    answer = await served.http.post(CHAT, content=body)
    assert answer.json()["usage"]["completion_tokens"] == 1


async def test_refusals_before_a_handler_have_the_form(served: Served) -> None:
    answer = await served.http.get("/v1/images/generations")
    assert (answer.status_code, error_of(answer)["code"]) == (404, "unknown_url")
    answer = await served.http.get(CHAT)
    assert (answer.status_code, error_of(answer)["code"]) == (405, "method_not_supported")
    answer = await served.http.get("/v1/models", headers={"origin": "https://evil.example"})
    assert (answer.status_code, error_of(answer)["code"]) == (403, "permission_denied")
    assert isinstance((await served.http.get("/v2/nothing")).json()["error"], str)


async def test_a_key_is_a_token_whose_scopes_and_models_hold() -> None:
    tokens = read_tokens(
        "ann secret-of-ann-a\nben secret-of-ben-b models=other-*\ncid secret-of-cid-c scopes=metrics\n", "t"
    )
    inference = Lengths(embedding_model(batched=False))
    body = {"model": "minilm", "input": "a"}
    async with serving(security=Security(tokens=tokens), inference=inference) as gateway:
        for key, status, code in (
            ("wrong", 401, "invalid_api_key"),
            ("secret-of-ben-b", 403, "permission_denied"),
            ("secret-of-cid-c", 403, "permission_denied"),
        ):
            headers = {"authorization": f"Bearer {key}"}
            answer = await gateway.client.post(EMBEDDINGS, json=body, headers=headers)
            assert (answer.status_code, error_of(answer)["code"]) == (status, code)
            if key == "secret-of-ben-b":
                assert (await gateway.client.get("/v1/models", headers=headers)).json()["data"] == []
        assert inference.requests == []
        answer = await gateway.client.post(EMBEDDINGS, json=body, headers={"authorization": "Bearer secret-of-ann-a"})
        assert answer.status_code == 200
        assert inference.requests[0].caller == "ann"


@pytest.mark.parametrize("stream", [False, True])
async def test_used_tokens_are_429_once_a_text_is_whole(stream: bool) -> None:
    async with talking(quota=(QuotaSettings("*", tokens_per_minute=4.0),)) as served:
        answer = await served.http.post(CHAT, json=chat(max_tokens=60, stream=stream))  # of a quarter of an hour
        assert answer.status_code == 200
        assert answer.text.count("w") >= 60, "no text is cut"
        refused = await served.http.post(CHAT, json=chat(max_tokens=6))
        assert (refused.status_code, error_of(refused)["code"]) == (429, "rate_limit_exceeded")
        assert "tokens of text a minute" in error_of(refused)["message"]
        assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
        reset_s = int(refused.headers["x-ratelimit-reset-tokens"].removesuffix("s"))
        assert (reset_s > 15, reset_s) == (True, int(refused.headers["retry-after"]))


async def test_a_used_quota_is_429_with_the_time_to_wait() -> None:
    async with talking(quota=(QuotaSettings("*", requests_per_s=0.001, burst=1),)) as served:
        assert (await served.http.post(CHAT, json=chat())).status_code == 200
        answer = await served.http.post(CHAT, json=chat())
        assert (answer.status_code, error_of(answer)["code"]) == (429, "rate_limit_exceeded")
        assert int(answer.headers["retry-after"]) > 900
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"


# ---- embeddings ------------------------------------------------------------------------------------------------------
class Lengths(SimulatedInference):
    """Models that give the length of each text and its half."""

    def __init__(self, *manifests: ModelManifest) -> None:
        super().__init__(manifests)

    async def infer(self, request: InferRequest) -> InferResponse:
        manifest = self.describe(request.model, request.version)
        self.requests.append(request)
        texts = request.inputs["text"].array.ravel()
        vectors = np.array([[len(each), len(each) / 2] for each in texts], "f4")
        vectors[[each == b"nan" for each in texts]] = np.nan
        outputs = {"vector": Tensor(Datatype.FP32, vectors if manifest.batched else vectors[0])}
        return InferResponse(request.model, "1", "", outputs)


def embedding_model(*, batched: bool) -> ModelManifest:
    rows = (-1,) if batched else ()
    given = TensorSpec("text", Datatype.BYTES, (*rows, 1))
    vector, label = TensorSpec("vector", Datatype.FP32, (*rows, 2)), TensorSpec("label", Datatype.BYTES, (*rows, 1))
    return ModelManifest("minilm", "1", (given,), (vector, label), (VARIANT,), batch=batched)


@pytest.mark.parametrize("batched", [False, True])
async def test_embeddings_of_any_model_with_a_text_and_a_vector(batched: bool) -> None:
    inference = Lengths(embedding_model(batched=batched))
    async with serving(inference=inference) as gateway:
        assert [each["id"] for each in (await gateway.client.get("/v1/models")).json()["data"]] == [
            "minilm",
            "minilm@1",
        ]
        texts = ["a" * (1 + index) for index in range(20)]
        found = (await gateway.client.post(EMBEDDINGS, json={"model": "minilm", "input": texts})).json()
        assert (found["object"], found["model"]) == ("list", "minilm")
        assert [each["embedding"] for each in found["data"]] == [[len(text), len(text) / 2] for text in texts]
        assert [each["index"] for each in found["data"]] == list(range(20))
        rows = [request.inputs["text"].array.shape[0] for request in inference.requests]
        assert rows == ([8, 8, 4] if batched else [1] * 20)
        one = {"model": "minilm@1", "input": "ü", "encoding_format": "base64", "dimensions": 2}
        found = (await gateway.client.post(EMBEDDINGS, json=one)).json()
        assert np.frombuffer(base64.b64decode(found["data"][0]["embedding"]), "<f4").tolist() == [2, 1]
        answer = await gateway.client.post(CHAT, json=chat(model="minilm"))
        assert "no language model" in error_of(answer)["message"]


@pytest.mark.parametrize(
    ("fields", "param", "problem"),
    [
        ({"input": [1, 2]}, "input[0]", "another tokenizer"),
        ({"input": [[1], [2]]}, "input[0]", "another tokenizer"),
        ({"input": ""}, "input", "length >= 1"),
        ({"input": []}, "input", "length >= 1"),
        ({"input": ["a"] * (bodies.INPUTS_LIMIT + 1)}, "input", "length <= 2048"),
        ({"dimensions": 1}, "dimensions", "vectors of 2"),
        ({"encoding_format": "hex"}, "encoding_format", "hex"),
    ],
)
async def test_embeddings_that_are_refused(fields: Any, param: str, problem: str) -> None:
    async with serving(inference=Lengths(embedding_model(batched=False))) as gateway:
        answer = await gateway.client.post(EMBEDDINGS, json={"model": "minilm", "input": "a", **fields})
        assert answer.status_code == 400
        assert error_of(answer)["param"] == param
        assert problem in error_of(answer)["message"]


async def test_a_vector_that_is_not_finite_is_the_models_fault() -> None:
    async with serving(inference=Lengths(embedding_model(batched=False))) as gateway:
        answer = await gateway.client.post(EMBEDDINGS, json={"model": "minilm", "input": ["a", "nan"]})
        assert answer.status_code == 500
        assert "input 1" in error_of(answer)["message"]


async def test_a_model_that_writes_gives_no_embeddings(served: Served) -> None:
    answer = await served.http.post(EMBEDDINGS, json={"model": "writer", "input": ["a", "bb"]})
    assert answer.status_code == 400
    assert "gives no embeddings" in error_of(answer)["message"]


# ---- bodies that nobody would write --------------------------------------------------------------------------------
async def test_whatever_is_sent_gets_an_answer_in_the_form(served: Served) -> None:
    """Every answer to a mutated body is a chat, or an error in OpenAI's form that is the caller's."""
    generator = random.Random(7)
    plain = json.dumps(chat(max_tokens=1, stop=["x"], n=2, tools=[], response_format={"type": "text"}))
    odd = (b"\xff", b"\\ud800", b"NaN", b"-1e999", b"[[[[", b"null", b"\x00", b'"', b"{}", b"1" * 400, b"true")
    for _ in range(150):
        body = bytearray(plain.encode())
        for _ in range(generator.randint(1, 3)):
            place = generator.randrange(len(body))
            body[place : place + generator.randint(0, 6)] = generator.choice(odd)
        answer = await served.http.post(generator.choice((CHAT, COMPLETIONS, EMBEDDINGS)), content=bytes(body))
        assert answer.status_code in {200, 400, 404, 413}, (body, answer.text)
        if answer.status_code != 200:
            error_of(answer)
    await served.is_free()
