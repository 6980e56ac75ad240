"""Settings on trial: signals at the worst moments, lost records, lies of the agent, many restarts."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.common.domain.activation import Activation, activation_document
from gateway.device.agent.control import DaemonRefusedError
from gateway.serving.fleet_settings import TRIAL
from gateway.serving.store.settings_record import FILE, read_record
from tests.simulators.daemon import WAIT_S
from tests.simulators.fleet_device import SLOT
from tests.simulators.operator import until
from tests.simulators.settled_device import GOOD, Settled, children, command_line, device, instance

__all__ = ("device",)
pytestmark = pytest.mark.timeout(240)


def test_a_stop_while_settings_are_verified_ends_the_gateway(device: Settled) -> None:
    device.offer(GOOD)
    with device.started("sync") as agent:
        with device.verifying():
            device.daemon.signal(signal.SIGTERM)
            device.daemon.wait("STOPPING=1")
        assert device.daemon.ended() == 0
        agent.wait(WAIT_S)
    device.daemon.start()
    assert not device.refuses_json
    assert device.sync().code == 0  # the stop is no fault of the settings
    assert device.refuses_json


def test_a_second_trial_does_not_begin_while_the_first_one_restarts(device: Settled) -> None:
    device.send(GOOD)
    activation = device.activation
    device.send("")
    with ThreadPoolExecutor() as pool, socket.socket(socket.AF_UNIX) as second:
        first = pool.submit(device.control.try_settings, activation, 30.0)
        second.settimeout(WAIT_S)
        second.connect(str(device.socket))
        with device.verifying():
            second.sendall(_post("/v1/settings/trial", {"activation": activation_document(activation), "within_s": 30}))
            device.control.settings()  # answered after the second request has been accepted
        answer = second.makefile("rb").read()
        assert first.exception(WAIT_S) is None
    assert answer.startswith(b"HTTP/1.1 503"), answer
    assert b"it restarts or stops" in answer
    for _ in ("committed", "taken away", "on trial"):
        device.daemon.wait("READY=1")
    assert device.control.settings()["sha256"] == activation.release


def _post(path: str, body: dict[str, object]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + content


def test_committed_settings_that_no_longer_start_are_left_out(device: Settled) -> None:
    """The folder of a permitted socket goes away: the gateway serves without them; once it is back, with them."""
    place = device.folder / "memory"
    place.mkdir()
    policy = device.repository.add_file("policy/site.json", b'{"schema": 1, "settings": ["shared_memory"]}')
    done = device.send(f'{GOOD}[shared_memory]\nallowed = true\nsocket = "{place}/m.sock"\n', (policy,))
    assert done.code == 0, done.err
    assert device.daemon.stop() == 0
    place.rmdir()
    device.daemon.start()
    assert not device.refuses_json
    assert "could not start with them" in device.control.settings()["problem"]
    place.mkdir()
    assert device.sync().code == 0
    assert device.refuses_json


def test_settings_that_the_daemon_has_lost_are_tried_again(device: Settled) -> None:
    device.send(GOOD)
    assert device.daemon.stop() == 0
    (device.daemon.state / FILE).unlink()
    device.daemon.start()
    assert not device.refuses_json
    done = device.sync()
    assert (done.code, done.told["state"]) == (0, "in-step"), done.err
    assert device.refuses_json


def test_committed_settings_that_no_longer_fit_are_left_out_and_reported(device: Settled) -> None:
    device.send("[shares]\ncaller_percent = 50\n")
    config = device.daemon.config_file
    before = config.read_text()
    config.write_text(f"{before}[grpc]\nmax_receiving_bytes = 100_000_000\n[shares]\ncaller_percent = 90\n")
    assert device.daemon.stop() == 0
    device.daemon.start()
    assert "caller_percent" in device.control.status()["problem"]
    done = device.sync()
    assert (done.code, done.told["state"]) == (1, "behind"), done.err
    assert "caller_percent" in device.slot["rejected"]
    same = instance(device)
    device.sync()
    assert instance(device) == same


LIES: dict[str, Callable[[Activation, Activation], Activation]] = {
    "a model": lambda good, model: replace(model, slot=good.slot),
    "a model's evidence": lambda good, model: replace(good, evidence=model.evidence, root=model.root),
    "no evidence": lambda good, _: replace(good, evidence=()),
    "half the evidence": lambda good, _: replace(good, evidence=good.evidence[:1]),
    "evidence backwards": lambda good, _: replace(good, evidence=good.evidence[::-1]),
    "another digest": lambda good, model: replace(good, release=model.release),
    "no such blob": lambda good, _: replace(good, release="0" * 64),
    "another version": lambda good, _: replace(good, target="settings/berlin/9/release"),
    "a root to come": lambda good, _: replace(good, root=99),
    "a policy": lambda good, _: replace(good, target="policy/site.json"),
}


def test_the_daemon_believes_signatures_not_the_agent(device: Settled) -> None:
    device.send(GOOD)
    good, same, record = device.activation, instance(device), read_record(device.daemon.state)
    (model,) = json.loads((device.store / "active.json").read_text())["slots"].values()
    model = replace(good, target=model["target"], release=model["release"], evidence=tuple(model["evidence"]))
    for what, lie in LIES.items():
        with pytest.raises(DaemonRefusedError):
            pytest.fail(f"believed: {what} {device.control.try_settings(lie(good, model), 30.0)}")
    with pytest.raises(DaemonRefusedError):
        device.control.load(replace(good, slot=SLOT))
    blob = device.store / "blobs" / "sha256" / good.release
    blob.chmod(0o600)
    blob.write_bytes(blob.read_bytes().replace(b"1000", b"9000"))
    with pytest.raises(DaemonRefusedError):
        device.control.try_settings(good, 30.0)
    assert (instance(device), read_record(device.daemon.state)) == (same, record)


@pytest.mark.long
def test_many_restarts_leave_nothing_behind(device: Settled) -> None:
    device.send(GOOD)
    # one line: the listener, and no connection of the agent
    until(lambda: Path("/proc/net/unix").read_text().count(f" {device.socket}\n") == 1, "the agent stays connected")
    before = inherited(device.daemon.pid)
    for number in range(3):
        assert device.send(f"{GOOD}max_requests = {100 + number}\n").code == 0
    until(lambda: inherited(device.daemon.pid) == before, "a restart leaves something behind")
    device.offer("")
    with device.started("sync") as agent, device.verifying() as verifier:
        assert TRIAL.encode() not in Path(f"/proc/{verifier}/environ").read_bytes()
    agent.wait(WAIT_S)


def inherited(pid: int) -> dict[str, object]:
    """Return what a process could have from the one that it replaced."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    places = Path(f"/proc/{pid}/fd").iterdir()
    return {
        "descriptors": Counter(re.sub(r"\d+", "N", str(one.resolve())) for one in places),
        "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
        "children": [command_line(child) for child in children(pid)],
    }
