"""Anomaly detection: a score per row, and whether it is beyond a calibrated threshold.

Kind: `anomaly-detection`.

Formula of autoencoders: score = mean of (x − x̂)² over the values of a row, where x is the model's input as the model
receives it (after preprocessing) and x̂ the output that reconstructs it. Source: the baseline of DCASE 2020 task 2.
Other models give the score themselves: `score` names that output. If it holds several values, such as
the map of PatchCore or anomalib, `reduce` makes one of them.

Calibrate the threshold with rows that are known to be normal, which the model was not trained on: take a quantile of
their scores, for example 0.99 for at most one false alarm in 100 rows. Calibrate the variant that serves: quantised
variants have larger errors of reconstruction.

| option | type, default | meaning |
| --- | --- | --- |
| `score` | text | output with the score |
| `reconstruction` | text | output that reconstructs the input; set exactly one of `score` and `reconstruction` |
| `input` | text | input that is reconstructed; required if the model has several numeric inputs |
| `reduce` | `none`, `max`, `mean`; `none` | reduction of a `score` output with several values |
| `threshold` | number | calibrated threshold; required |
| `anomalous` | `above`, `below`; `above` | side of the threshold that is anomalous; scikit-learn's detectors: `below` |

Document: `{"score", "threshold", "anomalous"}`; score and `anomalous` are null if the score is NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Datatype, Tensors
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.row_outputs import NUMBERS, RowOutput, finite, read_output, row_tensor, to_fp64

THRESHOLD_LIMIT = 1e30
"""Largest magnitude of a threshold."""


@dataclass(frozen=True, slots=True)
class AnomalyResult:
    """Score of one row and its verdict; `anomalous` is None if the score is NaN."""

    score: float
    threshold: float
    anomalous: bool | None

    def document(self) -> dict[str, Any]:
        """Return score, threshold and verdict; null for what is not known."""
        return {"score": finite(self.score), "threshold": self.threshold, "anomalous": self.anomalous}

    def tensors(self) -> dict[str, Array]:
        """Return the arrays `score` [1] and `anomalous` [1]: false if the score is NaN."""
        return {"score": np.array([self.score]), "anomalous": np.array([bool(self.anomalous)])}


class AnomalyDetection:
    """Task of anomaly detectors. Raises ConfigurationError if the tensors do not fit the options.

    `inputs` names the input that `interpret` needs (`InputReader`); it is empty if the model gives the score.
    """

    results = (TensorSpec("score", Datatype.FP64, (1,)), TensorSpec("anomalous", Datatype.BOOL, (1,)))
    """Score and verdict of a row."""

    def __init__(self, manifest: ModelManifest, options: Table) -> None:
        if ("score" in options) == ("reconstruction" in options):
            options.refuse("score", "name the output here or in reconstruction, exactly one of them")
        key = "score" if "score" in options else "reconstruction"
        self._output = read_output(manifest, options, key)
        self._input = _read_input(manifest, self._output, options) if key == "reconstruction" else None
        self._reduce = options.text("reduce", "none", among=("none", "max", "mean"))
        self._threshold = options.number("threshold", low=-THRESHOLD_LIMIT, high=THRESHOLD_LIMIT)
        self._is_above = options.text("anomalous", "above", among=("above", "below")) == "above"
        options.finish()
        if self._reduce == "none" and self._input is None and self._output.sizes:
            options.refuse("reduce", f"output '{self._output.name}' has several values; set reduce to max or mean")
        if self._reduce != "none" and self._input is not None:
            options.refuse("reduce", "is for outputs with a score; the error of a reconstruction is always the mean")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of the inputs that `interpret` needs next to the outputs."""
        return (self._input.name,) if self._input else ()

    def interpret(self, outputs: Tensors, frame: Frame | None) -> AnomalyResult:
        """Return the verdict on one row. `frame` is not used: the verdict is about the whole row."""
        values = self._output.values(outputs)
        if not values.size:
            raise RequestError(Fault.UNSUPPORTED, f"output '{self._output.name}' of the model is empty")
        score = self._score(values) if self._input is None else squared_error(self._input.values(outputs), values)
        is_anomalous = score > self._threshold if self._is_above else score < self._threshold
        return AnomalyResult(score, self._threshold, None if math.isnan(score) else is_anomalous)

    def _score(self, values: Array) -> float:
        with np.errstate(over="ignore", invalid="ignore"):  # infinite values: the score is infinite or NaN
            return float(values.mean(dtype=np.float64) if self._reduce == "mean" else to_fp64(values.max()))


def squared_error(wanted: Array, given: Array) -> float:
    """Return the mean squared error. Raises RequestError UNSUPPORTED if the shapes differ."""
    if wanted.shape != given.shape:
        problem = f"the reconstruction has shape {list(given.shape)} in one row, the input {list(wanted.shape)}"
        raise RequestError(Fault.UNSUPPORTED, problem)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite values: the score is infinite or NaN
        return float(np.square(given - wanted.astype(np.float64)).mean())


def _read_input(manifest: ModelManifest, output: RowOutput, options: Table) -> RowOutput:
    """Take the option `input`. Raises ConfigurationError if `output` has not its shape."""
    fitting = {spec.name: spec for spec in manifest.inputs if spec.datatype in NUMBERS}
    if "input" not in options and len(fitting) != 1:
        options.refuse("input", f"missing; name the input that is reconstructed (numeric: {', '.join(fitting)})")
    name = options.text("input", next(iter(fitting), ""))
    if name not in fitting:
        options.refuse("input", f"must name a numeric input of the model ({', '.join(fitting)}), not {name!r:.150}")
    found = row_tensor(manifest, fitting[name])
    if found.sizes != output.sizes:
        problem = (
            f"output '{output.name}' has shape {list(output.shape)} in one row, input '{name}' {list(found.shape)}"
        )
        options.refuse("reconstruction", problem)
    if manifest.output(name) is not None:
        options.refuse("input", f"an output is called '{name}' too; rename one of them in the manifest")
    return found
