"""Many models in little memory: a daemon whose budget has room for a part of its models, under requests by Zipf's law.

`python tests/performance/residency.py [--models 200] [--room 20] [--seconds 180] [--rate 40] [--svg FILE]` prints the
share of requests that found their model open, times of the others, and the daemon's memory (PSS, at best every 100 ms)
beside its budget; it draws that as a picture. Models are dense layers of 4 MiB with different weights.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from itertools import accumulate
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.simulators.daemon import Daemon  # noqa: E402
from tests.simulators.models_made import numbered_layer, save  # noqa: E402

MIB, SIDE, SAMPLE_S, CLIENTS = 2**20, 1024, 0.1, 16
SETTINGS = (
    "[selection]\nidle_before_trial_s = 3600.0\n[trial]\nmeasure_s = 0.02\nnice = 0\n[residency]\nmemory_mib = {}\n"
)


def pss_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


class Load:
    """Requests at `rate` a second from CLIENTS threads; model number n has a share of 1 / (n + 1) ** `exponent`."""

    def __init__(self, address: str, models: int, rate: float, exponent: float) -> None:
        self._host, _, port = address.partition(":")
        self._port, self._rate, self._lock = int(port), rate, threading.Lock()
        weights = 1 / np.arange(1, models + 1) ** exponent
        self._order = np.random.default_rng(7).permutation(models)
        self._shares = np.array(list(accumulate(weights / weights.sum())))
        self.times: list[float] = []
        self.failures: list[str] = []
        self._sent = 0

    def run(self, seconds: float) -> None:
        """Send requests for this time; a late one is sent at once."""
        self._began = time.monotonic()
        threads = [threading.Thread(target=self._work, args=(seconds, seed)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, seconds: float, seed: int) -> None:
        random = np.random.default_rng(seed)
        connection = http.client.HTTPConnection(self._host, self._port, timeout=60)
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, SIDE], "data": [0.0] * SIDE}
        body = json.dumps({"inputs": [tensor], "parameters": {"timeout": 30_000_000}})
        while True:
            with self._lock:
                due, self._sent = self._began + self._sent / self._rate, self._sent + 1
            if due > self._began + seconds:
                return
            time.sleep(max(0.0, due - time.monotonic()))
            number = int(self._order[min(np.searchsorted(self._shares, random.random()), len(self._order) - 1)])
            began = time.monotonic()
            connection.request("POST", f"/v2/models/m{number:03}/infer", body)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                self.failures.append(content.decode()[:300])
            elif json.loads(content)["outputs"][0]["data"][0] != number:
                self.failures.append(f"m{number:03} answered as another model")
            self.times.append(time.monotonic() - began)


def metrics(address: str) -> dict[str, float]:
    """Return the metrics of the daemon, summed over their labels."""
    connection = http.client.HTTPConnection(*address.split(":"), timeout=60)  # type: ignore[arg-type]
    connection.request("GET", "/metrics")
    found: dict[str, float] = {}
    for line in connection.getresponse().read().decode().splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0].removeprefix("edge_gateway_")
            found[name] = found.get(name, 0.0) + float(value)
    return found


def waits(address: str) -> str:
    """Return bounds of the median and the 99th percentile of the waits for a model that was closed."""
    connection = http.client.HTTPConnection(*address.split(":"), timeout=60)  # type: ignore[arg-type]
    connection.request("GET", "/metrics")
    counts: dict[float, float] = {}
    for line in connection.getresponse().read().decode().splitlines():
        if line.startswith("edge_gateway_wake_wait_seconds_bucket"):
            bound = float(line.split('le="')[1].split('"')[0])
            counts[bound] = counts.get(bound, 0.0) + float(line.rpartition(" ")[2])
    total = max(counts.values(), default=0.0)
    found = [min(bound for bound, count in counts.items() if count >= total * share) for share in (0.5, 0.99) if total]
    return " · ".join(f"≤ {bound:g} s" for bound in found)


def draw(file: Path, samples: list[tuple[float, float]], own: float, budget: float, title: str) -> None:
    """Draw the memory over time, with the gateway's own memory and the budget above it."""
    width, height, edge = 860, 320, 50
    most = max(own + budget, *(mib for _, mib in samples)) * 1.1
    end = samples[-1][0]

    def at(second: float, mib: float) -> str:
        return f"{edge + second / end * (width - 2 * edge):.1f},{height - edge - mib / most * (height - 2 * edge):.1f}"

    line = " ".join(at(*sample) for sample in samples)
    lines = []
    for mib, words in (
        (own, f"the gateway itself: {own:.0f} MiB"),
        (own + budget, f"with the budget of {budget:.0f} MiB"),
    ):
        x, y = at(0, mib).split(",")
        lines.append(
            f'<path d="M{at(0, mib)} L{at(end, mib)}" class="b"/><text x="{x}" y="{float(y) - 6:.1f}">{words}</text>'
        )
    file.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">\n'
        f"<title>{title}</title>\n<style>rect{{fill:#10201f}} text{{font:13px sans-serif;fill:#d5e3e1}} "
        ".m{fill:none;stroke:#5fd0bd;stroke-width:1.5} .b{stroke:#d5a05f;stroke-dasharray:6 4}</style>\n"
        f'<rect width="{width}" height="{height}" rx="6"/><text x="{edge}" y="24">{title}</text>\n'
        f'<polyline class="m" points="{line}"/>{"".join(lines)}\n'
        f'<text x="{width - edge - 60}" y="{height - 20}">{end:.0f} s</text></svg>\n',
        encoding="utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--room", type=int, default=20)
    parser.add_argument("--each-mib", type=float, default=0.0, help="what one model takes; 0: measure it first")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--exponent", type=float, default=1.0)
    parser.add_argument("--svg", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for number in range(given.models):
            (folder / "models" / f"m{number:03}").mkdir(parents=True)
            save(numbered_layer(number), folder / "models" / f"m{number:03}" / "model.onnx")
        each = given.each_mib or _cost(folder, given)
        budget = round(each * given.room)
        daemon = Daemon(folder / "daemon", models=folder / "models", config=SETTINGS.format(budget))
        daemon.start(ready=False)
        try:
            daemon.wait_logged("models in step", timeout_s=1800)
            _report(daemon, given, budget, each)
        finally:
            daemon.stop()


def _cost(folder: Path, given: argparse.Namespace) -> float:
    """Return what a model takes: the mean of what opening three added, after one that loaded the engine."""
    few = folder / "few"
    few.mkdir()
    for name in ("m000", "m001", "m002", "m003"):
        (few / name).symlink_to(folder / "models" / name)
    daemon = Daemon(folder / "first", models=few, config=SETTINGS.format(1000)).start()
    try:
        return (metrics(daemon.http)["model_resident_bytes"] / 4) / MIB
    finally:
        daemon.stop()


def _report(daemon: Daemon, given: argparse.Namespace, budget: int, each: float) -> None:
    samples: list[tuple[float, float]] = []
    ended, began = threading.Event(), time.monotonic()

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            samples.append((time.monotonic() - began, pss_mib(daemon.pid)))

    sampling = threading.Thread(target=sample)
    sampling.start()
    load = Load(daemon.http, given.models, given.rate, given.exponent)
    load.run(given.seconds)
    ended.set()
    sampling.join()
    after: dict[str, Any] = metrics(daemon.http)
    own = pss_mib(daemon.pid) - after["residency_used_bytes"] / MIB  # what requests made it load is its own as well
    waited = after.get("wake_wait_seconds_count", 0)
    percent = quantiles(load.times, n=100)
    over = [mib - own - budget for _, mib in samples]
    print(f"models {given.models}, {each:.1f} MiB each, budget {budget} MiB, {given.rate:g}/s, {given.seconds:g} s")
    print(f"requests {len(load.times)}, failed {len(load.failures)} {load.failures[:2]}")
    print(f"found their model open {1 - waited / len(load.times):.1%}, wake-ups {after.get('wakes_total', 0):.0f}")
    print(f"time of a request p50 {percent[49] * 1e3:.1f} ms, p99 {percent[98] * 1e3:.1f} ms")
    print(f"waits for a closed model p50 · p99 {waits(daemon.http)}")
    print(
        f"gateway itself {own:.1f} MiB; above it at most {max(over) + budget:.1f} MiB of {budget}; {max(over):.1f} over"
    )
    print(f"samples over the budget {sum(one > 0 for one in over)} of {len(over)}, by more than one model "
          f"{sum(one > each for one in over)}")  # fmt: skip
    if given.svg:
        title = f"PSS of a gateway with {given.models} models in a budget for {given.room}, at best every 100 ms"
        draw(given.svg, samples, own, budget, title)


if __name__ == "__main__":
    main()
