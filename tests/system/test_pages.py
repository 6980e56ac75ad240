"""The commands of README.md and of the pages that begin with it, pasted as a newcomer pastes them.

Each document is one shell that ends with the first command that fails, in a network and a process tree of its own: the
gateway of a page has its usual ports. What a page says that a command prints is compared, but for numbers.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PACKAGES = VENV / "pages"
"""Packages that the pages download: `make test-system` fetches them."""
DOCUMENTS = ("README.md", "docs/pages/start/first-inference.md", "docs/pages/start/ten-minutes.md")
SHOWN = ("packaging/README.md", "packaging/CONTAINER.md")
"""Documents of which the site makes pages of the same chapter."""
BLOCK = re.compile(r"(?m)(?:^<!-- not pasted: (.+) -->\n)?^```sh\n((?:.*\n)*?)^```\n(?:^```\n((?:.*\n)*?)^```\n)?")
MARK = "\N{RECORD SEPARATOR}"
STANDS_IN = f"""\
python3() {{ mkdir -p venv/bin; echo 'PATH={VENV}/bin:$PATH' > venv/bin/activate; }}
pip() {{ case $1 in install | uninstall) ;; *) command pip "$@" ;; esac; }}
"""
"""The environment of the tests in place of one that pip fills."""
OWN = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
NUMBER = re.compile(r"\d[\d.,]*")
LINES = re.compile(r"[━╇]+|[^\S\n]+")


class Block(NamedTuple):
    """Commands of a page, what it says that they print, and why they are not pasted ("" if they are)."""

    why_not: str
    script: str
    printed: str


def blocks(document: str) -> list[Block]:
    """Return the blocks of shell commands in a document, in its order."""
    found = [Block(*(text or "" for text in match)) for match in BLOCK.findall((ROOT / document).read_text("utf-8"))]
    assert len(found) == (ROOT / document).read_text("utf-8").count("```sh\n")
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Make an empty folder beside what a clone has after `make demo`."""
    clone = tmp_path / "edge-inference-gateway"
    clone.mkdir()
    for name in ("models", "gateway", "fleet", "device_profiles"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, clone / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, clone / name)
    (clone / ".venv").symlink_to(VENV)
    made = tmp_path / "empty"
    made.mkdir()
    yield made
    shutil.rmtree(tmp_path)


def paste(
    document: str, folder: Path, prelude: str, around: tuple[str, ...], **environ: str
) -> list[tuple[Block, str]]:
    """Paste the commands of a document. Return each block with what it printed."""
    pasted = [block for block in blocks(document) if not block.why_not]
    script = prelude + "".join(f"echo '{MARK}'\n{block.script}" for block in pasted)
    environment = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    environment |= {"HOME": str(folder.parent), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "COLUMNS": "160", **environ}
    done = subprocess.run(
        [*around, "bash", "-ec", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    log = folder / "gateway.log"
    assert done.returncode == 0, done.stdout[-6000:] + (log.read_text()[-6000:] if log.exists() else "")
    return list(zip(pasted, done.stdout.split(MARK + "\n")[1:], strict=True))


def alike(text: str) -> list[str]:
    """Return the lines of a text without its numbers and the widths of its columns."""
    return [line for line in LINES.sub(" ", NUMBER.sub("0", text)).splitlines() if line.strip()]


def missing(printed: str, output: str) -> list[str]:
    """Return the lines of `printed` that do not follow one another in `output`."""
    lines = iter(alike(output))
    return [line for line in alike(printed) if not any(line.strip() == each.strip() for each in lines)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_a_page_says_can_be_pasted(document: str, folder: Path) -> None:
    where = folder.parent / "edge-inference-gateway" if "first-inference" in document else folder
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(PACKAGES), "PIP_PYTHON_VERSION": "3.11"}
    tools = {"PYTHONPATH": str(VENV / "workshop"), "PIP_ONLY_BINARY": ":all:", **offline}
    path = f"{VENV}/bin:{os.environ['PATH']}"
    done = paste(document, where, f"ip link set lo up\n{STANDS_IN}", OWN, **tools, PATH=path)
    assert [lines for block, output in done if (lines := missing(block.printed, output))] == []
    assert all((where / name).stat().st_size for name in re.findall(r"--(?:draw|plot) (\S+)", done[-1][0].script))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("document", ["README.md", "docs/pages/start/ten-minutes.md"])
def test_what_a_page_installs_is_enough(document: str, folder: Path) -> None:
    """Without the environment of the tests, at the ports of this machine, for pip asks the registry."""
    done = paste(document, folder, f"PATH={Path(sys.base_prefix) / 'bin'}:$PATH\ntrap 'kill $(jobs -p)' EXIT\n")
    assert [lines for block, output in done if (lines := missing(block.printed, output))] == []


@pytest.mark.parametrize("document", SHOWN)
def test_a_page_that_is_not_pasted_names_the_tests_of_its_commands(document: str) -> None:
    why = re.search(r"<!-- no block is pasted: needs .* -->", (ROOT / document).read_text("utf-8"))
    assert why
    assert all((ROOT / "tests/system" / name).exists() for name in re.findall(r"(\w+\.py)", why[0]))


def test_other_output_is_noticed() -> None:
    printed = "people version 1\n\nrow ┃ label\n━━━━╇━━━━\n0   │ person │ 0.914\n"
    assert missing(printed, "found.png written\npeople version 1\n\nrow ┃ label\n━━╇━━\n0  │ person │ 0.9\n") == []
    assert missing(printed, "people version 1\n\nrow ┃ label\n━━╇━━\n0  │ astronaut │ 0.9\n") == ["0 │ person │ 0"]
