"""A repository, its server, and the client.

The client is the executable that outside suites run, where the clock is another or a test says so. Else it is the
executable's `main` in this process, which takes a tenth of the time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
from tuf.api.metadata import Metadata

from tests.conformance.publisher import Publisher

PROGRAM = Path(__file__).with_name("tuf-client")


class Client:
    """One device: what its client trusts lies in `trusted`, what it downloaded in `downloads`."""

    def __init__(self, folder: Path, url: str) -> None:
        self.trusted, self.downloads = folder / "metadata", folder / "downloads"
        self._folder, self._url = folder, url
        self.executed = False
        """True if the executable does all of it."""
        self.trusted.mkdir()
        self.downloads.mkdir()
        self.said = ""

    def init(self, root: bytes) -> bool:
        """Return whether `init` succeeded."""
        file = self._folder / "initial_root.json"
        file.write_bytes(root)
        return self._run("init", str(file))

    def refresh(self, *, at: datetime | None = None) -> bool:
        """Return whether `refresh` succeeded."""
        return self._run("--metadata-url", f"{self._url}metadata", "refresh", at=at)

    def download(self, target: str, *, at: datetime | None = None) -> bool:
        """Return whether `download` succeeded."""
        where = ["--metadata-url", f"{self._url}metadata", "--target-base-url", f"{self._url}targets"]
        return self._run(*where, "--target-name", target, "--target-dir", str(self.downloads), "download", at=at)

    def content(self, role: str) -> bytes:
        """Return the bytes that are trusted for a top-level role (or one with a plain name)."""
        return (self.trusted / f"{role}.json").read_bytes()

    def versions(self) -> dict[str, int]:
        """Return the version of every role that is trusted."""
        files = self.trusted.glob("*.json")
        found: dict[str, Any] = {file.stem: Metadata.from_bytes(file.read_bytes()) for file in files}
        return {role: metadata.signed.version for role, metadata in found.items()}

    def downloaded(self) -> list[bytes]:
        """Return the contents of all files that were downloaded."""
        return sorted(file.read_bytes() for file in self.downloads.rglob("*") if file.is_file())

    def _run(self, *arguments: str, at: datetime | None = None) -> bool:
        arguments = ("--metadata-dir", str(self.trusted), *arguments)
        code = self._execute(*arguments, at=at) if self.executed or at else self._call(*arguments)
        assert code in {0, 1}, self.said
        assert "Traceback" not in self.said, self.said
        return code == 0

    def _call(self, *arguments: str) -> int:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            code = main()(arguments)
        self.said = said.getvalue()
        return code

    def _execute(self, *arguments: str, at: datetime | None) -> int:
        clock = ["faketime", f"{at:%Y-%m-%d %H:%M:%S}"] if at else []
        done = subprocess.run(
            [*clock, str(PROGRAM), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
            cwd=self._folder,
            env={"TZ": "UTC", "PATH": "/usr/bin:/bin"},
        )
        self.said = done.stderr
        return done.returncode


@cache
def main() -> Callable[..., int]:
    """Return the executable's own `main`."""
    loader = SourceFileLoader("tuf_client", str(PROGRAM))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    found: Callable[..., int] = module.main
    return found


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


@pytest.fixture
def client(publisher: Publisher, tmp_path: Path) -> Iterator[Client]:
    """Yield a client that is not initialised yet."""
    with publisher.served() as url:
        yield Client(tmp_path, url)


@pytest.fixture
def device(client: Client, publisher: Publisher) -> Client:
    """Return a client that is initialised with the first root, before its first request."""
    assert client.init(publisher.files["metadata/1.root.json"]), client.said
    assert publisher.requests == []
    return client
