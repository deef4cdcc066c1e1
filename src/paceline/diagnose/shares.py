"""Which part of a step each bound holds: by the phases of the ledger, by counter-runs where made.

A share is what the job would gain if that cost were nothing: seconds of a sustained step, which is
a steady one with its part of what recurs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.diagnose.straggler import straggler

PHASES = {
    "input": ("data_wait", "to_device"),
    "communication": ("comm",),
    "compute": ("forward", "backward"),
    "optimizer": ("optimizer",),
    "host": ("other",),
}
"""Bound -> the phases of a steady step that speak for it."""

RECURRING = ("checkpoint", "recompile")


@dataclass(frozen=True)
class Shares:
    """`of`: bound -> share of a sustained step, 0 to 1, as far as it is known. `step_s`: that step,
    None where none was steady. `unknown`: bounds that can't be told from compute, each with why.
    """

    of: dict[str, float]
    step_s: float | None
    late: dict[str, Any] | None
    unknown: dict[str, str]


def shares(record: dict[str, Any]) -> Shares:
    """Of a record with its counter-runs, those there are."""
    ledger, steps = record["ledger"], record["throughput"]["steps_measured"]
    if not ledger["steady_wall_s"] or not steps:
        return _of_all_steps(record)
    steady_s = ledger["steady_wall_s"] / steps
    phases = {name: (s or 0.0) / steps for name, s in ledger["steady_phases_s"].items()}
    seconds = {
        bound: sum(phases.get(phase, 0.0) for phase in members) for bound, members in PHASES.items()
    }
    unknown: dict[str, str] = {}
    several = (record["effective"].get("world_size") or 1) > 1
    if several and "comm" not in phases:
        unknown["communication"] = (
            "forward and backward contain the ranks' communication, which isn't told apart; a "
            "rank that is slow in them isn't seen"
        )
    late = straggler(record)
    if late is not None:
        seconds |= _without(late, seconds, ledger, steps)
    runs = {run["name"]: run for run in record["counter_runs"]}
    seconds |= _by_counter_runs(runs, seconds, steady_s)
    if "communication" in unknown and "no_sync" in runs:
        del unknown["communication"]
        seconds["compute"] -= seconds["communication"]
    if "double_batch" not in runs:
        unknown["host"] = (
            "forward and backward may be the host's overhead: a counter-run with twice the batch "
            "tells (diagnose=intervene)"
        )
    if "communication" in unknown:
        seconds.pop("communication")
    recurring = ledger["recurring_s"] or {}
    seconds |= {name: recurring.get(name) or 0.0 for name in RECURRING}
    step_s = steady_s + sum(seconds[name] for name in RECURRING)
    return Shares({k: max(s, 0.0) / step_s for k, s in seconds.items()}, step_s, late, unknown)


def _without(
    late: dict[str, Any], seconds: dict[str, float], ledger: dict[str, Any], steps: int
) -> dict[str, float]:
    """What a straggler works beyond the others is its own bound, not that of the phase where it
    does so."""
    excess_s = late["share"] * ledger["steady_wall_s"] / steps
    rank, ranks = late["rank"], ledger["per_rank"]

    def beyond(bound: str) -> float:
        of = [sum(r.get(p) or 0.0 for p in PHASES[bound]) for r in ranks]
        others = [s for r, s in enumerate(of) if r != rank]
        return float(of[rank] - sum(others) / len(others))

    where = max((b for b in PHASES if b != "communication"), key=beyond)
    return {"straggler": excess_s, where: max(seconds[where] - excess_s, 0.0)}


def _by_counter_runs(
    runs: dict[str, Any], seconds: dict[str, float], steady_s: float
) -> dict[str, float]:
    """A counter-run knows what a phase can't: what is gained when its cost is gone, with all that
    moves into the gap. The other phases then make up the rest of the step. Twice the batch: what
    grows with it computes, what doesn't may be overhead, T(B) = fixed + B x each, so each x B =
    T(2 B) - T(B); but a product with large weights doesn't grow either, so what large operators
    take computes too."""
    found = dict(seconds)

    def gone(name: str) -> float:
        return float(steady_s * (1 - 1 / runs[name]["speedup"]))

    if "cached_batch" in runs:
        input_s = min(max(gone("cached_batch"), 0.0), steady_s)
        others_s = sum(s for bound, s in seconds.items() if bound != "input")
        times = (steady_s - input_s) / others_s if others_s else 0.0
        found = {bound: s * times for bound, s in seconds.items()} | {"input": input_s}
    here = found["compute"] + found["host"]
    for bound, name in (("communication", "no_sync"), ("optimizer", "no_optimizer")):
        if name in runs:
            found[bound] = gone(name)
    double = runs.get("double_batch")
    if double is not None:
        once_s, large_s = double["base_step_s"], (runs.get("operators") or {}).get("large_s", 0.0)
        computes = max(double["step_s"] - once_s, large_s) / once_s
        found["compute"] = min(computes * (steady_s - found["input"]), here)
        found["host"] = here - found["compute"]
    return found


def _of_all_steps(record: dict[str, Any]) -> Shares:
    """No step was steady. A job that compiles something in nearly every step has none: the time
    that compiling took, of all that its steps took."""
    compiled, phases = record["compile"], record["ledger"]["phases_s"]
    again = sum(r["compile_s"] or 0.0 for r in compiled["recompiles"])
    trained = ("compile", "warmup", "data_wait", "forward", "backward", "optimizer")
    wall_s = sum(phases.get(name) or 0.0 for name in trained)
    if not again or not wall_s:
        return Shares({}, None, None, {})
    first_s = compiled["first_step_s"] or 0.0
    share = min(again / max(wall_s - first_s, again), 1.0)
    return Shares({"recompile": share}, None, None, {})
