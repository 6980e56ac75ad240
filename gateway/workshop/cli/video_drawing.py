"""Drawn results of a video: its last frame as an image, or all frames as a video file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.cli.draw import draw_image
from gateway.serving.tasks.drawing import draw
from gateway.workshop.camera.video_file import SUFFIXES, VideoFile

if TYPE_CHECKING:
    import av

PICTURES = (".png", ".jpg", ".jpeg")


class Drawing(Protocol):
    """Target of drawn results."""

    def add(self, document: Mapping[str, Any], image: av.VideoFrame, timestamp_s: float) -> None:
        """Add the result of a frame."""


class _NoDrawing:
    def add(self, document: Mapping[str, Any], image: av.VideoFrame, timestamp_s: float) -> None:
        pass


class _LastFrame:
    def __init__(self) -> None:
        self.last: tuple[Mapping[str, Any], av.VideoFrame] | None = None

    def add(self, document: Mapping[str, Any], image: av.VideoFrame, timestamp_s: float) -> None:
        self.last = document, image


class _AllFrames:
    def __init__(self, file: VideoFile) -> None:
        self._file = file

    def add(self, document: Mapping[str, Any], image: av.VideoFrame, timestamp_s: float) -> None:
        self._file.add(np.asarray(draw(document, image.to_image())), timestamp_s)


@contextmanager
def drawing(name: str | None, source: str) -> Iterator[Drawing]:
    """Yield the target of drawn results, which is not the source; it is complete at the end.

    Raises ConfigurationError.
    """
    if name is None:
        yield _NoDrawing()
        return
    target = Path(name)
    if not target.parent.is_dir():
        raise ConfigurationError(f"the folder {target.parent} does not exist", key="--draw")
    if target.exists() and Path(source).exists() and target.samefile(source):
        raise ConfigurationError("is the video itself; name another file", key="--draw")
    if target.suffix.lower() in SUFFIXES:
        with VideoFile(target) as file:
            yield _AllFrames(file)
        if target.exists():  # there was a frame
            _tell_written(target)
    elif target.suffix.lower() in PICTURES:
        kept = _LastFrame()
        yield kept
        if kept.last is not None:
            document, image = kept.last
            draw_image(document, image.to_image(), target)
            _tell_written(target)
    else:
        names = ", ".join((*PICTURES, *SUFFIXES))
        raise ConfigurationError(f"takes a file that ends in one of {names}, not {target.name!r:.80}", key="--draw")


def _tell_written(target: Path) -> None:
    print(f"{target} written", file=sys.stderr)
