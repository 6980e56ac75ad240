"""A language model in a file alone, served by llama.cpp in a worker process of a real daemon."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np
import pytest

from tests.simulators import gguf_made
from tests.simulators.daemon import COMMAND, QUIET, ROOT, SHORT_TRIALS, Daemon, running
from tests.system.serving.test_isolation import metrics, workers
from tests.system.serving.test_openai_clients import PACKAGES, SCRIPT

CALLERS = 12
ADAPTERS = ("black", "blue", "green", "red")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("language")
    gguf_made.write(folder / "models" / "tiny.gguf")
    gguf_made.write(folder / "models" / "vectors.gguf", llama__pooling_type=1)
    environ, config = gguf_made.given(), QUIET + SHORT_TRIALS
    with running(folder / "gateway", models=folder / "models", config=config, environ=environ) as started:
        yield started


@pytest.fixture
def client(daemon: Daemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{daemon.http}/v2/models/tiny", timeout=120, trust_env=False) as made:
        yield made


def generated(client: httpx.Client, prompt: str, **parameters: Any) -> str:
    answer = client.post("/generate", json={"text_input": prompt, **parameters})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["text_output"])


def parts(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    return (json.loads(line.removeprefix("data: ")) for line in lines if line)


def test_callers_at_the_same_time_have_the_answers_that_they_have_alone(client: httpx.Client) -> None:
    prompts = [f"prompt {number}" for number in range(CALLERS)]
    alone = [generated(client, prompt, max_tokens=40) for prompt in prompts]
    with ThreadPoolExecutor(CALLERS) as threads:
        together = list(threads.map(lambda prompt: generated(client, prompt, max_tokens=40), prompts * 3))
    assert together == alone * 3


@pytest.mark.parametrize("way", [("--url",), ("--offline",)])
def test_the_command_writes_what_the_model_says(daemon: Daemon, way: tuple[str, ...]) -> None:
    way = ("--url", daemon.http) if way == ("--url",) else way

    def infer(*words: str) -> subprocess.CompletedProcess[str]:
        options = ["--config", str(daemon.config_file), "--models", str(daemon.models), "--state", str(daemon.state)]
        said = [*COMMAND, "infer", *words, *options, *way]
        return subprocess.run(
            said, env={**os.environ, **gguf_made.given()}, capture_output=True, text=True, check=False
        )

    asked = ("tiny", "--text", "Say something.", "--max-tokens", "9")
    shown, whole = infer(*asked), infer(*asked, "--output", "json")
    assert (shown.returncode, whole.returncode) == (0, 0), shown.stderr + whole.stderr
    answer = json.loads(whole.stdout)
    assert shown.stdout == answer["text_output"] + "\n"
    assert answer["num_output_tokens"] == 9
    refused = infer("tiny", "--text", "a", "--text", "b")
    assert (refused.returncode, "one text at a time, not 2" in refused.stderr) == (1, True)
    vectors = infer("vectors", "--text", "a", "--text", "b")
    assert vectors.returncode == 0, vectors.stderr
    assert "row" in vectors.stdout


def test_the_trial_says_how_fast_it_writes(daemon: Daemon) -> None:
    (tried,) = (line for line in daemon.lines() if line["event"] == "trial finished" and line["model"] == "tiny")
    assert float(re.search(r"([\d.e+]+) tokens/s alone", tried["reason"])[1]) > 0


def test_a_text_comes_in_parts_and_a_caller_that_leaves_frees_its_place(daemon: Daemon, client: httpx.Client) -> None:
    asked = {"text_input": "hello", "max_tokens": 12}
    with client.stream("POST", "/generate_stream", json=asked) as answer:
        found = list(parts(answer.iter_lines()))
    assert "".join(each["text_output"] for each in found) == generated(client, "hello", max_tokens=12)
    assert found[-1]["finish_reason"] == "length"
    for _ in range(CALLERS):
        with client.stream("POST", "/generate_stream", json={"text_input": "hello", "max_tokens": 480}) as answer:
            assert next(parts(answer.iter_lines()))["text_output"]
    assert generated(client, "hello", max_tokens=3)
    assert 'worker_ends_total{model="tiny"' not in metrics(daemon)
    assert "socket.send() raised" not in daemon.log


@pytest.mark.parametrize("prompt", ["", "x" * 5_000, "x" * 10_000_000], ids=["empty", "long", "ten megabytes"])
def test_a_prompt_that_cannot_be_answered_is_the_callers_fault(client: httpx.Client, prompt: str) -> None:
    answer = client.post("/generate", json={"text_input": prompt})
    assert answer.status_code in {400, 413}, answer.text
    assert answer.json()["error"]
    assert generated(client, "hello", max_tokens=3)


def test_the_next_request_is_answered_after_a_kill(daemon: Daemon, client: httpx.Client) -> None:
    expected = generated(client, "hello", max_tokens=12)
    for pid in workers(daemon.pid):  # the one that serves, and its spare
        while 'worker_spares{model="tiny",version="1"} 1.0' not in metrics(daemon):
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        assert generated(client, "hello", max_tokens=12) == expected


def test_a_bare_file_gives_embeddings(daemon: Daemon) -> None:
    daemon.wait_logged("servable changed", model="vectors", state="AVAILABLE")
    contents = [f"text {number}" for number in range(100)]
    with httpx.Client(base_url=f"http://{daemon.http}", timeout=120, trust_env=False) as client:

        def vectors(given: list[str]) -> Any:
            answer = client.post("/v1/embeddings", json={"model": "vectors", "input": given})
            assert answer.status_code == 200, answer.text
            return np.array([each["embedding"] for each in answer.json()["data"]])

        node = ["node", SCRIPT, f"http://{daemon.http}/v1", "vectors"]  # npm's client asks for base64, and decodes it
        printed = subprocess.check_output(node, env={**os.environ, "NODE_PATH": str(PACKAGES)}, timeout=120)
        assert np.allclose(json.loads(printed), vectors(["a", "bb"]), atol=2e-3)
        found = vectors(contents)
        assert found.shape == (100, gguf_made.WIDTH)
        with ThreadPoolExecutor(CALLERS) as threads:
            alone = np.concatenate(list(threads.map(lambda each: vectors([each]), contents)))
        assert np.allclose(found, alone, atol=2e-3)
        refused = client.post("/v1/embeddings", json={"model": "vectors", "input": ["x" * 3000]})
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        long = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 3000}]}
        refused = client.post("/v1/chat/completions", json=long)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_a_chat_that_must_call_a_tool_calls_one_in_one_part(daemon: Daemon) -> None:
    city = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": city | {"additionalProperties": False}}}
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "tools": [tool], "stream": True}
    with (
        httpx.Client(base_url=f"http://{daemon.http}", timeout=120, trust_env=False) as client,
        client.stream("POST", "/v1/chat/completions", json=asked | {"tool_choice": "required"}) as answer,
    ):
        chunks = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    (choice,) = [choice for chunk in chunks for choice in chunk["choices"]]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["delta"]["tool_calls"]
    assert (call["index"], call["function"]) == (0, {"name": "weather", "arguments": '{"city":"Oslo"}'})


# ---- a version with adapters -----------------------------------------------------------------------------------------
def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **gguf_made.given()}
    return subprocess.run(
        [*COMMAND, "models", *map(str, arguments)], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a version of a model with four adapters, and return the folder of models."""
    folder = tmp_path_factory.mktemp("made")
    files = [
        gguf_made.write(folder / "tiny.gguf", general__file_type=0),
        *(folder / f"{name}.gguf" for name in ADAPTERS),
    ]
    for seed, file in enumerate(files[1:]):
        file.write_bytes(gguf_made.adapter(seed))
    done = command("new", *files, "--yes", "--models", folder / "models")
    assert done.returncode == 0, done.stderr
    assert "a language model" in done.stdout
    assert "adapters  " in done.stdout
    return folder / "models"


