"""The unit under a real systemd, booted in a container over a view of this machine. Needs root and systemd-nspawn."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.system.installation import installed, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

MODELS = ("meter-reader", "activity")
GROUPS = Path("/sys/fs/cgroup")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What was written inside, by file name."""
    folder = tmp_path_factory.mktemp("boot")
    script = Path(__file__).with_name("boot.sh")
    done = run("unshare", "--mount", "bash", script, installed(), folder, check=False)
    _leave_no_groups()
    result = folder / "upper" / "result"
    assert result.is_dir(), f"it did not boot: {done.stdout}{done.stderr}"
    answers = {file.name: file.read_text() for file in result.iterdir()}
    shutil.rmtree(folder)  # half a gigabyte that pytest must not keep
    return answers


def _leave_no_groups() -> None:
    for group in GROUPS.glob("*/edge-gateway-boot"):
        group.rmdir()


def test_it_starts_and_says_what_it_serves(seen: dict[str, str]) -> None:
    assert seen["start"].strip() == "0", seen["errors"]
    assert "2 model versions ready" in seen["status"]


def test_its_user_is_in_the_accelerators_groups(seen: dict[str, str]) -> None:
    assert {"edge-gateway", "render", "video", "plugdev", "apex"} <= set(seen["groups"].split())


def test_its_folders_and_socket_are_its_own(seen: dict[str, str]) -> None:
    assert seen["state"].strip() == "edge-gateway:edge-gateway 750"
    assert seen["socket"].strip() == "edge-gateway:edge-gateway 660 socket"


def test_it_answers(seen: dict[str, str]) -> None:
    assert seen["infer.rc"].strip() == "0"
    assert json.loads(seen["infer"])["model_name"] == "meter-reader"


def test_a_camera_s_shared_memory_is_read_and_written_under_the_hardening(seen: dict[str, str]) -> None:
    assert json.loads(seen["shared.register"]) == {}
    (scores,) = json.loads(seen["shared.infer"])["outputs"]
    assert scores["parameters"]["shared_memory_byte_size"] == 40
    assert sum(float(score) for score in seen["shared.scores"].split()) == pytest.approx(1.0, abs=1e-3)


def test_a_stop_leaves_the_camera_its_segment(seen: dict[str, str]) -> None:
    """RemoveIPC=yes would remove what belongs to the unit's group."""
    assert seen["shared.left"].strip() == "games:edge-gateway 660 512"


@pytest.mark.parametrize("model", MODELS)
def test_every_runtime_works_under_the_hardening(model: str, seen: dict[str, str]) -> None:
    variants = json.loads(seen[f"explain.{model}"])["variants"]
    assert {variant["runtime"] for variant in variants} >= {"onnx", "openvino", "litert", "reference"}
    assert [variant for variant in variants if not variant["eligible"] or not variant["measured"]] == []


def test_reloading_and_feeding_the_watchdog_keep_the_process(seen: dict[str, str]) -> None:
    assert seen["reload"].strip() == "0"
    assert seen["fed"].strip() == "0"


def test_a_daemon_that_hangs_is_replaced(seen: dict[str, str]) -> None:
    assert "Watchdog timeout" in seen["bitten"]


def test_stopping_drains_and_succeeds(seen: dict[str, str]) -> None:
    assert seen["stop"].split() == ["success", "0"]
    assert seen["failed"] == ""


def test_systemd_found_nothing_to_say_about_the_unit(seen: dict[str, str]) -> None:
    said = [line for line in seen["journal"].splitlines() if "stat device" in line or "gnoring" in line]
    assert said == []
