"""The store as the daemon reads it, each signature judged by the real process."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.common.domain.activation import Activation
from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.installation import HERE
from gateway.common.store.active import Active, active_bytes, write_active
from gateway.common.store.errors import DamagedError
from gateway.common.store.settings import LibrarySettings
from gateway.serving.committed import ask
from gateway.serving.committed.settings import SignedReleaseSettings
from gateway.serving.committed.store import CommittedStore
from tests.simulators.constants import settings_with
from tests.simulators.daemon import ROOT
from tests.simulators.device_store import DeviceStore
from tests.simulators.fleet_repository import VARIANT, FleetRepository, manifest_text
from tests.simulators.triton_examples import write_external

FLIPS = 10


@pytest.fixture
def device(tmp_path: Path) -> DeviceStore:
    repository = FleetRepository(tmp_path / "repository")
    (tmp_path / "store").mkdir()
    made = DeviceStore(tmp_path / "store", repository)
    made.install("meter", repository.add_release("meter-reader", "1"))
    made.install("meter", repository.add_release("meter-reader", "2"))
    return made


def store(device: DeviceStore, **settings: Any) -> CommittedStore:
    return CommittedStore(settings_with(SignedReleaseSettings(str(device.folder)), **settings), LibrarySettings())


def read(of: CommittedStore) -> dict[str, Any]:
    return dict(asyncio.run(of.committed()).slots)


def test_a_release_bears_the_name_of_its_slot_and_only_what_is_here(device: DeviceStore) -> None:
    release = read(store(device))["meter"].release
    assert (release.name, release.version, release.signed, release.problem) == ("meter", "2", True, "")
    assert (release.manifest.name, [variant.name for variant in release.manifest.variants]) == ("meter", ["only"])
    assert release.folder.is_relative_to(device.folder)


def test_the_digest_changes_with_what_would_be_served(device: DeviceStore) -> None:
    path = device.repository.add_release("meter-reader", "3", variants={"a": b"a", "b": b"b"})
    digests = set()
    for variants in (["a"], ["b"], ["a", "b"]):
        device.install("meter", path, variants)
        digests.add(read(store(device))["meter"].release.digest)
    assert len(digests) == 3


def test_a_release_without_a_file_that_its_model_refers_to_is_refused(device: DeviceStore, tmp_path: Path) -> None:
    folder = tmp_path / "large" / "1"
    content = write_external(folder / "any.onnx", 1.0).read_bytes()
    text = manifest_text("large", "1")
    (folder / "manifest.toml").write_text(
        text
        + VARIANT.format(
            name="only",
            runtime="onnx",
            accelerators='["cpu"]',
            path="any.onnx",
            sha256=hashlib.sha256(content).hexdigest(),
            size=len(content),
        )
    )
    device.install("large", device.repository.add_model(folder, "acme"))
    problem = read(store(device))["large"].release.problem
    assert "refers to weights.bin, which is missing" in problem
    assert "its owner must publish it again, with every file" in problem


def test_nothing_is_committed_where_there_is_no_fleet_and_no_list(tmp_path: Path) -> None:
    nowhere = CommittedStore(SignedReleaseSettings(), LibrarySettings())
    assert (nowhere.present, read(nowhere)) == (False, {})
    assert read(CommittedStore(SignedReleaseSettings(str(tmp_path)), LibrarySettings())) == {}


def test_a_store_that_was_never_bootstrapped_makes_no_device_of_a_fleet(device: DeviceStore, tmp_path: Path) -> None:
    """The packaged configuration names one before there is any; one that has lost its root is a fleet's still."""
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder in (tmp_path / "absent", empty):
        assert not CommittedStore(SignedReleaseSettings(str(folder)), LibrarySettings()).present
    assert store(device).present
    (device.folder / "root.json").unlink()
    assert store(device).present
    (empty / "root.json").touch()
    assert CommittedStore(SignedReleaseSettings(str(empty)), LibrarySettings()).present


def test_a_store_into_which_we_may_not_look_may_be_a_fleet_s(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)  # fails for root as well, unlike a mode
    assert CommittedStore(SignedReleaseSettings(str(loop)), LibrarySettings()).present


def test_what_is_sound_is_judged_once_and_again_under_another_root(
    device: DeviceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = store(device)
    read(one)
    monkeypatch.setattr(ask, "COMMAND", ("/bin/false",))
    assert read(one)["meter"].release.problem == ""
    (device.folder / "root.json").write_bytes(device.repository.root_bytes(1) + b"\n")
    with pytest.raises(VariantError, match="ended with 1") as undecided:
        read(one)
    assert undecided.value.transient


def digits_of_digests(content: bytes) -> list[int]:
    """Return the places where a flipped lowest bit leaves well-formed JSON with another digest in it."""
    return [place for found in re.finditer(rb"[0-9a-f]{64}", content) for place in range(*found.span())
            if 0x30 <= content[place] <= 0x39]  # fmt: skip


def test_a_bit_of_the_list_never_lets_in_what_was_not_committed(device: DeviceStore) -> None:
    """Wherever it turns: the genuine releases, fewer of them, or none."""
    genuine = {activation.release for activation in (*device.active.slots.values(), *device.active.previous.values())}
    content, chance = device.active_file.read_bytes(), random.Random(4)
    turned = [(chance.randrange(len(content)), 1 << chance.randrange(8)) for _ in range(FLIPS)]
    turned += [(chance.choice(digits_of_digests(content)), 1) for _ in range(FLIPS)]
    seen = set()
    for place, bit in turned:
        torn = bytearray(content)
        torn[place] ^= bit
        device.active_file.write_bytes(torn)
        try:
            slots = read(store(device))
        except DamagedError:
            seen.add("the list is damaged")
            continue
        for slot in slots.values():
            assert slot.release.problem or slot.release.folder.name in genuine
            assert slot.previous is None or slot.previous.folder.name in genuine
            seen.add("refused" if slot.release.problem else "as committed")
    assert {"the list is damaged"} < seen


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"variants": ("only", "other")}, "variant other is no variant"),
        ({"variants": ()}, "no variant of it was installed"),
        ({"evidence": ()}, "it has 0 documents"),
        ({"root": 7}, "7 is not there"),
        ({"target": "models/acme/meter-reader/../release"}, "no release's path"),
        ({"target": "models/acme/other/2/release"}, "evidence"),
    ],
)
def test_an_activation_that_is_not_true_is_refused(device: DeviceStore, changes: Any, says: str) -> None:
    activation = dataclasses.replace(device.active.slots["meter"], **changes)
    with pytest.raises(VariantError, match=says):
        asyncio.run(store(device).release(activation))


