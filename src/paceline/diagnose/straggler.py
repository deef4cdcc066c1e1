"""A rank that all others wait for: by its own work in a step, without what it waited for them."""

from __future__ import annotations

from statistics import mean, median
from typing import Any

SHARE = 0.1
"""Of a step: what a rank must work longer than the median of the others."""

EACH = 0.5
"""Of that, at least, in every stretch of the measured steps: neither a few pauses nor the noise of
a busy machine make a straggler."""

FEWEST = 10
"""Stretches, of a step or more each."""


def straggler(record: dict[str, Any]) -> dict[str, Any] | None:
    """The diagnosis naming the rank; None where there is none or nothing is known.

    Reads `ledger.own_step_s`: of each rank the seconds a step that it worked itself, in a few
    stretches of the steady steps; a step is the slowest rank's.
    """
    own, steps = record["ledger"]["own_step_s"], record["throughput"]["steps_measured"]
    if not own or not steps or len(own[0]) < FEWEST:
        return None
    rank = max(range(len(own)), key=lambda r: mean(own[r]))
    others = [
        median(mine[i] for r, mine in enumerate(own) if r != rank) for i in range(len(own[rank]))
    ]
    excess = [mine - other for mine, other in zip(own[rank], others, strict=True)]
    step_s = record["ledger"]["steady_wall_s"] / steps
    if mean(excess) < SHARE * step_s or min(excess) < EACH * SHARE * step_s:
        return None
    return {
        "bound": "straggler",
        "rank": rank,
        "share": mean(excess) / step_s,
        "evidence": [
            f"rank {rank} works {1e3 * mean(own[rank]):.3g} ms a step, the median of the others "
            f"{1e3 * mean(others):.3g} ms: they wait for it"
        ],
    }
