"""A bit that the disk turned, in every kind of file of the store: that one is refused and says why, others serve."""

import re
import shutil

import pytest

from gateway.common.domain.errors import UnreachableError
from tests.simulators.daemon import copy_model
from tests.simulators.device_store import flip_bit
from tests.simulators.signed_device import VARIANT, SignedDevice, index

METER, ACTIVITY, HAND = ("meter-reader", "2"), ("moves", "1"), ("by-hand", "1")


@pytest.fixture(scope="module")
def device(tmp_path_factory, state):
    """Return a device with two signed models, meter-reader 2 after 1 and moves 1, and one model by hand.

    The first root vouches for meter-reader, the second one for moves.
    """
    made = SignedDevice(tmp_path_factory.mktemp("device"), state)
    made.store.install("meter-reader", made.publish("meter-reader"), VARIANT)
    made.store.install("meter-reader", made.publish("meter-reader", "2"), VARIANT)
    made.repository.rotate("root")
    made.store.install("moves", made.publish("activity", owner="other"), VARIANT)
    copy_model("activity", made.hand, name="by-hand")
    return made


def blob(store, digest):
    return store / "blobs" / "sha256" / digest


def release(device, store, slot):
    return store / "releases" / device.store.active.slots[slot].release


KINDS = {
    "active": lambda _, store: store / "active.json",
    "root": lambda _, store: store / "root.json",
    "root history": lambda _, store: store / "metadata" / "root_history" / "2.root.json",
    "targets": lambda device, store: blob(store, device.store.active.slots["meter-reader"].evidence[0]),
    "owner's role": lambda device, store: blob(store, device.store.active.slots["meter-reader"].evidence[1]),
    "release": lambda device, store: blob(store, device.store.active.slots["meter-reader"].release),
    "manifest": lambda device, store: release(device, store, "meter-reader") / "manifest.toml",
    "golden set": lambda device, store: release(device, store, "meter-reader") / "golden.npz",
    "artifact": lambda device, store: release(device, store, "meter-reader") / "onnx-int8" / "model.onnx",
    "artifact of another": lambda device, store: release(device, store, "moves") / "onnx-int8" / "model.onnx",
}
INSTEAD = "the previous release, version 1, serves instead"
REFUSED = {
    "root": {METER: "the pinned root", ACTIVITY: "the pinned root"},
    "root history": {ACTIVITY: "the root after 1"},
    "targets": {METER: "does not match its digest"},
    "owner's role": {METER: f"does not match its digest.*{INSTEAD}"},
    "release": {METER: f"does not match its digest.*{INSTEAD}"},
    "manifest": {METER: f"manifest.toml is not what was signed.*{INSTEAD}"},
    "golden set": {METER: f"golden.npz is missing, or is not what was signed.*{INSTEAD}"},
    "artifact": {METER: f"model.onnx is missing, or is not what was signed.*{INSTEAD}"},
    "artifact of another": {ACTIVITY: "model.onnx is missing, or is not what was signed"},
}


def damaged(device, folder, kind, spoil):
    store = folder / "store"
    shutil.copytree(device.store.folder, store, symlinks=True)
    spoil(KINDS[kind](device, store))
    return store


@pytest.mark.parametrize("kind", REFUSED)
def test_a_turned_bit_is_refused_and_the_others_serve(device, tmp_path, kind):
    store = damaged(device, tmp_path, kind, flip_bit)
    with device.running(store) as daemon:
        lines = index(daemon)
    for key, reason in REFUSED[kind].items():
        state, told = lines.pop(key)
        assert state == "UNAVAILABLE"
        assert re.search(reason, told, re.DOTALL), told
    fallback = {("meter-reader", "1")} if METER in REFUSED[kind] and kind not in {"root", "targets"} else set()
    assert {key for key, (state, _) in lines.items() if state == "READY"} == (
        {METER, ACTIVITY, HAND} - set(REFUSED[kind])
    ) | fallback


@pytest.mark.parametrize("kind", ["root", "owner's role", "release", "manifest", "artifact"])
def test_a_missing_file_is_refused_and_the_others_serve(device, tmp_path, kind):
    store = damaged(device, tmp_path, kind, lambda file: file.unlink())
    with device.running(store) as daemon:
        lines = index(daemon)
    assert lines[METER][0] == "UNAVAILABLE"
    assert re.search("No such file|not in the store|is missing", lines[METER][1]), lines[METER][1]
    assert lines[HAND][0] == "READY"
    assert (lines[ACTIVITY][0] == "READY") is (kind != "root")


def test_nothing_is_known_of_a_damaged_list_and_what_is_by_hand_serves(device, tmp_path):
    store = damaged(device, tmp_path, "active", lambda file: flip_bit(file, 0.0))
    with device.running(store) as daemon:
        assert {key for key, (state, _) in index(daemon).items() if state == "READY"} == {HAND}
        assert "active.json" in device.control.status()["problem"]
        assert "what is committed cannot be served" in daemon.log


def test_what_could_not_be_read_is_tried_again(device, tmp_path):
    """A disk that comes late, a process that could not be started: no operator is there to commit."""
    store = damaged(device, tmp_path, "active", lambda file: flip_bit(file, 0.0))
    with device.running(store, more="retry_s = 0.2\n") as daemon:
        assert {key for key, (state, _) in index(daemon).items() if state == "READY"} == {HAND}
        flip_bit(store / "active.json", 0.0)
        daemon.wait_logged("variant chosen", model="meter-reader", version="2")
        daemon.wait_logged("variant chosen", model="moves")
        daemon.wait_logged("what is committed serves now")
        assert device.control.status()["problem"] == ""


def test_what_serves_goes_on_when_the_list_or_its_files_are_damaged_meanwhile(device, tmp_path):
    store = damaged(device, tmp_path, "active", lambda _: None)
    with device.running(store) as daemon:
        flip_bit(KINDS["artifact"](device, store))
        device.control.commit()
        state, reason = index(daemon)[METER]
        assert state == "READY"
        assert "is not what was signed" in reason
        assert ("meter-reader", "1") not in index(daemon)
        flip_bit(store / "active.json", 0.0)
        daemon.reload()
        assert {key for key, (state, _) in index(daemon).items() if state == "READY"} == {METER, ACTIVITY, HAND}
        with pytest.raises(UnreachableError, match=r"active\.json"):
            device.control.commit()
        assert index(daemon)[METER][0] == "READY"


def test_nobody_can_swap_what_is_signed_for_what_is_not(device, tmp_path):
    """Whole and well-formed, with every digest of the store in order: only the owner's signature is not there."""
    home = tmp_path / "forger"
    home.mkdir()
    forger = SignedDevice(home, device.state)
    forger.store.install("meter-reader", forger.publish("meter-reader", "3"), VARIANT)
    store = damaged(device, tmp_path, "active", lambda _: None)
    shutil.copytree(forger.store.folder / "blobs", store / "blobs", dirs_exist_ok=True)
    shutil.copytree(forger.store.folder / "releases", store / "releases", dirs_exist_ok=True)
    shutil.copy(forger.store.active_file, store / "active.json")
    with device.running(store) as daemon:
        state, reason = index(daemon)["meter-reader", "3"]
        assert state == "UNAVAILABLE"
        assert "forged" in reason
