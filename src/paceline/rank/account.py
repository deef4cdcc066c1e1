"""What rank 0 writes down when all steps are done: the ranks' part of the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.rank import comm, effective, gates, sections
from paceline.rank.ledger import (
    COMPILED,
    PHASES,
    PROFILED,
    SKIPPED,
    STEADY,
    TAGS,
    UNHURRIED,
    WARMUP,
    Ledger,
    Steps,
)
from paceline.rank.sections import Gathered
from paceline.rank.timings import Timed, Timings
from paceline.rank.train import Parts
from paceline.rank.world import gather, max_over_ranks
from paceline.record import measure
from paceline.record.schema import empty_record, write_json
from paceline.types import World

WAITS = ("checkpoint", "profiler")
"""Phases that are no work of a step."""

SURE = ("data_wait", "to_device", "optimizer")
"""Phases in which a rank works on its own, whatever the strategy. FSDP's forward and backward wait
for others, and nobody says for how long."""

STRETCHES = 10
"""Of the steady steps: a straggler is one in each of them."""


def write_account(
    parts: Parts,
    directory: Path,
    requested: dict[str, Any],
    host_memory: str,
    before: dict[str, int],
    spans: dict[str, float],
    known: dict[str, Any],
    steps_done: int,
) -> dict[str, Any] | None:
    """Gather from all ranks; rank 0 writes `steps.npz` and its part of `result.json`, and gets the
    record.

    `known`: numerics that were known before. `spans`: seconds of build and evaluation on this
    rank, `ended` on the host's monotonic clock, `whole` from launch to then.
    """
    found = _gather(parts, before, spans, steps_done)
    if parts.world.rank:
        return None
    record = sections.record_of(parts, found, requested, host_memory, known)
    sections.write_steps(directory / "steps.npz", parts, found)
    write_json(directory / "result.json", record)
    return record


def write_stopped(parts: Parts, directory: Path) -> None:
    """Rank 0's rate so far, of a job that was told to stop: a resumed one is compared with it."""
    if parts.world.rank:
        return
    record, steps = empty_record(), parts.ledger.steps()
    units_per_step = parts.units_used * parts.world.world_size / max(len(steps.step), 1)
    rates, _ = measure.steady_section(steps.step_s, steps.tag, TAGS, units_per_step, 0.0)
    record["throughput"] |= rates | {"unit": parts.state.data.unit}
    record["checkpoint"] |= parts.checkpoint.report()
    write_json(directory / "result.json", record)


def add_counter_runs(
    directory: Path, record: dict[str, Any], found: dict[str, Any], seconds: float
) -> None:
    """Put what the counter-runs found, in `seconds`, into the record that is on disk already."""
    units = record["throughput"]["units_per_step"]
    _add_no_checkpoint(found, record)
    for run in found.get("counter_runs", []):
        if "step_s" in run:
            run["units_per_s"] = run.get("work", 1) * units / run["step_s"]
    record["counter_runs"] = found.get("counter_runs", [])
    record["compile"] |= found.get("compile", {})
    record["validity"]["reasons"] += found.get("reasons", [])
    record["ledger"]["phases_s"]["intervene"] = seconds
    record["ledger"]["phases_s"]["ended"] += seconds
    write_json(directory / "result.json", record)


def _add_no_checkpoint(found: dict[str, Any], record: dict[str, Any]) -> None:
    """The counter-run that the job itself made: steps between two saves, against all of them."""
    saved_s = (record["ledger"]["recurring_s"] or {}).get("checkpoint")
    steps = record["throughput"]["steps_measured"]
    if not saved_s or not steps or not found.get("counter_runs"):
        return
    step_s = record["ledger"]["steady_wall_s"] / steps
    run = {"name": "no_checkpoint", "step_s": step_s, "base_step_s": step_s + saved_s, "work": 1}
    found["counter_runs"].append(run | {"speedup": 1 + saved_s / step_s, "speedup_ci95": None})


