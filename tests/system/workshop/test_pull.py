"""`edge-gateway models pull` as a shell sees it: output, exit codes, kills, full disks."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import resource
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simulators.bad_server import BadServer, Behaviour, Exchange, answer, serve
from tests.simulators.daemon import COMMAND, ROOT
from tests.simulators.pulling import MODEL, digest, release_tar
from tests.simulators.registry import registry

LARGE = bytes(range(256)) * 20_000
"""A file of 5 MB."""
Cli = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def cli(state: Path, tmp_path: Path) -> Cli:
    """Return a function that pulls into `models`, with the shared verdicts."""
    environ = {**os.environ, "DOCKER_CONFIG": str(tmp_path), "COLUMNS": "120"}

    def call(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
        command = [*COMMAND, "models", "pull", *arguments, "--state", str(state)]
        given = {"env": environ, "capture_output": True, "cwd": ROOT, **options}
        return subprocess.run(command, check=False, **given)  # type: ignore[call-overload,no-any-return]

    return call


@pytest.fixture
def server() -> Iterator[BadServer]:
    with BadServer([serve(MODEL)]).running() as running:
        yield running


def test_a_pulled_release_is_checked(cli: Cli, tmp_path: Path) -> None:
    models = tmp_path / "models"
    with registry(tmp_path / "registry") as running:
        kind = "application/vnd.oci.image.layer.v1.tar+gzip"
        pinned = running.push("team/meter", "v1", running.layer("team/meter", release_tar(), kind=kind))
        where = f"oci://{running.host}/team/meter"
        done = cli(f"{where}@{pinned}", "--into", str(models), "--json")
        assert done.returncode == 0, done.stderr.decode()
        told = json.loads(done.stdout)
        assert (told["ok"], told["new"], told["digest"]) == (True, True, pinned)
        assert told["folder"] == str(models / "meter-reader" / "1")
        assert {variant["level"] for variant in told["releases"][0]["variants"] if variant["tried"]} == {"proven"}
        again = cli(f"{where}@{pinned}", "--into", str(models))
        assert again.returncode == 0
        assert b"was already in" in again.stdout
        refused = cli(f"{where}:v1", "--into", str(tmp_path / "others"))
        assert refused.returncode == 2
        taken = cli(f"{where}:v1", "--into", str(tmp_path / "others"), "--accept-tag")
        assert taken.returncode == 0
        assert f"pin it: {where}:v1@{pinned}" in taken.stderr.decode()


def test_a_file_that_is_no_model_is_refused_and_not_moved(cli: Cli, tmp_path: Path) -> None:
    rubbish = b"no model"
    with BadServer([serve(rubbish)]).running() as server:
        done = cli(f"{server.url}m.onnx#sha256={digest(rubbish)}", "--into", str(tmp_path / "models"))
    assert done.returncode == 1
    assert b"no release that can be served" in done.stderr
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".pull"]


def test_a_release_that_does_not_pass_its_trial_is_a_finding(cli: Cli, tmp_path: Path) -> None:
    rubbish = bytes(1000)
    with BadServer([serve(rubbish)]).running() as server:
        done = cli(f"{server.url}m.tflite#sha256={digest(rubbish)}", "--into", str(tmp_path / "models"), "--json")
    assert done.returncode == 1, done.stderr
    assert not json.loads(done.stdout)["ok"]


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [(answer("404 Not Found"), 1), (answer("401 Unauthorized"), 1), (serve(b"other"), 1), (serve(b"x" * 2000), 1)],
)
def test_exit_codes(cli: Cli, tmp_path: Path, behaviour: Behaviour, code: int) -> None:
    with BadServer([behaviour]).running() as server:
        where = f"{server.url}m.onnx#sha256={digest(MODEL)}"
        done = cli(where, "--into", str(tmp_path / "models"), "--limit-bytes", "1000")
    assert (done.returncode, done.stdout) == (code, b"")
    assert len(done.stderr.decode().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("https://h/m.onnx", "--into", "x"),
        ("oci://h/a:v1", "--into", "x"),
        ("https://h/m.onnx#sha256=" + "0" * 64,),
    ],
)
def test_misuse(cli: Cli, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = cli(*arguments, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (2, b"")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_reached(cli: Cli, tmp_path: Path) -> None:
    with BadServer([]).running() as gone:
        url = gone.url
    small = "import gateway.workshop.pull.settings as s\ns.PullFetchSettings.attempts = 1\n"
    script = small + "import sys\nfrom gateway.cli import main\nsys.exit(main(sys.argv[1:]))"
    where = f"{url}m.onnx#sha256={digest(MODEL)}"
    command = [COMMAND[0], "-c", script, "models", "pull", where, "--into", str(tmp_path / "models")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 3
    assert b"run the command again" in done.stderr


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path) -> None:
    script = "import sys\nsys.modules['urllib3'] = None\nfrom gateway.cli import main\nsys.exit(main(sys.argv[1:]))"
    where = f"http://localhost:1/m.onnx#sha256={digest(MODEL)}"
    command = [COMMAND[0], "-c", script, "models", "pull", where, "--into", str(tmp_path / "models")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert f"-m pip install --editable '{ROOT}[pull]'" in done.stderr


def halting(content: bytes, count: int, halted: list[Exchange]) -> Behaviour:
    """Send a part of the body, then nothing more."""

    def behave(exchange: Exchange) -> None:
        exchange.head("200 OK", f"Content-Length: {len(content)}")
        exchange.body(content[:count])
        halted.append(exchange)
        while exchange.rest(60):
            pass

    return behave


def test_a_killed_pull_is_continued(state: Path, tmp_path: Path, cli: Cli) -> None:
    halted: list[Exchange] = []
    models = tmp_path / "models"
    script = [serve(MODEL), halting(MODEL, len(MODEL) // 2, halted)]
    with BadServer(script).running() as server:
        where = [f"{server.url}m.onnx#sha256={digest(MODEL)}", "--into", str(models)]
        with subprocess.Popen([*COMMAND, "models", "pull", *where, "--state", str(state)], cwd=ROOT) as process:
            part = models / ".pull" / "sha256" / f"{digest(MODEL)}.part"
            while not (halted and part.exists() and part.stat().st_size == len(MODEL) // 2):
                signal.sigtimedwait([], 0.02)
            process.kill()
        assert [path.name for path in models.iterdir()] == [".pull"]
        server.script[:] = [serve(MODEL)]
        done = cli(*where)
        assert server.exchanges[-1].headers["range"] == f"bytes={len(MODEL) // 2}-"
    assert (models / "m" / "1" / "m.onnx").read_bytes() == MODEL
    assert done.returncode == 0


@pytest.mark.timeout(180)
def test_a_pull_may_be_killed_at_any_system_call(server: BadServer, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.simulators.killed_pull", str(tmp_path), f"{server.url}model.onnx"]
    done = subprocess.run([*words, digest(MODEL)], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    told = json.loads(done.stdout)
    assert told["problems"] == {}
    assert told["kills"] > 20


def limited() -> None:
    """Let every file have 1 MB at most: the disk of a process without the right to mount one."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def test_a_full_disk(cli: Cli, tmp_path: Path) -> None:
    with BadServer([serve(LARGE)]).running() as server:
        where = [f"{server.url}m.onnx#sha256={digest(LARGE)}", "--into", str(tmp_path / "models")]
        done = cli(*where, preexec_fn=limited)
        assert done.returncode == 3
        assert b"no room on the disk" in done.stderr
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".pull"]


