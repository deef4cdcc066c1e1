"""Every formula once: rates, intervals, model FLOPs utilisation. Pure arithmetic on arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BATCHES = 20
MIN_BATCHES = 4

# 0.975 quantiles of Student's t for 1 to 30 degrees of freedom (Abramowitz & Stegun, table 26.10)
_T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

PEAK_FLOPS = {
    # dense (half of what a data sheet gives with sparsity), from the vendors' data sheets;
    # (name in the device's name, dtype or tf32); the more special name first
    ("H200", "bfloat16"): 989e12,
    ("H200", "float16"): 989e12,
    ("H200", "tf32"): 494.7e12,
    ("H200", "float32"): 67e12,
    ("H100 PCIe", "bfloat16"): 756e12,
    ("H100 PCIe", "float16"): 756e12,
    ("H100 PCIe", "tf32"): 378e12,
    ("H100 PCIe", "float32"): 51e12,
    ("H100", "bfloat16"): 989e12,
    ("H100", "float16"): 989e12,
    ("H100", "tf32"): 494.7e12,
    ("H100", "float32"): 67e12,
    ("A100", "bfloat16"): 312e12,
    ("A100", "float16"): 312e12,
    ("A100", "tf32"): 156e12,
    ("A100", "float32"): 19.5e12,
    ("L40S", "bfloat16"): 362e12,
    ("L40S", "float16"): 362e12,
    ("L40S", "tf32"): 183e12,
    ("L40S", "float32"): 91.6e12,
    ("V100-PCIE", "float16"): 112e12,
    ("V100-PCIE", "float32"): 14e12,
    ("V100", "float16"): 125e12,
    ("V100", "float32"): 15.7e12,
}


@dataclass(frozen=True)
class Mean:
    """A mean and its 95 % interval; the interval is None when there is too little to say."""

    value: float
    low: float | None
    high: float | None


def t975(degrees: int) -> float:
    """Student's t, 0.975 quantile; beyond 30 degrees by Cornish-Fisher from the normal one."""
    if degrees < 1:
        raise ValueError("an interval needs at least two values")
    if degrees <= len(_T975):
        return _T975[degrees - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def t_interval(values: Floats) -> Mean:
    """Mean of independent values with its t interval."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Mean(mean, None, None)
    half = t975(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Mean(mean, mean - half, mean + half)


def batch_means(step_s: Floats) -> Mean:
    """Mean step time with its interval by batch means (Schmeiser 1982): neighbouring steps are
    correlated, means over up to 20 stretches of them hardly are. None under 4 stretches."""
    batches = min(BATCHES, len(step_s) // 2)
    mean = float(np.mean(step_s))
    if batches < MIN_BATCHES:
        return Mean(mean, None, None)
    stretches = np.array([part.mean() for part in np.array_split(step_s, batches)])
    interval = t_interval(stretches)
    assert interval.low is not None and interval.high is not None
    half = (interval.high - interval.low) / 2
    return Mean(mean, mean - half, mean + half)


def rate(units_per_step: float, step_s: Mean) -> Mean:
    """units / s from seconds a step; the interval's ends change places."""
    return Mean(
        units_per_step / step_s.value,
        None if step_s.high is None else units_per_step / step_s.high,
        None
        if step_s.low is None
        else (units_per_step / step_s.low if step_s.low > 0 else math.inf),
    )


def sustained(units_per_step: float, steady_step_s: float, recurring_s_per_step: float) -> float:
    """units / (steady step time + what recurs, spread over its cadence)."""
    return units_per_step / (steady_step_s + recurring_s_per_step)


def mfu(
    units_per_s: float, flops_per_unit: float | None, peak_flops: float | None, devices: int
) -> tuple[float | None, str | None]:
    """Model FLOPs utilisation (PaLM, appendix B): (value, None) or (None, why not)."""
    if flops_per_unit is None:
        return None, "mfu: the model doesn't define flops_per_unit()"
    if peak_flops is None:
        return None, "mfu: the peak FLOP/s of this device is not known"
    value = units_per_s * flops_per_unit / (peak_flops * devices)
    if value > 1:
        return None, f"mfu: {value:.0%} is impossible, so flops_per_unit or the peak is wrong"
    return value, None


def peak_flops(device_name: str, dtype: str) -> float | None:
    """The data sheet's peak for a device and compute dtype; None if unknown."""
    for (name, kind), peak in PEAK_FLOPS.items():
        if name in device_name and kind == dtype:
            return peak
    return None


def steady_section(
    step_s: Floats,
    tags: npt.NDArray[np.int64],
    tag_names: tuple[str, ...],
    units_per_step: float,
    recurring_s_per_step: float,
) -> tuple[dict[str, Any], list[str]]:
    """The rate part of the `throughput` section over the steps tagged 0, and reasons for nulls."""
    steady = step_s[tags == 0]
    excluded = {n: int((tags == i).sum()) for i, n in enumerate(tag_names) if i}
    section: dict[str, Any] = {
        "steady_units_per_s": None,
        "ci95": None,
        "sustained_units_per_s": None,
        "ci_scope": "within_process",
        "step_s_median": None,
        "step_s_p95": None,
        "steps_measured": len(steady),
        "steps_excluded": {n: count for n, count in excluded.items() if count},
    }
    if not len(steady):
        return section, ["throughput: no step was steady; raise run.steps or measure.window_s"]
    reasons = []
    mean = batch_means(steady)
    steady_rate = rate(units_per_step, mean)
    if steady_rate.low is None:
        reasons.append(f"ci95: {len(steady)} steady steps are too few for an interval")
    else:
        section["ci95"] = [steady_rate.low, steady_rate.high]
    section |= {
        "steady_units_per_s": steady_rate.value,
        "sustained_units_per_s": sustained(units_per_step, mean.value, recurring_s_per_step),
        "step_s_median": float(np.median(steady)),
        "step_s_p95": float(np.percentile(steady, 95)),
    }
    return section, reasons