def slowest_so_far(ledger: Ledger, timings: Timings, world: World) -> int:
    """The rank that works longest by itself in the steady steps so far; where there is none yet, in
    those of the warm-up. A collective; on a GPU it waits for the last step."""
    steps = ledger.steps()
    which = STEADY if (steps.tag == STEADY).any() else WARMUP
    tags = np.where(steps.tag == which, STEADY, WARMUP)
    own = _own(steps, tags, timings.read(len(steps.step)))
    return int(np.argmax(gather(float(np.mean(own)), world)))


def _gather(
    parts: Parts, before: dict[str, int], spans: dict[str, float], steps_done: int
) -> Gathered:
    """What all ranks saw: a collective."""
    world, steps = parts.world, parts.ledger.steps()
    tags = max_over_ranks(torch.from_numpy(steps.tag), world).numpy()
    parts.curves.fold(world)
    tags = np.where((tags == STEADY) & _skipped(parts, steps), SKIPPED, tags)
    findings = gates.run_gates(parts, before, steps_done)
    compiled = parts.compile.report()
    # before a step is watched, which takes memory of its own
    peaks = max_over_ranks(torch.tensor(parts.peaks.most()).double(), world)
    timed = parts.timings.read(len(steps.step))
    facts = effective.look(parts, compiled)
    counted, miscounted = comm.look(parts)
    mine = {
        "phases": _phases(steps, tags),
        "spans": spans,
        "units_used": parts.units_used,
        "compile_s": compiled.compile_s,
        "comm": counted | _timed(timed, tags == STEADY),
        "miscounted": miscounted,
        "exposed": None if timed is None else timed.exposed_s.tolist(),
        "own": _own(steps, tags, timed),
        "profiler": parts.profiler.report(),
        **_steady(steps, tags),
    }
    ranks = gather(mine, world)
    slowest = int(np.argmax([sum(r["own"]) for r in ranks]))
    return Gathered(steps, tags, findings, compiled, facts, peaks.tolist(), ranks, slowest)


def _phases(steps: Steps, tags: Any) -> dict[str, float | None]:
    """Seconds of the whole job's steps by phase: a step that compiles, warms up or is profiled
    counts whole under that name, all others phase by phase."""
    whole = {
        "compile": steps.step_s[tags == COMPILED].sum(),
        "warmup": steps.step_s[tags == WARMUP].sum(),
        "profiler": steps.step_s[tags == PROFILED].sum(),
    }
    by_phase = steps.phase_s[np.isin(tags, UNHURRIED)].sum(axis=0)
    split = dict(zip(PHASES, by_phase.tolist(), strict=True))
    split.pop("other")  # the controller's residual: what no phase accounts for
    split["profiler"] += whole.pop("profiler")
    return {name: float(value) for name, value in (split | whole).items()}


def _skipped(parts: Parts, steps: Steps) -> Any:
    """[steps] bool: those that changed nothing because a gradient overflowed."""
    flags = parts.state.history["skipped"] + parts.curves.extra_skips.take().tolist()
    return np.array(flags, bool)[steps.step] if flags else np.zeros(len(steps.step), bool)


def _timed(timed: Timed | None, steady: Any) -> dict[str, float]:
    """Means over the steady steps, seconds."""
    if timed is None or not steady.any():
        return {}
    return {name: float(values[steady].mean()) for name, values in vars(timed).items()}


def _own(steps: Steps, tags: Any, timed: Timed | None) -> list[float]:
    """Seconds a step in which this rank worked and didn't wait for others, as far as that is known,
    in each of the stretches of its steady steps."""
    known = SURE if timed is None else [p for p in PHASES if p not in WAITS]
    own = steps.phase_s[:, [i for i, p in enumerate(PHASES) if p in known]].sum(axis=1)
    if timed is not None:
        own = own - timed.exposed_s
    own = own[tags == STEADY]
    stretches = np.array_split(own, min(STRETCHES, max(len(own), 1)))
    return [float(part.mean()) if len(part) else 0.0 for part in stretches]


def _steady(steps: Steps, tags: Any) -> dict[str, Any]:
    steady = tags == STEADY
    return {
        "step_s": steps.step_s.tolist(),
        "steady_wall_s": float(steps.step_s[steady].sum()),
        "steady": steps.phase_s[steady].sum(axis=0).tolist(),
    }
