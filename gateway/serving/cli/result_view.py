"""Results of tasks for people: one table for detections, classes and parts of all rows, lines for the rest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.common.terminal.tables import plain, print_table

RESULTS = ("result", "task.result")
"""Names of the output with the results of a model's task; the second one if the model has an output of that name."""
ROWS_SHOWN = 50
LISTS = ("detections", "classes")
"""Lists of a document that are shown as a table."""


def documents_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the results of an answer in OIP's JSON, by row; none if the model has no task."""
    found = {output["name"]: output["data"] for output in answer["outputs"] if output["name"] in RESULTS}
    return [json.loads(text) for text in found.get(RESULTS[1], found.get(RESULTS[0], ()))]


def print_documents(documents: Sequence[Mapping[str, Any]]) -> None:
    """Print results, those in lists as a table."""
    rows = [line for row, document in enumerate(documents) for line in _lines(row, document)]
    if rows:
        print_table(("row", "label", "score or share", "box or corners"), rows[:ROWS_SHOWN])
    if len(rows) > ROWS_SHOWN:
        print(f"… and {len(rows) - ROWS_SHOWN} more; --output json prints all")
    for row, document in enumerate(documents):
        rest = {key: value for key, value in document.items() if key not in LISTS}
        if rest or not any(document.get(key) for key in LISTS):
            print(plain(f"row {row}: {json.dumps(rest, ensure_ascii=False) if rest else 'nothing was found'}"))


def in_short(document: Mapping[str, Any]) -> str:
    """Return a result in a few words: how many of each label, else its best values, else its keys."""
    if "detections" in document:
        found = Counter(str(entry["label"]) for entry in document["detections"])
        return ", ".join(f"{count} {label}" for label, count in found.most_common()) or "nothing"
    if "text" in document:
        return str(document["text"])
    parts = document.get("classes") or ([document] if "label" in document else [])
    if parts:
        return ", ".join(f"{part['label']} {part.get('score', part.get('share', 0.0)):.2f}" for part in parts)
    return ", ".join(f"{key} {value:g}" if isinstance(value, float | int) else key for key, value in document.items())


def _lines(row: int, document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for key in LISTS:
        for entry in document.get(key, ()):
            score = entry.get("score", entry.get("share"))
            place = entry.get("corners", entry.get("box", []))
            yield str(row), str(entry["label"]), "" if score is None else f"{score:.3f}", _short(place)


def _short(place: Sequence[Any]) -> str:
    """Return a place in few characters: numbers without brackets."""
    return " ".join(f"{part:g}" if isinstance(part, float | int) else str(part) for part in place)
