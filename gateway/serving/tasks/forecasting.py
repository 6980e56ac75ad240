"""Forecasting: future values of one or several channels, with quantiles if the model gives them.

Kind: `time-series-forecasting`.

Formula: value = x · scale + offset for each channel, which undoes its standardisation. The first step is the one after
the last sample of the input.

Expected of the model: one numeric output whose axes are steps, channels and quantiles in any order. Dimensions of size
1 do not count. Examples of `axes`, by row: `["step"]` for [horizon] or [horizon, 1], `["step", "channel"]` for most
models of several channels (PatchTST, TSMixer), `["quantile", "step"]` for Chronos-Bolt, `["step", "quantile"]` for
the Temporal Fusion Transformer. Quantiles are published as the model gives them, crossed or not.

| option | type, default | meaning |
| --- | --- | --- |
| `output` | text | output with the forecast; required if the model has several numeric outputs |
| `axes` | list of `step`, `channel`, `quantile`; by the number of axes the first of these | axes in one row |
| `channels` | list of texts; the window's channels if their number fits, or the output's name for one | names |
| `units` | list of texts, `[""]` | unit of all channels, or one for each |
| `scale`, `offset` | lists of numbers, `[1.0]`, `[0.0]` | of all channels, or one for each |
| `quantiles` | list of numbers between 0 and 1, ascending | quantiles on the axis `quantile` |
| `step`, `step_unit` | number; `s`, `min`, `h`, `d`; the window's period in s | time from one step to the next |

Document: `{"step", "step_unit", "channels": [{"name", "unit", "values", "quantiles": [{"quantile", "values"}]}]}`.
`values` is the forecast or its median; it is absent if 0.5 is not among the quantiles. `quantiles` is absent without
quantiles. A value that is not finite is null.
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

AXES = ("step", "channel", "quantile")
STEP_UNITS = ("s", "min", "h", "d")
STEP_LIMIT = 1e6
"""Largest `step`, in its unit; the least one is its reciprocal."""
MEDIAN = 0.5


@dataclass(frozen=True, slots=True)
class ForecastStep:
    """Time from one step of a forecast to the next."""

    size: float
    unit: str


@dataclass(frozen=True, slots=True)
class ForecastResult:
    """Values [steps, channels, quantiles] of one row; the last axis has size 1 if there are no `quantiles`."""

    values: Array
    channels: Quantities
    quantiles: tuple[float, ...]
    step: ForecastStep

    def document(self) -> dict[str, Any]:
        """Return the values by channel, and the time of a step."""
        described = [
            {**channel, **self._series(self.values[:, place])}
            for place, channel in enumerate(self.channels.described())
        ]
        return {"step": self.step.size, "step_unit": self.step.unit, "channels": described}

    def tensors(self) -> dict[str, Array]:
        """Return the array `forecast` [steps, channels], or [steps, channels, quantiles]."""
        return {"forecast": self.values if self.quantiles else self.values[..., 0]}

    def _series(self, values: Array) -> dict[str, Any]:
        """Return the values [steps, quantiles] of one channel."""
        lists = [list(map(finite, series)) for series in values.T.tolist()]
        if not self.quantiles:
            return {"values": lists[0]}
        pairs = list(zip(self.quantiles, lists, strict=True))
        quantiles = [{"quantile": quantile, "values": series} for quantile, series in pairs]
        median = next((series for quantile, series in pairs if quantile == MEDIAN), None)
        return {"quantiles": quantiles} if median is None else {"values": median, "quantiles": quantiles}


class Forecasting:
    """Task of forecasters. Raises ConfigurationError if the options do not fit the output."""

    def __init__(self, manifest: ModelManifest, options: Table) -> None:
        self._output = read_output(manifest, options)
        self._axes = _read_axes(options, len(self._output.sizes))
        sizes = dict(zip(self._axes, self._output.sizes, strict=True))
        window = manifest.window.channels if manifest.window else ()
        count = sizes.get("channel", 1)
        self._channels = read_quantities(
            options, "channels", self._output, count, window if len(window) == count else ()
        )
        size = sizes.get("quantile")
        quantiles = options.numbers("quantiles", ())
        if len(quantiles) != (size or 0) and not (size == -1 and quantiles):
            options.refuse("quantiles", f"must hold one number for each of the {size or 0} quantiles of the output")
        if list(quantiles) != sorted(set(quantiles)) or not all(0.0 < quantile < 1.0 for quantile in quantiles):
            options.refuse("quantiles", "must be between 0 and 1, ascending")
        self._quantiles = quantiles
        self._step = _read_step(manifest, options)
        self._steps = sizes.get("step", 1)
        options.finish()

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """Return the declaration of the forecast."""
        shape = (self._steps, len(self._channels.names), len(self._quantiles))
        return (TensorSpec("forecast", Datatype.FP64, shape if self._quantiles else shape[:2]),)

    def interpret(self, outputs: Tensors, frame: Frame | None) -> ForecastResult:
        """Return the forecast of one row. `frame` is not used: a forecast has no place in an image."""
        numbers = to_fp64(self._output.values(outputs))
        order = [self._axes.index(axis) for axis in AXES if axis in self._axes]
        absent = [place for place, axis in enumerate(AXES) if axis not in self._axes]
        values = np.expand_dims(numbers.transpose(order), tuple(absent))
        if values.shape[1:] != (len(self._channels.names), len(self._quantiles) or 1):
            problem = f"output '{self._output.name}' of the model has shape {list(numbers.shape)} in one row"
            raise RequestError(Fault.UNSUPPORTED, f"{problem}, which does not fit its channels and quantiles")
        with np.errstate(over="ignore", invalid="ignore"):  # infinite numbers: null in the document
            scaled = values * self._channels.scale[:, np.newaxis] + self._channels.offset[:, np.newaxis]
        return ForecastResult(scaled, self._channels, self._quantiles, self._step)


def _read_axes(options: Table, count: int) -> tuple[str, ...]:
    """Take the names of the `count` axes of a row."""
    axes = options.texts("axes", AXES[:count], among=AXES)
    if len(axes) != count or len(set(axes)) != count:
        options.refuse("axes", f"must name each of the {count} axes of the output once, not {list(axes)}")
    return axes


def _read_step(manifest: ModelManifest, options: Table) -> ForecastStep:
    """Take the time of a step; without the option it is the period of the manifest's window."""
    if "step" not in options and manifest.window:
        return ForecastStep(1.0 / manifest.window.rate_hz, "s")
    return ForecastStep(
        options.number("step", low=1 / STEP_LIMIT, high=STEP_LIMIT), options.text("step_unit", among=STEP_UNITS)
    )
