"""/v1/responses by the real engine: items, their events, what it makes of an input, and refusals."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.domain.infer import InferResponse
from gateway.serving.frontends.openai.responses import Body, ResponseItems
from tests.contract.serving.test_openai import error_of
from tests.simulators.talking import Served, talking
from tests.simulators.writer import text, words

pytestmark = pytest.mark.asyncio
RESPONSES = "/v1/responses"


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    async with talking() as each:
        yield each


def events(content: str) -> list[dict[str, Any]]:
    """Return the documents of a stream; each event has the name of its type, and the next number."""
    assert content.endswith("\n\n")
    found = []
    for number, each in enumerate(content.rstrip("\n").split("\n\n")):
        name, data = each.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert (name, number) == (f"event: {found[-1]['type']}", found[-1]["sequence_number"])
    return found


async def test_a_text_is_answered_with_one_message(served: Served) -> None:
    answer = (await served.http.post(RESPONSES, json={"model": "writer", "input": "w", "max_output_tokens": 2})).json()
    (message,) = answer["output"]
    assert (message["type"], message["role"]) == ("message", "assistant")
    assert message["content"] == [{"type": "output_text", "text": words(2), "annotations": [], "logprobs": []}]
    assert answer["usage"]["output_tokens"] == 2
    assert (answer["object"], answer["status"]) == ("response", "incomplete")
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["store"] is False


async def test_each_part_is_an_event(served: Served) -> None:
    body = {"model": "writer", "input": "w", "max_output_tokens": 2, "stream": True}
    found = events((await served.http.post(RESPONSES, json=body)).text)
    assert [each["type"].removeprefix("response.") for each in found] == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done", "incomplete"),
    ]
    assert "".join(each.get("delta", "") for each in found) == words(2)
    assert found[0]["response"]["output"] == []
    assert found[-1]["response"]["output"][0] == found[-2]["item"]
    assert found[-1]["response"]["usage"]["total_tokens"] == 3


async def test_a_body_with_line_breaks_makes_events_of_one_line(served: Served) -> None:
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    body = {"model": "writer", "input": "w", "metadata": {"a": "b"}, "tools": tools, "stream": True}
    answer = await served.http.post(RESPONSES, content=json.dumps(body, indent=2))
    assert events(answer.text)[0]["response"]["metadata"] == {"a": "b"}


async def test_items_are_messages_as_templates_know_them(served: Served) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "fc_1", "new_field": None}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a", "x": 1}]}
    body = {
        "model": "writer",
        "instructions": "Be short.",
        "input": [
            {"role": "developer", "content": "d"},
            {"role": "user", "content": [{"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}]},
            answer,
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "?"}]},
            call,
            {**call, "call_id": "c2"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
            {"role": "user", "content": "w"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    }
    assert (await served.http.post(RESPONSES, json=body)).status_code == 200
    (document,) = served.documents()
    called = [{"id": each, "function": {"name": "f", "arguments": "{}"}, "type": "function"} for each in ("c1", "c2")]
    assert document["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "system", "content": "d"},
        {"role": "user", "content": "b\nc"},
        {"role": "assistant", "content": "a", "tool_calls": called},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
        {"role": "user", "content": "w"},
    ]
    assert document["tools"][0]["function"] == {"name": "f", "parameters": {"type": "object"}, "strict": True}
    assert document["tool_choice"] == {"function": {"name": "f"}, "type": "function"}
    assert document["response_format"]["json_schema"]["schema"] == {"type": "object"}


async def test_a_text_and_calls_are_items_that_end_one_after_the_other() -> None:
    def part(delta: dict[str, Any], finish: str | None = None) -> InferResponse:
        document = {"choices": [{"delta": delta, "finish_reason": finish}]}
        outputs = {"response": Tensor(Datatype.BYTES, text(json.dumps(document)))}
        return InferResponse("m", "1", "", outputs | counts, "v")

    counts = {name: Tensor(Datatype.BYTES, text("1")) for name in ("num_input_tokens", "num_output_tokens")}
    items = ResponseItems("resp_1", 5, Body(model="m", input="w"))
    first = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}
    parts = [
        part({"role": "assistant", "content": None}),
        part({"content": "Wait."}),
        part({"tool_calls": [first]}),
        part({"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}),
        part({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
        part({"tool_calls": [{**first, "index": 1, "id": "c2"}]}),
        part({}, "tool_calls"),
    ]
    content = b"".join(items.part(0, each, is_last=False) for each in parts) + items.end(parts[-1])
    found = events(content.decode())
    assert [each["item"]["type"] for each in found if each["type"] == "response.output_item.done"] == [
        *("message", "function_call", "function_call")
    ]
    response = found[-1]["response"]
    assert (found[-1]["type"], response["status"]) == ("response.completed", "completed")
    assert [(each.get("call_id"), each.get("arguments")) for each in response["output"]] == [
        *((None, None), ("c1", '{"a":1}'), ("c2", ""))
    ]
    assert len({each["id"] for each in response["output"]}) == 3
    assert {each["status"] for each in response["output"]} == {"completed"}


@pytest.mark.parametrize(
    ("fields", "param", "problem"),
    [
        ({"input": []}, "input", "length >= 1"),
        ({"input": [{"type": "reasoning"}]}, "input", "has no message"),
        ({"input": [{"role": "user"}]}, "input[0].content", "is missing"),
        ({"input": [{"content": "a"}]}, "input[0].role", "is missing"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id", "is missing"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output", "is missing"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "input_image",
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "is not offered here"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "web_search"),
        ({"tool_choice": "required"}, "tool_choice", "is for requests with 'tools'"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "with 'schema' is missing"),
        ({"tools": [{"type": "function", "name": "f", "parameters": [1]}]}, "tools[0].parameters", "a JSON object"),
        ({"max_output_tokens": 0}, "max_output_tokens", ">= 1"),
        ({"colour": "red"}, "colour", "is not known here"),
    ],
)
async def test_a_field_that_is_refused_is_named(served: Served, fields: Any, param: str, problem: str) -> None:
    answer = await served.http.post(RESPONSES, json={"model": "writer", "input": "w", **fields})
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param
    assert problem in error_of(answer)["message"]
