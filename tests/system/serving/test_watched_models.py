"""Models that are copied into the model directory, in every usual way, are served without a reload; others go on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.simulators.daemon import COMMAND, QUIET, SHORT_TRIALS, Daemon, copy_model, running
from tests.simulators.operator import until

pytestmark = pytest.mark.timeout(180)
CONTROLLED = f"{QUIET}{SHORT_TRIALS}[models]\ncontrol = true\n"
WAYS = {
    "cp": "cp -r {source} {models}/{name}",
    "mv": "mv {source} {models}/{name}",
    "tar": "tar -C {source}/.. -c {name} | tar -C {models} -x",
    "git": "cd {source}/.. && git init -q . && git add . && git -c user.name=n -c user.email=e commit -qm c && "
    "git --work-tree={models} checkout -q -f HEAD",
    "scp": "scp -q -r {source} {models}/{name}",
    "rename on save": "mkdir -p {models}/{name}/1 && cd {source}/1 && for f in $(find * -type f); do "
    "mkdir -p {models}/{name}/1/$(dirname $f) && cp $f {models}/{name}/1/$(dirname $f)/.part && "
    "mv {models}/{name}/1/$(dirname $f)/.part {models}/{name}/1/$f; done",
    "slow": "mkdir -p {models}/{name}/1 && cd {source}/1 && cp -r * {models}/{name}/1 && F=onnx-int8/model.onnx && "
    "(head -c 500 $F; sleep 6; tail -c +501 $F) > {models}/{name}/1/$F",
    "link": "ln -s {source} {models}/{name}",
}


@pytest.fixture
def library(tmp_path: Path) -> Path:
    copy_model("meter-reader", tmp_path / "models")
    return tmp_path / "models"


def index(gateway: Daemon) -> dict[str, str]:
    """Return the state of each model."""
    lines = httpx.post(f"http://{gateway.http}/v2/repository/index").json()
    return {line["name"]: line["state"] for line in lines}


def wait(gateway: Daemon, model: str, state: str) -> None:
    """Wait until a model has a state."""
    until(lambda: index(gateway).get(model) == state, gateway.log)


def choices(gateway: Daemon, model: str) -> int:
    """Return how often a model was loaded."""
    return sum(line["event"] == "variant chosen" and line["model"] == model for line in gateway.lines())


@pytest.mark.long
def test_every_way_of_copying_a_model_serves_it_and_disturbs_no_other(
    library: Path, tmp_path: Path, state: Path
) -> None:
    environ = {**os.environ, "HOME": str(tmp_path)}
    with running(tmp_path / "gateway", models=library, state=state) as gateway:
        for way, command in WAYS.items():
            name = f"activity-{way.replace(' ', '-')}"
            source = copy_model("activity", tmp_path / way.replace(" ", "-"), name=name).parent
            typed = command.format(source=source, models=library, name=name)
            subprocess.run(typed, shell=True, check=True, env=environ)  # noqa: S602  what a user types
            wait(gateway, name, "READY")
            assert choices(gateway, name) == 1
        for way in WAYS:
            place = library / f"activity-{way.replace(' ', '-')}"
            place.unlink() if place.is_symlink() else shutil.rmtree(place)
        until(lambda: set(index(gateway)) == {"meter-reader"}, gateway.log)
        assert choices(gateway, "meter-reader") == 1
    assert "RELOADING=1" not in "".join(gateway.heard)


def test_what_is_refused_while_it_is_written_serves_once_it_is_complete(
    library: Path, tmp_path: Path, state: Path
) -> None:
    with running(tmp_path / "gateway", models=library, state=state) as gateway:
        made = copy_model("activity", tmp_path / "source")
        shutil.copytree(made, library / "activity" / "1", ignore=shutil.ignore_patterns("model.onnx"))
        wait(gateway, "activity", "UNAVAILABLE")
        shutil.copytree(made, library / "activity" / "1", dirs_exist_ok=True)
        wait(gateway, "activity", "READY")


def test_a_model_that_was_unloaded_by_name_stays_so_until_it_changes(
    library: Path, tmp_path: Path, state: Path
) -> None:
    copy_model("activity", library)
    with running(tmp_path / "gateway", models=library, state=state, config=CONTROLLED) as gateway:
        assert httpx.post(f"http://{gateway.http}/v2/repository/models/activity/unload").status_code == 200
        copy_model("activity", library, name="other")
        wait(gateway, "other", "READY")
        assert index(gateway)["activity"] == "UNAVAILABLE"
        manifest = library / "activity" / "1" / "manifest.toml"
        manifest.write_text(f"{manifest.read_text()}\n# changed\n")
        wait(gateway, "activity", "READY")


def test_a_folder_that_is_removed_and_made_again_is_watched_again(library: Path, tmp_path: Path, state: Path) -> None:
    with running(tmp_path / "gateway", models=library, state=state) as gateway:
        library.rename(tmp_path / "old")
        gateway.wait_logged("the model directory could not be read again")
        assert index(gateway) == {"meter-reader": "READY"}
        copy_model("activity", tmp_path / "new")
        (tmp_path / "new").rename(library)
        until(lambda: index(gateway) == {"activity": "READY"}, gateway.log)


def test_a_disk_that_is_unmounted_withdraws_nothing_and_a_reload_does(
    library: Path, tmp_path: Path, state: Path
) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    mapped = () if os.geteuid() == 0 else ("--map-root-user",)
    mounting = f'mount --bind {library} {folder} && exec "$@"'
    command = ("unshare", *mapped, "--mount", "sh", "-c", mounting, "sh", *COMMAND)
    with running(tmp_path / "gateway", models=folder, state=state, command=command) as gateway:
        entering = ("nsenter", "--target", str(gateway.pid), "--mount", *(mapped and ("--user", "--preserve")))
        subprocess.run([*entering, "umount", folder], check=True)
        gateway.wait_logged("the model directory could not be read again; what was served stays")
        assert index(gateway) == {"meter-reader": "READY"}
        subprocess.run([*entering, "mount", "--bind", library, folder], check=True)
        copy_model("activity", library)
        wait(gateway, "activity", "READY")
        for model in library.iterdir():
            shutil.rmtree(model)
        until(lambda: not index(gateway), gateway.log)
        copy_model("activity", library)
        wait(gateway, "activity", "READY")
        subprocess.run([*entering, "umount", folder], check=True)
        gateway.reload()
        assert not index(gateway)
