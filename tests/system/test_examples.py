"""The examples, as a reader pastes them: all commands of each README in order, in one shell."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.simulators.broker import free_port

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = [str(ROOT / ".venv" / name) for name in ("camera", "workshop")]
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(ROOT / ".venv" / "pages"), "PIP_PYTHON_VERSION": "3.11"}
"""Settings of pip, which finds the packages of models in a folder (`make`)."""
PORTS = ("8000", "8001", "8080", "1883")
"""Ports of the examples; each test has others."""


def commands(readme: str) -> str:
    """Return the blocks of a README that are pasted; those of `bash` install packages that the tests have."""
    return "\n".join(re.findall(r"^```sh\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE))


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Lend a copy of an example with other ports, where it finds the models, and a broker."""
    with tempfile.TemporaryDirectory(prefix="examples-", ignore_cleanup_errors=True) as made:
        root = Path(made)  # shorter than tmp_path: paths of UNIX sockets are short
        folder = root / "examples" / request.param
        shutil.copytree(ROOT / "examples" / request.param, folder)
        (root / "models").symlink_to(ROOT / "models")
        ports = {port: str(free_port()) for port in PORTS}
        for file in filter(Path.is_file, folder.iterdir()):
            text = file.read_text()
            for port, free in ports.items():
                text = re.sub(rf"\b{port}\b", free, text)
            file.write_text(text)
        (root / "mosquitto.conf").write_text(f"listener {ports['1883']} 127.0.0.1\nallow_anonymous true\n")
        words = ("/usr/sbin/mosquitto", "-c", root / "mosquitto.conf")
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as broker:
            yield folder
            broker.terminate()


def pasted(folder: Path) -> str:
    """Return what the commands print, after all of them succeeded."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {
        "PATH": path,
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(EXTRAS),
        "LANG": "C.UTF-8",
        **OFFLINE,
    }
    script = "set -e -o pipefail\n" + commands((folder / "README.md").read_text())
    with (folder / "said").open("w") as said, (folder / "errors").open("w") as errors:
        running = subprocess.Popen(
            ["/bin/bash", "-c", script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = running.wait(timeout=540)
        finally:
            with contextlib.suppress(ProcessLookupError):  # what the commands left running
                os.killpg(running.pid, signal.SIGKILL)
    text = (folder / "said").read_text()
    assert code == 0, text[-3000:] + (folder / "errors").read_text()[-3000:]
    return text


@pytest.mark.parametrize("example", ["camera-to-mqtt"], indirect=True)
@pytest.mark.timeout(300)
def test_boxes_of_a_camera_follow_what_moves(example: Path) -> None:
    messages = [json.loads(line) for line in pasted(example).splitlines() if line.startswith('{"frame"')]
    assert len(messages) == 3
    for message in messages:
        (found,) = message["result"]["detections"]
        left = 16 + 4 * message["frame"]
        assert found["label"] == "object"
        assert found["box"] == pytest.approx([left, 96, left + 48, 144], abs=2)


@pytest.mark.parametrize("example", ["sensor-window"], indirect=True)
@pytest.mark.timeout(300)
def test_a_window_of_a_sensor_is_answered(example: Path) -> None:
    result = json.loads(pasted(example).splitlines()[-1])
    assert (result["model"], result["sensor"]) == ("activity", "left")
    assert result["label"] == "Standing"


@pytest.mark.parametrize("example", ["javascript"], indirect=True)
@pytest.mark.timeout(300)
def test_javascript_gets_answers_and_errors(example: Path) -> None:
    said = pasted(example)
    assert re.search(r"^scores \[1,4\] \[0.9", said, re.MULTILINE), said
    assert "404: Request for unknown model: 'no-such-model' is not found" in said


@pytest.mark.long
@pytest.mark.parametrize("example", ["fleet-of-three"], indirect=True)
@pytest.mark.timeout(300)
def test_three_devices_take_what_is_signed(example: Path) -> None:
    said = pasted(example)
    assert said.count("everything that is assigned is committed") == 5
    assert re.search(r"door: in-step.*?meter-reader/2/release │ 2 ", said, re.DOTALL), said
    assert "dock refuses it" in said
    assert re.search(r"meter-reader │ 1 +│ READY │ ✓", said.rpartition("dock refuses it")[2]), said


@pytest.mark.parametrize("example", ["own-model"], indirect=True)
@pytest.mark.timeout(300)
def test_a_trained_model_answers_as_its_framework_does(example: Path) -> None:
    said = pasted(example)
    (expected,) = re.findall(r"^scikit-learn says: (.*)$", said, re.MULTILINE)
    assert re.findall(r'^row \d: {"label": "(\w+)"', said, re.MULTILINE) == expected.split()
    assert '"name":"flowers"' in said
    assert '{"label": "setosa", "score": 0.9' in said.splitlines()[-1]


@pytest.mark.parametrize("example", ["pipelines"], indirect=True)
@pytest.mark.timeout(600)
def test_pipelines_decide_and_read(example: Path) -> None:
    said = pasted(example)
    digits = [int(digit) for digit in re.findall(r'^row \d+: {"digit": (\d), "vote": "\d"}', said, re.MULTILINE)]
    truth = np.load(example / "digits-truth.npy")
    assert np.mean(np.array(digits) == truth) > 0.97
    assert len(re.findall(r'^row \d+: {"risk": [\d.e-]+, "action": "(?:allow|block)"}', said, re.MULTILINE)) == 20
    small, large = (
        {line["text"].replace(" ", "") for line in json.loads(row)["lines"]}
        for row in re.findall(r'^row 0: ({"lines": .*})$', said, re.MULTILINE)
    )
    assert small == {"Total41,95EUR", "Invoice2026-11-30", "SerialA7-993-XK", "helloworld"}
    assert large - {""} >= small - {"helloworld"}  # it turns no lines
