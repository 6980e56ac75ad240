"""An unmodified tritonclient, blocking and asynchronous, against the real daemon and both its gRPC servers."""

import asyncio
import queue
from functools import partial

import numpy as np
import pytest
import tritonclient.grpc as blocking
import tritonclient.grpc.aio as asynchronous
from tritonclient.utils import InferenceServerException

from tests.simulators.daemon import golden

MODELS = ("meter-reader", "activity")


def given(name, rows):
    tensor = blocking.InferInput(name, list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    return [tensor]


@pytest.fixture
def client(served):
    with blocking.InferenceServerClient(served.grpc) as client:
        yield client


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rows", [1, 7, 32])
def test_golden_rows_get_their_classes(client, model, rows):
    wanted = golden(model, rows)
    scores = client.infer(model, given(wanted.name, wanted.rows)).as_numpy("scores")
    assert (scores.argmax(axis=1) == wanted.scores.argmax(axis=1)).all()
    np.testing.assert_allclose(scores.sum(axis=1), 1.0, atol=1e-3)


def test_ten_requests_at_once_each_get_their_own_rows(served):
    async def ask():
        wanted = golden("meter-reader", 40)
        async with asynchronous.InferenceServerClient(served.grpc) as client:
            asked = [client.infer("meter-reader", given(wanted.name, part)) for part in np.split(wanted.rows, 10)]
            answers = await asyncio.gather(*asked)
        scores = np.concatenate([answer.as_numpy("scores") for answer in answers])
        assert (scores.argmax(axis=1) == wanted.scores.argmax(axis=1)).all()

    asyncio.run(ask())


def test_a_classification_output_names_the_best_classes(client):
    wanted = golden("activity", 2)
    outputs = [blocking.InferRequestedOutput("scores", class_count=2)]
    named = client.infer("activity", given(wanted.name, wanted.rows), outputs=outputs).as_numpy("scores")
    assert named.shape == (2, 2)
    scores, index, label = named[0, 0].decode().split(":")
    assert float(scores) == pytest.approx(wanted.scores[0].max(), abs=0.05)
    assert (int(index), label) == (
        wanted.scores[0].argmax(),
        ["Standing", "Running", "Walking", "Badminton"][int(index)],
    )


def test_an_image_is_decoded_by_the_gateway(client, digit_png):
    image, digit = digit_png
    tensor = blocking.InferInput("image", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([image], object))
    assert client.infer("meter-reader", [tensor]).as_numpy("scores").argmax() == digit


def test_a_stream_answers_every_request_and_survives_a_bad_one(client):
    answers = queue.Queue()
    wanted = golden("meter-reader", 4)
    client.start_stream(lambda result, error: answers.put((result, error)))
    for index in range(4):
        client.async_stream_infer(
            "meter-reader", given(wanted.name, wanted.rows[index : index + 1]), request_id=f"{index}"
        )
    client.async_stream_infer("nobody", given(wanted.name, wanted.rows[:1]))
    heard = [answers.get(timeout=10) for _ in range(5)]
    client.async_stream_infer("meter-reader", given(wanted.name, wanted.rows[:1]), request_id="after")
    heard.append(answers.get(timeout=10))
    client.stop_stream()
    errors = [str(error) for _, error in heard if error is not None]
    classes = {r.get_response().id: int(r.as_numpy("scores").argmax()) for r, _ in heard if r is not None}
    assert len(errors) == 1
    assert "Request for unknown model: 'nobody' is not found" in errors[0]
    assert classes == {
        **{f"{i}": int(wanted.scores[i].argmax()) for i in range(4)},
        "after": int(wanted.scores[0].argmax()),
    }


def test_what_the_server_and_its_models_say_of_themselves(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("activity")
    assert client.is_model_ready("activity", "1")
    assert not client.is_model_ready("activity", "2")
    assert not client.is_model_ready("nobody")
    server = client.get_server_metadata(as_json=True)
    assert server["name"] == "edge-inference-gateway"
    assert "classification" in server["extensions"]
    metadata = client.get_model_metadata("meter-reader", as_json=True)
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": ["-1", "1", "8", "8"]}]
    config = client.get_model_config("meter-reader", as_json=True)["config"]
    assert config["input"][0]["dims"] == ["1", "8", "8"]
    assert config["max_batch_size"] == 1024
    index = client.get_model_repository_index(as_json=True)["models"]
    assert [(line["name"], line["version"], line["state"]) for line in index] == [
        (n, "1", "READY") for n in sorted(MODELS)
    ]


def test_statistics_count_requests_rows_and_failures(client):
    def counted():
        line = client.get_inference_statistics("meter-reader", "1").model_stats[0]
        return line.inference_count, line.inference_stats.success.count, line.inference_stats.fail.count

    before = counted()
    wanted = golden("meter-reader", 5)
    client.infer("meter-reader", given(wanted.name, wanted.rows))
    with pytest.raises(InferenceServerException):
        client.infer("meter-reader", given("wrong", wanted.rows))
    assert np.subtract(counted(), before).tolist() == [5, 1, 1]


def test_a_deadline_that_has_passed(client):
    wanted = golden("meter-reader", 1)
    with pytest.raises(InferenceServerException) as refused:
        client.infer("meter-reader", given(wanted.name, wanted.rows), timeout=1)  # µs: over before it can be run
    assert "DEADLINE_EXCEEDED" in refused.value.status()


def test_the_asynchronous_client_streams_too(served):
    async def ask():
        wanted = golden("activity", 3)
        request = partial(dict, model_name="activity")

        async def requests():
            for row in range(3):
                yield request(inputs=given(wanted.name, wanted.rows[row : row + 1]), request_id=f"{row}")

        async with asynchronous.InferenceServerClient(served.grpc) as client:
            heard = [answer async for answer in client.stream_infer(requests())]
        assert [error for _, error in heard] == [None] * 3
        classes = {result.get_response().id: result.as_numpy("scores").argmax() for result, _ in heard}
        assert classes == {f"{row}": wanted.scores[row].argmax() for row in range(3)}

    asyncio.run(ask())
