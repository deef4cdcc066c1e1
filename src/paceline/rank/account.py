"""What rank 0 writes down when all steps are done: the ranks' part of the record."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.rank import effective, gates, sections
from paceline.rank.ledger import COMPILED, PHASES, PROFILED, SAVED, SKIPPED, STEADY, WARMUP, Steps
from paceline.rank.sections import Gathered
from paceline.rank.train import Parts
from paceline.rank.world import gather, max_over_ranks
from paceline.record.schema import write_json

WORK = [i for i, p in enumerate(PHASES) if p in ("data_wait", "to_device", "forward", "optimizer")]
"""Phases in which a rank doesn't wait for others: the slowest rank is found by them."""


def write_account(
    parts: Parts,
    directory: Path,
    requested: dict[str, Any],
    host_memory: str,
    before: dict[str, int],
    first_step: int,
    spans: dict[str, float],
    eval_loss: float | None,
    steps_done: int,
) -> dict[str, Any] | None:
    """Gather from all ranks; rank 0 writes `steps.npz` and its part of `result.json`, and gets the
    record.

    `spans`: seconds of build and evaluation on this rank, `ended` on the host's monotonic clock.
    """
    found = _gather(parts, before, spans, steps_done)
    if parts.world.rank:
        return None
    known = {
        "first_step": first_step,
        "eval_loss": eval_loss,
        "init_digest": gates.init_digest(before),
    }
    record = sections.record_of(parts, found, requested, host_memory, known)
    sections.write_steps(directory / "steps.npz", parts, found)
    write_json(directory / "result.json", record)
    return record


def add_counter_runs(
    directory: Path, record: dict[str, Any], found: dict[str, Any], seconds: float
) -> None:
    """Put what the counter-runs found, in `seconds`, into the record that is on disk already."""
    units = record["throughput"]["units_per_step"]
    for run in found.get("counter_runs", []):
        run["units_per_s"] = units / run["step_s"]
    record["counter_runs"] = found.get("counter_runs", [])
    record["compile"] |= found.get("compile", {})
    record["validity"]["reasons"] += found.get("reasons", [])
    record["ledger"]["phases_s"]["intervene"] = seconds
    record["ledger"]["phases_s"]["ended"] += seconds
    write_json(directory / "result.json", record)


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
    peaks = max_over_ranks(torch.tensor([_host_gib(), _device_gib(parts)]).double(), world)
    facts = effective.look(parts, compiled)
    mine = {
        "phases": _phases(steps, tags),
        "spans": spans,
        "units_used": parts.units_used,
        "compile_s": compiled.compile_s,
        **_steady(steps, tags),
    }
    ranks = gather(mine, world)
    slowest = int(np.argmax([sum(r["steady"][i] for i in WORK) for r in ranks]))
    return Gathered(steps, tags, findings, compiled, facts, peaks.tolist(), ranks, slowest)


def _phases(steps: Steps, tags: Any) -> dict[str, float | None]:
    """Seconds of the whole job's steps by phase: a step that compiles, warms up or is profiled
    counts whole under that name, all others phase by phase."""
    whole = {
        "compile": steps.step_s[tags == COMPILED].sum(),
        "warmup": steps.step_s[tags == WARMUP].sum(),
        "profiler": steps.step_s[tags == PROFILED].sum(),
    }
    by_phase = steps.phase_s[np.isin(tags, (STEADY, SAVED, SKIPPED))].sum(axis=0)
    split = dict(zip(PHASES, by_phase.tolist(), strict=True))
    split.pop("other")  # the controller's residual: what no phase accounts for
    split["profiler"] += whole.pop("profiler")
    return {name: float(value) for name, value in (split | whole).items()}


def _skipped(parts: Parts, steps: Steps) -> Any:
    """[steps] bool: those that changed nothing because a gradient overflowed."""
    flags = parts.state.history["skipped"] + parts.curves.extra_skips.take().tolist()
    return np.array(flags, bool)[steps.step] if flags else np.zeros(len(steps.step), bool)


def _steady(steps: Steps, tags: Any) -> dict[str, Any]:
    steady = tags == STEADY
    return {
        "step_s": steps.step_s.tolist(),
        "steady_wall_s": float(steps.step_s[steady].sum()),
        "steady": steps.phase_s[steady].sum(axis=0).tolist(),
    }


def _host_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _device_gib(parts: Parts) -> float:
    on_gpu = parts.world.device.type == "cuda"
    return torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
