"""An unmodified tritonclient over HTTP, blocking (gevent) and asynchronous (aiohttp), against the real daemon."""

import asyncio

import numpy as np
import pytest
import tritonclient.http as blocking
import tritonclient.http.aio as asynchronous
from tritonclient.utils import InferenceServerException

from tests.simulators.daemon import golden

MODELS = ("meter-reader", "activity")


def given(name, rows, *, binary=True):
    tensor = blocking.InferInput(name, list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows, binary_data=binary)
    return [tensor]


@pytest.fixture
def client(gateway):
    client = blocking.InferenceServerClient(gateway.http, concurrency=4)
    yield client
    client.close()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("rows", [1, 32])
def test_golden_rows_get_their_classes(client, model, binary, rows):
    wanted = golden(model, rows)
    outputs = [blocking.InferRequestedOutput("scores", binary_data=binary)]
    scores = client.infer(model, given(wanted.name, wanted.rows, binary=binary), outputs=outputs).as_numpy("scores")
    assert (scores.argmax(axis=1) == wanted.scores.argmax(axis=1)).all()


def test_nan_in_json_is_refused_where_the_model_wants_numbers(client):
    wanted = golden("meter-reader", 1)
    rows = np.where(wanted.rows == wanted.rows.max(), np.float32(np.nan), wanted.rows)
    with pytest.raises(InferenceServerException, match="holds NaN or infinity, which this model refuses") as caught:
        client.infer("meter-reader", given(wanted.name, rows, binary=False))
    assert caught.value.status() == "400"


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_both_ways(client, algorithm):
    wanted = golden("meter-reader", 64)
    answer = client.infer(
        "meter-reader",
        given(wanted.name, wanted.rows),
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    assert (answer.as_numpy("scores").argmax(axis=1) == wanted.scores.argmax(axis=1)).all()


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_a_classification_output_names_the_best_classes(client, binary):
    wanted = golden("meter-reader", 3)
    outputs = [blocking.InferRequestedOutput("scores", binary_data=binary, class_count=1)]
    named = client.infer("meter-reader", given(wanted.name, wanted.rows), outputs=outputs).as_numpy("scores")
    texts = [value.decode() if isinstance(value, bytes) else value for value in named.ravel()]
    assert [int(text.split(":")[1]) for text in texts] == wanted.scores.argmax(axis=1).tolist()
    assert all(text.split(":")[1] == text.split(":")[2] for text in texts)


def test_an_image_is_decoded_by_the_gateway(client, digit_png):
    image, digit = digit_png
    tensor = blocking.InferInput("image", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([image], object))
    assert client.infer("meter-reader", [tensor]).as_numpy("scores").argmax() == digit


def test_asynchronous_requests_of_the_blocking_client(client):
    wanted = golden("meter-reader", 8)
    asked = [client.async_infer("meter-reader", given(wanted.name, part)) for part in np.split(wanted.rows, 8)]
    classes = [request.get_result().as_numpy("scores").argmax() for request in asked]
    assert classes == wanted.scores.argmax(axis=1).tolist()


def test_what_the_server_and_its_models_say_of_themselves(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("activity", "1")
    assert not client.is_model_ready("activity", "2")
    assert not client.is_model_ready("nobody")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    assert client.get_model_metadata("activity")["outputs"] == [
        {"name": "scores", "datatype": "FP32", "shape": [-1, 4]}
    ]
    assert client.get_model_config("activity")["input"][0]["dims"] == [100, 6]
    index = client.get_model_repository_index()
    assert [(line["name"], line["state"]) for line in index] == [(name, "READY") for name in sorted(MODELS)]


def test_statistics_count_rows(client):
    def rows():
        return client.get_inference_statistics("activity", "1")["model_stats"][0]["inference_count"]

    before = rows()
    wanted = golden("activity", 6)
    client.infer("activity", given(wanted.name, wanted.rows))
    assert rows() - before == 6


def test_an_unknown_model_is_refused_in_triton_s_words(client):
    wanted = golden("activity", 1)
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'nobody' is not found"):
        client.infer("nobody", given(wanted.name, wanted.rows))


def test_ten_requests_at_once_of_the_asynchronous_client(gateway):
    async def ask():
        wanted = golden("meter-reader", 40)
        async with asynchronous.InferenceServerClient(gateway.http) as client:
            asked = [client.infer("meter-reader", given(wanted.name, part)) for part in np.split(wanted.rows, 10)]
            answers = await asyncio.gather(*asked)
            metadata = await client.get_model_metadata("meter-reader")
        assert metadata["platform"]
        scores = np.concatenate([answer.as_numpy("scores") for answer in answers])
        assert (scores.argmax(axis=1) == wanted.scores.argmax(axis=1)).all()

    asyncio.run(ask())
