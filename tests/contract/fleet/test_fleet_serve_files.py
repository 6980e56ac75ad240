"""`edge-fleet serve` may open as many files as its settings promise connections, or says that it may not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import logging, resource
from fleet.cli.serve import _allow_files
from fleet.controller.serving.settings import ServingSettings
from tests.simulators.constants import settings_with
logging.basicConfig()
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 400))
_allow_files(settings_with(ServingSettings(max_connections={connections}), max_handshakes=10, max_requests=20))
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("connections", "limits", "said"),
    [
        (50, "(336, 400)", ""),
        (500, "(400, 400)", "open files limited: [serve] allows up to 786, this process may open 400; "),
    ],
)
def test_as_many_files_as_connections_are_promised(connections: int, limits: str, said: str) -> None:
    program = PROGRAM.format(connections=connections)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == limits
    assert said in done.stderr
    assert bool(said) == bool(done.stderr)


def test_nothing_large_is_imported_before_serve_says_that_it_starts() -> None:
    program = "import sys, fleet.cli.serve; print({'litestar', 'sqlalchemy', 'alembic'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("set()\n", "")
