"""Is it the same training? The losses of two jobs that do the same work, step by step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

FIRST_STEPS = 10
FIRST_RTOL = {"full": 1e-4, "low": 2e-2}
"""Largest relative deviation of a loss in the first steps, by the lower of two precisions."""

LAST_RTOL = {"full": 0.01, "low": 0.03}
"""The same for the mean loss over the last tenth of the common steps, beside NOISE."""

NOISE = 3.0
"""Standard errors of the mean difference in those steps, allowed beside that: a network that learns
fast carries a rounding error (another number of threads is enough) to quite other single losses
within a hundred steps, now higher, now lower. What is wrong stays on one side."""

FEWEST_STEPS = 4
"""Fewer differences say nothing of their own scatter."""

SMALLEST = 1e-12
"""A baseline loss below this counts as this: relative to 0, everything is infinitely far."""

LOW = ("bfloat16", "float16", "bf16", "fp16", "bf16_pure", "tf32")
"""Dtypes, options, and ways to multiply float32."""


def losses_agree(record: dict[str, Any], base: dict[str, Any]) -> tuple[float | None, str | None]:
    """(largest relative deviation over all common steps, why it isn't the same training).

    Training is chaotic: rounding grows from step to step, so single losses are held tightly over
    the first steps only, and the end by its mean. This catches other samples or another order,
    another initial state, gradients that aren't synchronised, a precision that is too low, and
    a run that stops learning. It does NOT catch a wrong scale of the loss under AdamW, which
    divides it out again (x0.5 moves the curve by 2e-6): the gates in the ranks look at gradients.

    (None, None) for other work, or without a common step. The deviation is infinite where only
    one of the two losses is a number; steps in which neither is are left out.
    """
    if record["job"]["work_hash"] != base["job"]["work_hash"]:
        return None, None
    mine, theirs = _losses(record), _losses(base)
    common = min(len(mine), len(theirs))
    mine, theirs = mine[:common], theirs[:common]
    known = np.flatnonzero(np.isfinite(mine) | np.isfinite(theirs))
    if not len(known):
        return None, None
    deviation = np.zeros(common)
    precision = "low" if _low(record) or _low(base) else "full"
    with np.errstate(over="ignore"):
        deviation[known] = _relative(mine[known], theirs[known])
        reason = _first_steps(mine, theirs, deviation, FIRST_RTOL[precision])
        reason = reason or _last_tenth(mine[known], theirs[known], known, LAST_RTOL[precision])
    return float(deviation.max()), reason


def _first_steps(mine: Any, theirs: Any, deviation: Any, rtol: float) -> str | None:
    """The first step that is too far off; at any step, one that isn't a number on one side."""
    too_far = deviation > rtol
    too_far[FIRST_STEPS:] = np.isinf(deviation[FIRST_STEPS:])
    if not too_far.any():
        return None
    step = int(np.argmax(too_far))
    return (
        f"the loss of step {step} is {mine[step]:.6g}, the baseline's {theirs[step]:.6g}: "
        f"{_percent(deviation[step])} off, {_percent(rtol)} is allowed"
    )


def _last_tenth(mine: Any, theirs: Any, steps: Any, rtol: float) -> str | None:
    count = max(1, len(steps) // 10)
    end, base_end = float(mine[-count:].mean()), float(theirs[-count:].mean())
    # relative to the loss, but never to less than a twentieth of where it began: close to 0 two
    # honest runs differ by more than a percent of what is left
    least = float(np.abs(theirs[:1]).max(initial=0.0)) / 20
    size = max(abs(base_end), least, SMALLEST)
    off = abs(end - base_end) / size if math.isfinite(end - base_end) else math.inf
    allowed = rtol + NOISE * _standard_error(mine[-count:] - theirs[-count:]) / size
    if off <= allowed or end == base_end:
        return None
    return (
        f"the mean loss of steps {steps[-count]} to {steps[-1]} is {end:.6g}, the baseline's "
        f"{base_end:.6g}: {_percent(off)} off, {_percent(allowed)} is allowed"
    )


def _standard_error(differences: Any) -> float:
    """Of their mean, as if steps were independent; 0 where too few can't tell."""
    if len(differences) < FEWEST_STEPS or not np.isfinite(differences).all():
        return 0.0
    return float(differences.std(ddof=1)) / math.sqrt(len(differences))


def _losses(record: dict[str, Any]) -> npt.NDArray[np.float64]:
    """[steps] f64. A loss that isn't finite was written as text: "nan", "inf"."""
    losses = record["numerics"]["loss"] or []
    return np.array([math.nan if loss is None else float(loss) for loss in losses], np.float64)


def _relative(value: Any, base: Any) -> Any:
    """|value - base| / |base|; infinite where one isn't finite."""
    both = np.isfinite(value) & np.isfinite(base)
    gap = np.abs(np.where(both, value, 0.0) - np.where(both, base, 0.0))
    size = np.maximum(np.abs(np.where(both, base, 1.0)), SMALLEST)
    return np.where(both, gap / size, np.inf)


def _low(record: dict[str, Any]) -> bool:
    """Does it compute in less than float32? By what ran, and by what was asked for."""
    ran = record["effective"].get("precision") or {}
    asked = record["requested"].get("precision")
    words = f"{ran.get('compute') or asked} {ran.get('float32_matmul')}".replace(",", " ").split()
    return asked == "tf32" or any(word in LOW for word in words)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
