"""Cost of a whole detection: JPEG to tensor, model, outputs to boxes; next to code by hand with OpenCV and numpy.

`python -m tests.performance.task_cost [--core N] [--rounds N] [--packages FOLDER] [--jpeg FILE]… [--detector FILE]`:
medians in µs on one core, one call of each in turn. The input is 640 × 640 pixels, letterboxed, NCHW, FP32. The model
has the architecture of YOLOv8n and random weights: its time is real, its boxes are not, so outputs that look like
those of an image are interpreted instead. JPEGs are drawn: noise on all scales, and edges.

The second table compares ways of a raw frame, 1280 × 720 pixels, to an input of 320 × 320, and tells the distance from
a frame whose colours are converted before it is resized, as the mean of levels of 0 to 255.

The third table compares decoders: time from JPEG to RGB in the size that it has in the input, and distance from a
whole decode with an antialiased resize, as the mean of levels of 0 to 255. `--detector` (ONNX, YOLOv8) tells the
greatest distance of a score of its output as well; its input gives the size. `--jpeg` adds photographs. FOLDER adds
simplejpeg (`pip install --no-deps --target FOLDER simplejpeg`).
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
from PIL import Image

from gateway.common.domain.manifest import Preprocess, TensorSpec
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.engine.images import decode_images
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.tasks.frame import place
from gateway.serving.tasks.frames_yuv import split_planes, to_rgb
from gateway.serving.tasks.object_detection import ObjectDetection
from tests.performance.tasks import Call, medians, vectorised
from tests.simulators.images_made import drawn_jpeg, elements
from tests.simulators.vision_models import options, sparse_yolov8, vision_model
from tests.simulators.yolov8n import yolov8n

SIDE = 640
BORDER = 114
SIZES = ((640, 480), (1920, 1080), (4000, 3000))
SPEC = TensorSpec(
    "images",
    Datatype.FP32,
    (-1, 3, SIDE, SIDE),
    "NCHW",
    preprocess=Preprocess(("jpeg",), resize=(SIDE, SIDE), fit="letterbox", scale=1 / 255, pad_value=BORDER),
)
FRAME_SIDE = 320
FRAME_SIZE = (1280, 720)
CODES = {"nv12": cv2.COLOR_YUV2BGR_NV12, "i420": cv2.COLOR_YUV2BGR_I420, "yuyv": cv2.COLOR_YUV2BGR_YUYV}
DETECTOR_SIDE = 320
"""Side of a detector's input that its file leaves open: that of nudenet."""


# ---- a whole detection --------------------------------------------------------------------------------------------
def gateway_tensor(content: bytes) -> Array:
    """Return the input of a request's JPEG as the gateway makes it."""
    return decode_images(elements(content), SPEC, EngineSettings())[0]


def letterboxed(content: bytes) -> Array:
    """Return the input in BGR by OpenCV, as people write it."""
    return bordered(cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR), SIDE)


def bordered(image: Array, side: int) -> Array:
    """Return the image resized and in the middle of a square."""
    width, height = fitted(image.shape[1], image.shape[0], side)
    top, left = (side - height) // 2, (side - width) // 2
    image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    sides = (top, side - height - top, left, side - width - left)
    return cv2.copyMakeBorder(image, *sides, cv2.BORDER_CONSTANT, value=(BORDER,) * 3)


def blob_by_hand(content: bytes) -> Array:
    """Return the input as OpenCV's own function makes it."""
    return cv2.dnn.blobFromImage(letterboxed(content), 1 / 255, swapRB=True)


def numpy_by_hand(content: bytes) -> Array:
    """Return the input by numpy."""
    planes = letterboxed(content)[:, :, ::-1].transpose(2, 0, 1)
    return np.ascontiguousarray(planes)[np.newaxis].astype(np.float32) / 255


def fitted(width: int, height: int, side: int = SIDE) -> tuple[int, int]:
    """Return width and height of an image in the input."""
    scale = min(side / width, side / height)
    return round(width * scale), round(height * scale)


def session(model: bytes) -> onnxruntime.InferenceSession:
    """Open a model on one thread."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])


def detections(rounds: int) -> Iterator[str]:
    """Yield lines of whole detections for each size, with the model's own time."""
    network, operations = yolov8n(SIDE)
    model, task = (
        session(network.SerializeToString()),
        ObjectDetection(vision_model({"output0": (84, 8400)}), options()),
    )
    output = sparse_yolov8(np.random.default_rng(20))
    other = output.copy()  # both find their output outside the cache, as after a model that is not the last to run
    yield f"| JPEG | step ({operations / 1e9:.1f} GFLOP) | median, µs |\n| --- | --- | --- |"
    for size in SIZES:
        content, frame = drawn_jpeg(*size), place("letterbox", size, (SIDE, SIDE))
        tensor = gateway_tensor(content)
        calls: dict[str, Call] = {
            "decode and preprocess: gateway": lambda content=content: gateway_tensor(content),
            "decode and preprocess: by hand, OpenCV and numpy": lambda content=content: numpy_by_hand(content),
            "decode and preprocess: by hand, OpenCV, blobFromImage": lambda content=content: blob_by_hand(content),
            "model": lambda tensor=tensor: model.run(None, {"images": tensor}),
            "postprocess: gateway": lambda frame=frame: task.interpret({"output0": output}, frame),
            "postprocess: by hand, OpenCV and numpy": lambda: vectorised(other),
        }
        name = f"{size[0]} × {size[1]}, {len(content) / 1000:,.0f} kB"
        for result in medians(calls, rounds):
            yield f"| {name} | {result.what} | {result.median_us:,.0f} |"


