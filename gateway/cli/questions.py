"""Questions to a person at a terminal; answers are read from standard input, texts go to standard error."""

from __future__ import annotations

import sys

from gateway.terminal.tables import plain
from gateway.workshop.wishes import Question


def can_ask() -> bool:
    """Return True if a person is at the terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def answer(question: Question) -> str:
    """Return the answer to a question: one of its choices if it has any; its default for an empty line or the end."""
    choices = f" ({', '.join(filter(None, question.choices))})" if question.choices else ""
    default = f" [{question.default}]" if question.default else ""
    while True:
        print(plain(f"{question.text}{choices}{default}: "), end="", file=sys.stderr, flush=True)
        said = sys.stdin.readline().strip() or question.default
        if not question.choices or said in question.choices:
            return said
        print(plain(f"{said!r} is none of the choices"), file=sys.stderr)
