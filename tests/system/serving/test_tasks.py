"""A detector with a task: boxes of the original image over HTTP, MQTT, gRPC and on the command line."""

import http.client
import io
import json
import subprocess
import urllib.request
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from tests.performance.networks import tiny
from tests.simulators.daemon import COMMAND, QUIET, ROOT, SHORT_TRIALS, running
from tests.simulators.images_made import stored_turned
from tests.simulators.vision_models import write_yolov8
from tests.system.serving.test_mqtt import subscribed

SIDE = 64
CONFIG = f"""{QUIET}{SHORT_TRIALS}[gateway]
id = "bench"
[[mqtt.route]]
name = "gate"
topics = ["cameras/+"]
sensor = "topic[1]"
model = "street"
content_type = "image/png"
[[mqtt.route.rule]]
name = "person"
value = "score.person"
above = [0.5, 0.4]
topic = "alarms/{{sensor}}"
payload = "json"
template = '{{"state": {{state}}}}'
"""
BOXES = np.array([[16, 32, 16, 16, 0.9, 0.1], [17, 32, 16, 16, 0.8, 0.1], [48, 40, 8, 8, 0.1, 0.7]], np.float32).T
"""Two boxes of one person, of which the better is kept, and a car: centre, size, scores, in an input of 64 by 64."""
FOUND = [
    {"label": "person", "class": 0, "score": 0.9, "box": [16.0, 16.0, 48.0, 48.0]},
    {"label": "car", "class": 1, "score": 0.7, "box": [88.0, 40.0, 104.0, 56.0]},
]
"""The same in an image of 128 by 64: two pixels for each of the input, 16 rows of padding above."""


def write_detector(folder: Path) -> None:
    """Write a detector that always finds BOXES."""
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Squeeze", ["mean", "last"], ["level"]),
        helper.make_node("Mul", ["level", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "boxes"], ["output0"]),
    ]
    values = [
        helper.make_tensor_value_info("images", TensorProto.FLOAT, ["rows", 3, SIDE, SIDE]),
        helper.make_tensor_value_info("output0", TensorProto.FLOAT, ["rows", 6, 3]),
    ]
    weights = {"last": np.array([3]), "zero": np.float32(0), "boxes": BOXES[None]}
    graph = helper.make_graph(
        nodes,
        "street",
        values[:1],
        values[1:],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    onnx.checker.check_model(content)
    form = 'decode = ["png", "jpeg"]'
    write_yolov8(folder, content, ["person", "car"], form=form, side=SIDE, boxes=BOXES.shape[1])


def png(width: int = 128, height: int = 64) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (width, height), "#808080").save(content, "PNG")
    return content.getvalue()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_detector(folder / "street" / "1")
    write_detector(folder / "as-stored" / "1")
    manifest = folder / "as-stored" / "1" / "manifest.toml"
    text = manifest.read_text().replace('decode = ["png", "jpeg"]', 'decode = ["png"], orientation = "stored"')
    manifest.write_text(text.replace('name = "street"', 'name = "as-stored"', 1))
    (folder / "plain").mkdir()
    (folder / "plain" / "model.onnx").write_bytes(tiny().content)
    return folder


@pytest.fixture(scope="module")
def gateway(broker, library, tmp_path_factory):
    with running(tmp_path_factory.mktemp("gateway"), models=library, config=CONFIG, mqtt=broker.url) as daemon:
        daemon.wait_logged("link completed")
        yield daemon


def post(gateway, path, body, content_type):
    """Return status and JSON of the answer."""
    host, port = gateway.http.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    with closing(connection):
        connection.request("POST", path, body, {"Content-Type": content_type})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_an_image_becomes_boxes_in_its_own_pixels(gateway):
    assert post(gateway, "/v2/models/street/result", png(), "image/png") == (200, {"detections": FOUND})
    _, square = post(gateway, "/v2/models/street/result", png(64, 64), "image/png")
    assert square["detections"][0]["box"] == [8.0, 24.0, 24.0, 40.0]


def test_a_request_in_json_is_answered_too_and_prepared_pixels_are_those_of_the_input(gateway):
    data = np.zeros(3 * SIDE * SIDE).tolist()
    body = {"inputs": [{"name": "images", "datatype": "FP32", "shape": [1, 3, SIDE, SIDE], "data": data}]}
    _, answer = post(gateway, "/v2/models/street/result", json.dumps(body).encode(), "application/json")
    assert answer["detections"][0]["box"] == [8.0, 24.0, 24.0, 40.0]
    _, whole = post(gateway, "/v2/models/street/infer", json.dumps(body).encode(), "application/json")
    named = {output["name"]: output for output in whole["outputs"]}
    assert list(named) == ["result", "boxes", "scores", "classes"]
    assert json.loads(named["result"]["data"][0]) == answer
    assert named["classes"]["data"] == [0, 1]


