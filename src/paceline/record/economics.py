"""Does a setting pay? Steps with and without it, measured in turns in one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.record.measure import Floats, t_interval


@dataclass(frozen=True)
class Turns:
    """Mean step of each turn, seconds, [pairs]: `base` as the job is, `other` with one thing
    changed. Neighbours in time make a pair, so that the machine's drift falls out."""

    base_s: Floats
    other_s: Floats

    def ratio(self) -> tuple[float, list[float] | None]:
        """other / base and its 95 % interval: a t interval on the logarithms of the pairs."""
        logs = t_interval(np.log(self.other_s / self.base_s))
        if logs.low is None or logs.high is None:
            return float(np.exp(logs.value)), None
        return float(np.exp(logs.value)), [float(np.exp(logs.low)), float(np.exp(logs.high))]


def compile_pays(turns: Turns, extra_s: float) -> dict[str, Any]:
    """Eager against compiled, and the step at which compiling has paid for itself.

    `extra_s`: what the steps that compiled took beyond ordinary ones. After N steps eager has taken
    N t_e and compiled N t_c + extra_s; they meet at N = extra_s / (t_e - t_c). None, with
    `break_even_why`, where eager isn't clearly slower.
    """
    speedup, interval = turns.ratio()
    compiled_s, eager_s = float(np.median(turns.base_s)), float(np.median(turns.other_s))
    found: dict[str, Any] = {
        "eager_step_s": eager_s,
        "compiled_step_s": compiled_s,
        "speedup_over_eager": speedup,
        "speedup_ci95": interval,
        "extra_s": extra_s,
        "break_even_steps": None,
        "break_even_ci95": None,
        "break_even_why": None,
    }
    if interval is None:
        return found | {"break_even_why": "too few turns for an interval"}
    low, high = interval
    if low > 1:
        steps = [round(extra_s / (compiled_s * (s - 1))) for s in (speedup, high, low)]
        return found | {"break_even_steps": steps[0], "break_even_ci95": steps[1:]}
    why = "never: eager is faster" if high < 1 else "can't tell: eager is about as fast"
    return found | {"break_even_why": why}


def gain(turns: Turns, times: int = 1) -> dict[str, Any]:
    """What one change gains in rate, with its 95 % interval: `speedup` = times x base / other,
    where a step of `other` does `times` the work. `base_step_s`: the step as it is, beside it."""
    ratio, interval = turns.ratio()
    ends = None if interval is None else [times / interval[1], times / interval[0]]
    return {
        "step_s": float(np.median(turns.other_s)),
        "base_step_s": float(np.median(turns.base_s)),
        "work": times,
        "speedup": times / ratio,
        "speedup_ci95": ends,
    }
