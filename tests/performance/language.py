"""Texts by the gateway beside llama.cpp's own server: `python -m tests.performance.language FILE.gguf [ROUNDS]`.

Both serve the file at the same time with as many slots and threads of the same context, and answer the same client over
HTTP, streamed, by turns: tokens/s, time to the first token, CPU time of the server a token, resident memory. The last
column is the gateway's rate as a share of the better llama.cpp of the same round (median, least and greatest).
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import httpx
import psutil

from tests.simulators import gguf_made
from tests.simulators.broker import free_port
from tests.simulators.daemon import QUIET, running

TOKENS = 64
CALLERS = (1, 8)
THREADS = (1, 2)
CONTEXT = 2048
SPAWN = multiprocessing.get_context("spawn")


def serve(file: str, port: int, threads: int, runs: int, context: int) -> None:
    """Serve the file by llama.cpp alone, with the options of `runtimes.llamacpp`."""
    sys.path.append(gguf_made.given()["PYTHONPATH"].split(":")[-1])
    import xllamacpp

    given = xllamacpp.CommonParams()
    given.model.path, given.n_parallel, given.n_ctx = file, runs, runs * context
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = threads
    given.n_gpu_layers, given.warmup, given.fit_params, given.verbosity = 0, False, False, -1
    given.cache_ram_mib, given.n_ctx_checkpoints = 0, 0
    given.hostnames, given.port = ["127.0.0.1"], port
    server = xllamacpp.Server(given)
    time.sleep(1e6)
    del server


def asked(client: httpx.Client, url: str, model: str, prompt: str) -> tuple[int, float]:
    """Return the tokens of an answer, and the time to the first in s."""
    document = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0.0, "stream": True}
    began, first, count = time.monotonic(), 0.0, 0
    with client.stream("POST", url, json=document | {"stream_options": {"include_usage": True}}) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                first = first or time.monotonic() - began
                count = (chunk.get("usage") or {}).get("completion_tokens", count)
    return count, first


def family(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its descendants."""
    return sum(each.cpu_times().user + each.cpu_times().system for each in family(pid))


def main(file: Path, rounds: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as text:
        models = Path(text, "models")
        models.mkdir()
        shutil.copy(file, models / "text.gguf")
        with running(Path(text, "gateway"), models=models, config=QUIET, environ=gguf_made.given()) as daemon:
            servers, peers = {"gateway": (daemon.http, daemon.pid)}, []
            try:
                for threads in THREADS:
                    port = free_port()
                    peers.append(SPAWN.Process(target=serve, args=(str(file), port, threads, max(CALLERS), CONTEXT)))
                    peers[-1].start()
                    servers[f"llama.cpp, {threads} thread" + "s" * (threads > 1)] = f"127.0.0.1:{port}", peers[-1].pid
                compare(rounds, servers)
            finally:
                for peer in peers:
                    peer.kill()


def compare(rounds: int, servers: dict[str, tuple[str, int]]) -> None:
    """Ask the servers by turns, and print what was measured."""
    with httpx.Client(timeout=600, trust_env=False, limits=httpx.Limits(max_connections=16)) as client:
        urls = {name: f"http://{address}/v1/completions" for name, (address, _) in servers.items()}
        for url in urls.values():
            while True:
                try:
                    asked(client, url, "text", "warm")
                    break
                except (httpx.HTTPError, AssertionError):
                    time.sleep(0.5)
        print(f"{'callers':>7} {'server':20} {'tokens/s':>9} {'first ms':>9} {'CPU ms/token':>13} {'MiB':>6}  share")
        for callers in CALLERS:
            rates: dict[str, list[float]] = {name: [] for name in servers}
            firsts, cpus = {name: [] for name in servers}, {name: [] for name in servers}
            for turn in range(rounds):
                for name, (_, pid) in list(servers.items())[:: 1 if turn % 2 else -1]:
                    prompts = [f"Tell me story {turn} number {index} about" for index in range(callers)]
                    began, used = time.monotonic(), cpu_s(pid)
                    with ThreadPoolExecutor(callers) as threads:
                        found = list(threads.map(partial(asked, client, urls[name], "text"), prompts))
                    count = sum(tokens for tokens, _ in found)
                    rates[name].append(count / (time.monotonic() - began))
                    cpus[name].append((cpu_s(pid) - used) / count * 1000)
                    firsts[name] += [first * 1000 for _, first in found]
            best = [max(found) for found in zip(*(rates[name] for name in servers if name != "gateway"), strict=True)]
            shares = sorted(own / other for own, other in zip(rates["gateway"], best, strict=True))
            for name, (_, pid) in servers.items():
                memory = sum(each.memory_full_info().pss for each in family(pid)) / 2**20
                share = f"{median(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f})" if name == "gateway" else ""
                line = (
                    f"{median(rates[name]):9.1f} {median(firsts[name]):9.0f} {median(cpus[name]):13.1f} {memory:6.0f}"
                )
                print(f"{callers:7} {name:20} {line}  {share}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 9)
