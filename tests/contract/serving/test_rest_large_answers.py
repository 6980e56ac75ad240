"""Large answers of BYTES over HTTP: others are answered while they are encoded, and they are what was meant."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import httpx
import pytest

from tests.simulators.held_answer import COUNT, RAW, HeldAnswers
from tests.simulators.rest_gateway import Gateway, infer_body, serving

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("rest_way")]
BINARY = {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "json": ({}, "identity"),
    "binary": (BINARY, "identity"),
    "json, compressed": ({}, "gzip"),
    "binary, compressed": (BINARY, "gzip"),
}


def asked(gateway: Gateway, encoding: str, **more: Any) -> Any:
    headers = {"accept-encoding": encoding}
    return gateway.client.post("/v2/models/identity_fp32/infer", json=infer_body(1.0, **more), headers=headers)


def content(response: httpx.Response) -> bytes | list[str]:
    """Return the output's raw bytes, or its elements."""
    head = response.headers.get("inference-header-content-length")
    if head is not None:
        return response.content[int(head) :]
    elements: list[str] = response.json()["outputs"][0]["data"]
    return elements


@pytest.mark.parametrize("form", FORMS)
async def test_others_are_answered_meanwhile(form: str) -> None:
    more, encoding = FORMS[form]
    inference = HeldAnswers()
    async with serving(inference=inference) as gateway:
        large = asyncio.ensure_future(asked(gateway, encoding, id="large", **more))
        try:
            assert await asyncio.to_thread(inference.begun.wait, 50)
            assert (await asked(gateway, "identity")).json()["outputs"][0]["data"] == [1.0]
            assert not large.done()
        finally:
            inference.ready.set()
        response = await large
    assert response.headers.get("content-encoding", "identity") == encoding
    assert content(response) == (RAW if more else ["ab"] * (COUNT - 1) + ["end"])


async def test_what_is_sent_is_one_answer_whatever_its_pieces() -> None:
    inference = HeldAnswers()
    inference.ready.set()
    inference.elements[:-1] = b"x" * 100
    async with serving(inference=inference) as gateway:
        plain = await asked(gateway, "identity", id="large", **BINARY)
        json_answer = await asked(gateway, "identity", id="large")
    raw = content(plain)
    described = json.loads(plain.content[: -len(raw)])["outputs"][0]["parameters"]
    assert described == {"binary_data_size": len(raw)}
    assert raw == (b"\x64\0\0\0" + b"x" * 100) * (COUNT - 1) + b"\3\0\0\0end"
    assert len(gzip.compress(json_answer.content)) < len(json_answer.content)
    assert content(json_answer) == ["x" * 100] * (COUNT - 1) + ["end"]