@pytest.fixture(scope="module")
def adapting(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder, config = tmp_path_factory.mktemp("adapting"), QUIET + SHORT_TRIALS
    with running(folder, models=made, config=config, environ=gguf_made.given()) as started:
        yield started


def completed(client: httpx.Client, model: str, prompt: str, **fields: Any) -> str:
    asked = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0, **fields}
    answer = client.post("/v1/completions", json=asked)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def mixed(daemon: Daemon, count: int, callers: int) -> None:
    """Send requests with and without adapters at a time, by both protocols, and compare with the answers alone."""
    names, random = ("", *ADAPTERS), Random(1)
    with httpx.Client(base_url=f"http://{daemon.http}", timeout=600, trust_env=False) as client:

        def ask(pair: tuple[str, int], openai: bool) -> str:
            name, prompt = pair[0], f"prompt {pair[1]}"
            if openai:
                return completed(client, f"tiny:{name}" if name else "tiny", prompt)
            sent = {"text_input": prompt, "max_tokens": 12} | ({"lora_name": name} if name else {})
            return str(client.post("/v2/models/tiny/generate", json=sent).json().get("text_output"))

        alone = {(name, prompt): ask((name, prompt), True) for name in names for prompt in range(4)}
        assert len(set(alone.values())) > len(names)
        asked = [(random.choice(list(alone)), random.random() < 0.5) for _ in range(count)]
        with ThreadPoolExecutor(callers) as threads:
            found = threads.map(lambda each: ask(*each), asked)
            wrong = [pair for (pair, _), answer in zip(asked, found, strict=True) if answer != alone[pair]]
    assert not wrong
    assert 'worker_ends_total{model="tiny"' not in metrics(daemon)


