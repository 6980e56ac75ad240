"""Rows of numbers: file types of magika, languages of py3langid, boosted trees of scikit-learn and LightGBM."""

from __future__ import annotations

import importlib
import io
import math
import warnings
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from gateway.common.domain.tensor import Array
from tests.world.journeys import distances
from tests.world.journeys.pictures import photographs, png
from tests.world.journeys.record import Ask, Bound, Bounds, Journey, imported_from, inside
from tests.world.journeys.recording import RecordedSession

ROWS = 200
"""Rows of a table that are asked; all others train or calibrate."""


# ---- file types -----------------------------------------------------------------------------------------------------
@cache
def magika(packages: Path) -> Any:
    """Return the package's object with a recorded session."""
    with imported_from(packages):
        found = importlib.import_module("magika").Magika()
    found._onnx_session = RecordedSession(found._onnx_session)
    return found


def contents(packages: Path) -> list[bytes]:
    """Return files of many types: of the packages, and made here."""
    suffixes = (
        ".py",
        ".json",
        ".csv",
        ".md",
        ".txt",
        ".so",
        ".onnx",
        ".tflite",
        ".png",
        ".jpg",
        ".pyi",
        ".gz",
        ".xml",
        ".yaml",
        ".tif",
    )
    found: list[bytes] = []
    for suffix in suffixes:
        files = sorted(path for path in packages.rglob(f"*{suffix}") if path.stat().st_size > 200)
        found += [path.read_bytes()[:500_000] for path in files[:: max(1, len(files) // 12)][:12]]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as stream:
        stream.writestr("a.txt", b"a" * 2000)
    return [*found, archive.getvalue(), *(png(each) for _, each in zip(range(6), photographs(packages), strict=False))]


def typed(packages: Path) -> list[Ask]:
    """Return features of files with the type and the score of the package's model."""
    package, asks = magika(packages), list[Ask]()
    for content in contents(packages):
        package._onnx_session.feeds = {}
        answer = package.identify_bytes(content)
        if package._onnx_session.feeds:  # else the package decides without its model
            session = package._onnx_session
            asks.append(
                Ask(session.feeds, (str(answer.prediction.dl.label), float(answer.prediction.score)), session.outputs)
            )
    return asks


def features(packages: Path, folder: Path) -> None:
    """Write the features of the same files."""
    np.savez(folder / "files.npz", bytes=np.concatenate([ask.tensors["bytes"] for ask in typed(packages)]))


# ---- languages ------------------------------------------------------------------------------------------------------
SENTENCES = {
    "en": "The pump in hall four stopped this morning and nobody noticed it.",
    "de": "Die Pumpe in Halle vier blieb heute Morgen stehen, und niemand bemerkte es.",
    "fr": "La pompe du hall quatre s'est arrêtée ce matin et personne ne l'a remarqué.",
    "es": "La bomba de la nave cuatro se detuvo esta mañana y nadie se dio cuenta.",
    "it": "La pompa del capannone quattro si è fermata stamattina e nessuno se n'è accorto.",
    "nl": "De pomp in hal vier stopte vanmorgen en niemand merkte het.",
    "pl": "Pompa w hali czwartej zatrzymała się dziś rano i nikt tego nie zauważył.",
    "sv": "Pumpen i hall fyra stannade i morse och ingen märkte det.",
    "fi": "Halli neljän pumppu pysähtyi tänä aamuna eikä kukaan huomannut sitä.",
    "ru": "Насос в четвёртом цехе остановился сегодня утром, и никто этого не заметил.",
    "tr": "Dördüncü salondaki pompa bu sabah durdu ve kimse fark etmedi.",
    "ja": "今朝、第四ホールのポンプが止まったが、誰も気づかなかった。",
    "zh": "今天早上四号厂房的水泵停了，没有人注意到。",
    "ar": "توقفت المضخة في القاعة الرابعة هذا الصباح ولم يلاحظ أحد ذلك.",
    "el": "Η αντλία στην αίθουσα τέσσερα σταμάτησε σήμερα το πρωί και κανείς δεν το πρόσεξε.",
    "hi": "हॉल चार का पंप आज सुबह रुक गया और किसी ने ध्यान नहीं दिया।",
}


@cache
def langid(packages: Path) -> Any:
    """Return the package's identifier, with probabilities."""
    with imported_from(packages):
        module: Any = importlib.import_module("py3langid.langid")
    return module.LanguageIdentifier.from_model_file(module.MODEL_FILE, norm_probs=True)


def languages(packages: Path) -> Sequence[str]:
    """Return the codes of the package's languages; of two columns with one code the second one is numbered."""
    codes = list(langid(packages).nb_classes)
    return [code if codes.index(code) == place else f"{code}-{place}" for place, code in enumerate(codes)]


def naive_bayes(packages: Path, folder: Path) -> Path:
    """Write the package's table as an ONNX graph: the logarithms of counts times the table, plus the prior."""
    package = langid(packages)
    count, classes = package.nb_ptc.shape
    tensors = {"table": package.nb_ptc, "prior": package.nb_pc}
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["counts", "one"], ["more"]),
            helper.make_node("Log", ["more"], ["logs"]),
            helper.make_node("MatMul", ["logs", "table"], ["product"]),
            helper.make_node("Add", ["product", "prior"], ["scores"]),
            helper.make_node("Mul", ["scores", "temperature"], ["scaled"]),
            helper.make_node("Softmax", ["scaled"], ["probabilities"], axis=1),
        ],
        "naive-bayes",
        [
            helper.make_tensor_value_info("counts", onnx.TensorProto.FLOAT, ["rows", count]),
            helper.make_tensor_value_info("temperature", onnx.TensorProto.FLOAT, ["rows", 1]),
        ],
        [helper.make_tensor_value_info("probabilities", onnx.TensorProto.FLOAT, ["rows", classes])],
        [numpy_helper.from_array(np.array(1, np.float32), "one")]
        + [numpy_helper.from_array(np.asarray(each, np.float32), name) for name, each in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = folder / "languages.onnx"
    onnx.save(model, file)
    return file


def counted(packages: Path, text: str) -> dict[str, Array]:
    """Return a text's features as the package counts them, and its temperature."""
    package = langid(packages)
    module: Any = importlib.import_module("py3langid.langid")
    encoded = package._encode(text)
    visits = module.visit_counts(package.tk_nextmove, package._rowbase, package.tk_output, encoded) or {}
    counts = np.zeros((1, len(package.nb_ptc)), np.float32)
    counts[0, list(visits)] = list(visits.values())
    return {"counts": counts, "temperature": np.array([[1 / math.sqrt(len(encoded) or 1)]], np.float32)}


def identified(packages: Path) -> list[Ask]:
    """Return sentences and parts of them with the language and the probability that the package states."""
    package, asks = langid(packages), list[Ask]()
    for sentence in SENTENCES.values():
        for text in (sentence, sentence[: len(sentence) // 2], sentence[len(sentence) // 2 :]):
            language, probability = package.classify(text)
            asks.append(Ask(counted(packages, text), (language, probability)))
    return asks


def texts(packages: Path, folder: Path) -> None:
    """Write parts of the sentences."""
    parts = [text[at : at + 24] for text in SENTENCES.values() for at in range(0, len(text), 12)]
    rows = [counted(packages, part) for part in parts if len(part) > 6]
    np.savez(folder / "texts.npz", **{name: np.concatenate([row[name] for row in rows]) for name in rows[0]})


# ---- boosted trees --------------------------------------------------------------------------------------------------
@cache
def tumours() -> tuple[Array, Array]:
    """Return the table of breast tumours that scikit-learn brings."""
    data = importlib.import_module("sklearn.datasets").load_breast_cancer()
    return data.data.astype(np.float32), data.target


@cache
def histogram_boosting(packages: Path) -> Any:
    """Return gradient boosting of scikit-learn, trained on the table."""
    with imported_from(packages):
        ensemble: Any = importlib.import_module("sklearn.ensemble")
    rows, classes = tumours()
    return ensemble.HistGradientBoostingClassifier(random_state=0).fit(rows[ROWS:], classes[ROWS:])


def sklearn_file(packages: Path, folder: Path) -> Path:
    """Write scikit-learn's model by skl2onnx, without ZipMap."""
    model = histogram_boosting(packages)
    with imported_from(packages), warnings.catch_warnings(action="ignore"):
        converter: Any = importlib.import_module("skl2onnx")
        written = converter.to_onnx(model, tumours()[0][:1], options={id(model): {"zipmap": False}})
    file = folder / "tumours.onnx"
    file.write_bytes(written.SerializeToString())
    return file


def graded(packages: Path) -> list[Ask]:
    """Return rows of the table with the class and the probability of scikit-learn."""
    model, rows = histogram_boosting(packages), tumours()[0][:ROWS]
    found = model.predict_proba(rows)
    return [
        Ask({"X": row[np.newaxis]}, (str(each.argmax()), float(each.max())))
        for row, each in zip(rows, found, strict=True)
    ]


@cache
def lightgbm(packages: Path) -> Any:
    """Return a regressor of LightGBM, trained on the table of diabetes that scikit-learn brings."""
    with imported_from(packages):
        module: Any = importlib.import_module("lightgbm")
    rows, target = diabetes()
    return module.LGBMRegressor(n_estimators=60, random_state=0, verbose=-1).fit(rows[ROWS:], target[ROWS:])


@cache
def diabetes() -> tuple[Array, Array]:
    """Return rows and values of the table of diabetes."""
    data = importlib.import_module("sklearn.datasets").load_diabetes()
    return data.data.astype(np.float32), data.target


def lightgbm_file(packages: Path, folder: Path) -> Path:
    """Write LightGBM's model by onnxmltools."""
    with imported_from(packages), warnings.catch_warnings(action="ignore"):
        converter: Any = importlib.import_module("onnxmltools")
        types: Any = importlib.import_module("onnxmltools.convert.common.data_types")
    model = lightgbm(packages)
    width = diabetes()[0].shape[1]
    written = converter.convert_lightgbm(model, initial_types=[("x", types.FloatTensorType([None, width]))])
    file = folder / "diabetes.onnx"
    file.write_bytes(written.SerializeToString())
    return file


def measured(packages: Path) -> list[Ask]:
    """Return rows of the table with the value of LightGBM."""
    rows = diabetes()[0][:ROWS]
    return [
        Ask({"x": row[np.newaxis]}, float(value))
        for row, value in zip(rows, lightgbm(packages).predict(rows), strict=True)
    ]


TREES = "trees have no weights that the tools quantize"
JOURNEYS = (
    Journey(
        "magika",
        "magika",
        inside("magika/models/standard_v3_3/model.onnx"),
        typed,
        "files: type",
        Bounds(Bound(1e-5), quantized=Bound(0.3, 0.9)),
        labels=lambda packages: [str(each) for each in magika(packages)._target_labels_space],
        options=("--task", "tabular-classification", "--yes"),
        compare=distances.best_class,
        calibration=features,
    ),
    Journey(
        "py3langid",
        "py3langid",
        naive_bayes,
        identified,
        "texts: language",
        Bounds(Bound(1e-4), quantized=Bound(0.3, 0.9)),
        labels=languages,
        options=("--task", "tabular-classification", "--yes"),
        compare=distances.best_class,
        calibration=texts,
    ),
    Journey(
        "histogram-boosting",
        "scikit-learn",
        sklearn_file,
        graded,
        "rows: class",
        Bounds(Bound(1e-5)),
        options=("--yes",),
        compare=distances.best_class,
        unquantized=TREES,
    ),
    Journey(
        "lightgbm",
        "lightgbm",
        lightgbm_file,
        measured,
        "rows: value",
        Bounds(Bound(1e-5, 0.99)),
        options=("--yes",),
        compare=distances.value,
        unquantized=TREES,
    ),
)
