"""Debian packages in booted Debian 12 and 13, from a signed repository, without network: from installation to purge.

Needs root, mmdebstrap, reprepro and systemd-nspawn.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.system.debian import SYSTEM, boot, debian, packages
from tests.system.installation import REPOSITORY, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

OLD, NEW = "0.2.0", "0.2.1"
WANTED = "edge-gateway edge-gateway-openvino edge-gateway-camera edge-agent"
REPOSITORIES = {"old": (OLD, "one"), "both": (NEW, "one", "two"), "rotated": (NEW, "two"), "stranger": (NEW, "three")}
"""Repositories: version and keys that sign it."""


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Build two versions, and boot once. Return what was written inside, by file name."""
    folder = tmp_path_factory.mktemp(request.param)
    for version in (OLD, NEW):
        packages(folder / version, request.param, "amd64", version, WANTED)
    for name, (version, *keys) in REPOSITORIES.items():
        made = [_key(folder / "gnupg", key) for key in keys]
        environ = {**os.environ, "GNUPGHOME": str(folder / "gnupg")}
        target = folder / "upper/srv" / name
        run(REPOSITORY / "packaging/apt-repo", folder / version, target, *made, env=environ)
    return boot(debian(request.param, f"{SYSTEM},umockdev"), folder, "inside_packages.sh")


def _key(home: Path, name: str) -> str:
    """Return the fingerprint of a key, which is made if it is absent."""
    home.mkdir(mode=0o700, exist_ok=True)
    gpg = ("gpg", "--homedir", home, "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", "")
    if run(*gpg, "--list-keys", name, check=False).returncode:
        run(*gpg, "--quick-generate-key", f"{name} <{name}@example.invalid>", "ed25519", "sign", "1y")
    listed = run(*gpg, "--list-keys", "--with-colons", name).stdout
    return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr"))


def test_the_service_runs_after_the_installation_and_answers(seen: dict[str, str]) -> None:
    assert seen["active"] == "active\n"
    assert json.loads(seen["infer"])["model_name"] == "meter-reader"
    assert seen["agent"] == "inactive\n", "it does nothing before the device joins a fleet"
    assert "✓ unit: edge-gateway.service: active" in seen["runtimes.before"]
    assert "EG-201: The address is in use" in seen["fault"]


def test_the_folders_of_models_and_settings_are_there(seen: dict[str, str]) -> None:
    assert seen["folders"] == "edge-gateway:edge-gateway 751\nedge-gateway:edge-gateway 2755\n"
    assert seen["readme"] == "# Models of this device\n"
    assert seen["settings"] == "/usr/share/edge-gateway/edge-gateway-reference.toml\n\n/etc/edge-gateway/conf.d:\n"
    assert "MemoryMax=" in seen["setup"]


def test_a_runtime_that_is_added_is_used_without_a_command(seen: dict[str, str]) -> None:
    assert "· runtime openvino" in seen["runtimes.before"]
    assert "✓ runtime openvino" in seen["runtimes.after"]
    assert seen["pid.before"] != seen["pid.after"], "the service was not restarted"


def test_a_camera_of_the_confined_service_is_read(seen: dict[str, str]) -> None:
    (camera,) = json.loads(seen["cameras"])["cameras"]
    assert (camera["name"], camera["state"], camera["codec"]) == ("door", "streaming", "mpeg4"), camera
    assert camera["counts"]["answered"] > 0
    assert "exit code" not in seen["cameras.check"], seen["cameras.check"]


def test_tokens_are_changed_by_a_reload(seen: dict[str, str]) -> None:
    """Answers to no token, the first and the second one, before and after."""
    assert seen["tokens.before"] == "401 200 401 "
    assert seen["tokens.after"] == "401 401 200 "


def test_a_build_of_a_maker_takes_the_place_of_the_packaged_one(seen: dict[str, str]) -> None:
    assert "✓ runtime onnx: 9.9 " in seen["runtimes.vendor"]


@pytest.mark.parametrize(("node", "group"), [("accel0", "render"), ("apex_0", "apex"), ("hailo0", "hailo")])
def test_nodes_of_accelerators_belong_to_a_group_of_the_service(node: str, group: str, seen: dict[str, str]) -> None:
    ours = re.findall(rf"^{node}: \S*/40-edge-gateway\.rules:\d+ (.*)$", seen["nodes"], re.MULTILINE)
    (line,) = (line.split(":") for line in seen["groups"].splitlines() if line.startswith(f"{group}:"))
    assert ours == [f"GROUP {line[2]}", "MODE 0660"]
    assert "edge-gateway" in line[3].split(",")


def test_an_upgrade_keeps_a_changed_configuration_and_restarts(seen: dict[str, str]) -> None:
    assert (seen["version.before"], seen["version.after"]) == (f"edge-gateway {OLD}\n", f"edge-gateway {NEW}\n")
    assert seen["served.after"] == NEW
    assert seen["kept"] == "1\n"
    assert seen["offered"] == f"# Settings of {NEW}.\n", "the new sample is beside it"
    assert seen["version.down"] == f"edge-gateway {OLD}\n"


def test_purge_leaves_nothing_but_the_users(seen: dict[str, str]) -> None:
    assert "50-memory.conf" in seen["setup.last"]
    assert "setup.failed" not in seen, seen["errors"]
    assert seen["left"] == ""
    assert "edge-gateway" in seen["users"]


def test_the_installer_of_versions_leaves_packages_to_dpkg(seen: dict[str, str]) -> None:
    assert "apt" in seen["software"]


def test_no_program_of_a_developer_is_installed(seen: dict[str, str]) -> None:
    assert seen["unwanted"] == ""


def test_nothing_that_was_left_out_of_wheels_is_needed(seen: dict[str, str]) -> None:
    """Modules of runtimes that are not installed are the only ones that cannot be imported."""
    assert set(seen["imports"].split()) <= {"ai_edge_litert", "av", "nncf", "onnx", "grpc"}
    assert "failed" not in seen["help"]


def test_the_size_is_that_of_the_readme(seen: dict[str, str]) -> None:
    onnx = seen["sizes"].splitlines()[0].split()
    assert int(onnx[2]) * 1.024 <= 140_000, "kB with byte code"


def test_keys_of_the_repository_are_rotated(seen: dict[str, str]) -> None:
    """A device that trusts the first key takes the second one from a repository that both sign."""
    assert [seen[f"trusted.{name}"] for name in REPOSITORIES] == ["yes\n", "yes\n", "yes\n", "no\n"]
