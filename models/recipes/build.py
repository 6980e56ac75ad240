"""One model from data to card, telling what it does as it goes."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from gateway.workshop.making.measures import Quality
from models.recipes import onnx_export
from models.recipes.card import write_card
from models.recipes.evaluation import RUNTIMES, judge, softmax
from models.recipes.manifest import MAX_ACCURACY_LOSS, write_golden, write_manifest
from models.recipes.recipe import Dataset, Floats, Recipe
from models.recipes.training import cross_validate, fit, logits
from models.recipes.variants import FP32, KINDS

SAME = 1e-5  # the oracle must repeat torch's probabilities to this


def validate(recipe: Recipe) -> None:
    """Print the cross-validated accuracy of training, from the training part alone."""
    data = recipe.load()
    print(f"{recipe.name}: cross-validating on {len(data.train)} training rows", flush=True)
    print(f"{recipe.name}: {cross_validate(recipe, data.train, data.train_classes):.4f}", flush=True)


def build(recipe: Recipe, models: Path) -> bool:
    """Write `models/<name>/<version>`; return whether every variant keeps its accuracy."""
    started = time.monotonic()
    folder = models / recipe.name / recipe.version
    data = recipe.load()
    print(f"{recipe.name}: training on {len(data.train)} rows", flush=True)
    expected = _train(recipe, data, folder / FP32)
    _export(recipe, data, folder)
    oracle = _oracle(recipe, data.heldout, folder)
    if float(np.abs(oracle - expected).max()) > SAME:
        raise RuntimeError(f"{recipe.name}: the exported graph does not compute what was trained")
    write_golden(recipe, data, oracle, folder / "golden.npz")
    verdicts = _judge(recipe, data, oracle, folder)
    rows = len(data.heldout)
    write_manifest(recipe, verdicts, rows, folder)
    write_card(recipe, verdicts, _trials(recipe, data, folder), rows, folder)
    print(f"{recipe.name}: done in {time.monotonic() - started:.0f} s", flush=True)
    return _kept(verdicts)


def _train(recipe: Recipe, data: Dataset, path: Path) -> Floats:
    """Write the ONNX fp32 file and return torch's own probabilities of the held-out rows."""
    net = fit(recipe, data.train, data.train_classes)
    onnx_export.write_fp32(recipe, net, path)
    return softmax(logits(net, data.heldout))


def _export(recipe: Recipe, data: Dataset, folder: Path) -> None:
    for kind in KINDS:
        print(f"{recipe.name}: writing {kind.name}", flush=True)
        kind.write(recipe, folder / FP32, data.train, folder / kind.artifacts()[0])


def _oracle(recipe: Recipe, rows: Floats, folder: Path) -> Floats:
    return softmax(RUNTIMES["reference"](recipe, folder / "reference/model.npz", rows))


def _judge(recipe: Recipe, data: Dataset, oracle: Floats, folder: Path) -> dict[str, Quality]:
    verdicts = {}
    for kind in KINDS:
        scores = softmax(RUNTIMES[kind.runtime](recipe, folder / kind.artifacts()[0], data.heldout))
        verdict = verdicts[kind.name] = judge(scores, oracle, data.heldout_classes)
        print(
            f"{recipe.name}: {kind.name:14} accuracy {verdict.accuracy:.4f}  agreement {verdict.agreement:.4f}  "
            f"mean error {verdict.mean_abs:.6f}",
            flush=True,
        )
    return verdicts


def _trials(recipe: Recipe, data: Dataset, folder: Path) -> dict[str, float]:
    found = {}
    for trial in recipe.trials:
        rows, classes = trial.make(data)
        found[trial.title] = float(np.mean(_oracle(recipe, rows, folder).argmax(axis=1) == classes))
        print(f"{recipe.name}: {trial.title}: {found[trial.title]:.4f}", flush=True)
    return found


def _kept(verdicts: dict[str, Quality]) -> bool:
    floor = verdicts["reference"].accuracy - MAX_ACCURACY_LOSS
    lost = [name for name, verdict in verdicts.items() if verdict.accuracy < floor]
    for name in lost:
        print(f"{name} loses more than {MAX_ACCURACY_LOSS:.0%}: it would never be chosen", flush=True)
    return not lost
