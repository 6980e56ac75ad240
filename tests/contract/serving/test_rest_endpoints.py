"""Every endpoint's body and every refusal's form, as plain HTTP clients see them."""

import asyncio
import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.problem import HTTP_STATUS
from gateway.common.domain.statistics import ServableStatistics, StepStatistics
from gateway.serving.frontends.rest_v2.settings import RestSettings
from tests.simulators.inference import SimulatedInference
from tests.simulators.rest_gateway import METRICS, infer_body, serving

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("rest_way")]
INFER = "/v2/models/identity_fp32/infer"


async def test_health_is_json_to_the_letter():
    async with serving() as gateway:
        for path, body in {
            "/v2/health/live": b'{"live":true}',
            "/v2/health/ready": b'{"ready":true}',
            "/v2/models/identity_fp32/ready": b'{"name":"identity_fp32","ready":true}',
            "/v2/models/identity_fp32/versions/1/ready": b'{"name":"identity_fp32","ready":true}',
        }.items():
            answer = await gateway.client.get(path)
            assert (answer.status_code, answer.content) == (200, body)
            assert answer.headers["content-type"] == "application/json"


class Starting(SimulatedInference):
    def ready(self, model="", version=""):
        return False


async def test_not_ready_is_503():
    async with serving(inference=Starting()) as gateway:
        for path, body in {
            "/v2/health/ready": {"ready": False},
            "/v2/models/identity_fp32/ready": {"name": "identity_fp32", "ready": False},
        }.items():
            answer = await gateway.client.get(path)
            assert (answer.status_code, answer.json()) == (503, body)
        assert (await gateway.client.get("/v2/health/live")).json() == {"live": True}


async def test_metadata_config_and_statistics():
    async with serving() as gateway:

        async def get(path):
            answer = await gateway.client.get(path)
            assert answer.status_code == 200, answer.text
            return answer.json()

        server = await get("/v2")
        assert set(server) == {"name", "version", "extensions"}
        assert "binary_tensor_data" in server["extensions"]
        for version in ("", "/versions/1"):
            path = f"/v2/models/identity_bytes{version}"
            assert await get(path) == {
                "name": "identity_bytes",
                "versions": ["1"],
                "platform": "reference",
                "inputs": [{"name": "x", "datatype": "BYTES", "shape": [-1, -1]}],
                "outputs": [{"name": "y", "datatype": "BYTES", "shape": [-1, -1]}],
            }
            config = await get(f"{path}/config")
            assert config["output"] == [{"name": "y", "data_type": "TYPE_STRING", "dims": [-1]}]
            assert (config["backend"], config["max_batch_size"]) == ("reference", 8)
            (counted,) = (await get(f"{path}/stats"))["model_stats"]
            assert set(counted["inference_stats"]) >= {"success", "fail", "queue", "compute_infer"}
        assert len((await get("/v2/models/stats"))["model_stats"]) == 14


PIPELINE = """
schema = 1
name = "identity_fp32"
version = "1"
[input]
picture = "image"
amount = "FP32[2]"
[[step]]
name = "cars"
model = "detector@3"
of = "picture"
[[step]]
name = "plates"
select = "cars"
where = "label == 'plate'"
by = "score"
top = 8
[[step]]
name = "text"
model = "reader"
of = "crop(picture, plates, 1.1)"
when = "plates.score < 0.8 or sum(amount) > 4"
deadline_s = 0.5
fallback = { text = "" }
[output]
found = { box = "plates.box", text = "text.text" }
count = "count(plates)"
"""


class Steps(SimulatedInference):
    def placement(self, model, version=""):
        placement = super().placement(model, version)
        return replace(placement, pipeline=read_pipeline(PIPELINE, "p") if model == "identity_fp32" else None)

    def statistics(self, model="", version=""):
        steps = {"picture": StepStatistics(4, 4, ns=9), "text": StepStatistics(3, 7, 2, 1, 5, 1_000)}
        return [ServableStatistics(model, version, steps=steps)]


