"""How far rounding alone carries a training: the envelope of nudged runs of its baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.record.schema import RAN, coarsest

FEWEST_RUNS = 2
TIMES = 4.0
"""A curve may leave the baseline by this many times what the nudged runs have left it so far."""

FLOOR = {"float32": 1e-6, "tfloat32": 1e-5, "float16": 1e-5, "bfloat16": 1e-4}
"""And by this share of the baseline anyhow: a nudge rounds once, a job in all that it computes.
Honest float32 needs 1.4e-7 in the first steps, the others nothing (gpt, resnet and mlp)."""

LEAST = 1 / 20
"""Share of the first value below which the baseline's isn't taken for that."""

WORDS = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "bf16_pure": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "tf32": "tfloat32",
}
"""Dtypes, options, and ways to multiply float32, as records name them."""

Record = dict[str, Any]
Floats = npt.NDArray[np.float64]


def runs_for(record: Record, base: Record, nudged: list[Record]) -> list[Record]:
    """Of all nudged runs those of this baseline, by the coarser of both compute dtypes. None where
    there are too few to show a spread, or where only one of the two keeps its parameters in a low
    dtype: it rounds away small updates in every step, which no nudge of the start shows."""
    if _precision(record)["parameters"] != _precision(base)["parameters"]:
        return []
    dtype = coarsest(computes(record), computes(base))
    found = [
        run
        for run in nudged
        if run["status"]["state"] in RAN
        and run["job"]["config_hash"] == base["job"]["config_hash"]
        and run["job"]["nudge"]["dtype"] == dtype
    ]
    return found if len(found) >= FEWEST_RUNS else []


def outside(record: Record, base: Record, runs: list[Record], name: str) -> str | None:
    """Where a curve of the numerics, `loss` or `grad_norm`, first leaves the envelope; None where
    it stays inside."""
    curves = [curve(r, name) for r in (record, base, *runs)]
    common = min(map(len, curves))
    if not common:
        return None
    mine, theirs, *others = (c[:common] for c in curves)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.nan_to_num(np.abs(np.stack(others) - theirs).max(axis=0))
        size = np.maximum(np.abs(theirs), LEAST * abs(np.nan_to_num(theirs[0])))
        dtype = coarsest(computes(record), computes(base))
        allowed = TIMES * np.maximum.accumulate(apart) + FLOOR[dtype] * size
        gap = np.abs(mine - theirs)
        left = np.flatnonzero(~(gap <= allowed) & (np.isfinite(mine) | np.isfinite(theirs)))
    if not len(left):
        return None
    step, what = int(left[0]), {"loss": "loss", "grad_norm": "gradient norm"}[name]
    return (
        f"the {what} of step {step} is {mine[step]:.6g}, the baseline's {theirs[step]:.6g}: "
        f"{gap[step]:.1e} apart, {len(runs)} nudged baselines allow {allowed[step]:.1e}"
    )


def curve(record: Record, name: str) -> Floats:
    """[steps] f64. A value that isn't finite was written as text: "nan", "inf"."""
    values = record["numerics"][name] or []
    return np.array([np.nan if v is None else float(v) for v in values], np.float64)


def computes(record: Record) -> str:
    """The coarsest dtype of its products, and of gradients between ranks: by what ran, else by
    what was asked for."""
    ran, asked = _precision(record), record["requested"].get("precision")
    said = f"{ran['compute'] or asked} {ran['reduction']} {ran['float32_matmul']}"
    words = said.replace(",", " ").split()
    words += ["tf32"] if asked == "tf32" else []
    return coarsest(*(WORDS[word] for word in words if word in WORDS))


def _precision(record: Record) -> dict[str, Any]:
    keys = ("parameters", "compute", "reduction", "float32_matmul")
    return dict.fromkeys(keys) | (record["effective"].get("precision") or {})
