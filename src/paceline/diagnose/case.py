"""What a piece of advice is worked out from, and what one says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NOISE = 0.1
"""Half width of the bounds of a prediction whose own interval is narrower: what a model of a step
leaves out, and processes that differ."""

Advice = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """All that a piece of advice is worked out from. `step_s`: sustained."""

    record: dict[str, Any]
    shares: dict[str, float]
    step_s: float
    config: dict[str, Any]
    choices: dict[str, str]
    runs: dict[str, dict[str, Any]]

    def share(self, bound: str) -> float:
        return self.shares.get(bound, 0.0)

    def ceiling(self, bound: str) -> float:
        """The gain when all of that share is gone."""
        return 1 / max(1 - self.share(bound), 1e-3)

    @property
    def recurring_s(self) -> float:
        return sum(self.share(name) for name in ("checkpoint", "recompile")) * self.step_s


def tried(
    case: Case,
    run: dict[str, Any],
    key: str,
    value: Any,
    why: str,
    basis: str,
    same_work: bool = True,
) -> dict[str, Any]:
    """A counter-run's own gain, with what recurs put back; its step does `work` times the units."""
    work, extra = run["work"], case.recurring_s
    other_s = (case.step_s - extra) * work / run["speedup"]
    gain = work * case.step_s / (other_s + extra)
    low, high = run["speedup_ci95"] or [run["speedup"], run["speedup"]]
    bounds = [min(low, gain * (1 - NOISE)), max(high, gain * (1 + NOISE))]
    return said(key, value, why, gain, bounds, basis, same_work)


def said(
    key: str,
    value: Any,
    why: str,
    gain: float | None = None,
    bounds: list[float] | None = None,
    basis: str = "",
    same_work: bool = True,
) -> dict[str, Any]:
    """One piece of advice; `bounds`: of the gain."""
    return {
        "override": f"{key}={value}",
        "why": why,
        "predicted_gain": gain,
        "predicted_bounds": bounds,
        "basis": basis,
        "same_work": same_work,
    }
