"""Resampling of audio by a rational factor, with a polyphase filter. Pure functions.

Formula: y[n] = Σ h[k] · x[(n · down − k + D) / up] over the k for which the index is an integer, where h is a sinc at
the lower of both Nyquist frequencies, with a Kaiser window (β = 5), 10 of its zero crossings on each side, a sum of
`up` and a delay of D, which is removed. Source: Oppenheim, Schafer, Discrete-Time Signal Processing, 4.7; window and
length are the defaults of scipy.signal.resample_poly, with which tests compare. Before and after the recording there is
silence.

Expected: float samples. Outputs of one phase use the same taps, so each phase is one product of matrices.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Array

FACTOR_LIMIT = 2_000
"""Largest `up` and `down`: 11,025 Hz to 32,000 Hz is 1280 / 441. It bounds the filter to 40,001 taps."""
KAISER_BETA = 5.0
ZERO_CROSSINGS = 10
_FILTERS = 8
"""Filters that are kept: a model has one for each rate of its sources."""


def rational_factor(rate_hz: int, wanted_hz: int) -> tuple[int, int]:
    """Return up and down with wanted_hz = rate_hz · up / down, without common divisors."""
    divisor = math.gcd(rate_hz, wanted_hz)
    return wanted_hz // divisor, rate_hz // divisor


def resample(samples: Array, rate_hz: int, wanted_hz: int) -> Array:
    """Return FP32 samples [ceil(n · up / down)] at `wanted_hz` from samples [n] at `rate_hz`.

    Raises RequestError INVALID if `up` or `down` exceeds FACTOR_LIMIT.
    """
    up, down = rational_factor(rate_hz, wanted_hz)
    if max(up, down) > FACTOR_LIMIT:
        problem = f"audio of {rate_hz} Hz cannot be resampled to {wanted_hz} Hz: the factor {up}/{down} exceeds"
        raise RequestError(Fault.INVALID, f"{problem} {FACTOR_LIMIT}; record at {wanted_hz} Hz or a usual rate")
    if up == down or not len(samples):
        return samples.astype(np.float32)
    return _filtered(samples.astype(np.float32), up, down)


def _filtered(samples: Array, up: int, down: int) -> Array:
    """Return the resampled samples, phase by phase."""
    phases = _phases(up, down)
    taps, delay = phases.shape[1], ZERO_CROSSINGS * max(up, down)
    result = np.zeros(-(-len(samples) * up // down), np.float32)
    last = (len(result) * down + delay) // up
    padded = np.concatenate(
        [np.zeros(taps - 1, np.float32), samples, np.zeros(max(0, last - len(samples) + 1), np.float32)]
    )
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps)
    for first in range(min(up, len(result))):
        place, phase = divmod(first * down + delay, up)
        count = len(result[first::up])
        result[first::up] = windows[place : place + (count - 1) * down + 1 : down] @ phases[phase]
    return result


@lru_cache(maxsize=_FILTERS)
def _phases(up: int, down: int) -> Array:
    """Return the filter's taps [up, taps] by phase, each in reverse order, FP32."""
    half = ZERO_CROSSINGS * max(up, down)
    places = np.arange(-half, half + 1)
    taps = np.sinc(places / max(up, down)) * np.kaiser(2 * half + 1, KAISER_BETA)
    taps *= up / taps.sum()
    count = -(-len(taps) // up)
    padded = np.concatenate([taps, np.zeros(count * up - len(taps))])
    return np.ascontiguousarray(padded.reshape(count, up).T[:, ::-1], np.float32)
