"""The start while an agent calls on the control socket and a tool over HTTP, before either can be answered."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.performance.networks import tiny
from tests.simulators.daemon import QUIET, WAIT_S, running

ASKED = {"control": "/v1/status", "http": "/v2/health/ready"}
PAUSE_S = 0.002
"""Between two calls of a caller: the socket's file cannot be awaited."""
SLOW_TO_FAIL = "import time\ntime.sleep(0.5)\nraise ImportError('attrs is not installed here')\n"


class Caller:
    """Connects again and again, whether or not something listens; `answered` is set by the first 200."""

    def __init__(self, path: Path, asked: str) -> None:
        self._path, self._asked = path, asked
        self._stop, self.answered = threading.Event(), threading.Event()

    @contextmanager
    def calling(self) -> Iterator[Caller]:
        thread = threading.Thread(target=self._call)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()

    def _call(self) -> None:
        while not self._stop.wait(PAUSE_S):
            try:
                if self._answer().startswith(b"HTTP/1.1 200"):
                    self.answered.set()
            except OSError:  # it does not listen yet, or no more
                continue

    def _answer(self) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(WAIT_S)
            connection.connect(str(self._path))
            connection.sendall(f"GET {self._asked} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            return connection.recv(4096)


def start(folder: Path, models: Path, **options: object) -> None:
    """Start a daemon that is called already, wait until both callers had their answer, stop it."""
    folder.mkdir()
    sockets = {name: folder / f"{name}.sock" for name in ASKED}
    config = f'{QUIET}[control]\nlisten = "unix:{sockets["control"]}"\n'
    listens = {"grpc": ["off"], "http": [f"unix:{sockets['http']}"], "config": config}
    with ExitStack() as stack:
        callers = [stack.enter_context(Caller(sockets[name], asked).calling()) for name, asked in ASKED.items()]
        with running(folder, models=models, state=models.parent / "state", **listens, **options) as daemon:
            for caller in callers:
                assert caller.answered.wait(WAIT_S), daemon.log


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("called") / "models"
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "model.onnx").write_bytes(tiny().content)
    return folder


@pytest.mark.parametrize("times", [5, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_it_starts_while_it_is_called(tmp_path: Path, models: Path, times: int) -> None:
    for index in range(times):
        start(tmp_path / str(index), models)


def test_two_ports_do_not_import_at_once(tmp_path: Path, models: Path) -> None:
    """Litestar imports attrs with each application. Where it fails slowly, two threads would be in that import."""
    (tmp_path / "attr.py").write_text(SLOW_TO_FAIL)
    start(tmp_path / "gateway", models, environ={"PYTHONPATH": str(tmp_path)})
