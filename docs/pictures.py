"""Pictures of what the programs print, as SVG files of `docs/pages`, from real output: `make pictures`."""

from __future__ import annotations

import html
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
BIN, PAGES = ROOT / ".venv/bin", ROOT / "docs/pages"
SENSORS, SAMPLE_S = ("wrist-left", "wrist-right", "press-4"), 0.02
LINE_PX, COLUMN_PX, EDGE_PX, COLUMNS = 20, 8.4, 16, 110
STYLE = (
    "rect{fill:#10201f} text{font:14px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#d5e3e1;"
    "white-space:pre} .line0{fill:#5fd0bd}"
)
PICTURES = {
    "howto/explain.svg": "edge-gateway explain meter-reader --models models",
    "howto/watch.svg": "edge-gateway watch edge-gateway.toml --once --every 10",
    "howto/results.svg": "mosquitto_sub -C 1 -t edge/plant/results/motion/# | python3 -m json.tool",
}
"""Command whose output each picture shows."""
RECIPES, GRAPH, ASKED = ROOT / "examples/pipelines", "howto/pipeline.svg", 20
CONFIG = """
[gateway]
id = "plant"
[mqtt]
url = "mqtt://127.0.0.1:1883"
[[mqtt.route]]
name = "motion"
topics = ["sensors/+/imu"]
sensor = "topic[1]"
model = "activity"
hop_rows = 50
"""


def draw(file: Path, command: str, output: str) -> None:
    """Write what a command printed as a picture of a terminal. Lines too long for a page become "…"."""
    shown = (line.rstrip() if len(line.rstrip()) <= COLUMNS else "…" for line in output.rstrip().splitlines())
    lines = [f"$ {command}", *(line for line, _ in itertools.groupby(shown))]
    width, height = max(map(len, lines)) * COLUMN_PX + 2 * EDGE_PX, len(lines) * LINE_PX + 2 * EDGE_PX
    texts = (
        f'<text x="{EDGE_PX}" y="{EDGE_PX + (number + 0.75) * LINE_PX:g}" textLength="{len(line) * COLUMN_PX:g}" '
        f'class="line{min(number, 1)}">{html.escape(line)}</text>'
        for number, line in enumerate(lines)
        if line
    )
    file.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" role="img">\n'
        f'<style>{STYLE}</style><rect width="100%" height="100%" rx="8"/>\n' + "\n".join(texts) + "\n</svg>\n"
    )


def publish(ended: threading.Event) -> None:
    """Send the recorded movements of each sensor until the event is set."""
    windows = np.load(ROOT / "models/activity/1/golden.npz")["input.motion"]
    with ExitStack() as stack:
        topics = [f"sensors/{name}/imu" for name in SENSORS]
        senders = [stack.enter_context(running("mosquitto_pub", "-l", "-t", topic)) for topic in topics]
        number = 0
        while not ended.wait(SAMPLE_S):
            number += 1
            for window, sender in zip(windows[::7], senders, strict=False):
                values = [round(float(value), 3) for value in window[number % len(window)]]
                print(json.dumps(values), file=sender.stdin, flush=True)


@contextmanager
def running(*command: object) -> Iterator[subprocess.Popen[str]]:
    """Run a program until the body ends."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, text=True, **quiet)
    try:
        yield child
    finally:
        child.terminate()
        child.wait()


def draw_graph(folder: Path) -> None:
    """Draw the pipeline `fraud` with what its steps cost, after some requests."""
    learns = {**os.environ, "PYTHONPATH": str(BIN.parent / "workshop")}
    subprocess.run([BIN / "python", RECIPES / "make_tables.py"], cwd=folder, env=learns, check=True)
    models, address = folder / "models", f"unix:{folder}/http"
    shutil.copytree(RECIPES / "fraud", models / "fraud/1")
    with running("edge-gateway", "run", "--models", models, "--state", folder / "state", "--http", address):
        ask = f"edge-gateway infer fraud --npz {folder}/payments.npz --url {address}"
        printed(f"{ask} --wait 300", folder)
        for _ in range(ASKED):
            printed(ask, folder)
        printed(f"edge-gateway explain fraud --url {address} --svg {PAGES / GRAPH}", folder)


def printed(command: str, config: Path) -> str:
    """Return what a command prints."""
    line = command.replace("edge-gateway.toml", str(config))
    return subprocess.run(["/bin/sh", "-c", line], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> None:
    """Write all pictures."""
    ended = threading.Event()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        config = Path(folder) / "edge-gateway.toml"
        config.write_text(CONFIG)
        os.environ.update(XDG_STATE_HOME=folder, PATH=f"{BIN}:{os.environ['PATH']}")
        stack.enter_context(running("mosquitto"))
        stack.enter_context(running("edge-gateway", "run", "--config", config, "--models", ROOT / "models"))
        question = "infer activity --npz models/activity/1/golden.npz --output json --config edge-gateway.toml"
        printed(f"edge-gateway {question}", config)  # it waits for the gateway
        thread = threading.Thread(target=publish, args=(ended,))
        thread.start()
        try:
            for page, command in PICTURES.items():
                draw(PAGES / page, command, printed(command, config))
        finally:
            ended.set()
            thread.join()
        draw_graph(Path(folder))


if __name__ == "__main__":
    main()
