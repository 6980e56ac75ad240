"""Hooks of MkDocs: pages made from documents of the repository and from the code, and links between all of them."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from docs.reference import commands, errors, settings

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ("camera-to-mqtt", "sensor-window", "javascript", "fleet-of-three", "own-model", "pipelines")
DOCUMENTS = {
    "packaging/README.md": "start/install.md",
    "packaging/CONTAINER.md": "start/container.md",
    "fleet/README.md": "howto/fleet-guide.md",
    "fleet/controller/rollouts/README.md": "howto/fleet-rollouts.md",
    "fleet/controller/serving/README.md": "howto/fleet-serving.md",
    "fleet/controller/monitoring/README.md": "howto/fleet-alerts.md",
    "gateway/device/agent/README.md": "howto/fleet-agent.md",
    "device_profiles/SCHEMA.md": "reference/device-profiles.md",
    "gateway/serving/observe/METRICS.md": "reference/metrics.md",
    "fleet/METRICS.md": "reference/fleet-metrics.md",
    "gateway/ARCHITECTURE.md": "explanation/architecture.md",
    "gateway/common/ARCHITECTURE.md": "explanation/architecture-common.md",
    "gateway/serving/ARCHITECTURE.md": "explanation/architecture-serving.md",
    "gateway/device/ARCHITECTURE.md": "explanation/architecture-device.md",
    "gateway/workshop/ARCHITECTURE.md": "explanation/architecture-workshop.md",
    "fleet/ARCHITECTURE.md": "explanation/architecture-fleet.md",
    "SECURITY.md": "explanation/security.md",
    "gateway/GLOSSARY.md": "explanation/glossary.md",
    "fleet/SIZING.md": "explanation/fleet-sizing.md",
    "CONTRIBUTING.md": "explanation/contributing.md",
    "CHANGELOG.md": "explanation/changelog.md",
    "examples/README.md": "examples/index.md",
    **{f"examples/{name}/README.md": f"examples/{name}.md" for name in EXAMPLES},
    **{
        f"gateway/decisions/{file.name}": f"explanation/decisions/{file.name}"
        for file in sorted((ROOT / "gateway/decisions").glob("*.md"))
    },
}
"""Documents of the repository, by the page that shows them."""
GENERATED = {"reference/commands.md": commands, "reference/settings.md": settings, "reference/errors.md": errors}
WEIGHTS = {"explanation/decisions": 0.02, "explanation/changelog": 0.02, "explanation/": 0.1, "reference/": 0.2} | {
    f"howto/{page}": 0.5 for page in ("fleet-", "troubleshooting")
}
"""Weight of pages in searches, by the beginning of their path; guides have 1."""
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCED = re.compile(r"(?ms)(^```.*?^```\n)")
LIST = re.compile(r"(?m)^(?![-\d ]|$)(.*\n)(?=(?:-|\d+\.) )")
"""A line of text that a list follows. Repositories show one there, MkDocs needs an empty line before."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are no files of `docs/pages`."""
    for document, page in DOCUMENTS.items():
        content = (ROOT / document).read_text("utf-8")
        files.append(File.generated(config, page, content=_linked(content, document, page)))
    for page, make in GENERATED.items():
        files.append(File.generated(config, page, content=make(ROOT)))
    files.append(File.generated(config, "explanation/decisions.md", content=_decisions()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Weigh a page in searches, and lead links of written pages, which are those of the repository, to pages."""
    weights = (weight for path, weight in WEIGHTS.items() if page.file.src_uri.startswith(path))
    page.meta["search"] = {"boost": next(weights, 1)}
    parts = (part if part.startswith("```") else LIST.sub(r"\1\n", f"\n{part}") for part in FENCED.split(markdown))
    markdown = "".join(parts)
    if page.file.generated_by:
        return markdown
    return _linked(markdown, f"docs/pages/{page.file.src_uri}", page.file.src_uri)


def _linked(markdown: str, document: str, page: str) -> str:
    """Return a document's text with links to other pages; a link to a file that is no page becomes its text."""

    def led(match: re.Match[str]) -> str:
        text, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        found = posixpath.normpath(posixpath.join(posixpath.dirname(document), target))
        there = found.removeprefix("docs/pages/") if found.startswith("docs/pages/") else DOCUMENTS.get(found)
        if there is None:
            return text
        return f"[{text}]({posixpath.relpath(there, posixpath.dirname(page))}{anchor})"

    return LINK.sub(led, markdown)


def _decisions() -> str:
    lines = ["# Decisions", "Why things are as they are, in the order in which they were decided.", ""]
    for document, page in DOCUMENTS.items():
        if document.startswith("gateway/decisions/"):
            title = (ROOT / document).read_text("utf-8").splitlines()[0].lstrip("# ")
            lines.append(f"- [{title}]({page.removeprefix('explanation/')})")
    return "\n".join(lines)
