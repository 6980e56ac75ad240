"""`edge-gateway setup` at a real terminal: questions, wrong answers, a broker that asks for a password, interrupts."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib

from tests.simulators.broker import Mosquitto

LIMIT_S = 60.0
TOKEN = "token for callers"


class Terminal:
    """Setup with a terminal for questions and answers; its result goes to a pipe."""

    def __init__(self, folder: Path) -> None:
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", "gateway", "setup", "--config", str(folder / "edge-gateway.toml")]
        self.process = subprocess.Popen(
            command, stdin=slave, stderr=slave, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        os.close(slave)
        self.said = ""

    def wait(self, text: str) -> None:
        """Read until `text` is on the screen after all that was waited for."""
        end = time.monotonic() + LIMIT_S
        while text not in self.said:
            assert select.select([self._master], [], [], max(0.0, end - time.monotonic()))[0], self.said
            self.said += os.read(self._master, 4096).decode()
        self.said = self.said.partition(text)[2]

    def answer(self, prompt: str, *words: str) -> None:
        """Wait for a question and give the answers, one after the other as it is asked again."""
        for word in words:
            self.wait(prompt)
            os.write(self._master, f"{word}\n".encode())

    def close(self) -> None:
        """Wait for the end of a process that ended by itself or was killed."""
        with self.process:
            os.close(self._master)

    def end(self) -> tuple[int, str]:
        """Return the exit code and the result."""
        out, _ = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out


@pytest.fixture
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    """Yield setup over a main file with the test's settings of `[mqtt]`."""
    (tmp_path / "edge-gateway.toml").write_text(f"[mqtt]\nkeepalive_s = 20\n{getattr(request, 'param', '')}")
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.process.kill()
    terminal.close()


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """Yield a broker that asks for a password."""
    folder = tmp_path_factory.mktemp("broker")
    subprocess.run(["mosquitto_passwd", "-c", "-b", folder / "users", "me", "word"], check=True)  # noqa: S607
    (folder / "users").chmod(0o600)
    broker = Mosquitto(folder, f"password_file {folder}/users", anonymous=False)
    asyncio.run(broker.start())
    yield broker
    asyncio.run(broker.kill())


def test_wrong_answers_are_asked_again_with_the_reason(terminal: Terminal, broker: Mosquitto, tmp_path: Path) -> None:
    password = tmp_path / "password"
    terminal.answer("[device]: ", "cellar")
    terminal.wait("answer device or network")
    terminal.answer("[device]: ", "network")
    terminal.answer("or off [off]: ", "http://broker")
    terminal.wait("mqtt.url: ")
    terminal.answer("or off [off]: ", broker.url)
    terminal.answer("[none]: ", "me")
    terminal.answer(f"[{tmp_path}/mqtt-password]: ", str(password))
    terminal.wait("mqtt.password_file: cannot be read")
    password.write_text("word\n")
    password.chmod(0o600)
    terminal.answer("or off [off]: ", broker.url)
    terminal.answer("[me]: ", "")
    terminal.answer(f"[{password}]: ", "")
    terminal.answer("[/var/lib/edge-gateway/models]: ", "/nowhere")
    terminal.wait("models.dir: /nowhere is no folder")
    terminal.answer("[/var/lib/edge-gateway/models]: ", "")
    terminal.answer("[yes]: ", "perhaps", "no")
    camera = "or off [off]: "
    terminal.answer(camera, "http://")
    terminal.wait("is no camera")
    terminal.answer(camera, "rtsp://me:word@127.0.0.1:1/h264")
    terminal.answer("Its name [camera]: ", "door")
    terminal.answer("Model or pipeline that is asked", "street")
    terminal.wait("does not accept connections at port 1")
    terminal.answer("Keep this camera all the same (yes, no) [no]: ", "yes")
    code, result = terminal.end()
    assert code == 0, terminal.said
    assert TOKEN in result
    written = tomllib.loads((tmp_path / "conf.d" / "50-setup.toml").read_text())
    assert written["mqtt"] == {"url": broker.url, "username": "me", "password_file": str(password)}
    assert written["models"] == {"examples": False}
    secret = tmp_path / "camera-door"
    assert written["camera"] == [
        {"name": "door", "url": "rtsp://127.0.0.1:1/h264", "model": "street", "credential": str(secret)}
    ]
    assert secret.read_text() == "me:word\n"


@pytest.mark.parametrize(
    "terminal", ["url = 'mqtt://127.0.0.1:1'\nusername = 'me'\npassword_file = '/etc/passwd'\n"], indirect=True
)
def test_a_user_with_a_password_becomes_anonymous(terminal: Terminal, tmp_path: Path) -> None:
    terminal.answer("[device]: ", "")
    terminal.answer("or off [mqtt://127.0.0.1:1]: ", "")
    terminal.answer("[me]: ", "none")
    terminal.answer("Keep this broker all the same (yes, no) [no]: ", "yes")
    terminal.answer("[/var/lib/edge-gateway/models]: ", "")
    terminal.answer("[yes]: ", "")
    terminal.answer("or off [off]: ", "")
    code, _ = terminal.end()
    assert code == 0, terminal.said
    written = tomllib.loads((tmp_path / "conf.d" / "50-setup.toml").read_text())
    assert written == {"mqtt": {"username": "", "password_file": ""}}


def test_an_interrupt_leaves_nothing_written(terminal: Terminal, tmp_path: Path) -> None:
    terminal.answer("[device]: ", "network")
    terminal.wait("or off [off]: ")
    os.kill(terminal.process.pid, signal.SIGINT)
    assert terminal.end() == (130, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edge-gateway.toml"]
