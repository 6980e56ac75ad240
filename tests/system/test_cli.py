"""The command line as a shell sees it: output, exit codes, errors in one line on standard error."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.simulators.daemon import COMMAND, ROOT, SHIPPED, copy_model, golden, running

PLAIN = {**os.environ, "COLUMNS": "120"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory, state):
    folder = tmp_path_factory.mktemp("gateway")
    with running(folder, state=state, http=["127.0.0.1:0", f"unix:{folder}/h.sock"]) as daemon:
        yield daemon


@pytest.fixture
def cli(state):
    """Return a function that runs a command with the shared state."""

    def call(*arguments, body=None, keep_state=True):
        stateful = keep_state and arguments[0] in {"explain", "doctor", "models", "infer"}
        command = [*COMMAND, *arguments, *(["--state", str(state)] if stateful else [])]
        return subprocess.run(command, cwd=ROOT, input=body, capture_output=True, env=PLAIN, check=False)

    return call


def told(done, code):
    """Return the JSON that a command printed, having ended with `code`."""
    assert done.returncode == code, done.stderr.decode()
    return json.loads(done.stdout)


def test_probe(cli):
    inventory = told(cli("probe", "--json"), 0)
    assert list(inventory) == [
        "arch",
        "board",
        "cpu",
        "memory_bytes",
        "accelerators",
        "profile",
        "profile_from",
        "providers",
    ]
    assert list(inventory["board"]) == ["model", "compatible"]
    assert list(inventory["cpu"]) == ["vendor", "model", "cores", "features"]
    assert inventory["memory_bytes"] > 0
    assert inventory["profile"].encode() in cli("probe").stdout


def test_explain(cli):
    explained = told(cli("explain", "activity", "--json"), 0)
    assert {"model", "profile", "chosen", "variants"} <= set(explained)
    assert (explained["model"], len(explained["variants"]) >= 7) == ("activity", True)
    for variant in explained["variants"]:
        keys = [
            "name",
            "runtime",
            "precision",
            "accelerator",
            "provider",
            "isolated",
            "rank",
            "eligible",
            "reason",
            "measured",
        ]
        keys += ["level", "joining", "remarks", "threads", "runs", "parallel"]
        assert list(variant) == keys
        assert variant["reason"]
        if variant["measured"]:
            assert {"p50_us", "p99_us", "cpu_us", "memory_bytes"} <= set(variant["measured"])
    chosen = next(variant for variant in explained["variants"] if variant["name"] == explained["chosen"])
    assert chosen["eligible"]
    assert explained["chosen"].encode() in cli("explain", "activity").stdout


def test_models(cli):
    listed = told(cli("models", "--json"), 0)["models"]
    assert [(line["name"], line["version"], line["problem"]) for line in listed] == [
        ("activity", "1", None),
        ("meter-reader", "1", None),
    ]


def test_models_check_of_a_good_and_a_bad_release(cli, tmp_path):
    assert told(cli("models", "check", str(SHIPPED / "activity"), "--json"), 0)["ok"]
    (copy_model("activity", tmp_path) / "golden.npz").unlink()
    checked = told(cli("models", "check", str(tmp_path / "activity" / "1"), "--json"), 1)
    assert not checked["ok"]
    assert "golden.npz is missing" in checked["releases"][0]["problem"]
    assert b"golden.npz is missing" in cli("models", "check", str(tmp_path)).stdout.replace(b"\n", b" ")


def test_models_check_of_a_model_directory_with_files_only(cli, tmp_path):
    model = SHIPPED / "meter-reader" / "1" / "onnx-fp32" / "model.onnx"
    for name in ("first.onnx", "second.onnx"):
        shutil.copy(model, tmp_path / name)
    checked = told(cli("models", "check", str(tmp_path), "--json"), 0)
    assert [(one["name"], one["ok"]) for one in checked["releases"]] == [("first", True), ("second", True)]


def test_doctor(cli):
    done = cli("doctor", "--json")
    findings = json.loads(done.stdout)["findings"]
    assert done.returncode == (1 if findings else 0)
    assert all(set(finding) == {"subject", "problem", "remedy", "code"} for finding in findings)


def test_doctor_finds_a_broken_model(cli, tmp_path):
    (copy_model("activity", tmp_path) / "golden.npz").unlink()
    findings = told(cli("doctor", "--models", str(tmp_path), "--json"), 1)["findings"]
    assert any("golden.npz is missing" in finding["problem"] for finding in findings)


def test_config(cli):
    settings = told(cli("config", "--json"), 0)
    assert settings["grpc"]["listen"] == ["127.0.0.1:8001"]
    assert settings["http"]["listen"] == ["127.0.0.1:8000"]
    assert settings["models"]["control"] is False


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[limits]\nqueue_requests = 'many'\n", ":2: limits.queue_requests: must be an integer, not 'many'"),
        ("[limits]\n\nqueues = 3\n", ":3: limits.queues: unknown key"),
        ("[nobody]\nx = 1\n", "nobody: unknown key"),
        ("[grpc]\nlisten = ['nowhere']\n", ":2: grpc.listen: 'nowhere' is no address"),
        ("[[mqtt.route]]\nname = 'a'\nmodel = 'b'\n", "topics: missing"),
        ("[mqtt]\nurl = 'http://x'\n", ":2: mqtt.url: "),
        ("x = \n", ":1: not valid TOML"),
        ("[http]\nlisten = ['0.0.0.0:80']\n", "[auth] tokens_file"),
        ("[tls]\ncert = '/nowhere.pem'\n", "cert and key go together"),
    ],
)
def test_config_check_names_file_table_key_and_line(cli, tmp_path, text, said):
    file = tmp_path / "edge.toml"
    file.write_text(text)
    done = cli("config", "check", str(file))
    assert done.returncode == 1
    assert said in done.stdout.decode()
    if said.startswith(":"):
        assert done.stdout.decode().startswith(f"{file}{said}")


@pytest.mark.parametrize(("text", "code"), [("[limits]\nqueues = 3\n", 2), ("[http]\nlisten = ['0.0.0.0:80']\n", 0)])
def test_what_is_wrong_with_a_file_ends_those_that_need_it(cli, tmp_path, text, code):
    file = tmp_path / "edge.toml"
    file.write_text(text)
    checked = told(cli("config", "check", str(file), "--json"), 1)
    assert (checked["file"], checked["ok"]) == (str(file), False)
    assert cli("probe", "--config", str(file)).returncode == code


def test_config_check_names_an_absent_model_directory(cli, tmp_path):
    file = tmp_path / "edge.toml"
    file.write_text('[models]\ndir = "/nowhere"\n')
    assert told(cli("config", "check", str(file), "--json"), 1)["findings"] == [
        "models.dir: /nowhere is no folder; create it, or name another one"
    ]


def test_config_check_recommends_what_is_safer(cli, tmp_path):
    (tmp_path / "tokens").write_text("cam secret\nold other expires=2020-01-01\n")
    (tmp_path / "tokens").chmod(0o600)
    file = tmp_path / "edge.toml"
    file.write_text("[grpc]\nlisten = ['0.0.0.0:8001']\n[auth]\nanonymous = true\n")
    (anonymous,) = told(cli("config", "check", str(file), "--json"), 0)["remarks"]
    assert "anyone on the network may call 0.0.0.0:8001" in anonymous
    file.write_text(f'[auth]\ntokens_file = "{tmp_path}/tokens"\n')
    checked = told(cli("config", "check", str(file), "--json"), 0)
    plain, expired = checked["remarks"]
    assert "tokens of cam, old in clear text; write sha256:HEX" in plain
    assert "tokens of old expired; remove them" in expired
    assert b"recommended: auth.tokens_file: tokens of old" in cli("config", "check", str(file)).stdout


def test_config_check_of_a_good_file(cli, gateway):
    assert told(cli("config", "check", str(gateway.config_file), "--json"), 0)["ok"]


# ---- infer -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def inputs(tmp_path, digit_png):
    """Return a request of each kind for meter-reader, and the digits that are right."""
    rows = golden("meter-reader", 3)
    (tmp_path / "digit.png").write_bytes(digit_png[0])
    np.savez(tmp_path / "rows.npz", image=rows.rows)
    tensor = {"name": "image", "datatype": "FP32", "shape": [3, 1, 8, 8], "data": rows.rows.tolist()}
    (tmp_path / "rows.json").write_text(json.dumps({"inputs": [tensor]}))
    digits = rows.scores.argmax(axis=1).tolist()
    return {
        "image": (["--image", str(tmp_path / "digit.png")], [digit_png[1]]),
        "npz": (["--npz", str(tmp_path / "rows.npz")], digits),
        "json": (["--json", str(tmp_path / "rows.json")], digits),
        "stdin": (["--json", "-"], digits),
    }


@pytest.mark.parametrize("where", ["here", "tcp", "unix"])
@pytest.mark.parametrize("kind", ["image", "npz", "json", "stdin"])
def test_infer(cli, gateway, inputs, kind, where):
    options, digits = inputs[kind]
    body = Path(inputs["json"][0][1]).read_bytes() if kind == "stdin" else None
    url = {"here": [], "tcp": ["--url", gateway.http], "unix": ["--url", f"unix:{gateway.folder}/h.sock"]}[where]
    answer = told(cli("infer", "meter-reader", *options, *url, "--output", "json", body=body), 0)
    scores = np.array(answer["outputs"][0]["data"]).reshape(-1, 10)
    assert scores.argmax(axis=1).tolist() == digits
    assert answer["model_name"] == "meter-reader"


def test_infer_prints_a_table_for_people(cli, inputs):
    options, digits = inputs["npz"]
    lines = cli("infer", "meter-reader", *options).stdout.decode().splitlines()
    assert [line.split("│")[1].strip() for line in lines if line[:1].isdigit()] == [str(digit) for digit in digits]


REFUSED = [
    (2, ["infer", "meter-reader", "--image", "/nowhere.png"], "/nowhere.png: cannot be read"),
    (1, ["infer", "meter-reader", "--image", str(ROOT / "LICENSE")], "INVALID: image 0 of input 'image' is not a jpeg"),
    (1, ["infer", "meter-reader", "--json", "-"], "INVALID: -: the request body"),
    (2, ["infer", "meter-reader", "--npz", str(ROOT / "LICENSE")], "no npz file"),
    (1, ["infer", "meter-reader", "--npz", str(SHIPPED / "activity/1/golden.npz")], "holds no array 'image'"),
    (2, ["infer", "nobody", "--json", "-"], "holds no model 'nobody'; known are activity, meter-reader"),
    (2, ["infer", "activity", "--model-version", "9", "--json", "-"], "version '9'"),
    (
        3,
        ["infer", "activity", "--json", "-", "--url", "127.0.0.1:1"],
        "no gateway answers at http://127.0.0.1:1",
    ),
    (3, ["infer", "activity", "--json", "-", "--url", "unix:/nowhere"], "no gateway answers at unix:/nowhere"),
    (2, ["infer", "activity", "--json", "-", "--url", "nowhere"], "--url: 'nowhere' is no address"),
    (2, ["explain", "nobody"], "holds no model 'nobody'"),
    (2, ["explain", "../activity"], "holds no model"),
    (2, ["probe", "--root", "/nowhere"], "/nowhere: is no folder"),
    (2, ["probe", "--config", "/nowhere.toml"], "/nowhere.toml: cannot be read"),
    (2, ["models", "--models", "/nowhere"], "/nowhere: the model directory does not exist"),
    (2, ["models", "check", "/nowhere"], "/nowhere: is no folder"),
    (2, ["models", "check"], "models check DIR"),
    (2, ["run", "--grpc", "nowhere"], "--grpc: 'nowhere' is no address"),
    (2, ["run", "--grpc", "off", "--http", "off", "--mqtt", "nonsense"], "'nonsense' is no broker address"),
]


@pytest.mark.parametrize(("code", "arguments", "said"), REFUSED, ids=lambda value: "")
def test_refusals_take_one_line(cli, code, arguments, said):
    done = cli(*arguments, body=b"{}")
    assert done.returncode == code, done.stderr
    *_, last = lines = done.stderr.decode().splitlines()
    assert last.startswith("edge-gateway: ")
    assert said in last
    assert [line for line in lines if line.startswith("edge-gateway: ")] == [last]
    assert "Traceback" not in done.stderr.decode()


def test_a_daemon_s_refusal_is_a_finding(cli, gateway):
    done = cli("infer", "nobody", "--json", "-", "--url", gateway.http, body=b"{}")
    assert (done.returncode, b"has no model 'nobody'" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("arguments", [["config", "--json"], ["models"], ["explain", "activity", "--no-measure"]])
def test_a_reader_that_leaves_early_is_no_error(state, arguments):
    stateful = ["--state", str(state)] if arguments[0] == "explain" else []
    with subprocess.Popen(
        [*COMMAND, *arguments, *stateful], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


def test_a_full_disk_is_said_in_one_line(cli):
    with open("/dev/full", "w") as full:  # noqa: PTH123  a device
        done = subprocess.run([*COMMAND, "models"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (3, b"edge-gateway: No space left on device\n")


def test_a_terminal_without_unicode(state):
    narrow = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, "models"], cwd=ROOT, env=narrow, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"meter-reader" in done.stdout
