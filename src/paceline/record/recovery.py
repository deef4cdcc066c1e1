"""What checkpoints cost and save: recommended interval, goodput. Pure arithmetic, seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def recommended_interval_s(cost_s: float, mtbf_s: float) -> float:
    """The time of training between two saves that loses least, to failures and to saves together:
    Daly's estimate (2006, "A higher order estimate of the optimum checkpoint interval for restart
    dumps", eq. 37), which is Young's sqrt(2 C M) (1974) where a save is cheap.

    `cost_s`: C, what a save takes from training; `mtbf_s`: M, mean time between failures.
    """
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    x = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(x) / 3 + x / 9) - cost_s


def expected_goodput(interval_s: float, cost_s: float, restart_s: float, mtbf_s: float) -> float:
    """Share of wall time that goes into training that lasts, to first order in 1 / M: saves take
    C of every interval + C; a failure costs the restart and half an interval that is done again."""
    if interval_s + cost_s <= 0:
        return 0.0
    saving = interval_s / (interval_s + cost_s)
    return max(0.0, saving * (1 - (restart_s + (interval_s + cost_s) / 2) / mtbf_s))


def economics(
    saves: Sequence[dict[str, Any]],
    slowed_s: float | None,
    step_s: float | None,
    every_steps: int,
    restart_s: float,
    mtbf_s: float,
) -> dict[str, Any] | None:
    """The `economics` of the record's checkpoint section: means over the saves that were committed;
    None without one. `slowed_s`: what steps beside background writing took beyond ordinary ones, a
    save; `step_s`: a steady step; `restart_s`: from start to the first step."""
    done = [save for save in saves if save["state"] == "committed"]
    if not done:
        return None
    blocked_s = _mean([save["blocked_s"] for save in done])
    cost_s = blocked_s + (slowed_s or 0.0)
    every_s = None if step_s is None else every_steps * step_s
    best_s = recommended_interval_s(cost_s, mtbf_s)
    return {
        "blocked_s": blocked_s,
        "slowed_s": slowed_s,
        "durable_s": _mean([save["durable_s"] for save in done]),
        "bytes": done[-1]["bytes"],
        "every_s": every_s,
        "mtbf_s": mtbf_s,
        "recommended_every_s": best_s,
        "recommended_every_steps": None if step_s is None else max(1, round(best_s / step_s)),
        "expected_goodput": None
        if every_s is None
        else expected_goodput(every_s, cost_s, restart_s, mtbf_s),
        "goodput": None,
    }


def goodput(
    trained_steps: int, step_s: float | None, wall_s: Sequence[float | None]
) -> float | None:
    """Steps of training at the steady pace over the wall time of all attempts; None where one of
    them left none. Between attempts, in a queue say, no time is counted."""
    known = [seconds for seconds in wall_s if seconds is not None]
    if step_s is None or len(known) < len(wall_s) or not sum(known):
        return None
    return trained_steps * step_s / sum(known)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
