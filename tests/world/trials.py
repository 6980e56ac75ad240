"""Wall time from a model's first trial to its outcome, read from the daemon's log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any


def load_seconds(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds per model: inspection, trials and opening. A start loads one model after the other.

    Each model's last event at the start closes its time; the event before that model's first one opens it.
    """
    seconds: dict[str, float] = {}
    current, opened = "", 0.0
    last = 0.0
    for line in lines:
        at = datetime.fromisoformat(line["timestamp"]).timestamp()
        model = str(line.get("model", ""))
        if model and model != current:
            current, opened = model, last
        if model and opened:
            seconds[model] = at - opened
        last = at
    return seconds
