"""Write a version's golden set and `manifest.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gateway.common.domain.manifest import INDEPENDENT, Binding, Golden, ModelManifest, TensorSpec, Tolerance, Variant
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.tensor import Datatype
from gateway.common.store.plain import file_digest
from gateway.serving.store.references import read_artifact
from gateway.workshop.making.manifest_text import manifest_text
from gateway.workshop.making.measures import Quality, tolerances
from models.recipes.recipe import Dataset, Floats, Recipe
from models.recipes.variants import KINDS, Kind, layout

MAX_ACCURACY_LOSS = 0.01
GOLDEN = "golden.npz"
ORACLE = Tolerance(agreement=1.0, mean_abs=0.0001)  # the same numbers in the same order, but for the BLAS


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


def golden_tolerances(verdicts: Mapping[str, Quality], rows: int) -> dict[str, Tolerance]:
    """Return agreement and mean error that a variant must reach, per runtime, from the worst measured one."""
    measured = {
        runtime: [verdicts[kind.name] for kind in KINDS if kind.runtime == runtime]
        for runtime in ("onnx", "openvino", "litert")
    }
    return {**tolerances(measured, rows), "reference": ORACLE}


def write_manifest(recipe: Recipe, verdicts: Mapping[str, Quality], rows: int, folder: Path) -> None:
    """Write the manifest in full; what it says about files is read from the files."""
    rank = (-1, *recipe.shape)
    manifest = ModelManifest(
        recipe.name,
        recipe.version,
        (TensorSpec(recipe.input, Datatype.FP32, rank, recipe.layout, finite=True, preprocess=recipe.preprocess),),
        (TensorSpec(recipe.output, Datatype.FP32, (-1, len(recipe.labels)), postprocess="softmax"),),
        tuple(_variant(recipe, kind, verdicts[kind.name], folder) for kind in KINDS),
        task=recipe.task,
        labels=recipe.labels,
        max_accuracy_loss=MAX_ACCURACY_LOSS,
        rows=INDEPENDENT,  # both networks work row by row; TFLite files have no other proof
        window=recipe.window,
        golden=Golden(GOLDEN, file_digest(folder / GOLDEN), golden_tolerances(verdicts, rows)),
    )
    (folder / "manifest.toml").write_text(manifest_text(manifest))


def _variant(recipe: Recipe, kind: Kind, verdict: Quality, folder: Path) -> Variant:
    return Variant(
        kind.name,
        kind.runtime,
        kind.precision,
        tuple(read_artifact(folder, path) for path in kind.artifacts()),
        RUNTIMES[kind.runtime].accelerators,
        accuracy=round(verdict.accuracy, 4),
        bind={
            recipe.input: Binding(recipe.input, layout(recipe, kind)),
            recipe.output: Binding(recipe.output),
        },
    )
