"""npm's client of OpenAI's API, unmodified, against the gateway."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.simulators.talking import talking
from tests.simulators.writer import words

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ROOT / ".venv" / "openai" / "node_modules"
SCRIPT = ROOT / "tests" / "system" / "peers" / "openai" / "ask.js"


@pytest.mark.asyncio
async def test_npms_client_gets_what_openai_would_answer() -> None:
    async with talking() as served:
        node = await asyncio.create_subprocess_exec(
            "node", SCRIPT, f"http://{served.address}/v1", stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "NODE_PATH": str(PACKAGES)},
        )  # fmt: skip
        printed, _ = await node.communicate()
        await served.is_free()
    found = json.loads(printed)
    assert found == {
        "models": ["writer", "writer@1"],
        "chat": [words(2), words(2)],
        "usage": {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5},
        "parts": ["w0 ", "w1 ", "w2 ", None, 4],
        "text": words(2),
        "response": words(2),
        "events": [
            *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
            *("w0 ", "w1 ", "response.output_text.done", "response.content_part.done", "response.output_item.done"),
            "response.incomplete",
        ],
        "errors": [
            ["BadRequestError", 400, "invalid_value", "temperature"],
            ["NotFoundError", 404, "model_not_found", "model"],
            ["APIError", None, None, None],
        ],
    }
