"""Text in images: PP-OCRv4 of rapidocr, ddddocr and captcha-whisperer."""

from __future__ import annotations

import contextlib
import importlib
import io
import string
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from gateway.common.domain.tensor import Array
from tests.world.journeys import distances
from tests.world.journeys.pictures import WORDS, line, photographs, png, scans, sheet
from tests.world.journeys.record import Ask, Bound, Bounds, Journey, imported_from, inside, replaced
from tests.world.journeys.recording import RecordedSession

CALIBRATED = 60
"""Lines of text with which models of text are quantized."""
WHOLE_PIXELS = 2.5
"""Distance of equal corners: the package cuts them, and how far it moves sides outwards, to whole pixels."""
RAPID = "rapidocr_onnxruntime/models"
SIGNED = ("--range", "signed-unit", "--yes")
BGR = ('color = "rgb"', 'color = "bgr"')


@cache
def rapid(packages: Path) -> Any:
    """Return the package's pipeline with recorded sessions."""
    with imported_from(packages):
        engine = importlib.import_module("rapidocr_onnxruntime").RapidOCR()
    for part in (engine.text_det.infer, engine.text_cls.infer, engine.text_rec.session):
        part.session = RecordedSession(part.session)
    return engine


def lines(packages: Path) -> list[Array]:
    """Return lines of text (BGR): cut from scanned pages by the package itself, and drawn."""
    engine, found = rapid(packages), []
    for page in scans(packages):
        boxes, _ = engine.text_det(page)
        found += engine.get_crop_img_list(page, boxes)
    return found + [line(words, seed=number) for number, words in enumerate(WORDS)]


# ---- detection ------------------------------------------------------------------------------------------------------
def detected(packages: Path) -> list[Ask]:
    """Return pages with the corners of the lines that the package finds, in pixels of the model's input."""
    engine, asks = rapid(packages), list[Ask]()
    for page in (*scans(packages), sheet(), *map(np.ascontiguousarray, (sheet(seed=9)[:, ::-1], sheet(WORDS[:5])))):
        engine.text_det(page)
        session = engine.text_det.infer.session
        (scores,) = session.outputs.values()
        height, width = scores.shape[2:]
        found, _ = engine.text_det.postprocess_op(scores, (height, width))
        asks.append(Ask(session.feeds, np.clip(found, 0, (width, height)), session.outputs))
    return asks


def pages(packages: Path, folder: Path) -> None:
    """Write drawn sheets and pieces of scanned pages, in the package's own form."""
    engine = rapid(packages)
    images = [sheet(WORDS[start : start + 6], seed=start)[:352, :352] for start in range(8)]
    images += [
        page[top : top + 160, left : left + 352] for page in scans(packages) for top in (0, 12) for left in (0, 32)
    ]
    prepare = engine.text_det.get_preprocess(352)
    prepare.limit_side_len = 352
    inputs = [prepare(cv2.resize(np.ascontiguousarray(image), (352, 352))) for image in images]
    np.savez(folder / "pages.npz", x=np.concatenate(inputs))


# ---- direction ------------------------------------------------------------------------------------------------------
def directed(packages: Path) -> list[Ask]:
    """Return lines of text, upright and upside down, with the package's decision."""
    engine, asks = rapid(packages), list[Ask]()
    for image in lines(packages):
        for turned in (image, np.ascontiguousarray(image[::-1, ::-1])):
            _, answers, _ = engine.text_cls([turned])
            session = engine.text_cls.infer.session
            asks.append(Ask(session.feeds, (answers[0][0], float(answers[0][1])), session.outputs))
    return asks


def directions(packages: Path, folder: Path) -> None:
    """Write lines of text in the package's own form."""
    engine = rapid(packages)
    inputs = [engine.text_cls.resize_norm_img(image) for image in _drawn()]
    inputs += [engine.text_cls.resize_norm_img(np.ascontiguousarray(image[::-1, ::-1])) for image in _drawn()]
    np.savez(folder / "lines.npz", x=np.stack(inputs))


def _drawn() -> Iterator[Array]:
    random = np.random.default_rng(4)
    letters = np.array(list(string.ascii_letters + string.digits + "  .,:-"))
    for number in range(CALIBRATED):
        words = "".join(random.choice(letters, random.integers(8, 22))).strip() or "line"
        yield line(words, int(random.integers(24, 64)), seed=number)


