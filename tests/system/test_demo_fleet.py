"""`make demo-fleet` as a newcomer runs it, less the installation: its exit code is its promise, and nothing is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "packaging" / "demo-fleet"
RELEASE = "a" * 64
DEVICES = ("dock-nuc", "door-pi4", "gate-pi5")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder with a short name: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="demo-") as made:
        yield Path(made)


def started(folder: Path) -> subprocess.Popen[str]:
    environ = {"PATH": "/usr/sbin:/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder), "COLUMNS": "200"}
    output = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, str(DEMO)], cwd=ROOT, env=environ, stdout=output, stderr=subprocess.STDOUT, text=True
    )


def left_over(folder: Path) -> list[str]:
    """Return processes that name the demo's folder, and what is in it."""
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(folder) in line] + [entry.name for entry in folder.iterdir()]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_all_of_it_happens_and_nothing_is_left_running(folder: Path) -> None:
    process = started(folder)
    told, _ = process.communicate()
    assert process.returncode == 0, told[-6000:]
    for words in ("opens the canary wave", "opens wave 1", "95 % by 1, 5 % by 2", "HALTS", "more than 3 times as long"):
        assert words in told
    for device in DEVICES:
        assert f"{device:<16} answers 100 % by 2" in told
    assert "\x1b" not in told
    assert left_over(folder) == []


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("words", ["keys new carol", "edge-agent enrol", "joins", "call every gateway"])
def test_an_interrupted_demo_leaves_nothing_behind(folder: Path, words: str) -> None:
    process = started(folder)
    assert process.stdout
    told = ""
    for line in process.stdout:
        told += line
        if words in line:
            process.send_signal(signal.SIGINT)
            break
    else:
        pytest.fail(f"it never came to {words!r}: {told}")
    told += process.communicate()[0]
    assert process.returncode == 128 + signal.SIGINT, told
    assert "Traceback" not in told
    assert left_over(folder) == []


# ---- it is not content with less -------------------------------------------------------------------------------------
@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DEMO))
    import verdict

    return verdict


def ending(verdict: Any) -> Any:
    """Return an ending in which all happened."""
    from cameras import Played
    from rollout import Rollout

    def rollout(state: str, *events: dict[str, Any]) -> Any:
        made = Rollout.__new__(Rollout)
        made.state, made.release, made.facts = state, RELEASE, [{"event": event} for event in events]
        return made

    def reports(state: str, *devices: str) -> list[dict[str, Any]]:
        return [{"kind": "reported", "device": device, "state": state, "release": RELEASE} for device in devices]

    waves = [{"kind": "decided", "decision": "open_wave", "wave": wave} for wave in (0, 1)]
    offer = {"kind": "decided", "decision": "offer", "device": DEVICES[0]}
    good = rollout("finished", *waves, *reports("committed", *DEVICES))
    before = {"kind": "reported", "device": DEVICES[0], "state": "committed", "release": "b" * 64}
    bad = rollout("aborted", offer, *reports("rolled_back", DEVICES[0]), before)
    played = {device: Played(calls=100, right=99, versions={"1": 50, "2": 50}) for device in DEVICES}
    doctor = {"agent": {"history": [{"version": "3", "state": "rolled_back"}]}}
    return verdict.Ending((good, good, bad), dict.fromkeys(DEVICES, ("2",)), played, doctor)


def test_it_is_content_with_all_of_it(verdict: Any) -> None:
    assert verdict.problems(ending(verdict)) == []


def worse(made: Any, what: str) -> Any:
    """Return the same ending, except for one thing."""
    from cameras import Played

    good, _, bad = made.rollouts
    camera = made.played[DEVICES[0]]
    other: dict[str, Any] = {
        "a good release did not finish": {"rollouts": (good, bad, bad)},
        "the bad release was not halted": {"rollouts": (good, good, good)},
        "a device is left with another version": {"serving": {**made.serving, DEVICES[1]: ("1", "2")}},
        "a device serves nothing": {"serving": {**made.serving, DEVICES[1]: ()}},
        "a call failed": {"played": {**made.played, DEVICES[0]: replace(camera, failures=["UNAVAILABLE: gone"])}},
        "too many wrong": {"played": {**made.played, DEVICES[0]: replace(camera, right=90)}},
        "a camera saw no update": {"played": {**made.played, DEVICES[0]: replace(camera, versions={"1": 100})}},
        "a camera never called": {"played": {**made.played, DEVICES[0]: Played(versions={"1": 1, "2": 1})}},
        "the device forgot": {"doctor": {"agent": {"history": []}}},
    }
    return replace(made, **other[what])


@pytest.mark.parametrize(
    "what",
    [
        "a good release did not finish",
        "the bad release was not halted",
        "a device is left with another version",
        "a device serves nothing",
        "a call failed",
        "too many wrong",
        "a camera saw no update",
        "a camera never called",
        "the device forgot",
    ],
)
def test_it_is_not_content_with_less(verdict: Any, what: str) -> None:
    assert verdict.problems(worse(ending(verdict), what))


INTERRUPTED = """
import os, signal, subprocess
from children import Children

made, real = [], subprocess.Popen

def interrupted(*arguments, **options):
    made.append(real(*arguments, **options))
    os.kill(os.getpid(), signal.SIGTERM)
    return made[0]

children, command = Children(), ["sleep", "600"]
subprocess.Popen = interrupted
try:
    with children:
        {begins}
finally:
    print("ended" if made[0].returncode is not None and not children.folder.exists() else "left")
"""


@pytest.mark.parametrize("begins", ["children.start('x', command)", "children.run('fleet', '--version')"])
def test_a_signal_that_comes_while_a_child_is_made_leaves_none(begins: str) -> None:
    """It is known before the demo ends."""
    command = [sys.executable, "-c", INTERRUPTED.format(begins=begins)]
    done = subprocess.run(command, cwd=DEMO, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "ended\n", "")
