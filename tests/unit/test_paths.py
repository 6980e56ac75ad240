"""Every verb that takes a path, given one that is absent, of another kind, empty, unreadable or binary."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from docs.terminal import PROGRAMS
from gateway.common.logs import QUIET

MODEL = Path(__file__).parents[2] / "models/meter-reader/1"
LINES = f"""
edge-gateway probe --config PATH
edge-gateway probe --root PATH
edge-gateway explain activity --no-measure --config PATH
edge-gateway explain activity --no-measure --models PATH
edge-gateway explain activity --no-measure --root PATH
edge-gateway explain activity --url 127.0.0.1:9 --token-file PATH
edge-gateway explain activity --url https://127.0.0.1:9 --ca PATH
edge-gateway explain activity --url https://127.0.0.1:9 --cert PATH
edge-gateway doctor --root PATH
edge-gateway models --models PATH
edge-gateway models check PATH
edge-gateway models new PATH --yes --models FOLDER/models
edge-gateway models new {MODEL}/onnx-fp32/model.onnx --yes --models FOLDER/models --labels PATH
edge-gateway models quantize PATH --calibration FOLDER
edge-gateway models import PATH --into FOLDER/models
edge-gateway config --config PATH
edge-gateway config check PATH
edge-gateway config check --fleet-settings PATH
edge-gateway infer meter-reader --offline --state FOLDER --json PATH
edge-gateway infer meter-reader --url 127.0.0.1:9 --image PATH --token-file PATH
edge-gateway routes check PATH --sample {MODEL}/card.md
edge-gateway routes new --sample PATH
edge-gateway routes tail PATH
edge-gateway watch PATH --once
edge-agent bootstrap PATH --state FOLDER/agent
edge-agent enrol https://127.0.0.1:9 --token-file PATH --state FOLDER/agent
edge-agent enrol https://127.0.0.1:9 --token x --ca PATH --state FOLDER/agent
edge-agent sync --config PATH --state FOLDER/agent
edge-agent sync --from PATH --state FOLDER/agent
edge-agent run --config PATH --state FOLDER/agent
edge-agent status --state PATH
edge-agent verify --state PATH
edge-agent recover --state PATH
edge-software check PATH
edge-software check FOLDER --config PATH
edge-software serve --config PATH
edge-software trust PATH --state FOLDER/software
edge-fleet keys show --out PATH
edge-fleet publish --dir PATH
edge-fleet repo init --dir FOLDER --root PATH --targets PATH --online PATH
edge-fleet model add PATH --dir FOLDER --owner acme
edge-fleet software add PATH --dir FOLDER/fleet
edge-fleet settings add PATH --dir FOLDER --name site
edge-fleet profile add PATH --dir FOLDER/fleet
edge-fleet policy add PATH --dir FOLDER/fleet
edge-fleet sign PATH --key PATH
edge-fleet verify PATH
edge-fleet status --dir PATH
edge-fleet drafts list --url https://127.0.0.1:9 --token-file PATH
edge-fleet drafts list --url https://127.0.0.1:9 --ca PATH --token-file {MODEL}/card.md
edge-fleet rollouts create --spec PATH --url https://127.0.0.1:9 --token-file {MODEL}/card.md
edge-fleet backup restore PATH --dir FOLDER
"""


def absent(path: Path) -> None:
    """Leave the path out."""


def folder(path: Path) -> None:
    path.mkdir()


def empty(path: Path) -> None:
    path.touch()


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 64)


def unreadable(path: Path) -> None:
    """Make a file whose reading fails, also for root: memory at address 0."""
    path.symlink_to("/proc/self/mem")


FINE = {
    *((line, empty) for line in LINES.splitlines() if "config" in line),
    *((line, folder) for line in LINES.splitlines() if re.search("--root PATH|sync --from|verify PATH", line)),
}
"""Fine: a configuration without settings, and an empty folder as the root of a machine or as a repository."""
CASES = [
    pytest.param(line, make, id=f"{line.replace(str(MODEL), MODEL.parent.name)}: {make.__name__}")
    for line in LINES.strip().splitlines()
    for make in (absent, folder, empty, binary, unreadable)
    if (line, make) not in FINE
]


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Put the logging back that a verb configured for its process."""
    root, quiet = logging.getLogger(), {name: logging.getLogger(name).level for name in QUIET}
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:], root.level = handlers, level
    for name, before in quiet.items():
        logging.getLogger(name).setLevel(before)


@pytest.mark.parametrize(("line", "make"), CASES)
def test_a_wrong_path_is_answered_in_words(
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    make: Callable[[Path], None],
) -> None:
    path = tmp_path / "nowhere"
    make(path)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line.replace("PATH", str(path)).replace("FOLDER", str(tmp_path)))
    assert PROGRAMS[words[0]].main(words[1:]) in {1, 2}
    said = capfd.readouterr()
    problem = said.err or said.out
    assert len(said.err.splitlines()) <= 1
    assert len(problem) > 20
    assert not re.search(r"Errno|Traceback|codec|_ssl\.c", said.err + said.out)
    assert re.search("nowhere|/mem|no repository here|the payload", problem)
