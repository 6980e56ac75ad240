"""Real images: photographs and scans of scikit-image, and lines of text that Pillow draws with the package's font."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from gateway.common.domain.tensor import Array

PHOTOGRAPHS = (
    "astronaut",
    "camera",
    "chelsea",
    "coffee",
    "rocket",
    "cell",
    "ihc",
    "motorcycle_left",
    "retina",
    "coins",
)
WORDS = (
    *("Pump 4 stopped at 17:05", "Invoice 2026-0417", "Net weight 12.5 kg", "Do not open while running"),
    *("Serial no. 88A-2041", "Keep dry", "Temperature 21.4 C", "Gate 7 is closed", "Batch 0031 of 0090"),
    *("Total 1,249.90", "Room 204", "Exit on the left", "Fragile: this side up", "Refill oil every 500 h"),
)


def photographs(packages: Path, *, parts: int = 1) -> Iterator[Array]:
    """Yield photographs (BGR), each as it is, mirrored, and in `parts` squares of different size."""
    for name in PHOTOGRAPHS:
        (file,) = (packages / "skimage" / "data").glob(f"{name}.*")
        image = cv2.imread(str(file), cv2.IMREAD_COLOR)
        assert image is not None
        yield image
        yield np.ascontiguousarray(image[:, ::-1])
        height, width = image.shape[:2]
        for part in range(1, parts):
            side = min(height, width) * part // (parts + 1) + 64
            top, left = (height - side) * part // parts, (width - side) * (parts - part) // parts
            yield np.ascontiguousarray(image[max(0, top) : top + side, max(0, left) : left + side])


def people(packages: Path) -> Iterator[Array]:
    """Yield photographs (BGR), and collages of them that show a person in several sizes, places and lights."""
    yield from photographs(packages)
    images = list(photographs(packages))
    person, others = images[0], images[2:]
    for number in range(30):
        random = np.random.default_rng(number)
        ground = cv2.resize(others[number % len(others)], (640, 480))
        for side in random.integers(160, 300, 1 + number % 3):
            light = np.clip(person * random.uniform(0.6, 1.2), 0, 255).astype(np.uint8)
            tile = cv2.resize(light[:, :: random.choice([-1, 1])], (int(side), int(side)))
            top, left = random.integers(0, 480 - side), random.integers(0, 640 - side)
            ground[top : top + side, left : left + side] = tile
        yield ground


def pieces(packages: Path) -> Iterator[Array]:
    """Yield other images of the same kind, for calibration."""
    yield from photographs(packages, parts=4)
    for number, image in enumerate(people(packages)):
        yield cv2.GaussianBlur(image[: len(image) - 20 - number], (5, 5), 0)


def scans(packages: Path) -> Iterator[Array]:
    """Yield scans of printed pages (BGR)."""
    for name in ("page", "text"):
        image = cv2.imread(str(packages / "skimage" / "data" / f"{name}.png"), cv2.IMREAD_COLOR)
        assert image is not None
        yield image


def line(words: str, height: int = 40, *, seed: int = 0) -> Array:
    """Return a line of text (BGR), dark on a bright and uneven ground."""
    font = ImageFont.load_default(size=height * 0.6)
    left, top, right, bottom = font.getbbox(words)
    image = Image.new("RGB", (round(right - left) + height, height), (226, 224, 216))
    ImageDraw.Draw(image).text((height / 2 - left, (height - bottom - top) / 2), words, (40, 38, 52), font)
    noise = np.random.default_rng(seed).normal(0, 4, (height, image.width, 3))
    return np.clip(np.asarray(image)[:, :, ::-1] + noise, 0, 255).astype(np.uint8)


def sheet(words: tuple[str, ...] = WORDS, *, seed: int = 0) -> Array:
    """Return a sheet (BGR) with lines of text below each other."""
    image = np.full((60 * len(words) + 40, 640, 3), 222, np.uint8)
    for number, text in enumerate(words):
        row = line(text, 32, seed=seed + number)[:, :600]
        image[60 * number + 30 : 60 * number + 62, 20 : 20 + row.shape[1]] = row
    return image


def png(image: Array) -> bytes:
    """Return an image (BGR, or one channel) as PNG."""
    content = io.BytesIO()
    Image.fromarray(image if image.ndim == 2 else image[:, :, ::-1]).save(content, "PNG")
    return content.getvalue()
