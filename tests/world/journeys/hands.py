"""Hands and faces by MediaPipe: its own graphs of C++ answer, and its files are served.

Its Python modules are left out: they need other versions of numpy and protobuf. Graphs are written in protobuf's wire
format, and detections are read with MediaPipe's own schema. Hands are drawn with the font Noto Color Emoji.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from gateway.common.domain.tensor import Array
from tests.world.journeys import distances
from tests.world.journeys.pictures import people, png
from tests.world.journeys.record import Ask, Bound, Bounds, Journey, imported_from, inside

MODULES = "mediapipe/modules"
FONT = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
FONT_SIZE = 109
"""The only size of that font in pixels."""
HANDS = (
    *("\u270b", "\U0001f590", "\U0001f91a", "\U0001f44b", "\U0001f44c", "\U0001f91f", "\u270b\U0001f3fc"),
    *("\U0001f590\U0001f3fd", "\U0001f91a\U0001f3fc", "\U0001f44b\U0001f3fc", "\U0001f450\U0001f3fc"),
)
PICTURES = 24
SAMPLED = 8.0
"""Distance in pixels of the whole image: MediaPipe takes single pixels where the gateway averages (Pillow)."""


def scenes() -> Iterator[Array]:
    """Yield pictures (BGR) with some hands of different colours, sizes and angles."""
    font = ImageFont.truetype(FONT, FONT_SIZE)
    for number in range(PICTURES):
        random = np.random.default_rng(number)
        picture = Image.new("RGB", (640, 480), tuple(int(each) for each in random.integers(90, 170, 3)))
        for place in range(1 + number % 4):
            hand = Image.new("RGBA", (136, 128))
            text = HANDS[int(random.integers(len(HANDS)))]
            ImageDraw.Draw(hand).text((0, 0), text, font=font, embedded_color=True)
            side, angle = int(random.integers(130, 190)), float(random.uniform(-40, 40))
            turned = hand.resize((side, side), Image.Resampling.LANCZOS).rotate(angle, expand=True)
            picture.paste(turned, (20 + 300 * (place % 2), 10 + 230 * (place // 2)), turned)
        yield cv2.cvtColor(np.array(picture), cv2.COLOR_RGB2BGR)


@cache
def framework(packages: Path) -> Any:
    """Return MediaPipe's module of C++ without the Python modules around it."""
    stubs = {"mediapipe": ModuleType("mediapipe"), "mediapipe.python": ModuleType("mediapipe.python")}
    stubs["mediapipe"].__path__ = [str(packages / "mediapipe")]
    stubs["mediapipe.python"].__path__ = [str(packages / "mediapipe" / "python")]
    with imported_from(packages, **stubs):
        found = importlib.import_module("mediapipe.python._framework_bindings")
        found.Detection = importlib.import_module("mediapipe.framework.formats.detection_pb2").Detection
    found.resource_util.set_resource_dir(str(packages))
    return found


def _field(number: int, content: bytes) -> bytes:
    assert len(content) < 128, "longer fields have a length of two bytes"
    return bytes((number * 8 + 2, len(content))) + content


def graph(calculator: str) -> bytes:
    """Return a CalculatorGraphConfig with one calculator from `image` to `found`."""
    parts = ((2, calculator), (3, "IMAGE:image"), (4, "DETECTIONS:found"))
    node = b"".join(_field(number, text.encode()) for number, text in parts)
    return _field(1, node) + _field(10, b"image") + _field(15, b"found")


def detections(packages: Path, calculator: str, image: Array) -> Array:
    """Return box and points [n, 2 + points, 2] in pixels, inside the image (RGB), that a graph finds."""
    media, packets = framework(packages), list[Any]()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "graph.binarypb"
        file.write_bytes(graph(calculator))
        run = media.calculator_graph.CalculatorGraph(binary_graph_path=str(file))
    run.observe_output_stream("found", lambda _, packet: packets.append(packet))
    run.start_run()
    kind, make = media.image_frame.ImageFormat.SRGB, media._packet_creator._create_image_frame_from_pixel_data
    run.add_packet_to_input_stream("image", make(kind, image, True).at(media.timestamp.Timestamp(0)))
    run.close_all_packet_sources()
    run.wait_until_done()
    found = list[Any]()
    for text in (text for packet in packets for text in media._packet_getter._get_serialized_proto_list(packet)):
        place = media.Detection.FromString(text).location_data
        box = place.relative_bounding_box
        corners = [[box.xmin, box.ymin], [box.xmin + box.width, box.ymin + box.height]]
        found.append([*corners, *([point.x, point.y] for point in place.relative_keypoints)])
    size = (image.shape[1], image.shape[0])
    points = len(found[0]) if found else 2
    return np.clip(np.array(found, float).reshape(-1, points, 2) * size, 0, size)


def asks(packages: Path, calculator: str, images: Iterator[Array], name: str, *, side: int, low: float) -> list[Ask]:
    """Return pictures with what a graph finds, in them and in squares of the size of the model's input."""
    made = list[Ask]()
    for image in images:
        rgb = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        square = cv2.resize(rgb[: min(rgb.shape[:2]), : min(rgb.shape[:2])], (side, side), interpolation=cv2.INTER_AREA)
        tensor = (square / 255 * (1 - low) + low).astype(np.float32)[np.newaxis]
        found, whole = (detections(packages, calculator, np.ascontiguousarray(each)) for each in (square, rgb))
        made.append(Ask({name: tensor}, found, None, png(image), whole))
    return made


_ALL = (
    Journey(
        "palms",
        "mediapipe",
        inside(f"{MODULES}/palm_detection/palm_detection_full.tflite"),
        lambda packages: asks(packages, "PalmDetectionCpu", scenes(), "input_1", side=192, low=0.0),
        "drawn hands: boxes and points in pixels",
        Bounds(Bound(0.5), Bound(SAMPLED, 0.3)),
        options=("--yes",),
        compare=distances.points,
        unquantized="LiteRT cannot open INT8 files that ai-edge-quantizer makes of weights in fp16",
    ),
    Journey(
        "faces-short-range",
        "mediapipe",
        inside(f"{MODULES}/face_detection/face_detection_short_range.tflite"),
        lambda packages: asks(packages, "FaceDetectionShortRangeCpu", people(packages), "input", side=128, low=-1.0),
        "images: boxes and points in pixels",
        Bounds(Bound(0.5), Bound(SAMPLED, 0.7)),
        options=("--yes",),
        compare=distances.points,
        unquantized="as of palms",
    ),
)
JOURNEYS = _ALL if sys.version_info < (3, 13) else ()
"""MediaPipe's last release with graphs and models inside is not built for later versions."""
