"""Answers to the frames of this gateway's cameras, and what listens to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Tensor
from gateway.serving.domain.infer import InferResponse


@dataclass(frozen=True, slots=True)
class CameraAnswer:
    """Answer to one frame.

    `wall_ns`: when the frame was decoded, since the epoch. `manifest`: of the version that answered. `tensor`: the
    request's input, of one row. `size`: width and height of the frame in whose pixels the result is.
    """

    camera: str
    wall_ns: int
    manifest: ModelManifest
    tensor: Tensor
    response: InferResponse
    size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class KnownCamera:
    """Camera as listeners know it: its name, what is asked, and whether pictures of events are made."""

    name: str
    model: str
    version: str = ""
    has_pictures: bool = False


class CameraListener(Protocol):
    """Interface of what takes the answers of cameras. Its methods neither block nor raise."""

    def answered(self, answer: CameraAnswer) -> None:
        """Take the answer to a frame."""

    def changed(self, camera: str, *, streaming: bool) -> None:
        """Note that a camera's frames begin or end to arrive."""

    def pictured(self, camera: str, wall_ns: int, jpeg: bytes) -> None:
        """Take the picture of an event, a JPEG with masks and boxes, of a frame's time since the epoch."""


@dataclass(frozen=True, slots=True)
class KeptSnapshot:
    """Picture of an event on the disk. `wall_s`: the frame's time since the epoch."""

    file: str
    wall_s: float
    labels: tuple[str, ...]
    size_bytes: int


class CameraViews(Protocol):
    """Interface of what shows cameras to people and programs. `listed` and `read` block: call them on a thread."""

    def statuses(self) -> list[dict[str, Any]]:
        """Return a document of each camera, in the order of the configuration."""

    def listed(self, camera: str) -> list[KeptSnapshot]:
        """Return the pictures of a camera, the newest first. Raises RequestError for a folder that cannot be read."""

    def read(self, camera: str, file: str) -> bytes:
        """Return a picture. Raises RequestError NOT_FOUND."""