def test_an_adapter_is_a_model_of_openais_api(adapting: Daemon) -> None:
    with httpx.Client(base_url=f"http://{adapting.http}", timeout=120, trust_env=False) as client:
        listed = [each["id"] for each in client.get("/v1/models").json()["data"]]
        expected = [f"{name}{adapter}" for name in ("tiny", "tiny@1") for adapter in ("", *(f":{a}" for a in ADAPTERS))]
        assert listed == expected
        for name in expected:
            assert client.get(f"/v1/models/{name}").json()["id"] == name
        texts = {name: completed(client, name, "hello") for name in expected}
        assert len(set(texts.values())) == 5
        assert all(texts[name] == texts[name.replace("@1", "")] for name in expected)
        for name in ("tiny:pink", "tiny:", "tiny:red:green", ":red"):
            refused = client.post("/v1/completions", json={"model": name, "prompt": "hello"})
            same = name == "tiny:"
            assert (refused.status_code, (refused.json().get("error") or {}).get("code")) == (
                (200, None) if same else (404, "model_not_found")
            ), name
        chat = {"model": "tiny:red", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=chat) as answer:
            chunks = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
        assert {chunk["model"] for chunk in chunks} == {"tiny:red"}
        refused = client.post("/v2/models/tiny/generate", json={"text_input": "hello", "lora_name": "pink"})
        assert refused.status_code == 400
        assert "no adapter 'pink'" in refused.json()["error"]


def test_no_token_is_anothers_adapters(adapting: Daemon) -> None:
    mixed(adapting, 150, 12)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_token_of_ten_thousand_answers_is_anothers_adapters(adapting: Daemon) -> None:
    mixed(adapting, 10_000, 16)


def test_models_new_describes_a_file(made: Path, adapting: Daemon, tmp_path: Path) -> None:
    with httpx.Client(base_url=f"http://{adapting.http}/v2/models/tiny", timeout=120, trust_env=False) as client:
        assert len(generated(client, "hello", max_tokens=12)) == 12
        facts = client.get("/config").json()["parameters"]
    assert facts["precision"]["string_value"] == "fp32"
    version = tmp_path / "tiny" / "1"
    shutil.copytree(made / "tiny" / "1", version)
    np.savez(tmp_path / "prompts.npz", text_input=np.array([[b"hello"], [b"What is this?"]]))
    done = command("golden", version, "--calibration", tmp_path / "prompts.npz")
    assert done.returncode == 0, done.stderr
    done = command("check", version)
    assert "passed its golden set: agreement 1.0000" in done.stdout + done.stderr
    file = gguf_made.write(tmp_path / "tiny.gguf")
    refused = command("new", file, "--models", tmp_path / "models", "--name", "b", "--task", "embedding")
    assert refused.returncode == 2, refused.stderr
    assert "has no task and no labels" in refused.stderr
    file.write_bytes(gguf_made.adapter(1))
    refused = command("new", file, "--models", tmp_path / "models")
    assert refused.returncode == 2, refused.stderr
    assert "name the language model that it belongs to" in refused.stderr