# ---- raw frames ---------------------------------------------------------------------------------------------------
def raw_frame(form: str) -> bytes:
    """Return the drawn image of FRAME_SIZE in a raw format, with the colours of BT.601 in limited range."""
    width, height = FRAME_SIZE
    pixels = np.asarray(Image.open(io.BytesIO(drawn_jpeg(width, height))).convert("RGB"))
    planar = cv2.cvtColor(pixels, cv2.COLOR_RGB2YUV_I420)
    luma, chroma = planar[:height], planar[height:].reshape(2, height // 2, width // 2)
    if form == "i420":
        return planar.tobytes()
    if form == "nv12":
        return luma.tobytes() + chroma.transpose(1, 2, 0).tobytes()
    packed = np.empty((height, width // 2, 4), np.uint8)
    packed[:, :, ::2] = luma.reshape(height, width // 2, 2)
    packed[:, :, 1], packed[:, :, 3] = chroma.repeat(2, axis=1)
    return packed.tobytes()


def frame_calls(form: str, content: bytes) -> dict[str, Call]:
    """Return the ways from a raw frame to the input; the first one is what the others are compared with."""
    width, height = FRAME_SIZE
    preprocess = replace(SPEC.preprocess, decode=(form,), resize=(FRAME_SIDE, FRAME_SIDE), frame=(height, width))
    spec = replace(SPEC, shape=(-1, 3, FRAME_SIDE, FRAME_SIDE), preprocess=preprocess)
    rows = height * 3 // 2, width
    packed = np.frombuffer(content, np.uint8).reshape((height, width, 2) if form == "yuyv" else rows)

    def colours_first() -> Array:
        image = Image.fromarray(to_rgb(split_planes(content, form, (height, width))))
        fits = image.resize(fitted(width, height, FRAME_SIDE), Image.Resampling.BILINEAR)
        square = Image.new("RGB", (FRAME_SIDE, FRAME_SIDE), (BORDER,) * 3)
        square.paste(fits, (0, (FRAME_SIDE - fits.height) // 2))
        return np.asarray(square).transpose(2, 0, 1)[np.newaxis].astype(np.float32) / 255

    def by_hand() -> Array:
        return cv2.dnn.blobFromImage(bordered(cv2.cvtColor(packed, CODES[form]), FRAME_SIDE), 1 / 255, swapRB=True)

    return {
        "colours, then resize, Pillow and numpy": colours_first,
        "gateway: resize, then colours": lambda: decode_images(elements(content), spec, EngineSettings())[0],
        "by hand, OpenCV: colours, then resize without antialiasing": by_hand,
    }


def raw_frames(rounds: int) -> Iterator[str]:
    """Yield lines of raw frames of each format."""
    yield "| raw frame | way to the input | median, µs | distance, levels |\n| --- | --- | --- | --- |"
    for form in CODES:
        calls = frame_calls(form, raw_frame(form))
        images = [call() for call in calls.values()]
        levels = [255 * np.abs(image - images[0]).mean() for image in images]
        for result, level in zip(medians(calls, rounds), levels, strict=True):
            yield f"| {form} | {result.what} | {result.median_us:,.0f} | {level:.2f} |"


# ---- decoders -----------------------------------------------------------------------------------------------------
def fit_by_pillow(image: Image.Image, size: tuple[int, int]) -> Array:
    """Return the image in `size` with antialiasing."""
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR))


def by_pillow(content: bytes, size: tuple[int, int], *, scaled: bool) -> Array:
    """Decode whole, or at the least scale (1, 1/2, 1/4, 1/8) that covers `size`."""
    image = Image.open(io.BytesIO(content))
    drafted = image.draft("RGB", (size[0] - 1, size[1] - 1)) if scaled else None  # sizes are rounded up by one at most
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR, drafted[1] if drafted else None))


def by_opencv(content: bytes, size: tuple[int, int], flag: int, interpolation: int) -> Array:
    """Decode and resize by OpenCV."""
    image = cv2.imdecode(np.frombuffer(content, np.uint8), flag)
    return cv2.resize(image, size, interpolation=interpolation)[:, :, ::-1]


def opencv_reduced(content: bytes, size: tuple[int, int]) -> Array:
    """Decode at the least scale of OpenCV that covers `size`."""
    width, height = Image.open(io.BytesIO(content)).size
    flags = {8: cv2.IMREAD_REDUCED_COLOR_8, 4: cv2.IMREAD_REDUCED_COLOR_4, 2: cv2.IMREAD_REDUCED_COLOR_2}
    flag = next((flags[by] for by in flags if min(width // size[0], height // size[1]) >= by), cv2.IMREAD_COLOR)
    return by_opencv(content, size, flag, cv2.INTER_AREA)


def by_simplejpeg(module: Any, content: bytes, size: tuple[int, int], **how: Any) -> Array:
    """Decode by simplejpeg and resize by Pillow."""
    return fit_by_pillow(Image.fromarray(module.decode_jpeg(content, "RGB", **how)), size)


def decoder_calls(content: bytes, size: tuple[int, int], simplejpeg: Any) -> dict[str, Call]:
    """Return the ways from a JPEG to RGB [height, width, 3]; the first one is what the others are compared with."""
    calls: dict[str, Call] = {
        "Pillow, whole": lambda: by_pillow(content, size, scaled=False),
        "Pillow, scaled (draft)": lambda: by_pillow(content, size, scaled=True),
        "OpenCV, whole, INTER_LINEAR": lambda: by_opencv(content, size, cv2.IMREAD_COLOR, cv2.INTER_LINEAR),
        "OpenCV, whole, INTER_AREA": lambda: by_opencv(content, size, cv2.IMREAD_COLOR, cv2.INTER_AREA),
        "OpenCV, scaled (IMREAD_REDUCED_COLOR), INTER_AREA": lambda: opencv_reduced(content, size),
    }
    if simplejpeg is not None:
        least = {"min_width": size[0] - 1, "min_height": size[1] - 1}
        power = _power_of_two(content, size)
        quick = {"fastdct": True, "fastupsample": True}
        calls |= {
            "simplejpeg, whole": lambda: by_simplejpeg(simplejpeg, content, size),
            "simplejpeg, scaled by eighths": lambda: by_simplejpeg(simplejpeg, content, size, **least),
            "simplejpeg, scaled by halves": lambda: by_simplejpeg(simplejpeg, content, size, **power),
            "simplejpeg, scaled by halves, fast": lambda: by_simplejpeg(simplejpeg, content, size, **power, **quick),
        }
    return calls


def _power_of_two(content: bytes, size: tuple[int, int]) -> dict[str, int]:
    """Return simplejpeg's least size for the scale that Pillow takes."""
    image = Image.open(io.BytesIO(content))
    image.draft("RGB", (size[0] - 1, size[1] - 1))
    return {"min_width": image.width, "min_height": image.height}


class Detector:
    """Detector of an ONNX file with square input `images` and the output of YOLOv8."""

    def __init__(self, file: Path) -> None:
        self._session = session(file.read_bytes())
        (self._input,) = self._session.get_inputs()
        self.side = int(self._input.shape[-1]) if isinstance(self._input.shape[-1], int) else DETECTOR_SIDE

    def scores(self, image: Array) -> Array:
        """Return all scores for an RGB image that fits into the input."""
        pixels = np.full((self.side, self.side, 3), BORDER, np.uint8)
        pixels[: image.shape[0], : image.shape[1]] = image
        tensor = pixels.transpose(2, 0, 1)[np.newaxis].astype(np.float32) / 255
        return self._session.run(None, {self._input.name: tensor})[0][0, 4:]


def decoders(rounds: int, packages: Path | None, photographs: list[Path], detector: Detector | None) -> Iterator[str]:
    """Yield lines of decoders for each image."""
    if packages is not None:
        sys.path.append(str(packages))
    simplejpeg = importlib.import_module("simplejpeg") if packages is not None else None
    contents = {f"drawn, {width} × {height}": drawn_jpeg(width, height) for width, height in SIZES}
    contents |= {path.name: path.read_bytes() for path in photographs}
    yield "| JPEG | decoder, then resize | median, µs | distance, levels | of a score |"
    yield "| --- | --- | --- | --- | --- |"
    for name, content in contents.items():
        size = fitted(*Image.open(io.BytesIO(content)).size, detector.side if detector else SIDE)
        calls = decoder_calls(content, size, simplejpeg)
        images = [call() for call in calls.values()]
        levels = [np.abs(image.astype(np.float32) - images[0]).mean() for image in images]
        scores = [detector.scores(image) if detector else np.zeros(1) for image in images]
        for result, level, score in zip(medians(calls, rounds), levels, scores, strict=True):
            moved = f"{np.abs(score - scores[0]).max():.3f}" if detector else ""
            yield f"| {name} | {result.what} | {result.median_us:,.0f} | {level:.2f} | {moved} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="processor to run on")
    parser.add_argument("--rounds", type=int, default=25, help="calls of each")
    parser.add_argument("--packages", type=Path, help="folder with the package simplejpeg")
    parser.add_argument("--jpeg", type=Path, action="append", default=[], help="photograph to decode as well")
    parser.add_argument("--detector", type=Path, help="ONNX file of a YOLOv8 detector, for the distance of scores")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {arguments.core})
    cv2.setNumThreads(1)
    for line in detections(arguments.rounds):
        print(line, flush=True)
    print()
    for line in raw_frames(arguments.rounds):
        print(line, flush=True)
    print()
    detector = Detector(arguments.detector) if arguments.detector else None
    for line in decoders(arguments.rounds, arguments.packages, arguments.jpeg, detector):
        print(line, flush=True)


if __name__ == "__main__":
    main()
