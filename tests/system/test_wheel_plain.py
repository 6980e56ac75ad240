"""The wheel installed without extras: a missing runtime or extra is named with the command that adds it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from gateway import __version__
from gateway.common.domain.installation import DISTRIBUTION, Installation
from tests.simulators import runtime_only
from tests.simulators.daemon import QUIET, SHIPPED, SHORT_TRIALS, copy_model, running
from tests.system.installation import REPOSITORY, clean_environment, run, wheel

PROGRAMS = {
    "edge-gateway": "gateway.cli",
    "edge-agent": "gateway.device.agent.cli.parser",
    "edge-fleet": "fleet.cli.parser",
}
EXTRAS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
HELP_OF_EVERY_VERB = """
import contextlib, sys
from {parser} import PROGRAM
for verb in PROGRAM.verbs:
    with contextlib.suppress(SystemExit):
        PROGRAM.main([verb.name, "--help"])
"""
MISSING = [
    ("edge-gateway", "camera", "infer street --video street.mp4"),
    ("edge-gateway", "camera", "infer street --camera rtsp://127.0.0.1:1/stream"),
    ("edge-agent", "agent", "sync"),
    ("edge-agent", "agent", "enrol https://127.0.0.1:1 --token x"),
    ("edge-fleet", "fleet", "serve"),
    ("edge-fleet", "fleet", "keys new owner"),
    ("edge-fleet", "fleet", "status"),
    ("edge-fleet", "fleet", "devices list"),
    ("edge-fleet", "fleet", "migrate"),
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the programs.

    uv installs like pip does, in a tenth of the time; the versions are the locked ones.
    """
    folder = tmp_path_factory.mktemp("plain")
    pinned = run(runtime_only.interpreter(), "-m", "pip", "--disable-pip-version-check", "freeze").stdout
    (folder / "constraints.txt").write_text(pinned)
    uv, python = Path(sys.executable).with_name("uv"), folder / "venv" / "bin" / "python"
    run(uv, "venv", "--python", sys.executable, folder / "venv")
    run(uv, "pip", "install", "--python", python, "--constraint", folder / "constraints.txt", wheel())
    return python.parent


def pip(programs: Path) -> str:
    """Return the command of pip for an environment of uv, which has none of its own."""
    return f"python3 -m pip --python {programs.parent}"


def said(folder: Path, program: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environ = clean_environment(XDG_STATE_HOME=str(folder / "state"), HOME=str(folder))
    return run(program, *arguments, check=False, cwd=folder, env=environ)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_has_the_one_version_and_help_for_every_verb(
    programs: Path, tmp_path: Path, program: str
) -> None:
    assert said(tmp_path, programs / program, "--version").stdout == f"{program} {__version__}\n"
    script = HELP_OF_EVERY_VERB.format(parser=PROGRAMS[program])
    done = said(tmp_path, programs / "python", "-P", "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("usage: ") == done.stdout.count("exit codes: ") > 5


@pytest.mark.parametrize(("program", "extra", "arguments"), MISSING, ids=lambda value: value.partition(" ")[0])
def test_a_missing_extra_is_named(programs: Path, tmp_path: Path, program: str, extra: str, arguments: str) -> None:
    done = said(tmp_path, programs / program, *arguments.split())
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"is not installed; {pip(programs)} install 'edge-inference-gateway[{extra}]' (EG-702)")
    assert (done.returncode, line.startswith(f"{program}: the Python package ")) == (3, True)


def test_doctor_and_explain_name_missing_runtimes(programs: Path, tmp_path: Path) -> None:
    done = said(tmp_path, programs / "edge-gateway", "doctor", "--json")
    remedies = {found["subject"]: found["remedy"] for found in json.loads(done.stdout)["findings"]}
    for runtime in ("onnx", "openvino", "litert"):
        assert f"install 'edge-inference-gateway[{runtime}]'" in remedies[f"runtime {runtime}"]
    assert "EG-409: A runtime is not installed" in said(tmp_path, programs / "edge-gateway", "doctor", "EG-409").stdout
    told = said(tmp_path, programs / "edge-gateway", "explain", "meter-reader", "--json")
    assert json.loads(told.stdout)["chosen"] == "reference"
    assert "install 'edge-inference-gateway[onnx]'" in told.stdout


def test_the_daemon_serves_by_what_is_there_and_names_what_is_not(programs: Path, tmp_path: Path) -> None:
    """The reference runs one model; a bare ONNX file needs its runtime."""
    copy_model("meter-reader", tmp_path / "models")
    (tmp_path / "models" / "bare").mkdir()
    onnx = SHIPPED / "meter-reader" / "1" / "onnx-fp32" / "model.onnx"
    (tmp_path / "models" / "bare" / "model.onnx").write_bytes(onnx.read_bytes())
    options = {"config": QUIET + SHORT_TRIALS, "command": (str(programs / "edge-gateway"),)}
    with running(tmp_path / "gateway", models=tmp_path / "models", **options) as daemon:
        chosen = daemon.wait_logged("variant chosen", model="meter-reader")
        log = daemon.log
    assert chosen["variant"] == "reference"
    assert "install 'edge-inference-gateway[onnx]'" in log


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_every_command_names_can_be_installed_here(programs: Path, extra: str) -> None:
    done = resolve(programs, Installation(str(programs.parent), "pip", programs).adding(extra))
    assert f"- {DISTRIBUTION}" not in done, "another version would take its place"
    assert "Would install" in done


def test_what_the_command_of_a_checkout_names_can_be_installed(programs: Path) -> None:
    done = resolve(programs, Installation(str(programs.parent), "pip", REPOSITORY).adding("camera"))
    assert f"+ {DISTRIBUTION} @ file://{REPOSITORY}\n" in done
    assert " + av==" in done


def resolve(programs: Path, command: str) -> str:
    """Return what uv would do in the place of pip, without a change."""
    uv, words = Path(sys.executable).with_name("uv"), shlex.split(command)[2:]
    return run(uv, "pip", "install", "--dry-run", "--python", programs / "python", *words).stderr


def test_the_command_that_is_named_adds_the_extra(programs: Path, tmp_path: Path) -> None:
    """The last test: it adds a package to the environment of the others."""
    pulled = ("models", "pull", f"http://127.0.0.1:1/m.onnx#sha256={'0' * 64}")
    done = said(tmp_path, programs / "edge-gateway", *pulled)
    assert "urllib3 is not installed" in done.stderr
    command = shlex.split(done.stderr.rpartition("; ")[2].removesuffix(" (EG-702)\n"))
    run(Path(sys.executable), *command[1:], "--quiet", "--disable-pip-version-check", cwd=tmp_path)
    assert "is not installed" not in said(tmp_path, programs / "edge-gateway", *pulled).stderr