def test_a_disk_that_fills_up_while_an_archive_is_unpacked(cli: Cli, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("model.onnx")
        member.size = len(LARGE)
        tar.addfile(member, io.BytesIO(LARGE))
    packed = gzip.compress(buffer.getvalue())
    with BadServer([serve(packed)]).running() as server:
        done = cli(f"{server.url}m.tgz#sha256={digest(packed)}", "--into", str(tmp_path / "m"), preexec_fn=limited)
    assert done.returncode == 3
    assert b"no room on the disk" in done.stderr
    assert [path.name for path in (tmp_path / "m").iterdir()] == [".pull"]
    assert not any(path.name.startswith(".tmp-") for path in (tmp_path / "m" / ".pull").iterdir())


def test_a_terminal_shows_the_progress(server: BadServer, tmp_path: Path, state: Path) -> None:
    ours, theirs = pty.openpty()
    where = [f"{server.url}m.onnx#sha256={digest(MODEL)}", "--into", str(tmp_path / "models"), "--state", str(state)]
    with subprocess.Popen([*COMMAND, "models", "pull", *where], cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs) as run:
        os.close(theirs)
        shown = bytearray()
        while piece := _read(ours):
            shown += piece
        assert run.stdout
        assert b"m 1 is in" in run.stdout.read()
    os.close(ours)
    assert b"pulling m" in shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # EIO: the other side is closed
        return b""
