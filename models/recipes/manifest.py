"""Write a version's golden set and `manifest.toml`."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from models.recipes.evaluation import Verdict
from models.recipes.recipe import Dataset, Floats, Recipe
from models.recipes.variants import ACCELERATORS, KINDS, Kind, layout

MAX_ACCURACY_LOSS = 0.01
# Int8 differs between engines and processors, so a golden set must pass elsewhere too: besides what was measured here
# one row in a hundred (at least one) may change its class, and probabilities may be five times as far off.
SPARE_AGREEMENT = 0.01
SPARE_FACTOR = 5
LEAST_MEAN_ABS = 0.005
ORACLE = {"agreement": 1.0, "mean_abs": 0.0001}  # the same numbers in the same order, but for the BLAS


def write_golden(recipe: Recipe, data: Dataset, oracle: Floats, path: Path) -> None:
    """Write the held-out rows, the oracle's probabilities and the true classes."""
    np.savez_compressed(
        path,
        **{
            f"input.{recipe.input}": data.heldout,
            f"output.{recipe.output}": oracle,
            "label": data.heldout_classes,
        },
    )


def tolerances(verdicts: Mapping[str, Verdict], rows: int) -> dict[str, dict[str, float]]:
    """Return agreement and mean error that a variant must reach, per runtime, from the worst measured one."""
    spare = max(1, math.floor(rows * SPARE_AGREEMENT)) / rows
    found = {}
    for runtime in ("onnx", "openvino", "litert"):
        own = [verdicts[kind.name] for kind in KINDS if kind.runtime == runtime]
        agreement = min(verdict.agreement for verdict in own) - spare
        mean_abs = max(LEAST_MEAN_ABS, SPARE_FACTOR * max(verdict.mean_abs for verdict in own))
        found[runtime] = {
            "agreement": math.floor(round(agreement * 1000, 6)) / 1000,
            "mean_abs": math.ceil(round(mean_abs * 1000, 6)) / 1000,
        }
    return {**found, "reference": ORACLE}


def write_manifest(recipe: Recipe, verdicts: Mapping[str, Verdict], rows: int, folder: Path) -> None:
    """Write the manifest in full; what it says about files is read from the files."""
    blocks = [
        _head(recipe),
        _input(recipe),
        _table("[[output]]", _tensor(recipe.output, (len(recipe.labels),), postprocess="softmax")),
        *(_table(f"[{name}]", values) for name, values in recipe.extra.items() if "." not in name),
        _table("[golden]", {"file": "golden.npz", "sha256": digest(folder / "golden.npz")}),
        _table("[golden.tolerance]", tolerances(verdicts, rows)),
        *(_variant(recipe, kind, verdicts[kind.name], folder) for kind in KINDS),
    ]
    text = "\n".join(blocks)
    tomllib.loads(text)
    (folder / "manifest.toml").write_text(text)


def digest(path: Path) -> str:
    """Return the file's sha256 in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _head(recipe: Recipe) -> str:
    return "".join(
        f"{key} = {_toml(value)}\n"
        for key, value in {
            "schema": 1,
            "name": recipe.name,
            "version": recipe.version,
            "task": recipe.task,
            "labels": recipe.labels,
            "max_accuracy_loss": MAX_ACCURACY_LOSS,
        }.items()
    )


def _input(recipe: Recipe) -> str:
    tensor = _tensor(recipe.input, recipe.shape, finite=True, layout=recipe.layout)
    nested = [_table(f"[{name}]", values) for name, values in recipe.extra.items() if name.startswith("input.")]
    return "\n".join([_table("[[input]]", tensor), *nested])


def _tensor(name: str, shape: tuple[int, ...], **more: object) -> dict[str, object]:
    return {"name": name, "datatype": "FP32", "shape": (-1, *shape), **more}


def _variant(recipe: Recipe, kind: Kind, verdict: Verdict, folder: Path) -> str:
    values = {
        "name": kind.name,
        "runtime": kind.runtime,
        "precision": kind.precision,
        "accuracy": round(verdict.accuracy, 4),
        "accelerators": ACCELERATORS[kind.runtime],
        "needs": (),
        "artifacts": [
            {"path": path, "sha256": digest(folder / path), "bytes": (folder / path).stat().st_size}
            for path in kind.artifacts()
        ],
    }
    bind = {
        recipe.input: {"name": recipe.input, "layout": layout(recipe, kind)},
        recipe.output: {"name": recipe.output},
    }
    return "\n".join([_table("[[variant]]", values), _table("[variant.bind]", bind)])


def _table(header: str, values: Mapping[str, object]) -> str:
    return f"{header}\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())


def _toml(value: object) -> str:
    """Return a TOML value; tables become inline tables, and an array of tables gets a line for each."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return "[\n" + "".join(f"    {_toml(each)},\n" for each in value) + "]"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return json.dumps(value)  # strings, numbers and booleans are written alike in JSON and TOML
