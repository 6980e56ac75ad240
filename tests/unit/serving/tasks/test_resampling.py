"""Resampling as scipy.signal.resample_poly does it, for every usual pair of rates and every length."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.tasks.resampling import rational_factor, resample

RATES = [8_000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000, 96_000]


@given(st.sampled_from(RATES), st.sampled_from(RATES), st.integers(1, 3_000), st.integers(0, 99))
def test_samples_are_those_of_scipy(rate_hz: int, wanted_hz: int, count: int, seed: int) -> None:
    samples = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    got = resample(samples, rate_hz, wanted_hz)
    up, down = rational_factor(rate_hz, wanted_hz)
    reference = scipy.signal.resample_poly(samples.astype(np.float64), up, down)
    assert got.dtype == np.float32
    assert got.shape == reference.shape
    assert np.abs(got - reference).max() < 1e-5


@pytest.mark.parametrize("tone_hz", [100.0, 1_000.0, 3_000.0])
def test_a_tone_keeps_its_frequency_and_loudness(tone_hz: float) -> None:
    times = np.arange(4_800) / 48_000
    got = resample(np.sin(2 * np.pi * tone_hz * times).astype(np.float32), 48_000, 16_000)
    wanted = np.sin(2 * np.pi * tone_hz * np.arange(1_600) / 16_000)
    assert np.abs(got - wanted)[100:-100].max() < 2e-3


def test_a_tone_above_the_new_nyquist_frequency_disappears() -> None:
    tone = np.sin(2 * np.pi * 12_000 * np.arange(4_800) / 48_000).astype(np.float32)
    assert np.abs(resample(tone, 48_000, 16_000)[100:-100]).max() < 2e-3


def test_equal_rates_and_no_samples() -> None:
    assert resample(np.arange(3), 8_000, 8_000).tolist() == [0, 1, 2]
    assert resample(np.zeros(0), 8_000, 16_000).shape == (0,)


def test_rates_without_a_common_divisor_are_refused() -> None:
    with pytest.raises(RequestError, match="16000/44101 exceeds 2000") as error:
        resample(np.zeros(9), 44_101, 16_000)
    assert error.value.fault is Fault.INVALID
