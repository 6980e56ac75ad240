"""Requests as devices make them, and openssl as the judge."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleet.controller.authority.ca import Authority, new_authority


@pytest.fixture(scope="session")
def now() -> datetime:
    """Return whole seconds: certificates know no others."""
    return datetime.now(UTC).replace(microsecond=0)


@pytest.fixture(scope="session")
def authority(now: datetime) -> Authority:
    """Return a CA made now."""
    return new_authority(now)


@pytest.fixture
def openssl(tmp_path: Path):
    """Return a function that runs openssl in a folder of its own and returns its output, errors included."""

    program = shutil.which("openssl")
    assert program, "openssl is one of the packages that make test installs"

    def run(*words: str, ok: bool = True) -> str:
        done = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == ok, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run
