"""The controller, its broker for hints, and the operator who asks it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from children import Child, Children, answers, free_port
from story import Story

from fleet.client.client import Access, Client
from gateway.common.domain.errors import ConfigurationError, RequestError, UnreachableError

CONFIG = """
[listen]
addresses = ["127.0.0.1:{port}"]
[director]
poll_s = 30.0
[scheduler]
tick_s = 0.5
[wake]
url = "mqtt://127.0.0.1:{broker}"
"""
"""Devices ask every half minute by themselves; that the demo takes less, it owes to the broker."""
TAG = "demo"


def start_broker(folder: Path, children: Children) -> int:
    """Start mosquitto for this machine only; return its port."""
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        raise SystemExit("mosquitto is missing: sudo apt-get install mosquitto")
    port, config = free_port(), folder / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n")
    children.start("mosquitto", [program, "-c", config]).wait_for(lambda: answers(port))
    return port


class Controller:
    """`edge-fleet serve` in the publisher's folder. `ask` is what an operator asks over its API."""

    def __init__(self, folder: Path, children: Children, story: Story, broker: int) -> None:
        self._folder, self._children, self._story = folder, children, story
        self._port = free_port()
        self.url, self.authority = f"https://localhost:{self._port}", folder / "authority" / "ca.pem"
        (folder / "fleet.toml").write_text(CONFIG.format(port=self._port, broker=broker))
        self._access = [*("--url", self.url), *("--ca", self.authority), *("--token-file", folder / "admin.token")]
        self._client: Client | None = None

    def start(self) -> Child:
        """Start it and wait until it answers; its first token is made directly in its database."""
        self._story.command("edge-fleet", "serve")
        command = [sys.executable, "-m", "fleet", "serve", "--dir", self._folder]
        child = self._children.start("controller", command)
        child.wait_for(lambda: answers(self._port))
        token = self._folder / "admin.token"
        self._told("tokens", "create", "demo", "--role", "admin", "--dir", self._folder, "--out", token)
        self._client = Client(Access(self.url, token.read_text().strip(), str(self.authority)))
        return child

    def enrolment_token(self, device: str) -> Path:
        """Make a token that lets this device in, once; return its file."""
        file = self._folder / f"{device}.token"
        self.command("devices", "token", "--device", device, "--tag", TAG, "--out", file)
        return file

    def ask(self, method: str, path: str, **parts: Any) -> Any:
        """Return the API's JSON. End the demo where the request is refused."""
        if self._client is None:
            raise SystemExit("the controller was not started")
        try:
            return self._client.ask(method, path, **parts)
        except (ConfigurationError, RequestError, UnreachableError) as error:
            raise SystemExit(f"{method} {path}: {error}") from None

    def command(self, *arguments: str | Path) -> str:
        """Return what `edge-fleet …` prints of this controller. End the demo where it fails."""
        return self._told(*arguments, hidden=self._access)

    def _told(self, *arguments: str | Path, hidden: Sequence[str | Path] = ()) -> str:
        self._story.command("edge-fleet", *arguments)
        return self._children.run("fleet", *arguments, *hidden)
