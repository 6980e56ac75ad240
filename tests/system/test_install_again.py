"""Upgrading and uninstalling: what an operator changed stays, what was installed goes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.installation import (
    AGENT_CONFIGURATION,
    AGENT_UNIT,
    COMMAND,
    CONFIGURATION,
    HOME,
    REPOSITORY,
    UNIT,
    VENV,
    bare,
    clean_environment,
    copied,
    files,
    make,
    run,
)

pytestmark = pytest.mark.timeout(300)

SAMPLE = Path("usr/local/share/edge-gateway/edge-gateway.toml")


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    """Yield a whole installation to change; half a gigabyte that pytest must not keep."""
    yield copied(tmp_path / "whole")
    shutil.rmtree(tmp_path / "whole")


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "no-runtimes.txt"


def test_uninstalling_leaves_nothing(image: Path) -> None:
    done = make("uninstall", image)
    assert list(image.iterdir()) == []
    assert "kept" not in done.stdout


def test_uninstalling_keeps_state_and_a_changed_configuration_and_says_so(image: Path) -> None:
    _write(image / CONFIGURATION, "[log]\nlevel = 'debug'\n")
    _write(image / AGENT_CONFIGURATION, "[agent]\npoll_s = 60.0\n")
    _write(image / "var/lib/edge-gateway/state.sqlite", "verdicts")
    _write(image / "var/lib/edge-agent/journal.sqlite", "floors")
    _write(image / "etc/edge-gateway/tokens", "camera s3cret\n")
    _write(image / "etc/edge-gateway/device_profiles/mine.toml", "schema = 1\n")
    _write(image / "usr/local/bin/other", "#!/bin/sh\n")
    done = make("uninstall", image)
    assert files(image) == {
        str(CONFIGURATION),
        str(AGENT_CONFIGURATION),
        "etc/edge-gateway/device_profiles/mine.toml",
        "etc/edge-gateway/tokens",
        "usr/local/bin/other",
        "var/lib/edge-agent/journal.sqlite",
        "var/lib/edge-gateway/state.sqlite",
    }
    assert not (image / HOME).exists()
    assert f"kept /{CONFIGURATION}" in done.stdout
    assert f"kept /{AGENT_CONFIGURATION}" in done.stdout
    assert "kept /etc/edge-gateway/device_profiles (your device profiles)" in done.stdout
    assert "kept /etc/edge-gateway/tokens (tokens of callers); remove it with: rm -r" in done.stdout
    assert "kept /var/lib/edge-gateway" in done.stdout
    assert "kept /var/lib/edge-agent" in done.stdout


def test_uninstalling_what_is_not_there_says_where_it_looked(tmp_path: Path) -> None:
    done = run("make", "-s", "uninstall", f"DESTDIR={tmp_path}", check=False, cwd=REPOSITORY)
    assert done.returncode != 0
    assert f"nothing is installed under {tmp_path}/usr/local" in done.stderr


def test_an_upgrade_replaces_programs_and_keeps_a_changed_configuration(image: Path, lock: Path) -> None:
    _write(image / CONFIGURATION, "[log]\nlevel = 'debug'\n")
    _write(image / UNIT, "[Unit]\n")
    before = (image / VENV).resolve()
    profile = image / "etc/edge-gateway/device_profiles/mine.toml"
    _write(profile, "schema = 1\n")
    done = bare(image, lock)
    assert profile.read_text() == "schema = 1\n"
    assert (image / CONFIGURATION).read_text() == "[log]\nlevel = 'debug'\n"
    assert f"kept /{CONFIGURATION}" in done.stdout
    assert "Type=notify" in (image / UNIT).read_text()
    after = (image / VENV).resolve()
    assert after != before
    assert set((image / HOME / "versions").iterdir()) == {before, after}  # what runs keeps its version until restarted
    assert "edge-gateway " in run(image / COMMAND, "--version", env=clean_environment()).stdout


def test_upgrades_remove_the_version_before_the_last_one_and_renew_an_unchanged_configuration(
    tmp_path: Path, lock: Path
) -> None:
    image, seen = tmp_path / "image", []
    for _ in range(3):
        assert "kept" not in bare(image, lock).stdout
        seen.append((image / VENV).resolve())
    assert (image / CONFIGURATION).read_text() == (image / SAMPLE).read_text()
    assert len(set(seen)) == 3
    assert set((image / HOME / "versions").iterdir()) == set(seen[1:])
    assert {path.name for path in (image / HOME).iterdir()} == {"versions", "current", "confirmed", "installed.json"}
    make("uninstall", image)
    assert list(image.iterdir()) == []


@pytest.mark.long
def test_an_upgrade_from_the_layout_without_versions_leaves_none_of_it(tmp_path: Path, lock: Path) -> None:
    """There the folder of versions was itself the environment."""
    image = tmp_path / "image"
    bare(image, lock)
    environment = (image / VENV).resolve()
    for link in ("current", "confirmed"):
        (image / HOME / link).unlink()
    for entry in environment.iterdir():
        entry.rename(image / HOME / entry.name)
    shutil.rmtree(image / HOME / "versions")
    (image / COMMAND).unlink()
    (image / COMMAND).symlink_to("../lib/edge-gateway/bin/edge-gateway")
    assert "edge-gateway " in run(image / COMMAND, "--version", env=clean_environment()).stdout
    bare(image, lock)
    assert "edge-gateway " in run(image / COMMAND, "--version", env=clean_environment()).stdout
    assert {path.name for path in (image / HOME).iterdir()} == {"versions", "current", "confirmed", "installed.json"}
    make("uninstall", image)
    assert list(image.iterdir()) == []


def test_a_configuration_from_before_the_first_installation_is_the_operators(tmp_path: Path, lock: Path) -> None:
    image = tmp_path / "image"
    _write(image / CONFIGURATION, "[log]\nlevel = 'error'\n")
    bare(image, lock)
    make("uninstall", image)
    assert files(image) == {str(CONFIGURATION)}


def test_another_prefix_is_written_into_the_unit(tmp_path: Path, lock: Path) -> None:
    image = tmp_path / "image"
    bare(image, lock, PREFIX="/opt/edge-gateway")
    unit = (image / UNIT).read_text()  # systemd searches no other folder for it
    assert "ExecStart=/opt/edge-gateway/bin/edge-gateway run " in unit
    assert "ExecStart=/opt/edge-gateway/bin/edge-agent run\n" in (image / AGENT_UNIT).read_text()
    assert "edge-gateway " in run(image / "opt/edge-gateway/bin/edge-gateway", "--version").stdout
    make("uninstall", image, PREFIX="/opt/edge-gateway")
    assert list(image.iterdir()) == []


@pytest.mark.parametrize("prefix", ["relative", "/with space", "/up/../down", "/per%cent", ""])
def test_a_prefix_that_no_unit_could_hold_is_refused(prefix: str, tmp_path: Path) -> None:
    done = run("make", "-s", "install", f"DESTDIR={tmp_path}/x", f"PREFIX={prefix}", check=False, cwd=REPOSITORY)
    assert done.returncode != 0
    assert "must be an absolute path" in done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.long
def test_it_compiles_where_python_is_told_to_write_no_byte_code(
    tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some machines set both for everyone; a start without byte code takes twice as long."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "elsewhere"))
    bare(tmp_path / "image", lock)
    (package,) = (tmp_path / "image" / VENV / "lib").glob("python3*/site-packages/gateway")
    folders = {source.parent for source in package.rglob("*.py")}
    assert len(folders) > 5
    assert [folder for folder in folders if not list((folder / "__pycache__").glob("*.pyc"))] == []


def _write(path: Path, text: str) -> None:
    """Write like an editor does: a new file, so that no hard link is written through."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
