"""Regression: numbers of a model as quantities with names and units.

Kind: `tabular-regression`.

Formula: value = x · scale + offset for each number of a row. This undoes the standardisation of targets in training
(scale = standard deviation, offset = mean).

Expected of the model: one numeric output with one or several numbers per row. Regressors of scikit-learn converted by
skl2onnx have the output `variable` [rows, 1].

| option | type, default | meaning |
| --- | --- | --- |
| `output` | text | output with the numbers; required if the model has several numeric outputs |
| `names` | list of texts; the manifest's labels, or the output's name if it has one number | names of the values |
| `units` | list of texts, `[""]` | unit of all values, or one for each |
| `scale`, `offset` | lists of numbers, `[1.0]`, `[0.0]` | of all values, or one for each |

Document: `{"values": [{"name", "unit", "value"}]}`, without `unit` if there is none. A value that is not finite is
null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Datatype, Tensors
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.quantities import Quantities, read_quantities
from gateway.serving.tasks.row_outputs import finite, read_output, to_fp64


@dataclass(frozen=True, slots=True)
class RegressionResult:
    """Values [n] of one row, and what they are."""

    values: Array
    quantities: Quantities

    def document(self) -> dict[str, Any]:
        """Return the values with name and unit."""
        pairs = zip(self.quantities.described(), self.values.tolist(), strict=True)
        return {"values": [{**described, "value": finite(value)} for described, value in pairs]}

    def tensors(self) -> dict[str, Array]:
        """Return the array `values` [n]."""
        return {"values": self.values}


class Regression:
    """Task of regressors. Raises ConfigurationError if names, units or scale do not fit the output."""

    def __init__(self, manifest: ModelManifest, options: Table) -> None:
        self._output = read_output(manifest, options)
        sizes = self._output.sizes or (1,)
        if len(sizes) > 1:
            options.refuse("output", f"'{self._output.name}' has several axes in one row; a regression has one")
        self._quantities = read_quantities(options, "names", self._output, sizes[0], manifest.labels)
        options.finish()

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """Return the declaration of the values."""
        return (TensorSpec("values", Datatype.FP64, (len(self._quantities.names),)),)

    def interpret(self, outputs: Tensors, frame: Frame | None) -> RegressionResult:
        """Return the values of one row. `frame` is not used: a value has no place in an image."""
        numbers, quantities = to_fp64(self._output.values(outputs)).reshape(-1), self._quantities
        if len(numbers) != len(quantities.names):
            problem = f"output '{self._output.name}' of the model has {len(numbers)} values in one row"
            raise RequestError(Fault.UNSUPPORTED, f"{problem}; {len(quantities.names)} are named")
        with np.errstate(over="ignore", invalid="ignore"):  # infinite numbers: null in the document
            return RegressionResult(numbers * quantities.scale + quantities.offset, quantities)