# ---- recognition ----------------------------------------------------------------------------------------------------
def read(packages: Path) -> list[Ask]:
    """Return lines of text with the text that the package reads."""
    engine, asks = rapid(packages), list[Ask]()
    for image in lines(packages):
        (answer,), _ = engine.text_rec([image])
        session = engine.text_rec.session.session
        said, is_short = (answer[0], float(answer[1])), image.shape[1] * 48 <= image.shape[0] * 320
        file = png(_padded(image)) if is_short else b""  # a longer line needs a wider input
        asks.append(Ask(session.feeds, said, session.outputs, file, said))
    return asks


def _padded(image: Array) -> Array:
    """Return a line with grey on the right, where the package has zeros, in the proportions of the model's input."""
    height, width = image.shape[:2]
    wide = max(width, round(height * 320 / 48))
    return cv2.copyMakeBorder(image, 0, 0, 0, wide - width, cv2.BORDER_CONSTANT, value=(127, 127, 127))


def written(packages: Path, folder: Path) -> None:
    """Write lines of text in the package's own form."""
    engine = rapid(packages)
    np.savez(folder / "lines.npz", x=np.stack([engine.text_rec.resize_norm_img(each, 320 / 48) for each in _drawn()]))


# ---- ddddocr --------------------------------------------------------------------------------------------------------
@cache
def dddd(packages: Path) -> Any:
    """Return the package's object with a recorded session."""
    with imported_from(packages), contextlib.redirect_stdout(io.StringIO()):
        package = importlib.import_module("ddddocr").DdddOcr(show_ad=False, old=True)
    package.ocr_engine.session = RecordedSession(package.ocr_engine.session)
    return package


def solved(packages: Path) -> list[Ask]:
    """Return short codes with the text that the package reads."""
    package, asks = dddd(packages), list[Ask]()
    engine = package.ocr_engine
    for number in range(24):
        file = png(_code(number))
        text = package.classification(file)
        asks.append(Ask(engine.session.feeds, (text, None), engine.session.outputs))
    return asks


def characters(packages: Path) -> Sequence[str]:
    """Return the package's characters without the blank."""
    return [str(each) for each in dddd(packages).ocr_engine.charset_manager.get_charset()[1:]]


def _code(number: int) -> Array:
    random = np.random.default_rng(number)
    return line("".join(random.choice(list(string.ascii_uppercase + string.digits), 4 + number % 3)), 64, seed=number)


@cache
def clicked(packages: Path) -> Any:
    """Return the package's object for detection with a recorded session; without it, its engine is cleaned up."""
    with imported_from(packages), contextlib.redirect_stdout(io.StringIO()):
        package = importlib.import_module("ddddocr").DdddOcr(show_ad=False, det=True, ocr=False)
    package.detection_engine.session = RecordedSession(package.detection_engine.session)
    return package


