"""Debian packages in a booted Debian 12, from a signed repository: install, add a runtime, upgrade, downgrade, purge.

Needs root, mmdebstrap, reprepro and systemd-nspawn.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.installation import REPOSITORY, leave_no_groups, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

LIMIT_S = 1500.0
INCLUDED = "systemd,systemd-sysv,dbus,python3,udev,umockdev,libstdc++6,libgomp1,procps,curl"
OLD, NEW = "0.2.0", "0.2.1"
REPOSITORIES = {"old": (OLD, "one"), "both": (NEW, "one", "two"), "rotated": (NEW, "two"), "stranger": (NEW, "three")}
"""Repositories: version and keys that sign it."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build two versions. Yield the folder that has a folder of packages for each."""
    folder = tmp_path_factory.mktemp("deb")
    for version in (OLD, NEW):
        source = folder / f"source-{version}"
        shutil.copytree(
            REPOSITORY,
            source,
            symlinks=True,
            ignore=shutil.ignore_patterns(".venv*", ".git", "build", "dist", ".*cache"),
        )
        stated = source / "gateway/__init__.py"
        stated.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{version}"', stated.read_text()))
        environ = {**os.environ, "ZSTD_LEVEL": "1", "SOURCE_DATE_EPOCH": "1790000000"}
        run(
            sys.executable,
            "packaging/deb.py",
            "--dest",
            folder / "debs" / version,
            cwd=source,
            env=environ,
            limit_s=LIMIT_S,
        )
        shutil.rmtree(source)
    yield folder / "debs"
    shutil.rmtree(folder)  # half a gigabyte that pytest must not keep


@pytest.fixture(scope="module")
def seen(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Boot once. Return what was written inside, by file name."""
    folder = tmp_path_factory.mktemp("boot")
    root = folder / "root"
    run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={INCLUDED}", "bookworm", root, limit_s=LIMIT_S)
    shutil.copytree(packages, root / "debs")
    for name, (version, *keys) in REPOSITORIES.items():
        made = [_key(folder / "gnupg", key) for key in keys]
        environ = {**os.environ, "GNUPGHOME": str(folder / "gnupg")}
        run(REPOSITORY / "packaging/apt-repo", packages / version, root / "srv" / name, *made, env=environ)
    script = Path(__file__).with_name("deb.sh")
    done = run("unshare", "--mount", "bash", script, root, check=False, limit_s=LIMIT_S)
    leave_no_groups("edge-gateway-deb")
    result = root / "result"
    assert (result / "end").exists(), f"it did not boot: {done.stdout}{done.stderr}"
    answers = {file.name: file.read_text() for file in result.iterdir()}
    shutil.rmtree(folder)
    return answers


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


def test_a_runtime_that_is_added_is_used_without_a_command(seen: dict[str, str]) -> None:
    assert "✗ runtime openvino" in seen["runtimes.before"]
    assert "✓ runtime openvino" in seen["runtimes.after"]
    assert seen["pid.before"] != seen["pid.after"], "the service was not restarted"


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
    assert seen["version.down"] == f"edge-gateway {OLD}\n"


def test_purge_leaves_nothing_but_the_users(seen: dict[str, str]) -> None:
    assert seen["left"] == ""
    assert "edge-gateway" in seen["users"]


def test_the_installer_of_versions_leaves_packages_to_dpkg(seen: dict[str, str]) -> None:
    assert "apt" in seen["software"]


def test_no_program_of_a_developer_is_installed(seen: dict[str, str]) -> None:
    assert seen["unwanted"] == ""


def test_keys_of_the_repository_are_rotated(seen: dict[str, str]) -> None:
    """A device that trusts the first key takes the second one from a repository that both sign."""
    assert [seen[f"trusted.{name}"] for name in REPOSITORIES] == ["yes\n", "yes\n", "yes\n", "no\n"]
