"""Is it the same training? The losses of two jobs that do the same work, step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.compare import spread

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

FULL = {"float32"}

SKETCH_RTOL = 1e-6
"""Distance of two float64 references of one gradient, over their size: another order of the same
sums is 1e-15, layers that insist on float32 1e-7."""

RANDOM = {"random numbers", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout"}
"""Of `coupled_by`: what the compiler draws otherwise than eager."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Agreement:
    """`verdict`: equal (every loss bit by bit), within or diverged; None where it can't be judged.
    `gate`: the one that caught it, or that the losses were held to: gradient, samples, start,
    reference, nudged, tolerance. `deviation`: the largest relative one of a loss."""

    verdict: str | None
    gate: str | None
    reason: str | None
    deviation: float | None


def agree(record: Record, base: Record, nudged: list[Record]) -> Agreement:
    """Hold a job to its baseline, the sharpest gate first. `nudged`: nudged runs of baselines; with
    fewer than two of this one, fixed tolerances hold the losses."""
    if record["job"]["work_hash"] != base["job"]["work_hash"]:
        return Agreement(None, None, "other work than the baseline's", None)
    deviation, too_far = losses_agree(record, base)
    if deviation is None:
        return Agreement(None, None, "no step in common with the baseline", None)
    apart = _apart(record, base)
    if apart:
        return Agreement(None, None, apart, deviation)
    for gate, look in (("samples", _samples), ("start", _start), ("reference", _reference)):
        reason = look(record, base)
        if reason:
            return Agreement("diverged", gate, reason, deviation)
    runs = spread.runs_for(record, base, nudged)
    gate = "nudged" if runs else "tolerance"
    if runs:
        left = (spread.outside(record, base, runs, name) for name in ("loss", "grad_norm"))
        too_far = next((reason for reason in left if reason), None)
    if too_far:
        return Agreement("diverged", gate, too_far, deviation)
    return Agreement("equal" if deviation == 0 else "within", gate, None, deviation)


def _apart(record: Record, base: Record) -> str | None:
    """Why their losses differ although both may be right: layers that couple samples, or draw
    random numbers, must meet the same samples together, on as many ranks."""
    both = {*record["numerics"]["coupled_by"], *base["numerics"]["coupled_by"]}
    if not both:
        return None
    for what, differs in (
        ("micro-batches", _differ(record, base, "throughput", "micro_batch_size")),
        ("world sizes", _differ(record, base, "effective", "world_size")),
        ("compilers", _differ(record, base, "requested", "compile") and bool(both & RANDOM)),
    ):
        if differs:
            return f"{', '.join(sorted(both))}: losses at different {what} can't be compared"
    return None


def _differ(record: Record, base: Record, section: str, key: str) -> bool:
    return bool(record[section].get(key) != base[section].get(key))


def _samples(record: Record, base: Record) -> str | None:
    """The same steps must have used the same samples, where the data source knows them."""
    if _steps(record) != _steps(base):
        return None
    for section, key, words in (
        ("throughput", "samples_used", "samples were used"),
        ("numerics", "samples_digest", "is the digest of the samples"),
    ):
        mine, theirs = record[section][key], base[section][key]
        if mine != theirs and None not in (mine, theirs):
            return f"{mine} {words} in {_steps(record)[1]} steps, {theirs} in the baseline's"
    return None


def _steps(record: Record) -> tuple[Any, int]:
    """(the first one, how many) of the process that wrote the record, extra steps included."""
    rate = record["throughput"]
    count = (rate["steps_measured"] or 0) + sum((rate["steps_excluded"] or {}).values())
    return record["numerics"]["first_step"], count


def _start(record: Record, base: Record) -> str | None:
    """One seed, one start: where both keep their parameters in one dtype."""
    dtypes = [(r["effective"].get("precision") or {}).get("parameters") for r in (record, base)]
    mine, theirs = (r["numerics"]["init_digest"] for r in (record, base))
    if dtypes[0] != dtypes[1] or None in (mine, theirs) or mine == theirs:
        return None
    return f"the initial parameters are others than the baseline's ({mine}, {theirs})"


def _reference(record: Record, base: Record) -> str | None:
    """From the same start, the float64 gradient of the first step must be the same one."""
    if record["numerics"]["init_digest"] != base["numerics"]["init_digest"]:
        return None
    mine, theirs = (r["numerics"]["gradient"]["sketch"] for r in (record, base))
    if not mine or not theirs:
        return None
    size = float(np.linalg.norm(theirs))
    off = float(np.linalg.norm(np.subtract(mine, theirs))) / max(size, SMALLEST)
    if off <= SKETCH_RTOL:
        return None
    return (
        f"gradient of the first step: its float64 reference is {off:.1e} off the baseline's: other "
        "samples, or another loss"
    )


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
    mine, theirs = spread.curve(record, "loss"), spread.curve(base, "loss")
    common = min(len(mine), len(theirs))
    mine, theirs = mine[:common], theirs[:common]
    known = np.flatnonzero(np.isfinite(mine) | np.isfinite(theirs))
    if not len(known):
        return None, None
    deviation = np.zeros(common)
    precision = "low" if {spread.computes(record), spread.computes(base)} - FULL else "full"
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


def _relative(value: Any, base: Any) -> Any:
    """|value - base| / |base|; infinite where one isn't finite."""
    both = np.isfinite(value) & np.isfinite(base)
    gap = np.abs(np.where(both, value, 0.0) - np.where(both, base, 0.0))
    size = np.maximum(np.abs(np.where(both, base, 1.0)), SMALLEST)
    return np.where(both, gap / size, np.inf)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