def targets(packages: Path) -> list[Ask]:
    """Return photographs with letters, and the boxes that the package finds around them."""
    engine, asks = clicked(packages).detection_engine, list[Ask]()
    for number, photograph in enumerate(photographs(packages)):
        image, random = cv2.resize(photograph, (344, 384)), np.random.default_rng(number)
        for place, letter in enumerate(random.choice(list(string.ascii_uppercase + string.digits), 5)):
            colour = tuple(int(each) for each in random.integers(0, 255, 3))
            corner = (
                30 + 110 * (place % 3) + int(random.integers(40)),
                90 + 180 * (place // 3) + int(random.integers(60)),
            )
            cv2.putText(image, str(letter), corner, cv2.FONT_HERSHEY_DUPLEX, 1.6, colour, 4, cv2.LINE_AA)
        file = png(image)
        found = [("0", 1.0, np.array(box, float)) for box in engine.predict(file)]
        (output,) = engine.session.run(None, engine.session.feeds)  # the package changed the first one in place
        rows = engine.demo_postprocess(output.copy(), (416, 416))[0]
        boxes = np.concatenate((rows[:, :2] - rows[:, 2:4] / 2, rows[:, :2] + rows[:, 2:4] / 2), axis=1)
        kept = engine.multiclass_nms(boxes, rows[:, 4:5] * rows[:, 5:], nms_thr=0.45, score_thr=0.1)
        answer = [] if kept is None else [("0", float(row[4]), np.clip(row[:4], 0, 416)) for row in kept]
        asks.append(Ask(engine.session.feeds, answer, engine.session.outputs, file, found))
    return asks


def target_inputs(packages: Path, folder: Path) -> None:
    """Write the photographs with letters in the package's own form."""
    np.savez(folder / "targets.npz", images=np.concatenate([ask.tensors["images"] for ask in targets(packages)]))


# ---- captcha-whisperer ----------------------------------------------------------------------------------------------
@cache
def whisperer(packages: Path) -> Any:
    """Return the package's recogniser with a recorded session."""
    with imported_from(packages):
        recogniser = importlib.import_module("captcha_whisperer").CaptchaRecognizer()
    recogniser._session = RecordedSession(recogniser._session)
    return recogniser


def whispered(packages: Path) -> list[Ask]:
    """Return short codes with the text that the package reads."""
    recogniser, asks = whisperer(packages), list[Ask]()
    for number in range(24):
        file = png(cv2.resize(_code(number), (160, 60)))
        answer = recogniser.recognize_bytes(file)
        said, session = (answer["text"], None), recogniser._session
        asks.append(Ask(session.feeds, said, session.outputs, file, said))
    return asks


def codes(packages: Path, folder: Path) -> None:
    """Write short codes as images of the model's size."""
    for number in range(100, 100 + CALIBRATED):
        (folder / f"{number}.png").write_bytes(png(cv2.resize(_code(number), (160, 60))))


JOURNEYS = (
    Journey(
        "pp-ocr-detection",
        "rapidocr-onnxruntime",
        inside(f"{RAPID}/ch_PP-OCRv4_det_infer.onnx"),
        detected,
        "pages: corners of lines in pixels",
        Bounds(Bound(WHOLE_PIXELS), quantized=Bound(8.0, 0.6)),
        options=("--yes",),
        compare=distances.corners,
        calibration=pages,
    ),
    Journey(
        "pp-ocr-direction",
        "rapidocr-onnxruntime",
        inside(f"{RAPID}/ch_ppocr_mobile_v2.0_cls_infer.onnx"),
        directed,
        "lines: 0 or 180 degrees",
        Bounds(Bound(1e-4), quantized=Bound(0.3, 0.9)),
        labels=lambda _: ["0", "180"],
        options=SIGNED,
        compare=distances.best_class,
        calibration=directions,
    ),
    Journey(
        "pp-ocr-recognition",
        "rapidocr-onnxruntime",
        inside(f"{RAPID}/ch_PP-OCRv4_rec_infer.onnx"),
        read,
        "lines: text",
        Bounds(Bound(1e-4), Bound(0.2, 0.6), Bound(0.2, 0.6)),
        options=SIGNED,
        edit=replaced(BGR, ('fit = "stretch"', 'resize = [48, 320]\nfit = "stretch"')),
        compare=distances.text,
        calibration=written,
    ),
    Journey(
        "ddddocr",
        "ddddocr",
        inside("ddddocr/common_old.onnx"),
        solved,
        "codes: text",
        Bounds(Bound(0.0)),
        labels=characters,
        options=("--yes",),
        compare=distances.text,
        unquantized="its weights are 8 bits already",
        refused="declares other shapes than its answers have",
    ),
    Journey(
        "ddddocr-detection",
        "ddddocr",
        inside("ddddocr/common_det.onnx"),
        targets,
        "photographs with letters: boxes",
        Bounds(Bound(0.01), Bound(0.2, 0.6), Bound(0.3, 0.6)),
        options=("--yes",),
        edit=replaced(('head = "yolox"', 'head = "yolox"\nscore_threshold = 0.1')),
        compare=distances.boxes,
        calibration=target_inputs,
    ),
    Journey(
        "captcha-whisperer",
        "captcha-whisperer",
        inside("captcha_whisperer/models/captcha_crnn.onnx"),
        whispered,
        "codes: text",
        Bounds(Bound(0.0, 0.8), Bound(0.0, 0.8), Bound(0.0, 0.7)),
        labels=lambda _: list(string.digits + string.ascii_uppercase),
        options=("--range", "pixels", "--yes"),
        edit=replaced(BGR, ('kind = "text-recognition"', 'kind = "text-recognition"\nblank = "last"')),
        compare=distances.text,
        calibration=codes,
    ),
)