def test_what_cannot_be_interpreted_is_refused_with_its_reason(gateway):
    status, answer = post(gateway, "/v2/models/street/result", b"no image", "image/png")
    assert (status, "is not a png or jpeg image" in answer["error"]) == (400, True)
    status, answer = post(gateway, "/v2/models/plain/result", png(), "image/png")
    assert (status, "declare [task] in its manifest" in answer["error"]) == (400, True)
    assert post(gateway, "/v2/models/none/result", png(), "image/png")[0] == 404


def test_grpc_clients_get_tensors_and_the_raw_output_by_name(gateway):
    client = triton.InferenceServerClient(gateway.grpc)
    image = triton.InferInput("images", [1], "BYTES")
    image.set_data_from_numpy(np.array([png()], object))
    answer = client.infer("street", [image])
    assert answer.as_numpy("boxes").tolist() == [[one["box"] for one in FOUND]]
    assert json.loads(answer.as_numpy("result")[0]) == {"detections": FOUND}
    raw = client.infer("street", [image], outputs=[triton.InferRequestedOutput("output0")])
    assert raw.as_numpy("output0").shape == (1, 6, 3)
    assert client.get_model_metadata("street").outputs[0].name == "result"


def test_a_camera_over_mqtt_gets_its_detections_and_a_rule_follows_a_label(gateway, broker, tmp_path):
    frame = tmp_path / "frame.png"
    frame.write_bytes(png())
    words = ["mosquitto_pub", "-p", str(broker.port), "-q", "1", "-t", "cameras/gate", "-f", str(frame)]
    with subscribed(broker, "alarms/gate", 1) as alarms, subscribed(broker, "edge/bench/results/gate/gate", 1) as heard:
        subprocess.run(words, check=True)
    assert heard[0]["payload"]["detections"] == FOUND
    assert heard[0]["payload"]["model"] == "street"
    assert alarms[0]["payload"]["state"] == "on"


def test_the_command_draws_what_was_found(gateway, tmp_path):
    picture, drawn = tmp_path / "street.png", tmp_path / "found.png"
    picture.write_bytes(png())
    words = [*COMMAND, "infer", "street", "--image", str(picture), "--draw", str(drawn), "--url", gateway.http]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "person" in done.stdout
    assert "16 16 48 48" in done.stdout
    with Image.open(drawn) as image:
        assert image.size == (128, 64)
        assert image.getpixel((16, 30)) == (230, 25, 75)


def test_boxes_are_those_of_the_image_that_a_person_sees(gateway, library, tmp_path):
    def turned():
        page = urllib.request.urlopen(f"http://{gateway.http}/metrics", timeout=20).read().decode()
        return sum(float(line.split()[-1]) for line in page.splitlines() if "images_turned_total{" in line)

    before = turned()
    pixels = np.full((64, 128, 3), 128, np.uint8)
    for orientation in range(1, 9):
        content = stored_turned(pixels, orientation)
        assert post(gateway, "/v2/models/street/result", content, "image/png") == (200, {"detections": FOUND})
    assert turned() == before + 7
    image = triton.InferInput("images", [2], "BYTES")
    image.set_data_from_numpy(np.array([png(), content], object))
    with triton.InferenceServerClient(gateway.grpc) as client:
        assert client.infer("street", [image]).as_numpy("boxes").tolist() == [[one["box"] for one in FOUND]] * 2
    (tmp_path / "phone.png").write_bytes(content)
    options = ["--image", str(tmp_path / "phone.png"), "--draw", str(tmp_path / "found.png")]
    for model, size, place in (("street", (128, 64), (16, 30)), ("as-stored", (64, 128), (16, 60))):
        for where in (["--url", gateway.http], ["--models", str(library), "--state", str(tmp_path)]):
            subprocess.run([*COMMAND, "infer", model, *options, *where], cwd=ROOT, capture_output=True, check=True)
            with Image.open(tmp_path / "found.png") as drawn:
                assert (drawn.size, drawn.getpixel(place)) == (size, (230, 25, 75))


@pytest.mark.parametrize(("model", "told"), [("street", "turned upright"), ("as-stored", "as they are stored")])
def test_explain_tells_how_images_are_read(library, tmp_path, model, told):
    words = [*COMMAND, "explain", model, "--models", str(library), "--state", str(tmp_path), "--no-measure"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"images are {told}" in done.stdout.replace("read as", "as")
