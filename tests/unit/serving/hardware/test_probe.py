"""The probe as a whole: every tree of the catalogue, hostile trees, and the JSON of the contract."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.common.domain.inventory import ACCELERATOR_KINDS, RUNGS
from gateway.common.domain.profile import choose_profile
from gateway.serving.hardware.library_diagnosis import climb, library_sets
from gateway.serving.hardware.probe import inventory_json, probe
from gateway.serving.hardware.profiles import load_profiles, profiles_folder
from gateway.serving.hardware.tree import Tree
from gateway.serving.hardware.vitals import read_vitals
from tests.devices.asking import Probed
from tests.devices.build import Entry, Folder, Link, Node, build
from tests.devices.catalogue import TREES
from tests.simulators.examples import examples

PROFILES = load_profiles(profiles_folder())
EXPECTED: dict[str, tuple[str | None, dict[str, bool]]] = {
    "plain-x86": ("generic-x86", {}),
    "intel-npu-and-gpu": ("intel-npu", {"intel-npu": True, "intel-gpu": True}),
    "intel-npu-without-driver": ("intel-npu", {"intel-npu": False}),
    "intel-npu-passed-through": ("intel-npu", {"intel-npu": False}),
    "intel-npu-of-tomorrow": ("intel-npu", {"intel-npu": True}),
    "intel-gpu-only": ("intel-igpu", {"intel-gpu": True}),
    "intel-gpu-locked": ("intel-igpu", {"intel-gpu": False}),
    "amd-gpu": ("amd-gpu", {"amd-gpu": True}),
    "amd-npu": ("amd-gpu", {"amd-gpu": False, "amd-npu": False}),
    "amd-and-nvidia": ("nvidia-gpu", {"nvidia-gpu": False, "amd-gpu": False}),
    "nvidia-gpu": ("nvidia-gpu", {"nvidia-gpu": True}),
    "coral-pcie": ("coral", {"coral-pcie": True}),
    "coral-pcie-without-driver": ("coral", {"coral-pcie": False}),
    "pi4-coral-usb-fresh": ("coral", {"coral-usb": True}),
    "pi5-coral-usb-running": ("coral", {"coral-usb": True}),
    "ncs1": ("generic-x86", {"movidius-myriad-2": False}),
    "ncs2-boot": ("generic-x86", {"movidius-myriad-x": False}),
    "ncs2-running": ("generic-x86", {"movidius-myriad-x": False}),
    "pi4": ("raspberry-pi-4", {}),
    "pi5": ("raspberry-pi-5", {}),
    "pi3": ("generic-arm64", {}),
    "pi5-hailo8": ("raspberry-pi-5", {"hailo-8": False}),
    "pi5-hailo8-wrong-driver": ("raspberry-pi-5", {"hailo-8": False}),
    "hailo10h": ("hailo", {"hailo-10h": False}),
    "jetson-nano": ("jetson", {"nvidia-jetson-gpu": True}),
    "jetson-tx2": ("jetson", {"nvidia-jetson-gpu": True}),
    "jetson-xavier": ("jetson-xavier", {"nvidia-jetson-gpu": True}),
    "jetson-orin": ("jetson-orin", {"nvidia-jetson-gpu": True}),
    "jetson-thor": ("jetson", {"nvidia-jetson-gpu": True}),
    "jetson-in-a-container": ("jetson", {"nvidia-jetson-gpu": True}),
    "jetson-plain-kernel": ("jetson-orin", {"nvidia-jetson-gpu": False}),
    "jetson-with-coral": ("jetson-orin", {"nvidia-jetson-gpu": True, "coral-usb": True}),
    "rk3588-vendor": ("rockchip-rk3588", {"rockchip-npu": False}),
    "rk3588-mainline": ("rockchip-rk3588", {"rockchip-npu": False}),
    "rk3568-without-driver": ("generic-arm64", {"rockchip-npu": False}),
    "rk3399": ("generic-arm64", {}),
    "qcs6490": ("qualcomm", {"qualcomm-dsp": True}),
    "qcs6490-dsp-off": ("qualcomm", {"qualcomm-dsp": False}),
    "qcs6490-audio-dsp-only": ("generic-arm64", {}),
}


def test_every_tree_of_the_catalogue_is_expected_and_every_kind_occurs() -> None:
    assert EXPECTED.keys() == TREES.keys()
    assert {kind for _, kinds in EXPECTED.values() for kind in kinds} == set(ACCELERATOR_KINDS)


@pytest.mark.parametrize("flat_links", [False, True])
@pytest.mark.parametrize("tree", TREES)
def test_accelerators_and_profile_of_every_tree(probed: Probed, tree: str, flat_links: bool) -> None:
    found = probed(tree, flat_links=flat_links)
    profile = choose_profile(PROFILES, found)
    kinds = {accelerator.kind: accelerator.usable for accelerator in found.accelerators}
    assert (profile.name if profile else None, kinds) == EXPECTED[tree]


@pytest.mark.parametrize("tree", TREES)
def test_rungs_of_every_tree(probed: Probed, tree: str) -> None:
    """All ten in order; each broken one names a remedy; what takes execution is null but for an absent runtime."""
    for accelerator in probed(tree).accelerators:
        assert tuple(rung.name for rung in accelerator.rungs) == RUNGS
        assert accelerator.rungs[0].ok is True
        assert all(rung.remedy for rung in accelerator.rungs if rung.ok is False)
        assert not any(rung.remedy for rung in accelerator.rungs if rung.ok is not False)
        executed = {rung.name: rung.ok for rung in accelerator.rungs[RUNGS.index("library") :]}
        assert {name for name, ok in executed.items() if ok is not None} <= {"runtime"}


@pytest.mark.parametrize("tree", TREES)
def test_json_has_the_keys_of_the_contract_in_order(probed: Probed, tree: str) -> None:
    found = json.loads(json.dumps(inventory_json(probed(tree), "some-profile")))
    assert list(found) == ["arch", "board", "cpu", "memory_bytes", "accelerators", "profile"]
    assert list(found["board"]) == ["model", "compatible"]
    assert list(found["cpu"]) == ["vendor", "model", "cores", "features"]
    assert found["profile"] == "some-profile"
    for accelerator in found["accelerators"]:
        assert list(accelerator) == ["kind", "name", "device", "usable", "rungs"]
        assert accelerator["kind"] in ACCELERATOR_KINDS
        assert accelerator["usable"] == all(rung["ok"] is not False for rung in accelerator["rungs"])
        for rung in accelerator["rungs"]:
            assert list(rung) == ["name", "ok", "detail", "remedy"]


def test_unknown_is_null_in_json(probed: Probed) -> None:
    assert inventory_json(probed({}), None) == {
        "arch": None,
        "board": {"model": None, "compatible": None},
        "cpu": {"vendor": None, "model": None, "cores": None, "features": None},
        "memory_bytes": None,
        "accelerators": [],
        "profile": None,
    }


PATHS = sorted({path for entries in TREES.values() for path in entries})
TARGETS = ("..", "../..", "/", "/sys", "/dev", "../../../../../..", "loop", "/proc/cpuinfo", "x" * 300)
HOSTILE: st.SearchStrategy[Entry] = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=60),
    st.sampled_from(TARGETS).map(Link),
    st.sampled_from([0o000, 0o444, 0o666]).map(Node),
    st.just(Folder()),
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    tree=st.sampled_from(sorted(TREES)),
    spoiled=st.dictionaries(st.sampled_from(PATHS), HOSTILE, max_size=12),
)
def test_probe_never_raises(tmp_path_factory: pytest.TempPathFactory, tree: str, spoiled: dict[str, Entry]) -> None:
    """Real trees in which any file may be garbage, a folder, a node, or a link to anywhere."""
    root = tmp_path_factory.mktemp("hostile")
    for path, entry in (spoiled | {k: v for k, v in TREES[tree].items() if k not in spoiled}).items():
        try:
            build(root, {path: entry})
        except OSError:
            continue  # a file stands where a folder was wanted, or the other way round
    found = probe(root)
    choose_profile(PROFILES, found)
    json.dumps(inventory_json(climb(found, {}, {}), None)).encode()
    library_sets(found)
    read_vitals(Tree(root))


def test_a_gigabyte_of_cpuinfo_is_no_cpuinfo(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    with (tmp_path / "proc/cpuinfo").open("wb") as file:
        file.truncate(1 << 30)
    assert probe(tmp_path).cpu.cores is None


def test_a_root_that_is_absent_or_a_file_knows_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("absent", "file"):
        assert probe(tmp_path / name).arch is None
