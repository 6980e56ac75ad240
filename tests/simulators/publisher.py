"""A publisher at a shell: `edge-fleet` as a process in a separate folder, with key files."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.simulators import constants

ROOT = Path(__file__).parents[2]
PASSPHRASE = "correct horse battery staple"
MODELS = ROOT / "models"


class Publisher:
    """Shell of a publisher. Commands run in `folder`: people's keys are here, the publisher's own in `keys`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fixed: constants.Constants = {}
        self.public = folder / "public"
        folder.mkdir(parents=True, exist_ok=True)
        self.gateway = folder / "edge-gateway"
        self.gateway.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gateway "$@"\n')
        self.gateway.chmod(0o755)

    def run(
        self, *arguments: str | Path, environment: Mapping[str, str] | None = None, code: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run one command. Fail if its exit code is not `code` (None: any)."""
        done = subprocess.run(
            [*constants.command((sys.executable, "-m", "fleet"), self.fixed), *map(str, arguments)],
            cwd=self.folder,
            env=self.environment | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert code is None or done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the commands."""
        return {**os.environ, "PYTHONPATH": str(ROOT), "EDGE_FLEET_PASSPHRASE": PASSPHRASE, "COLUMNS": "160"}

    def told(self, *arguments: str | Path, code: int = 0) -> Any:
        """Return the JSON that a command prints."""
        return json.loads(self.run(*arguments, "--json", code=code).stdout)

    def begin(self) -> None:
        """Publish a root of alice, bob and carol, and an owner acme. The fourteen commands run once for all callers."""
        shutil.copytree(_begun(), self.folder, dirs_exist_ok=True)

    def begin_anew(self) -> None:
        """Run the commands of `begin` with new keys."""
        for name in ("alice", "bob", "carol", "acme"):
            self.run("keys", "new", name)
        for name in ("online", "director"):
            self.run("keys", "new", name, "--out", "keys", "--no-passphrase")
        people = ("alice.pub", "bob.pub", "carol.pub")
        online = ("--online", "keys/online.pub", "--director", "keys/director.pub")
        self.run("repo", "init", "--root", *people, "--targets", "alice.pub", *online)
        self.run("delegate", "acme", "--key", "acme.pub")
        self.sign("root", "alice", "bob")
        self.sign("targets", "alice")
        self.run("publish")

    def sign(self, role: str, *names: str) -> None:
        """Sign a draft as these people."""
        keys = [text for name in names for text in ("--key", f"{name}.pem")]
        self.run("sign", f"drafts/{role}.json", *keys, "--yes")

    def release(self, model: Path, *options: str) -> None:
        """Publish a model's folder as acme's next release."""
        self.run("model", "add", model, "--owner", "acme", "--edge-gateway", self.gateway, *options)
        self.sign("models-acme", "acme")
        self.run("publish")

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve `public` by a plain file server. Yield its URL."""
        with serving(self.public) as url:
            yield url


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    """Return a publisher with one release."""
    made = Publisher(tmp_path_factory.mktemp("publisher"))
    made.begin()
    made.release(MODELS / "meter-reader" / "1")
    return made


@cache
def _begun() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="edge-fleet-publisher-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Publisher(folder).begin_anew()
    return folder


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Run a plain file server. Yield its URL."""

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
