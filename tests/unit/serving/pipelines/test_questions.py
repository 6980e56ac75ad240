"""Steps that ask a language model: what it is sent, columns of its answers, and answers that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Tensors
from gateway.common.domain.text_model import TEXT_INPUTS, TEXT_OUTPUTS
from gateway.serving.engine.settings import QuotaSettings
from tests.simulators.pipelines import PipelineRig, spec

pytestmark = pytest.mark.asyncio
ANSWER = 'answer = { action = ["open", "close"], room = "text", degrees = "number", urgent = "flag" }'
ASKS = """
[input]
words = "text"
[[step]]
name = "intent"
model = "talk"
ask = "'Words: ' + words"
%s
[output]
%s
"""
FIELDS = "action = 'intent.action'\nroom = 'intent.room'\ndegrees = 'intent.degrees + 1'\nurgent = 'not intent.urgent'"
Says = Callable[[dict[str, Any]], str]


def talking(says: Says, text: str, **limits: Any) -> tuple[PipelineRig, list[dict[str, Any]]]:
    """Return a rig with a pipeline that asks the model `talk`, which answers what `says` returns, and its requests.

    An answer that is no document is what `says` returns in place of a text.
    """
    rig, asked = PipelineRig(**limits), list[dict[str, Any]]()

    def run(inputs: Tensors) -> Tensors:
        document = json.loads(inputs["request"][0])
        asked.append(document)
        said = says(document)
        response = "{}" if said == "no document" else json.dumps({"choices": [{"message": {"content": said}}]})
        texts = {"text_output": b"", "finish_reason": b"stop", "response": response.encode()}
        counts = {"num_input_tokens": 1, "num_output_tokens": 1}
        return {
            **{name: np.array([text], object) for name, text in texts.items()},
            **{name: np.array([count], np.uint32) for name, count in counts.items()},
        }

    rig.model("talk", run, TEXT_INPUTS, TEXT_OUTPUTS, batch=False)
    rig.model("plain", lambda inputs: {"y": inputs["x"]}, (spec("x", 2),), (spec("y", 2),))
    rig.pipeline(text)
    return rig, asked


def words(*texts: str) -> dict[str, Any]:
    return {"words": np.array([text.encode() for text in texts], object)}


async def test_each_row_is_a_question_and_its_answer_a_text() -> None:
    rig, asked = talking(
        lambda document: document["messages"][-1]["content"].upper(),
        ASKS % ('system = "Be short."\nmax_tokens = 7\nadapter = "polite"', "said = 'intent.text'"),
    )
    await rig.begin()
    assert (await rig.ask(words("a", "ü"), "said"))["said"].tolist() == [b"WORDS: A", "WORDS: Ü".encode()]
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Words: a"}]
    assert asked[0] == {"messages": messages, "max_tokens": 7, "temperature": 0, "lora_name": "polite"}


async def test_words_of_any_script_reach_the_model_as_they_are_written() -> None:
    fields = ('answer = { door = ["geöffnet", "zu"] }', "door = 'intent.door'")
    rig, asked = talking(lambda _: '{"door": "zu"}', ASKS % fields)
    await rig.begin()
    assert (await rig.ask(words("Закрой дверь"), "door"))["door"].tolist() == [b"zu"]
    assert asked[0]["messages"][0]["content"] == 'Answer in JSON: {"door": "geöffnet" or "zu"}.'
    assert asked[0]["messages"][1]["content"] == "Words: Закрой дверь"


async def test_a_pipeline_pays_for_the_texts_of_its_steps() -> None:
    quota = (QuotaSettings("*", tokens_per_minute=3.0, in_flight=1),)
    rig, _ = talking(lambda _: "a", ASKS % ("", "said = 'intent.text'"), quota=quota)
    await rig.begin()
    assert rig.target().manifest.parameters["asks"] == "talk"
    await rig.ask(words(*"abcdefghijklmnop"), "said")  # a request: for each question a token is read and one written
    with pytest.raises(RequestError, match="has used 3 tokens of text a minute") as refused:
        await rig.ask(words("c"), "said")
    assert refused.value.by_quota == "tokens"


async def test_fields_of_an_answer_are_columns_of_their_types() -> None:
    given = {"action": "open", "room": "Küche", "degrees": 20, "urgent": True}
    rig, asked = talking(lambda _: json.dumps(given), ASKS % (ANSWER, FIELDS))
    await rig.begin()
    found = await rig.ask(words("x"))
    assert {name: array.tolist() for name, array in found.items() if name != "result"} == {
        "action": [b"open"],
        "room": ["Küche".encode()],
        "degrees": [21.0],
        "urgent": [False],
    }
    form = '{"action": "open" or "close", "room": a text, "degrees": a number, "urgent": true or false}'
    assert asked[0]["messages"][0] == {"role": "system", "content": f"Answer in JSON: {form}."}
    schema = asked[0]["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["action", "room", "degrees", "urgent"]
    assert schema["properties"]["action"] == {"enum": ["open", "close"]}
    assert [schema["properties"][name]["type"] for name in ("room", "degrees", "urgent")] == [
        "string",
        "number",
        "boolean",
    ]


FALLBACK = "fallback = { action = 'close', room = '', degrees = 0, urgent = false }"


WRONG = (
    '{"action": "open", "room": "", "degrees": 1e999, "urgent": true}',
    *('{"action": "op', "[]", "7", "{}", "", '{"action": "shut", "room": "", "degrees": 1, "urgent": true}'),
    *('{"action": "open", "room": 7, "degrees": 1, "urgent": true}', "[" * 100_000),
    *('{"action": "open", "room": "", "degrees": true, "urgent": true}',),
    '{"action": "open", "room": "", "degrees": 1' + "0" * 400 + ', "urgent": true}',
    '{"action": "open", "room": "", "degrees": 1, "urgent": 1}',
)


@pytest.mark.parametrize("fallback", ["", FALLBACK])
@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        *((each, "of its kind, or ends after 128 tokens, before its JSON does; raise max_tokens") for each in WRONG),
        ("no document", "is no document of a chat: b'{}'"),
    ],
    ids=range(len(WRONG) + 1),
)
async def test_an_answer_without_its_fields_fails_or_has_the_values_of_the_fallback(
    fallback: str, answer: str, problem: str
) -> None:
    rig, _ = talking(lambda _: answer, ASKS % (f"{ANSWER}\n{fallback}", FIELDS))
    await rig.begin()
    if fallback:
        assert (await rig.ask(words("x"), "action"))["action"].tolist() == [b"close"]
        return
    with pytest.raises(RequestError, match=problem) as failed:
        await rig.ask(words("x"))
    assert failed.value.fault is Fault.INTERNAL


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (ASKS.replace('"talk"', '"plain"') % ("", "said = 'intent.text'"), "is no language model; write 'of'"),
        (ASKS.replace("'Words: ' + words", "len(words)") % ("", "said = 'intent.text'"), "takes text, not number"),
        (ASKS % (ANSWER, "said = 'intent.rooms'"), "it has action, room, degrees, urgent, text"),
    ],
)
async def test_what_cannot_be_asked_is_refused_with_the_step(text: str, problem: str) -> None:
    rig, _ = talking(lambda _: "", text)
    await rig.begin()
    assert problem in rig.reason()
