"""What the documentation says exists, exists; what exists is documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.cli.parser import VERBS
from gateway.domain.errors import Fault
from gateway.domain.runtimes import RUNTIMES
from gateway.frontends.status import STATUS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [
    path
    for path in sorted(ROOT.rglob("*.md"))
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in local if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_the_readme_names_every_verb(verb: str) -> None:
    assert re.search(rf"\b{verb}\b", README)


@pytest.mark.parametrize("runtime", sorted(RUNTIMES))
def test_the_readme_names_every_runtime(runtime: str) -> None:
    assert f"| `{runtime}` |" in README


def test_every_fault_has_a_wire_status() -> None:
    assert set(STATUS) == set(Fault)


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text() + (ROOT / "packaging" / "install.mk").read_text()
    for target in set(re.findall(r"(?:^|sudo |`)make ([a-z][a-z-]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = sorted(int(path.name[:4]) for path in (ROOT / "gateway" / "decisions").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_decision_says_what_it_costs() -> None:
    decisions = sorted((ROOT / "gateway" / "decisions").glob("*.md"))[1:]
    assert [path.name for path in decisions if "\nCost" not in path.read_text()] == []