async def test_the_steps_of_a_pipeline_have_a_document_of_their_own():
    async with serving(inference=Steps()) as gateway:
        found = (await gateway.client.get("/v2/models/identity_fp32/steps")).json()
        assert (await gateway.client.get("/v2/models/identity_fp32/versions/1/steps")).json() == found
        refused = await gateway.client.get("/v2/models/identity_bytes/steps")
        unknown = await gateway.client.get("/v2/models/other/steps")
    assert (refused.status_code, unknown.status_code) == (400, 404)
    assert "is no pipeline" in refused.json()["error"]
    assert [each["form"] for each in found["inputs"]] == ["image", "FP32[2]"]
    picture, cars, plates, text = found["steps"]
    assert (picture["kind"], picture["runs"], picture["ns"]) == ("image", 4, 9)
    assert cars == {"name": "cars", "kind": "model", "reads": ["picture"], "does": "picture", "model": "detector@3"}
    assert plates["does"] == "cars where label == 'plate' top 8 by score"
    assert (plates["kind"], plates["reads"]) == ("select", ["cars"])
    assert text["reads"] == ["picture", "amount", "plates"]
    assert (text["deadline_s"], text["fallback"], text["when"]) == (
        0.5,
        {"text": ""},
        "plates.score < 0.8 or sum(amount) > 4",
    )
    counted = {key: text[key] for key in ("runs", "rows", "skipped_rows", "failures", "fallbacks", "ns")}
    assert counted == {"runs": 3, "rows": 7, "skipped_rows": 2, "failures": 1, "fallbacks": 5, "ns": 1_000}
    assert found["outputs"] == [
        {"name": "found", "reads": ["plates", "text"], "does": "box = plates.box; text = text.text"},
        {"name": "count", "reads": ["plates"], "does": "count(plates)"},
    ]


async def test_the_index_may_leave_out_what_is_not_ready():
    inference = SimulatedInference()
    inference.unready.add("identity_fp32")
    async with serving(inference=inference) as gateway:
        everything = (await gateway.client.post("/v2/repository/index")).json()
        assert {"name": "identity_fp32", "version": "1", "state": "UNAVAILABLE", "reason": ""} in everything
        ready = (await gateway.client.post("/v2/repository/index", json={"ready": True})).json()
        assert len(ready) == len(everything) - 1
        assert (await gateway.client.post("/v2/repository/index", content=b'{"ready": 1}')).status_code == 400


async def test_the_list_of_models_has_those_that_are_ready():
    inference = SimulatedInference()
    inference.unready.add("identity_fp32")
    async with serving(inference=inference) as gateway:
        listed = (await gateway.client.get("/v2/models")).json()
    assert listed == {"models": sorted(set(inference.manifests) - {"identity_fp32"})}


async def test_models_are_loaded_and_unloaded_with_the_answers_of_kserve():
    async with serving() as gateway:
        for verb in ("load", "unload"):
            answer = await gateway.client.post(f"/v2/repository/models/identity_fp32/{verb}")
            assert (answer.status_code, answer.json()) == (200, {"name": "identity_fp32", verb: True})


GENERATE = "/v2/models/identity_bytes/generate"


@pytest.mark.parametrize("version", ["", "/versions/1"])
async def test_a_text_is_answered_with_a_text(version):
    sent = {"text_input": "grüße\n", "id": "7", "stream": False, "parameters": {"temperature": 0.5, "priority": 2}}
    expected = {"model_name": "identity_bytes", "model_version": "1", "id": "7", "text_output": "grüße\n"}
    async with serving() as gateway:
        answer = await gateway.client.post(f"/v2/models/identity_bytes{version}/generate", json=sent)
        assert (answer.status_code, answer.json()) == (200, expected)
        assert answer.headers["content-type"] == "application/json"
        (asked,) = gateway.inference.requests
        assert (asked.inputs["x"].array.tolist(), asked.priority) == ([["grüße\n".encode()]], 2)
        assert (asked.ignored_parameters, [output.name for output in asked.outputs]) == (2, ["y"])
        stream = await gateway.client.post(f"/v2/models/identity_bytes{version}/generate_stream", json=sent)
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.text.endswith("\n\n")
        (line,) = stream.text.split("\n\n")[:-1]
        assert json.loads(line.removeprefix("data: ")) == expected


