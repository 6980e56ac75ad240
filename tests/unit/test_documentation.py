"""The documentation names only what exists; what exists is documented."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from gateway import RELEASED, __version__
from gateway.cli import VERBS
from gateway.common.domain.errors import Fault
from gateway.common.domain.installation import PACKAGES
from gateway.common.domain.problem import HTTP_STATUS
from gateway.common.domain.runtimes import RUNTIMES
from gateway.serving.tasks.catalog import TASKS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [
    path
    for path in sorted(ROOT.rglob("*.md"))
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
]
HOUSES = {
    name: ROOT / name for name in ("gateway/common", "gateway/serving", "gateway/device", "gateway/workshop", "fleet")
}
"""Houses with a page of their own; the overview is the page of `gateway`."""
QUESTIONS = {
    "how do I connect my camera": "howto/cameras",
    "serve my own model": "howto/models",
    "docker": "start/container",
    "zones": "howto/cameras",
    "what if it fails": "start/install howto/troubleshooting",
    "home assistant": "howto/home-assistant",
    "token": "howto/access",
    "update devices": "howto/fleet",
    "which accelerator": "howto/runtimes",
    "raspberry pi": "start/install",
    "jetson": "start/install",
    "coral": "howto/runtimes",
    "onnx model": "howto/models",
    "int8 quantize": "howto/own-model",
    "mqtt broker password": "howto/brokers",
    "prometheus": "howto/prometheus",
    "slow": "howto/limits",
    "install": "start/install",
    "uninstall": "start/install",
    "port already in use": "start/first-inference howto/troubleshooting",
}
"""Page that answers each question, or pages."""
FILE = r"`([\w./-]+(?:/|\.py|\.md|\.toml))`"


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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built site, without a warning: generated pages, links between pages and their anchors."""
    folder = tmp_path_factory.mktemp("site")
    options = ("--strict", "--config-file", "docs/mkdocs.yml", "--site-dir", folder)
    command = [ROOT / ".venv-docs/bin/python", "-m", "mkdocs", "build", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_what_is_generated(site: Path) -> None:
    assert "edge-fleet rollouts create" in (site / "reference/commands.html").read_text()


def test_the_site_needs_no_other_server(site: Path) -> None:
    """Pages are read as files, too: scripts, styles and pictures are in the site."""
    pages = [*site.rglob("*.html")]
    loads = re.compile(r"""<(?:script|img|link [^>]*rel="?(?:stylesheet|icon))\b[^>]* (?:src|href)="?([^" >]+)""")
    named = {address for page in pages for address in loads.findall(page.read_text())}
    assert len(named) > 5
    assert [address for address in named if "//" in address] == []
    assert (site / "search/search_index.js").read_text().startswith("var __index")


def test_the_search_answers_newcomers(site: Path) -> None:
    """The right page is among the first three, by the worker of the site's pages."""
    script, asked = Path(__file__).with_name("site_search.js"), json.dumps(list(QUESTIONS))
    command = [shutil.which("node") or "node", script, site]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {question: pages[:3] for question, pages in json.loads(done.stdout).items()}
    right = {question: {f"{page}.html" for page in pages.split()} for question, pages in QUESTIONS.items()}
    assert {question: pages for question, pages in found.items() if right[question].isdisjoint(pages)} == {}


def test_the_options_of_every_task_are_in_the_reference() -> None:
    reference = (ROOT / "docs/pages/reference/tasks.md").read_text()
    cards = "".join(sys.modules[made.__module__].__doc__ or "" for made in TASKS.values())
    rows = [line for line in cards.splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    assert [line for line in rows if line not in reference] == []


def test_every_key_of_a_manifest_is_in_the_reference() -> None:
    readers = ("manifest_toml.py", "preprocess_toml.py", "audio_toml.py")
    source = "".join((ROOT / "gateway/common/domain" / reader).read_text() for reader in readers)
    keys = set(
        re.findall(
            r"""\.(?:text|texts|integer|integers|number|numbers|flag|table|tables)\(\s*"([a-z0-9_]+)\"""", source
        )
    )
    reference = (ROOT / "docs/pages/reference/manifest.md").read_text()
    assert len(keys) > 30
    assert sorted(key for key in keys if not re.search(rf"\b{key}\b", reference)) == []


def test_prometheus_takes_the_alert_rules_and_every_metric_exists() -> None:
    rules = ROOT / "packaging/prometheus/edge-gateway.rules.yml"
    program = shutil.which("promtool") or "promtool"
    done = subprocess.run([program, "check", "rules", str(rules)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    documented = (ROOT / "gateway/serving/observe/METRICS.md").read_text()
    dashboard = (ROOT / "packaging/prometheus/grafana-dashboard.json").read_text()
    used = set(re.findall(r"edge_gateway_[a-z_]+", rules.read_text() + dashboard))
    known = set(re.findall(r"edge_gateway_[a-z_]+", documented))
    assert {name.removesuffix("_bucket") for name in used} - known == set()


def test_every_fault_has_a_wire_status() -> None:
    assert set(HTTP_STATUS) == set(Fault)


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text() + (ROOT / "packaging" / "install.mk").read_text()
    for target in set(re.findall(r"(?:^|sudo |`)make ([a-z][a-z-]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_make_hides_no_installation_that_failed() -> None:
    installing = [line for line in (ROOT / "Makefile").read_text().splitlines() if "@$(PIP)" in line]
    assert installing
    assert [line for line in installing if "||" in line] == []


def test_documents_name_every_extra_and_none_that_does_not_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = "\n".join(document.read_text() for document in DOCUMENTS)
    named = re.findall(r"(?:edge-inference-gateway|\.whl|'\.)\[([a-z,-]+)\]", text)
    assert {extra for names in named for extra in names.split(",")} == set(extras)


@pytest.mark.parametrize(("extra", "package"), [(extra, package) for extra, package in PACKAGES.items() if extra])
def test_the_guide_names_the_package_of_every_extra(extra: str, package: str) -> None:
    guide = (ROOT / "packaging/README.md").read_text()
    assert f"| `'edge-inference-gateway[{extra}]'` | `{package}` |" in guide


def test_the_changelog_begins_with_this_version() -> None:
    day = "unreleased" if ".dev" in __version__ else RELEASED
    headings = re.findall(r"(?m)^## .*$", (ROOT / "CHANGELOG.md").read_text())
    assert headings[0] == f"## [{__version__}] - {day}"


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = sorted(int(path.name[:4]) for path in (ROOT / "gateway" / "decisions").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_decision_says_what_it_costs() -> None:
    decisions = sorted((ROOT / "gateway" / "decisions").glob("*.md"))[1:]
    assert [path.name for path in decisions if "\nCost" not in path.read_text()] == []


def rows(house: str, *sections: str) -> list[list[str]]:
    """Return the cells of all tables in sections of a house's page, without heads."""
    text = (ROOT / house / "ARCHITECTURE.md").read_text()
    found = re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    lines = [line for title, body in found if title in sections for line in body.splitlines()]
    cells = [re.split(r"(?<!\\) \| ", line[2:-2]) for line in lines if line.startswith("| ")]
    return [row for row in cells if "---" not in row]


def placed(house: str, path: str) -> Path:
    """Return where a page's path leads: below its house, or below the repository if it begins with a folder of that."""
    inside = ROOT / house / path
    return inside if inside.exists() else ROOT / path


@pytest.mark.parametrize("house", ["gateway", *HOUSES])
def test_every_path_and_name_of_the_architecture_exists(house: str) -> None:
    tables = rows(house, "Five houses", "Entry points", "Extensions")
    assert len(tables) > 10
    text = "\n".join(cell for row in tables for cell in row)
    assert [path for path in re.findall(FILE, text) if not placed(house, path).exists()] == []
    missing = [
        (path, name)
        for path, names in re.findall(r"`([\w./]+\.py)`((?:,? `\w+`)+)", text)
        for name in re.findall(r"`(\w+)`", names)
        if not re.search(rf"\b{name}\b", placed(house, path).read_text())
    ]
    assert missing == []


@pytest.mark.parametrize("house", HOUSES)
def test_the_architecture_names_every_package_and_only_modules_that_exist(house: str) -> None:
    folder, tables = HOUSES[house], rows(house, "Packages")
    named = {path.rstrip("/") for head, _ in tables for path in re.findall(r"`([\w/]+/)`", head)}
    packages = {str(file.parent.relative_to(folder)) for file in folder.rglob("__init__.py")} - {"."}
    assert sorted(named - packages) == []
    assert sorted(package for package in packages - named if "migrations" not in package) == []
    unknown = []
    for head, text in tables:
        below = [folder / path for path in re.findall(r"`([\w/]+)/`", head)] or [folder]
        source = "".join(file.read_text() for place in below for file in place.rglob("*.py"))
        modules = {file.stem for file in folder.rglob("*.py")} | {
            file.name for file in folder.rglob("*") if file.is_dir()
        }
        words = set(re.findall(r"`([a-z_0-9]+)`", text))
        unknown += [(head, word) for word in sorted(words - modules) if not re.search(rf"\b{word}\b", source)]
    assert unknown == []


def test_the_new_paths_of_the_history_exist() -> None:
    moved = [new for _, new in rows("gateway", "History: old paths")]
    paths = re.findall(r"`((?:gateway|fleet)/[\w/.]+)`", " ".join(moved))
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).exists()] == []
