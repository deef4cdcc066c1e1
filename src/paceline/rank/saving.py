"""What saves cost this job: blocked steps, and steps slowed by writing in the background."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.rank.ledger import SAVED, STEADY, Steps
from paceline.record import recovery

STARTING = ("startup", "build", "loader_start", "load")
"""Spans between a start and the first step."""


def slowed_s(steps: Steps, tags: Any, saves: list[dict[str, Any]]) -> float | None:
    """Seconds a save by which steps beside it were slower than steady ones: those that are tagged
    but in which no save began, for that is blocked time. None where no step was steady."""
    steady = steps.step_s[tags == STEADY]
    if not len(steady):
        return None
    began = [save["step"] - 1 for save in saves]
    beside = steps.step_s[(tags == SAVED) & ~np.isin(steps.step, began)]
    return float((beside - np.median(steady)).sum().clip(0)) / len(saves) if saves else 0.0


def recurring_s(saves: list[dict[str, Any]], slowed: float | None, every_steps: int) -> float:
    """Seconds a step, at the cadence that is set."""
    if not saves:
        return 0.0
    blocked = float(np.mean([save["blocked_s"] for save in saves]))
    return (blocked + (slowed or 0.0)) / every_steps


def economics(
    saves: list[dict[str, Any]],
    steps: Steps,
    tags: Any,
    asked: dict[str, Any],
    record: dict[str, Any],
    spans: dict[str, float],
) -> dict[str, Any] | None:
    """As record/recovery.py says; None without a save. `asked`: `requested.checkpoint`."""
    if not asked["every_steps"] or not asked["mtbf_s"]:
        return None
    rate = record["throughput"]["steady_units_per_s"]
    step_s = record["throughput"]["units_per_step"] / rate if rate else None
    restart_s = sum(spans.get(name, 0.0) for name in STARTING)
    restart_s += record["compile"]["compile_s"] or 0.0
    slowed = slowed_s(steps, tags, saves)
    return recovery.economics(
        saves, slowed, step_s, asked["every_steps"], restart_s, asked["mtbf_s"]
    )
