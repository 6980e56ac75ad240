"""Codes that errors end with, read from the page of troubleshooting, whose headings they are."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError

PAGE = "troubleshooting.md"
WIDTH_LIMIT = 100
"""Widest line of an explanation: longer ones are hard to read."""
_ENTRY = re.compile(r"^### (EG-\d{3}) ([^\n]*)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def entries() -> dict[str, tuple[str, str]]:
    """Return symptom and text (Markdown) by code."""
    package = Path(__file__).parents[2]
    shipped = package / "_share" / PAGE
    page = shipped if shipped.is_file() else package.parent / "docs/pages/howto" / PAGE
    return {code: (symptom, text.strip()) for code, symptom, text in _ENTRY.findall(page.read_text("utf-8"))}


def print_entry(named: str) -> int:
    """Print cause and commands of a code at the width of the terminal. Raises ConfigurationError for unknown codes."""
    known, number = entries(), named.upper().removeprefix("EG-")
    code = f"EG-{number}"
    if code not in known:
        wanted = int(number[:4]) if number.isdecimal() else 0
        close = sorted(known, key=lambda each: abs(int(each.removeprefix("EG-")) - wanted))[:3]
        nearest = "; ".join(f"{each}: {known[each][0]}" for each in close)
        raise ConfigurationError(f"no error has the code {named!r:.40}; nearest are {nearest}", table="doctor")
    symptom, text = known[code]
    width = min(shutil.get_terminal_size().columns, WIDTH_LIMIT) if sys.stdout.isatty() else WIDTH_LIMIT
    print(textwrap.fill(f"{code}: {_plain(symptom)}", width))
    for index, part in enumerate(re.split(r"```\w*\n?", text)):
        if index % 2:
            print("\n" + textwrap.indent(part.rstrip(), "    "))
            continue
        for paragraph in filter(None, part.strip().split("\n\n")):
            print("\n" + textwrap.fill(_plain(" ".join(paragraph.split())), width, break_on_hyphens=False))
    return 0


def _plain(markdown: str) -> str:
    return _LINK.sub(r"\1", markdown).replace("**", "").replace("`", "")
