"""Statements of a model's author, remarks that a draft adds, and its questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

INFERRED, ASSUMED = "inferred", "assumed, check it"
"""Beginnings of comments: the files tell a value, or they leave it open."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """Statements of the author about the model; "" and () leave it to the files.

    `labels_file` and `keypoints_file` name the origins of `labels` and `keypoints` in errors. `size_px` is the (height,
    width) of images where a file takes any. `options` are keys of the table `[task]`.
    """

    name: str
    version: str
    task: str = ""
    labels: tuple[str, ...] = ()
    labels_file: str = ""
    value_range: str = ""
    keypoints: tuple[str, ...] = ()
    keypoints_file: str = ""
    size_px: tuple[int, int] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """Question about a field of `Wishes` that the files leave open, with its default and the possible answers."""

    key: str
    text: str
    default: str
    choices: tuple[str, ...] = ()


@dataclass(slots=True)
class Remarks:
    """Collector of a draft's comments, by place as in `manifest_text`, and of its questions."""

    notes: dict[str, str] = field(default_factory=dict)
    questions: list[Question] = field(default_factory=list)

    def infer(self, place: str, why: str) -> None:
        """Note that the files tell a value."""
        self.notes[place] = f"{INFERRED}: {why}"

    def assume(self, place: str, why: str) -> None:
        """Note that the files leave a value open."""
        self.notes[place] = f"{ASSUMED}: {why}"

    def say(self, place: str, text: str) -> None:
        """Note a text as it is."""
        self.notes[place] = text

    def ask(self, key: str, text: str, default: str, choices: tuple[str, ...] = ()) -> None:
        """Add a question."""
        self.questions.append(Question(key, text, default, choices))
