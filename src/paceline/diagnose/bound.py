"""diagnose=ledger: what bounds a job, read off the phases of its steady steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.diagnose.advice import advice
from paceline.diagnose.shares import Shares, shares

BOUND_AT = 0.5
"""What takes at least this share of a sustained step bounds the job."""

CLEAR_AT, CLEAR_BY = 1 / 3, 1.5
"""So does what takes a third of it, and this many times what the next one takes."""


SHOWN_AT = 0.001
"""Smaller shares are left out of the evidence."""


@dataclass(frozen=True)
class FromLedger:
    """`predictions`: the file, relative to where the command is typed, that keeps what was advised
    and what it brought; null: none."""

    predictions: str | None

    def open(self, context: Any) -> FromLedger:
        return self

    def explain(
        self, record: dict[str, Any], config: dict[str, Any], choices: dict[str, str]
    ) -> dict[str, Any]:
        return diagnosis(record, config, choices)


def diagnosis(
    record: dict[str, Any], config: dict[str, Any], choices: dict[str, str]
) -> dict[str, Any]:
    """The section of the record: the bound, its share of a sustained step, the rank it is about,
    the evidence, and what to do about it. `undetermined` where no share is large and clear, or
    where what is largest can't be told from what isn't known."""
    found = shares(record)
    if not found.of:
        return {"bound": "undetermined", "evidence": ["no steady step was measured"]}
    bound = _largest(found)
    late = found.late if bound == "straggler" else None
    return {
        "bound": bound,
        "rank": record["ledger"]["slowest_rank"] if late is None else late["rank"],
        "share": found.of.get(bound),
        "shares": found.of,
        "evidence": _evidence(record, found),
        "advice": advice(record, found, config, choices),
    }


def _largest(found: Shares) -> str:
    ranked = sorted(found.of.items(), key=lambda item: item[1], reverse=True)
    (name, share), *others = ranked
    after = others[0][1] if others else 0.0
    if share < BOUND_AT and (share < CLEAR_AT or share < CLEAR_BY * after):
        return "undetermined"
    if name == "compute" and "communication" in found.unknown:
        return "undetermined"
    return name


def _evidence(record: dict[str, Any], found: Shares) -> list[str]:
    said = [] if found.late is None else list(found.late["evidence"])
    ranked = sorted(found.of.items(), key=lambda item: item[1], reverse=True)
    parts = [f"{name} {share:.1%}" for name, share in ranked if share >= SHOWN_AT]
    said.append("of a step with what recurs: " + ", ".join(parts))
    wall_s, phases = record["ledger"]["steady_wall_s"], record["ledger"]["steady_phases_s"] or {}
    shown = {phase: s / wall_s for phase, s in phases.items() if s and s >= SHOWN_AT * wall_s}
    said.append("of a steady step: " + ", ".join(f"{p} {s:.1%}" for p, s in shown.items()))
    said += found.unknown.values()
    return said + [_said(run) for run in record["counter_runs"]]


def _said(run: dict[str, Any]) -> str:
    name = run["name"].replace("_", " ")
    if name == "operators":
        large = f"{1e3 * run['large_s']:.3g} ms in those that take 50 us or longer"
        return f"operators: {run['operators']:,.0f} a step outside of the optimizer, {large}"
    if "speedup" in run:
        return f"{name}: {run['speedup']:.3f} times the rate"
    return f"{name}: {run['units_per_s']:,.0f} units/s"
