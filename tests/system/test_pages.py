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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.simulators import import_sources

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PACKAGES = VENV / "pages"
"""Packages that the pages download: `make test-system` fetches them."""
DOCUMENTS = ("README.md", "docs/pages/start/first-inference.md", "docs/pages/start/ten-minutes.md")
SHOWN = ("packaging/README.md", "packaging/CONTAINER.md")
"""Documents of which the site makes pages of the same chapter."""
BLOCK = re.compile(
    r"(?m)(?:^<!-- not pasted: needs (.+) -->\n)?^```sh\n((?:.*\n)*?)^```\n(?:^```\n((?:.*\n)*?)^```\n)?"
)
TROUBLES = "docs/pages/howto/troubleshooting.md"
"""Page that is a part of the wheel."""
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
    """Commands of a page, and what it says that they print."""

    script: str
    printed: str


def blocks(document: str) -> list[Block]:
    """Return the blocks of shell commands in a document that can be pasted, in its order."""
    text = (ROOT / document).read_text("utf-8")
    found = BLOCK.findall(text)
    assert len(found) == text.count("```sh\n")
    return [Block(script, printed) for why_not, script, printed in found if not why_not]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return an empty folder beside what a clone has after `make demo`."""
    clone = clone_of(made := tmp_path / "empty")
    made.mkdir()
    for name in ("models", "gateway", "fleet", "device_profiles", "packaging"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone / name)
    (clone / "docs/pages/howto").mkdir(parents=True)
    shutil.copy(ROOT / TROUBLES, clone / TROUBLES)
    (clone / ".venv").symlink_to(VENV)
    yield made
    shutil.rmtree(tmp_path)


def clone_of(folder: Path) -> Path:
    """Return the folder of the clone beside an empty folder."""
    return folder.with_name("edge-inference-gateway")


def paste(
    pasted: Sequence[Block], folder: Path, prelude: str, *around: str, fds: tuple[int, ...] = (), **environ: str
) -> str:
    """Paste blocks into one shell. Fail if a command fails, or prints something else. Return all output."""
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
        pass_fds=fds,
    )
    log = folder / "gateway.log"
    assert done.returncode == 0, done.stdout[-6000:] + (log.read_text()[-6000:] if log.exists() else "")
    outputs = done.stdout.split(f"{MARK}\n")[1:]
    assert [missing(block.printed, output) for block, output in zip(pasted, outputs, strict=True)] == [[]] * len(pasted)
    drawn = re.findall(r"--(?:draw|plot) (\S+)", script)
    assert all((folder / name).stat().st_size for name in drawn)
    return done.stdout


def alike(text: str) -> list[str]:
    """Return the lines of a text without its numbers and the widths of its columns."""
    return [line for line in LINES.sub(" ", NUMBER.sub("0", text)).splitlines() if line.strip()]


def missing(printed: str, output: str) -> list[str]:
    """Return the lines of `printed` that do not follow one another in `output`."""
    lines = iter(alike(output))
    return [line for line in alike(printed) if not any(line.strip() == each.strip() for each in lines)]


def stood_in(pasted: Sequence[Block], folder: Path) -> str:
    """Paste blocks with the environment of the tests, without a network."""
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(PACKAGES), "PIP_ONLY_BINARY": ":all:"}
    tools = {"PYTHONPATH": f"{VENV}/workshop:{VENV}/camera", "PIP_PYTHON_VERSION": "3.11", **offline}
    path = f"{VENV}/bin:/usr/sbin:{os.environ['PATH']}"
    return paste(pasted, folder, f"ip link set lo up\n{STANDS_IN}", *OWN, **tools, PATH=path)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "document", [pytest.param(one, marks=pytest.mark.long) if "ten-minutes" in one else one for one in DOCUMENTS]
)
def test_what_a_page_says_can_be_pasted(document: str, folder: Path) -> None:
    assert stood_in(blocks(document), clone_of(folder) if "first-inference" in document else folder)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("guide", ["tasks", "cameras"])
def test_guides_continue_where_the_readme_ends(guide: str, folder: Path) -> None:
    stood_in(blocks("README.md"), folder)
    assert stood_in(blocks(f"docs/pages/howto/{guide}.md"), folder)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("guide", ["access", "prometheus", "limits"])
def test_guides_in_a_clone(guide: str, folder: Path) -> None:
    assert stood_in(blocks(f"docs/pages/howto/{guide}.md"), clone_of(folder))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_imports_of_the_guide(tmp_path: Path) -> None:
    """Each block begins with the same sources: an import replaces nothing."""
    for number, block in enumerate(blocks("docs/pages/howto/import.md")):
        (folder := tmp_path / str(number)).mkdir()
        import_sources.write_triton(folder / "model_repository")
        import_sources.write_openvino_server(folder / "ovms")
        import_sources.write_mlflow(folder / "mlruns/model")
        import_sources.write_hugging_face(folder / "vit-base")
        import_sources.write_detector(folder / "yolo11n.onnx", metadata=import_sources.ultralytics_metadata())
        assert stood_in([block], folder)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("document", ["README.md", "docs/pages/start/ten-minutes.md"])
def test_what_a_page_installs_is_enough(document: str, folder: Path) -> None:
    """Without the environment of the tests: pip alone is in the network of this machine, which needs root."""
    path = f"{Path(sys.base_prefix) / 'bin'}:/usr/sbin:/usr/bin:/bin"
    network = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        pip = f'ip link set lo up\npip() {{ nsenter --net=/dev/fd/{network} "$(type -P pip)" "$@"; }}\n'
        around = [word for word in OWN if word != "--map-root-user"]
        assert paste(blocks(document), folder, pip, *around, fds=(network,), PATH=path)
    finally:
        os.close(network)


@pytest.mark.parametrize("document", SHOWN)
def test_a_page_that_is_not_pasted_names_the_tests_of_its_commands(document: str) -> None:
    why = re.search(r"<!-- no block is pasted: needs .* -->", (ROOT / document).read_text("utf-8"))
    assert why
    assert all((ROOT / "tests/system" / name).exists() for name in re.findall(r"(\w+\.py)", why[0]))


def test_other_output_is_noticed() -> None:
    printed = "people version 1\n\nrow ┃ label\n━━━━╇━━━━\n0   │ person │ 0.914\n"
    assert missing(printed, "found.png written\npeople version 1\n\nrow ┃ label\n━━╇━━\n0  │ person │ 0.9\n") == []
    assert missing(printed, "people version 1\n\nrow ┃ label\n━━╇━━\n0  │ astronaut │ 0.9\n") == ["0 │ person │ 0"]