def test_a_plan_asks_for_the_manifest_alone(device: DeviceStore) -> None:
    path = device.repository.add_release("meter-reader", "3", variants={"a": b"a", "b": b"b"})
    fetched = device.fetch("meter", path, ())
    planned = asyncio.run(store(device).release(fetched, planned=True))
    assert planned.manifest
    assert [variant.name for variant in planned.manifest.variants] == ["a", "b"]


def test_an_agents_digests_are_no_paths(device: DeviceStore) -> None:
    activation = dataclasses.replace(device.active.slots["meter"], release="../" * 10 + "etc/passwd")
    with pytest.raises(VariantError, match=r"digest|installed"):
        asyncio.run(store(device).release(activation))


def test_a_judge_that_takes_too_long_is_ended(device: DeviceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "COMMAND", ("/bin/sh", "-c", "exec sleep 60"))
    with pytest.raises(VariantError, match=r"it took longer than 0\.05 s") as undecided:
        read(store(device, verify_deadline_s=0.05))
    assert undecided.value.transient


def test_a_judge_without_its_library_says_what_to_install(
    device: DeviceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tuf.py").write_text("raise ModuleNotFoundError(\"No module named 'tuf'\")\n")
    monkeypatch.setattr(ask, "_environment", lambda: {"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    with pytest.raises(VariantError, match=re.escape(HERE.adding("agent"))):
        read(store(device))


def test_a_judge_that_cannot_be_started(device: DeviceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "COMMAND", ("/nowhere/python",))
    with pytest.raises(VariantError, match="could not be started"):
        read(store(device))


def test_profiles_that_are_damaged_are_told_and_left_out(device: DeviceStore, caplog: pytest.LogCaptureFixture) -> None:
    good = (ROOT / "device_profiles" / "generic-x86.toml").read_text().replace('"generic-x86"', '"lab"')
    device.repository.add_file("profiles/lab.toml", good.encode())
    device.repository.add_file("profiles/torn.toml", b"no profile")
    device.repository.add_file("policy/hours.json", b"{}")
    for path in ("profiles/lab.toml", "profiles/torn.toml", "policy/hours.json"):
        device.install_file(path)
    one = store(device)
    assert [profile.name for profile in asyncio.run(one.profiles())] == ["lab"]
    assert "profiles/torn.toml" in caplog.text
    assert set(asyncio.run(one.committed()).profiles) == {"profiles/lab.toml", "profiles/torn.toml"}
    lab = next(file for file in device.active.files if file.target.path == "profiles/lab.toml")
    (device.folder / "blobs" / "sha256" / lab.target.sha256).unlink()
    assert asyncio.run(store(device).profiles()) == ()


def test_a_file_that_its_role_did_not_sign_is_left_out(device: DeviceStore) -> None:
    device.repository.add_file("profiles/lab.toml", b"x")
    installed = device.install_file("profiles/lab.toml")
    unsigned = dataclasses.replace(installed, evidence=device.active.slots["meter"].evidence)
    write_active(device.active_file, dataclasses.replace(device.active, files=(unsigned,)))
    assert asyncio.run(store(device).profiles()) == ()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"root": "/r"}, "root"),
        ({"store": "relative"}, "store"),
        ({"store": "/s", "root": "r"}, "root"),
    ],
)
def test_settings_that_cannot_be_meant(settings: Any, key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"fleet.{key}"):
        SignedReleaseSettings(**settings)


def test_another_root_than_the_stores_may_be_pinned(device: DeviceStore, tmp_path: Path) -> None:
    (device.folder / "root.json").rename(tmp_path / "pinned.json")
    assert read(store(device, root=str(tmp_path / "pinned.json")))["meter"].release.problem == ""
    other = FleetRepository(tmp_path / "other")
    (tmp_path / "pinned.json").write_bytes(other.root_bytes(1))
    assert "forged" in read(store(device, root=str(tmp_path / "pinned.json")))["meter"].release.problem


def test_the_question_is_the_list_itself(device: DeviceStore) -> None:
    """The list that the verifier reads is the one that the agent writes."""
    activation = device.active.slots["meter"]
    assert isinstance(activation, Activation)
    assert json.loads(active_bytes(Active({"meter": activation})))["slots"]["meter"]["root"] == 1