async def test_the_models_own_names_are_answered_with_its_own_names():
    async with serving() as gateway:
        answer = await gateway.client.post(GENERATE, json={"x": "a", "parameters": None})
        assert answer.json() == {"model_name": "identity_bytes", "model_version": "1", "y": "a"}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v2/models/identity_fp32/generate", b'{"text_input":"a"}', 400, "has not one text input and one text output"),
        ("/v2/models/no/generate_stream", b'{"text_input":"a"}', 404, "unknown model"),
        (GENERATE, b'{"text":"a"}', 400, "belongs in 'text_input'"),
        (GENERATE, b'{"text_input":["a"]}', 400, "no JSON object of values"),
        (GENERATE, b'{"text_input":"a","parameters":{"timeout":"soon"}}', 400, "parameter 'timeout' of the request"),
        (GENERATE, b'{"text_input":"a","triton_x":1}', 400, "reserved for Triton usage"),
        (GENERATE, b'{"text_input":"\\ud800"}', 400, "\\ud800 at byte 15 is half of a surrogate pair"),
        (GENERATE, b"[", 400, "no JSON object of values"),
    ],
)
async def test_texts_that_are_refused(path, body, status, words):
    async with serving() as gateway:
        answer = await gateway.client.post(path, content=body)
        assert answer.status_code == status
        assert words in answer.json()["error"]


async def test_an_answer_in_json():
    async with serving() as gateway:
        answer = await gateway.client.post(INFER, json=infer_body(1.5, -2.0, id="r1"))
        assert answer.json() == {
            "model_name": "identity_fp32",
            "model_version": "1",
            "id": "r1",
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.5, -2.0]}],
        }
        assert answer.headers["content-type"] == "application/json"
        assert "inference-header-content-length" not in answer.headers


async def test_binary_in_and_out():
    header = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }
    head, raw = json.dumps(header).encode(), np.array([1, 2], "<f4").tobytes()
    async with serving() as gateway:
        headers = {"Inference-Header-Content-Length": str(len(head))}
        answer = await gateway.client.post(INFER, content=head + raw, headers=headers)
        length = int(answer.headers["inference-header-content-length"])
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.content[length:] == raw
        (output,) = json.loads(answer.content[:length])["outputs"]
        assert output["parameters"] == {"binary_data_size": 8}
        assert not gateway.inference.requests[0].inputs["x"].array.flags.writeable


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("br, deflate;q=0.5", "deflate"),
        ("gzip;q=0", None),
        ("identity", None),
    ],
)
async def test_large_answers_are_compressed_as_accepted(accept, encoding):
    async with serving() as gateway:
        body = infer_body(*range(1000))
        answer = await gateway.client.post(INFER, json=body, headers={"Accept-Encoding": accept})
        assert answer.headers.get("content-encoding") == encoding
        assert answer.json()["outputs"][0]["data"] == list(range(1000))
        small = await gateway.client.post(INFER, json=infer_body(1), headers={"Accept-Encoding": accept})
        assert "content-encoding" not in small.headers


@pytest.mark.parametrize("fault", Fault)
async def test_every_fault_has_its_status(fault):
    inference = SimulatedInference()
    inference.fault = RequestError(fault, "because “reasons”", retry_after_s=2.5)
    async with serving(inference=inference) as gateway:
        answer = await gateway.client.post(INFER, json=infer_body(1))
        assert answer.status_code == HTTP_STATUS[fault]
        assert answer.json() == {"error": "because “reasons”"}
        waits = fault in {Fault.OVERLOADED, Fault.THROTTLED, Fault.UNAVAILABLE}
        assert answer.headers.get("retry-after") == ("3" if waits else None)
        assert ("www-authenticate" in answer.headers) is (fault is Fault.UNAUTHENTICATED)


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/v2/nothing", 404, "there is no /v2/nothing"),
        ("GET", "/v2/models/absent", 404, "unknown model: 'absent'"),
        ("GET", "/v2/models/absent/config", 404, "unknown model"),
        ("GET", "/v2/models/identity_fp32/versions/9", 404, "unknown model"),
        ("GET", "/v2/models/absent/stats", 404, "unknown model"),
        ("GET", INFER, 405, "GET is not possible"),
        ("DELETE", "/v2", 405, "DELETE is not possible"),
        ("POST", "/v2/models/absent/infer", 404, "unknown model"),
        ("POST", INFER, 400, "no inference request"),
        ("GET", "/schema/swagger", 404, "openapi.json"),
        ("GET", "/v2/models/..%2f..%2fetc", 404, "there is no"),
    ],
)
async def test_errors_are_json_everywhere(method, path, status, says):
    async with serving() as gateway:
        answer = await gateway.client.request(method, path, content=b"" if method == "POST" else None)
        assert answer.status_code == status
        assert says in answer.json()["error"]
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("length", ["00", "-1", "abc", "99999999999999999999", "5000", ""])
async def test_the_header_length_must_fit(length):
    async with serving() as gateway:
        headers = {"Inference-Header-Content-Length": length}
        answer = await gateway.client.post(INFER, json=infer_body(1), headers=headers)
        assert answer.status_code == 400
        assert "Inference-Header-Content-Length" in answer.json()["error"]


