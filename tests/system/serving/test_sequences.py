"""Models with sequences in the real daemon, with Triton's clients: the calls of its four sequence examples.

simple_{grpc,http}_sequence_sync_infer_client, simple_grpc_sequence_stream_infer_client and its form for asyncio, of
triton-inference-server/client, each with and without --dyna.
"""

import asyncio
import queue
import threading
import time
import uuid
from functools import partial

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as web
from tritonclient.grpc import aio
from tritonclient.utils import InferenceServerException

from tests.simulators.daemon import QUIET, SHORT_TRIALS, running
from tests.simulators.sequences_made import write_accumulator, write_triton_examples

VALUES = [11, 7, 5, 3, 2, 0, 1]


@pytest.fixture(scope="module")
def device(tmp_path_factory, state):
    folder = tmp_path_factory.mktemp("models")
    write_triton_examples(folder)
    write_accumulator(folder)
    write_accumulator(folder, "brief", idle_us=50_000)
    with running(tmp_path_factory.mktemp("gateway"), models=folder, state=state, config=QUIET + SHORT_TRIALS) as daemon:
        yield daemon


def sequences(dyna):
    """Return model, sequence, values and expected outputs of the three sequences of an example."""
    name = "simple_dyna_sequence" if dyna else "simple_sequence"
    text = "1002" if dyna else str(uuid.uuid4())
    negative = [-value for value in VALUES]
    last = [20 - sum(VALUES[: count + 1]) for count in range(7)]
    found = [
        (name, 1000, [0, *VALUES], [1, *VALUES]),
        (name, 1001, [100, *negative], [101, *negative]),
        ("simple_string_dyna_sequence" if dyna else name, text, [20, *negative], [20, *last] if dyna else None),
    ]
    if not dyna:
        found[2] = (*found[2][:3], [21, *negative])
    for _, sequence, _, expected in found if dyna else ():
        expected[-1] += int(sequence)
    return found


def tensor(module, value):
    given = module.InferInput("INPUT", [1, 1], "INT32")
    given.set_data_from_numpy(np.array([[value]], np.int32))
    return [given]


def places(values):
    return [{"sequence_start": place == 0, "sequence_end": place == len(values) - 1} for place in range(len(values))]


def add(client, value, sequence, model="sums", module=triton, **place):
    """Return the sum after a request."""
    answer = client.infer(model, tensor(module, value), sequence_id=sequence, **place)
    return int(answer.as_numpy("OUTPUT")[0, 0])


@pytest.mark.parametrize("dyna", [False, True])
@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_synchronous_sequences(device, kind, dyna):
    module = triton if kind == "grpc" else web
    with module.InferenceServerClient(getattr(device, kind)) as client:
        for model, sequence, values, expected in sequences(dyna):
            answers = [
                add(client, value, sequence, model, module, **place)
                for value, place in zip(values, places(values), strict=True)
            ]
            assert answers == expected


@pytest.mark.parametrize("dyna", [False, True])
def test_sequences_on_a_stream(device, dyna):
    answers, asked = queue.Queue(), sequences(dyna)
    with triton.InferenceServerClient(device.grpc) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        for model, sequence, values, _ in asked:
            for value, place in zip(values, places(values), strict=True):
                client.async_stream_infer(
                    model, tensor(triton, value), request_id=str(sequence), sequence_id=sequence, **place
                )
        found = {}
        for _ in range(24):
            answer = answers.get(timeout=30)
            found.setdefault(answer.get_response().id, []).append(int(answer.as_numpy("OUTPUT")[0, 0]))
    assert found == {str(sequence): expected for _, sequence, _, expected in asked}


def test_sequences_on_a_stream_of_asyncio(device):
    async def run():
        async def sent():
            for model, sequence, values, _ in sequences(True):
                for value, place in zip(values, places(values), strict=True):
                    given = {"inputs": tensor(aio, value), "request_id": str(sequence), "sequence_id": sequence}
                    yield {"model_name": model, **given, **place}

        found = {}
        async with aio.InferenceServerClient(device.grpc) as client:
            async for answer, error in client.stream_infer(sent()):
                assert error is None
                found.setdefault(answer.get_response().id, []).append(int(answer.as_numpy("OUTPUT")[0, 0]))
        assert found == {str(sequence): expected for _, sequence, _, expected in sequences(True)}

    asyncio.run(run())


def test_metadata_and_configuration_are_tritons(device):
    with triton.InferenceServerClient(device.grpc) as client, web.InferenceServerClient(device.http) as other:
        assert "sequence" in client.get_server_metadata().extensions
        seen = client.get_model_metadata("simple_string_dyna_sequence")
        assert [[each.name for each in side] for side in (seen.inputs, seen.outputs)] == [["INPUT"], ["OUTPUT"]]
        config = client.get_model_config("simple_string_dyna_sequence").config.sequence_batching
        assert [each.name for each in config.control_input] == ["END", "CORRID"]
        assert (config.state[0].input_name, config.max_sequence_idle_microseconds) == ("TOTAL", 60_000_000)
        document = other.get_model_config("simple_string_dyna_sequence")["sequence_batching"]
        assert document["state"][0]["output_name"] == "NEXT"


@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_refusals_have_tritons_words(device, kind):
    module = triton if kind == "grpc" else web
    with module.InferenceServerClient(getattr(device, kind)) as client:
        for sequence, words in ((0, "non-zero or non-empty correlation ID"), (77, "must specify the START flag")):
            with pytest.raises(InferenceServerException, match=words):
                add(client, 1, sequence, module=module)
        with pytest.raises(InferenceServerException, match="needs a sequence_id that is a number of UINT64"):
            add(client, 1, "camera", "simple_dyna_sequence", module, sequence_start=True)
        two = module.InferInput("INPUT", [2, 1], "INT32")
        two.set_data_from_numpy(np.ones((2, 1), np.int32))
        with pytest.raises(InferenceServerException, match="must specify batch-size 1 due to requirements"):
            client.infer("sums", [two], sequence_id=5, sequence_start=True)


def test_an_idle_sequence_is_forgotten(device):
    with triton.InferenceServerClient(device.grpc) as client:
        assert add(client, 1, 9, "brief", sequence_start=True) == 1
        time.sleep(0.2)
        with pytest.raises(InferenceServerException, match="must specify the START flag"):
            add(client, 1, 9, "brief")


def test_eight_clients_have_their_own_sums(device):
    failures = []

    def work(number):
        try:
            module = (triton, web)[number % 2]
            with module.InferenceServerClient((device.grpc, device.http)[number % 2]) as client:
                values = np.random.default_rng(number).integers(-100, 100, (6, 40))
                for step in range(40):  # six sequences in turn
                    place = {"sequence_start": step == 0, "sequence_end": step == 39}
                    for sequence in range(6):
                        found = add(client, values[sequence, step], f"{number}-{sequence}", module=module, **place)
                        assert found == values[sequence, : step + 1].sum()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=partial(work, number)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
