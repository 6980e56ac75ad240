"""RepositoryModelLoad and Unload, over gRPC and HTTP, with `[models] control` on and off."""

import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

from tests.simulators.daemon import QUIET, SHORT_TRIALS, copy_model, running
from tests.simulators.hammer import hammering

CONTROL = f"{QUIET}{SHORT_TRIALS}[models]\ncontrol = true\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    copy_model("meter-reader", folder)
    copy_model("activity", folder)
    copy_model("activity", folder, version="2")
    return folder


@pytest.fixture(scope="module")
def gateway(library, tmp_path_factory, state):
    with running(tmp_path_factory.mktemp("gateway"), models=library, state=state, config=CONTROL) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def closed(library, tmp_path_factory, state):
    with running(tmp_path_factory.mktemp("closed"), models=library, state=state) as daemon:
        yield daemon


def connected(protocol, daemon):
    if protocol == "grpc":
        return over_grpc.InferenceServerClient(daemon.grpc)
    return over_http.InferenceServerClient(daemon.http)


@pytest.fixture(params=["grpc", "http"])
def client(request, gateway):
    client = connected(request.param, gateway)
    yield client
    client.close()


def refusal(call, *arguments):
    with pytest.raises(InferenceServerException) as refused:
        call(*arguments)
    return refused.value.status(), refused.value.message()


def states(client):
    index = client.get_model_repository_index()
    lines = index if isinstance(index, list) else over_grpc_lines(index)
    return {(line["name"], line["version"]): line["state"] for line in lines}


def over_grpc_lines(index):
    return [{"name": line.name, "version": line.version, "state": line.state} for line in index.models]


def test_unload_and_load_again(client):
    client.unload_model("activity")
    assert not client.is_model_ready("activity")
    assert client.is_model_ready("meter-reader")
    assert states(client)["activity", "1"] == states(client)["activity", "2"] == "UNAVAILABLE"
    _, message = refusal(client.get_model_metadata, "activity")
    assert "model 'activity' is not ready" in message
    client.load_model("activity")
    assert client.is_model_ready("activity", "1")
    assert client.is_model_ready("activity", "2")


def test_a_model_that_was_not_there_at_the_start(client, library):
    name = f"new-{type(client).__module__.split('.')[1]}"
    copy_model("meter-reader", library, name=name)
    assert not client.is_model_ready(name)
    client.load_model(name)
    assert client.is_model_ready(name)


def test_loading_a_refused_model_says_why(client, library):
    name = f"bad-{type(client).__module__.split('.')[1]}"
    (copy_model("meter-reader", library, name=name) / "golden.npz").unlink()
    status, message = refusal(client.load_model, name)
    assert status in {"StatusCode.UNAVAILABLE", "503"}
    assert f"failed to load '{name}'" in message
    assert "golden.npz is missing" in message
    assert states(client)[name, "1"] == "UNAVAILABLE"


@pytest.mark.parametrize("name", ["nobody", "../meter-reader", ".", "a/b", "x" * 300])
def test_loading_what_the_directory_does_not_hold(client, name):
    status, message = refusal(client.load_model, name)
    assert status in {"StatusCode.NOT_FOUND", "404"}
    assert "failed to load" in message or "there is no /v2/repository/models" in message


def test_unloading_an_unknown_model(client):
    status, message = refusal(client.unload_model, "nobody")
    assert status in {"StatusCode.NOT_FOUND", "404"}
    assert "nobody" in message


def test_an_override_of_the_configuration_is_not_offered(client):
    status, message = refusal(lambda: client.load_model("activity", config="{}"))
    assert status in {"StatusCode.UNIMPLEMENTED", "501"}
    assert "model directory" in message
    assert client.is_model_ready("activity")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("verb", ["load_model", "unload_model"])
def test_denied_unless_allowed(closed, protocol, verb):
    client = connected(protocol, closed)
    status, message = refusal(getattr(client, verb), "activity")
    assert status in {"StatusCode.PERMISSION_DENIED", "403"}
    assert "[models] control = true" in message
    assert client.is_model_ready("activity")
    client.close()


def test_allowing_it_needs_no_restart(closed):
    with over_grpc.InferenceServerClient(closed.grpc) as client:
        before = closed.config_file.read_text()
        closed.config_file.write_text(CONTROL)
        closed.reload()
        client.unload_model("meter-reader")
        client.load_model("meter-reader")
        closed.config_file.write_text(before)
        closed.reload()
        assert refusal(client.unload_model, "activity")[0] == "StatusCode.PERMISSION_DENIED"


def test_loading_again_and_again_under_load_loses_nothing(gateway, library):
    manifest = library / "meter-reader" / "1" / "manifest.toml"
    with over_grpc.InferenceServerClient(gateway.grpc) as client, hammering(gateway, "meter-reader") as hammer:
        for turn in range(5):
            manifest.write_text(f"{manifest.read_text()}# turn {turn}\n")
            client.load_model("meter-reader")
        hammer.wait_answers()
    assert hammer.failures == []


def test_unloading_under_load_answers_everybody(gateway):
    """A request that comes too late is told that the model is unavailable, nothing else."""
    with over_grpc.InferenceServerClient(gateway.grpc) as client, hammering(gateway, "meter-reader") as hammer:
        client.unload_model("meter-reader")
        hammer.wait(lambda one: len(one.failures) == 2)
        client.load_model("meter-reader")
    assert all("is not ready" in failure or "was unloaded" in failure for failure in hammer.failures)
