"""Bodies of OpenAI's API with any JSON: read, or refused by a FieldError that names the field."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.frontends.openai import bodies
from gateway.serving.frontends.openai.errors import FieldError

FIELDS = sorted(
    {name for kind in (bodies.Chat, bodies.Completion, bodies.Embeddings) for name in kind.__struct_fields__}
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS | st.sampled_from(["w", "json_schema", "function", "user", ["a"], {"role": "user", "content": "a"}]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "function", "name", "schema", "x"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
CHAT = {"model": "w", "messages": [{"role": "user", "content": "a"}]}


@given(
    st.sampled_from([CHAT, {"model": "w", "prompt": "a"}]), st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3)
)
def test_any_value_is_read_or_refused(plain: dict[str, object], fields: dict[str, object]) -> None:
    body = json.dumps({**plain, **fields}).encode()
    for kind in (bodies.Chat, bodies.Completion):
        with suppress(FieldError):
            asked = bodies.read(body, kind)
            prompts = len(asked.prompt) if isinstance(getattr(asked, "prompt", ""), list) else 1
            documents = bodies.documents(asked)
            assert len(documents) == (asked.n or 1) * prompts
            for document in documents:
                assert json.loads(document).keys().isdisjoint({"model", "n", "stream", "user"})


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(FieldError):
        bodies.read(body, bodies.Embeddings)


def test_choices_of_one_seed_differ_and_stay_within_its_range() -> None:
    most = 2**63 - 1
    asked = bodies.read(json.dumps({**CHAT, "n": 3, "seed": most - 1}).encode(), bodies.Chat)
    assert [json.loads(each)["seed"] for each in bodies.documents(asked)] == [most - 1, most, -most - 1]
