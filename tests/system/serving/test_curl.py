"""curl as the client: what a shell script sees, on TCP and on a UNIX socket; and gRPC on a UNIX socket."""

import json
import subprocess

import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.simulators.daemon import ANYWHERE, golden, running


@pytest.fixture(scope="module")
def gateway(tmp_path_factory, state):
    folder = tmp_path_factory.mktemp("s")
    with running(
        folder, state=state, grpc=[ANYWHERE, f"unix:{folder}/g.sock"], http=[f"unix:{folder}/h.sock", ANYWHERE]
    ) as daemon:
        yield daemon


@pytest.fixture(params=["tcp", "unix"])
def curl(request, gateway):
    """Return a function that returns status code, headers by name, body."""
    unix = ["--unix-socket", str(gateway.folder / "h.sock")] if request.param == "unix" else []
    host = "localhost" if unix else gateway.addresses("http")[1]

    def ask(path, *options, body=None):
        command = ["curl", "-sS", "-i", "--max-time", "20", *unix, *options, f"http://{host}{path}"]
        said = subprocess.run(command, input=body, capture_output=True, check=True).stdout
        *_, head, content = (
            said.split(b"\r\n\r\n", 2) if said.startswith(b"HTTP/1.1 100") else said.split(b"\r\n\r\n", 1)
        )
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), headers, content

    return ask


def test_health(curl):
    assert curl("/v2/health/live")[::2] == (200, b'{"live":true}')
    assert curl("/v2/health/ready")[::2] == (200, b'{"ready":true}')
    status, headers, body = curl("/v2/models/activity/ready")
    assert (status, json.loads(body)) == (200, {"name": "activity", "ready": True})
    assert headers["content-type"].startswith("application/json")
    assert curl("/v2/models/nobody/ready")[0] == 503


def test_a_raw_binary_request(curl):
    wanted = golden("meter-reader", 1)
    raw = ("-H", "Inference-Header-Content-Length: 0", "--data-binary", "@-")
    status, headers, said = curl("/v2/models/meter-reader/infer", *raw, body=wanted.rows.tobytes())
    scores = np.frombuffer(said[int(headers["inference-header-content-length"]) :], "<f4")
    assert (status, scores.argmax()) == (200, wanted.scores[0].argmax())
    status, _, said = curl("/v2/models/meter-reader/infer", *raw, body=wanted.rows.tobytes()[:-1])
    assert (status, "255 bytes do not fit" in json.loads(said)["error"]) == (400, True)


def test_inference_in_json(curl):
    wanted = golden("activity", 2)
    tensor = {"name": "motion", "datatype": "FP32", "shape": [2, 100, 6], "data": wanted.rows.tolist()}
    body = json.dumps({"id": "7", "inputs": [tensor]}).encode()
    status, _, said = curl("/v2/models/activity/versions/1/infer", "--data-binary", "@-", body=body)
    answer = json.loads(said)
    assert (status, answer["id"], answer["model_name"], answer["model_version"]) == (200, "7", "activity", "1")
    scores = answer["outputs"][0]["data"]
    assert answer["outputs"][0]["shape"] == [2, 4]
    classes = [max(range(4), key=lambda index, row=row: scores[row * 4 + index]) for row in range(2)]
    assert classes == wanted.scores.argmax(axis=1).tolist()


def test_an_image_straight_from_a_file(curl, digit_png, tmp_path):
    """Binary tensor data: the JSON part, then a BYTES element, length first."""
    image, digit = digit_png
    element = len(image).to_bytes(4, "little") + image
    head = json.dumps(
        {
            "inputs": [
                {"name": "image", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(element)}}
            ],
            "outputs": [{"name": "scores", "parameters": {"classification": 1}}],
        }
    ).encode()
    status, _, said = curl(
        "/v2/models/meter-reader/infer",
        *("-H", f"Inference-Header-Content-Length: {len(head)}", "-H", "Content-Type: application/octet-stream"),
        *("--data-binary", "@-"),
        body=head + element,
    )
    assert status == 200, said
    assert json.loads(said)["outputs"][0]["data"][0].split(":")[1:] == [str(digit), str(digit)]


def test_the_index_is_asked_by_post(curl):
    status, _, said = curl("/v2/repository/index", "-X", "POST")
    assert status == 200
    assert [line["name"] for line in json.loads(said)] == ["activity", "meter-reader"]


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        ("/v2/models/nobody", [], 404),
        ("/v2/models/activity/versions/9", [], 404),
        ("/v2/nothing", [], 404),
        ("/v2/models/activity/infer", ["-X", "GET"], 405),
        ("/v2/models/activity/infer", ["-d", "{"], 400),
        ("/v2/models/activity/infer", ["-d", "[]"], 400),
        ("/v2/models/activity/infer", ["-X", "POST"], 400),
        ("/v2/repository/models/activity/load", ["-X", "POST"], 403),
    ],
)
def test_refusals_are_json_with_one_error(curl, path, options, status):
    got, headers, said = curl(path, *options)
    assert got == status, said
    assert headers["content-type"].startswith("application/json")
    assert list(json.loads(said)) == ["error"]


def test_the_api_describes_itself(curl):
    status, _, said = curl("/schema/openapi.json")
    assert status == 200
    assert "/v2/models/{model}/infer" in json.loads(said)["paths"]


def test_grpc_on_a_unix_socket(gateway):
    wanted = golden("meter-reader", 2)
    tensor = triton.InferInput("image", [2, 1, 8, 8], "FP32")
    tensor.set_data_from_numpy(wanted.rows)
    with triton.InferenceServerClient(f"unix:{gateway.folder}/g.sock") as client:
        scores = client.infer("meter-reader", [tensor]).as_numpy("scores")
    assert (scores.argmax(axis=1) == wanted.scores.argmax(axis=1)).all()


@pytest.mark.parametrize("name", ["g.sock", "h.sock"])
def test_only_owner_and_group_may_connect(gateway, name):
    assert (gateway.folder / name).stat().st_mode & 0o777 == 0o660
