"""Every formula against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.record import measure
from paceline.record.measure import Mean

TAGS = ("steady", "warmup", "checkpoint")


def test_students_t() -> None:
    assert measure.t975(1) == 12.706
    assert measure.t975(30) == 2.042
    assert measure.t975(60) == pytest.approx(2.0003, abs=5e-4)
    assert measure.t975(10**6) == pytest.approx(1.95996, abs=1e-5)
    with pytest.raises(ValueError, match="two values"):
        measure.t975(0)


@given(st.integers(1, 500))
def test_students_t_falls(degrees: int) -> None:
    assert measure.t975(degrees) > measure.t975(degrees + 1)


def test_t_interval() -> None:
    # mean 2, standard deviation 1, half width 4.303 / sqrt(3)
    got = measure.t_interval(np.array([1.0, 2.0, 3.0]))
    assert got.value == 2
    assert got.high == pytest.approx(2 + 4.303 / math.sqrt(3))
    assert measure.t_interval(np.array([5.0])) == Mean(5.0, None, None)


def test_batch_means_cover_the_truth_where_steps_are_correlated() -> None:
    # an AR(1) series with mean 1: an interval from single steps would be far too narrow
    rng = np.random.default_rng(0)
    hits = naive = 0
    for _ in range(200):
        noise = rng.normal(size=2000)
        series = np.empty(2000)
        series[0] = noise[0]
        for i in range(1, 2000):
            series[i] = 0.8 * series[i - 1] + noise[i]
        series = 1 + 0.01 * series
        got, single = measure.batch_means(series), measure.t_interval(series)
        assert got.low is not None and got.high is not None
        assert single.low is not None and single.high is not None
        hits += got.low <= 1 <= got.high
        naive += single.low <= 1 <= single.high
    assert hits >= 180
    assert naive < 140


def test_too_few_steps_have_no_interval() -> None:
    assert measure.batch_means(np.ones(7)) == Mean(1.0, None, None)
    assert measure.batch_means(np.ones(8)).low == 1.0


def test_a_rate_turns_the_interval_round() -> None:
    assert measure.rate(100, Mean(0.5, 0.4, 0.625)) == Mean(200, 160, 250)
    assert measure.rate(100, Mean(0.5, None, None)) == Mean(200, None, None)


def test_sustained_spreads_what_recurs() -> None:
    # 0.1 s a step and a save of 1 s every 10 steps: half the rate
    assert measure.sustained(50, 0.1, 1.0 / 10) == 250


def test_mfu() -> None:
    assert measure.mfu(1e6, 6e6, 12e12, 1) == (0.5, None)
    assert measure.mfu(1e6, 6e6, 12e12, 2) == (0.25, None)
    value, why = measure.mfu(1e6, 6e6, 3e12, 1)
    assert value is None and why is not None and "impossible" in why
    assert measure.mfu(1e6, None, 1e12, 1)[0] is None
    assert measure.mfu(1e6, 6e6, None, 1)[0] is None


def test_peak_flops() -> None:
    assert measure.peak_flops("NVIDIA A100-SXM4-80GB", "bfloat16") == 312e12
    assert measure.peak_flops("NVIDIA H100 PCIe", "bfloat16") == 756e12
    assert measure.peak_flops("NVIDIA H100 PCIe", "float32") == 51e12
    assert measure.peak_flops("NVIDIA H100 80GB HBM3", "float16") == 989e12
    assert measure.peak_flops("NVIDIA H200", "tf32") == 494.7e12
    assert measure.peak_flops("Tesla V100-PCIE-16GB", "tf32") is None
    assert measure.peak_flops("AMD EPYC", "float32") is None


def section(tags: list[int], step_s: list[float], recurring: float = 0.0) -> dict[str, object]:
    made, _ = measure.steady_section(np.array(step_s), np.array(tags), TAGS, 100, recurring)
    return made


def test_only_steady_steps_enter_the_rate() -> None:
    got = section([1, 1, 0, 0, 2, 0, 0], [9.0, 9.0, 0.1, 0.3, 7.0, 0.2, 0.2])
    assert got["steady_units_per_s"] == pytest.approx(100 / 0.2)
    assert got["steps_measured"] == 4
    assert got["steps_excluded"] == {"warmup": 2, "checkpoint": 1}
    assert got["step_s_median"] == pytest.approx(0.2)
    assert got["ci95"] is None


def test_sustained_stands_beside_steady() -> None:
    got = section([0] * 10, [0.1] * 10, recurring=0.1)
    assert got["steady_units_per_s"] == pytest.approx(1000)
    assert got["sustained_units_per_s"] == pytest.approx(500)
    assert got["ci95"] == [pytest.approx(1000), pytest.approx(1000)]


def test_without_a_steady_step_there_is_no_rate() -> None:
    made, reasons = measure.steady_section(np.array([1.0]), np.array([1]), TAGS, 100, 0.0)
    assert made["steady_units_per_s"] is None
    assert "no step was steady" in reasons[0]
