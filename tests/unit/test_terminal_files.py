"""Manual pages and completions that are made from the parsers, in the programs that read them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from docs.terminal import MADE, PROGRAMS, main

COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
name=$(complete -p "$1"); name=${name#*-F }; name=${name%% *}
"$name" "$1" "${!#}" "${@: -2:1}" 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""
CASES = [
    ("edge-gateway", {"run", "explain", "models", "routes"}),
    ("edge-gateway mod", {"models"}),
    ("edge-gateway explain --obj", set()),
    ("edge-gateway explain --js", {"--json"}),
    ("edge-gateway routes ", {"check", "new", "tail"}),
    ("edge-gateway models q", {"quantize"}),
    ("edge-gateway models import --from t", {"triton"}),
    ("edge-gateway infer x --output j", {"json"}),
    ("edge-gateway infer x --npz gol", {"golden.npz"}),
    ("edge-gateway run --models fol", {"folder"}),
    ("edge-agent st", {"status"}),
    ("edge-software ", {"check", "trust"}),
    ("edge-fleet roll", {"rollouts"}),
    ("edge-fleet rollouts pau", {"pause"}),
]


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("share")
    main(str(made), "2031-05-09", *PROGRAMS)
    return made


def said(folder: Path, *words: str | Path) -> str:
    """Return what a program says, after it ended well."""
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), words
    return done.stdout


@pytest.mark.parametrize(("line", "offered"), CASES)
def test_bash_completes_verbs_options_choices_and_files(
    share: Path, tmp_path: Path, line: str, offered: set[str]
) -> None:
    (tmp_path / "golden.npz").touch()
    (tmp_path / "folder").mkdir()
    program = line.split(maxsplit=1)[0]
    words = line.split() + [""] * (line.endswith(" ") or line == program)
    found = said(tmp_path, "bash", "-c", COMPLETE, "bash", share / MADE["bash"].format(program), *words)
    assert offered <= set(found.split())
    assert offered or not found.strip()


@pytest.mark.parametrize(("line", "offered"), [case for case in CASES if " " in case[0] and case[1]])
def test_fish_completes_them_too(share: Path, tmp_path: Path, line: str, offered: set[str]) -> None:
    (tmp_path / "golden.npz").touch()
    (tmp_path / "folder").mkdir()
    file = share / MADE["fish"].format(line.split(maxsplit=1)[0])
    found = said(tmp_path, "fish", "--no-config", "-c", f"source {file}; complete -C '{line}'")
    assert offered <= {row.split("\t")[0].rstrip("/") for row in found.splitlines()}


@pytest.mark.parametrize("program", PROGRAMS)
def test_zsh_finds_and_reads_them(share: Path, tmp_path: Path, program: str) -> None:
    file = share / MADE["zsh"].format(program)
    load = f"fpath=({file.parent} $fpath); autoload -U compinit; compinit -D -u; echo $_comps[{program}]"
    assert said(tmp_path, "zsh", "-f", "-c", load) == f"_{program}\n"
    assert said(tmp_path, "zsh", "-n", file) == ""


@pytest.mark.parametrize("program", PROGRAMS)
def test_man_shows_the_page_without_a_warning(share: Path, tmp_path: Path, program: str) -> None:
    page = share / MADE["man"].format(program)
    shown = said(tmp_path, "env", "MANWIDTH=80", "LC_ALL=C.UTF-8", "man", "--warnings=w", "-l", page)
    assert "--config" in shown or "--dir" in shown