@pytest.mark.parametrize("headers", [{}, {"Content-Encoding": "gzip"}], ids=["plain", "gzip"])
@pytest.mark.parametrize("version", ["", "/versions/1"])
async def test_a_raw_binary_request_is_its_tensor(headers, version):
    raw = np.arange(6, dtype="<f4").tobytes()
    async with serving() as gateway:
        answer = await gateway.client.post(
            f"/v2/models/identity_fp32{version}/infer",
            content=gzip.compress(raw) if headers else raw,
            headers={"Inference-Header-Content-Length": "0", **headers},
        )
        length = int(answer.headers["inference-header-content-length"])
        (output,) = json.loads(answer.content[:length])["outputs"]
        assert output == {"name": "y", "datatype": "FP32", "shape": [1, 6], "parameters": {"binary_data_size": 24}}
        assert answer.content[length:] == raw
        (request,) = gateway.inference.requests
        assert (request.version, request.caller) == (version and "1", "127.0.0.1")


async def test_a_raw_binary_request_that_fits_no_shape():
    async with serving() as gateway:
        headers = {"Inference-Header-Content-Length": "0"}
        answer = await gateway.client.post(INFER, content=bytes(5), headers=headers)
        assert (answer.status_code, "raw request is input 'x'" in answer.json()["error"]) == (400, True)


async def test_nan_and_infinity_are_written_as_triton_writes_them():
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[NaN,1,-Infinity,Infinity]}]}'
    async with serving() as gateway:
        answer = await gateway.client.post(INFER, content=body)
        assert answer.status_code == 200
        assert b'"data":[NaN,1.0,-Infinity,Infinity]' in answer.content


@pytest.mark.parametrize("path", ["/v2/trace/setting", "/v2/models/identity_fp32/trace/setting", "/v2/logging"])
async def test_settings_over_the_network_are_refused_with_the_reason(path):
    async with serving() as gateway:
        for answer in (await gateway.client.get(path), await gateway.client.post(path, json={})):
            assert (answer.status_code, "are not offered" in answer.json()["error"]) == (501, True)
        assert (await gateway.client.delete(path)).status_code == 405


class Broken(SimulatedInference):
    async def infer(self, request):
        raise KeyError("a secret of ours")

    def submit(self, *_):
        raise KeyError("a secret of ours")


async def test_a_defect_of_ours_is_told_to_the_log_alone(caplog):
    async with serving(inference=Broken()) as gateway:
        answer = await gateway.client.post(INFER, json=infer_body(1))
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert "a secret of ours" in caplog.text
        assert (await gateway.client.get("/v2/health/live")).status_code == 200


async def test_the_metrics_page():
    async with serving() as gateway:
        answer = await gateway.client.get("/metrics")
        assert (answer.content, answer.headers["content-type"]) == METRICS


async def test_the_schema_describes_every_endpoint_and_loads_nothing():
    async with serving() as gateway:
        for path in ("/schema/openapi.json", "/schema"):
            answer = await gateway.client.get(path)
            schema = answer.json()
            assert "cdn" not in answer.text
        assert {
            "/v2",
            "/v2/health/live",
            "/v2/health/ready",
            "/v2/models/{model}",
            "/v2/models/{model}/versions/{version}/infer",
            "/v2/models/stats",
            "/v2/repository/index",
            "/v2/repository/models/{model}/load",
            "/metrics",
        } <= set(schema["paths"])
        infer = schema["paths"]["/v2/models/{model}/infer"]["post"]
        assert set(infer["requestBody"]["content"]) == {"application/json", "application/octet-stream"}


async def test_many_at_once_keep_their_answers():
    async with serving(settings=RestSettings(max_requests=64)) as gateway:

        async def ask(number):
            answer = await gateway.client.post(INFER, json=infer_body(number))
            return answer.json()["outputs"][0]["data"] == [number]

        assert all(await asyncio.gather(*(ask(number) for number in range(50))))
