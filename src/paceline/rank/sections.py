"""The sections of the record that rank 0 fills, from what was gathered over all ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.rank import dtypes, effective, first_step, saving
from paceline.rank.comm import with_comm
from paceline.rank.gates import Findings
from paceline.rank.ledger import COMPILED, PHASES, PROFILED, STEADY, TAGS, UNHURRIED, Steps
from paceline.rank.train import Parts
from paceline.record import measure
from paceline.record.environment import environment
from paceline.record.schema import empty_record
from paceline.types import CompileReport


@dataclass(frozen=True)
class Gathered:
    """`tags`: the worst of all ranks, a step. `peaks`: host and device GiB. `ranks`: each rank's
    seconds and units; `slowest`: the one that decides."""

    steps: Steps
    tags: Any
    findings: Findings
    compiled: CompileReport
    facts: dict[str, Any]
    peaks: list[float]
    ranks: list[dict[str, Any]]
    slowest: int


def record_of(
    parts: Parts,
    found: Gathered,
    requested: dict[str, Any],
    host_memory: str,
    known: dict[str, Any],
) -> dict[str, Any]:
    """The ranks' part of the record. `known`: numerics that were known before."""
    record, on_gpu = empty_record(), parts.world.device.type == "cuda"
    recurring_s = _recurring(parts, found, requested)
    throughput, reasons = _throughput(parts, found, sum(recurring_s.values()))
    record["throughput"] |= throughput
    record["ledger"] |= _ledger(record["ledger"]["phases_s"], found) | {"recurring_s": recurring_s}
    record["comm"] |= found.ranks[found.slowest]["comm"]
    record["memory"] = {
        "peak_host_gib": found.peaks[0],
        "peak_device_gib": found.peaks[1] if on_gpu else None,
        "estimate": parts.memory,
    }
    record["numerics"] |= _numerics(parts, found) | known
    record["compile"] |= _compile(found)
    saves, spans = parts.checkpoint.report(), found.ranks[found.slowest]["spans"]
    record["checkpoint"] |= saves | {
        "economics": saving.economics(
            saves["saves"], found.steps, found.tags, requested["checkpoint"], record, spans
        )
    }
    record["profiler"] |= _profiler(found)
    reasons += record["profiler"]["reasons"]
    record["effective"] = found.facts | {"host_memory": host_memory}
    gates, wrong = found.findings.reasons, first_step.reasons(known["gradient"])
    nothing = effective.ineffective(requested, found.facts, found.compiled)
    nothing += found.ranks[found.slowest]["miscounted"]
    if parts.state.data.sampling == "own":
        reasons.append("samples_digest: the data source does its own sampling")
    verdicts = (("not_training", gates), ("diverged", wrong), ("ineffective", nothing))
    record["validity"] = {
        "verdict": next((v for v, why in verdicts if why), "valid"),
        "reasons": gates + wrong + nothing + reasons,
    }
    record["environment"] = environment()
    return record


def write_steps(path: Path, parts: Parts, found: Gathered) -> None:
    """One row a step, as arrays: see docs/design.md, 7."""
    steps = found.steps
    losses = np.array(parts.state.history["loss"] + [np.nan] * len(steps.step))
    np.savez(
        path,
        step=steps.step,
        tag=found.tags,
        start_s=steps.start_s,
        step_s=steps.step_s,
        phase_s=steps.phase_s,
        loss=losses[steps.step],
        phases=np.array(PHASES),
        tags=np.array(TAGS),
    )


def _throughput(
    parts: Parts, found: Gathered, recurring_s: float
) -> tuple[dict[str, Any], list[str]]:
    """The section, and reasons for what is null in it. `recurring_s`: a step."""
    data, world_size = parts.state.data, parts.world.world_size
    units_used = sum(r["units_used"] for r in found.ranks)
    units_per_step = units_used / max(len(found.steps.step), 1)
    rates, reasons = measure.steady_section(
        np.array(found.ranks[found.slowest]["step_s"]),
        found.tags,
        TAGS,
        units_per_step,
        recurring_s,
    )
    steady = rates["steady_units_per_s"]
    section = rates | {
        "unit": data.unit,
        "samples_used": found.findings.samples_used,
        "units_used": units_used,
        "units_per_step": units_per_step,
        "global_batch_size": getattr(data, "global_batch_size", None),
        "micro_batch_size": getattr(data, "micro_batch_size", None),
        "epochs_measured": _epochs(data, rates["steps_measured"]),
    }
    if steady is not None:
        section["per_device_units_per_s"] = steady / world_size
        used, why_not = _mfu(parts, found.facts, steady)
        section |= used
        reasons += [why_not] if why_not else []
    return section, reasons


def _ledger(phases_s: dict[str, Any], found: Gathered) -> dict[str, Any]:
    slowest = found.ranks[found.slowest]

    def exposed_s(rank: dict[str, Any], *tags: int) -> float | None:
        known = rank["exposed"]
        return None if known is None else float(np.array(known)[np.isin(found.tags, tags)].sum())

    per_rank = [
        with_comm(dict(zip(PHASES, r["steady"], strict=True)), exposed_s(r, STEADY))
        for r in found.ranks
    ]
    return {
        "steady_wall_s": slowest["steady_wall_s"],
        "steady_phases_s": per_rank[found.slowest],
        "phases_s": phases_s
        | with_comm(slowest["phases"], exposed_s(slowest, *UNHURRIED))
        | _on_the_clock_of_node_0(slowest["spans"], found.ranks[0]["spans"]),
        "per_rank": per_rank,
        "slowest_rank": found.slowest,
        "own_step_s": None if len(found.ranks) == 1 else [r["own"] for r in found.ranks],
    }


def _on_the_clock_of_node_0(mine: dict[str, float], first: dict[str, float]) -> dict[str, float]:
    """Spans of the slowest rank, as the controller can add them up: another node has another clock
    and may have started its ranks earlier or later than node 0, where rank 0 is."""
    spans = mine | {"ended": first["ended"]}
    spans["startup"] += first["whole"] - spans.pop("whole")
    return spans


def _numerics(parts: Parts, found: Gathered) -> dict[str, Any]:
    history, findings = parts.state.history, found.findings
    skipped = history["skipped"]  # empty where no step can be skipped
    return {
        "loss": history["loss"],
        "grad_norm": history["grad_norm"],
        "final_loss": _tail_mean(history["loss"]),
        "samples_digest": findings.samples_digest,
        "params_changed": findings.params_changed,
        "grads_equal": findings.grads_equal,
        "skipped_steps": np.flatnonzero(skipped).tolist() if skipped else None,
        "unused_parameters": findings.unused_parameters,
        "unused_layers": findings.unused_layers,
        **parts.state.precision.report(),
    }


def _compile(found: Gathered) -> dict[str, Any]:
    """`compile_s`: the slowest rank's; `extra_s`: what steps that compiled took beyond others."""
    seconds = [r["compile_s"] for r in found.ranks if r["compile_s"] is not None]
    step_s = found.steps.step_s
    compiling, steady = step_s[found.tags == COMPILED], step_s[found.tags == STEADY]
    ordinary = float(np.median(steady)) if len(steady) else 0.0
    return asdict(found.compiled) | {
        "first_step_s": float(step_s[0]) if len(step_s) else None,
        "compile_s": max(seconds, default=None),
        "extra_s": float((compiling - ordinary).clip(0).sum()),
    }


def _recurring(parts: Parts, found: Gathered, requested: dict[str, Any]) -> dict[str, float]:
    """Seconds a step that come back at their configured cadence: saves, what they block and what
    they slow down, and recompilations after the first steady step."""
    steps, tags = found.steps, found.tags
    saves = parts.checkpoint.report()["saves"]
    slowed = saving.slowed_s(steps, tags, saves)
    saved_s = saving.recurring_s(saves, slowed, requested["checkpoint"]["every_steps"] or 1)
    steady = np.flatnonzero(tags == STEADY)
    if not len(steady):
        return {"checkpoint": saved_s, "recompile": 0.0}
    late = np.flatnonzero(tags == COMPILED)
    late = late[late > steady[0]]
    lost = (steps.step_s[late] - np.median(steps.step_s[steady])).clip(0).sum()
    recompiled_s = float(lost) / max(len(steps.step) - int(steady[0]), 1)
    return {"checkpoint": saved_s, "recompile": recompiled_s}


def _mfu(parts: Parts, facts: dict[str, Any], rate: float) -> tuple[dict[str, Any], str | None]:
    flops = getattr(parts.state.model, "flops_per_unit", None)
    name = torch.cuda.get_device_name() if parts.world.device.type == "cuda" else "cpu"
    peak = measure.peak_flops(name, dtypes.peak_dtype(facts["precision"]))
    value, why_not = measure.mfu(rate, flops() if flops else None, peak, parts.world.world_size)
    return {"mfu": value, "peak_flops": peak}, why_not


def _profiler(found: Gathered) -> dict[str, Any]:
    """The section: what each rank recorded, and what that cost."""
    said = [rank["profiler"] for rank in found.ranks]
    lists = ("cycles", "snapshots", "problems", "reasons")
    whole = {key: [one for rank in said for one in rank.get(key, [])] for key in lists}
    cycles = whole["cycles"]
    return {
        "traces": [c["trace"] for c in cycles if c["trace"]],
        "summaries": [c["table"] for c in cycles],
        **whole,
        "reasons": list(dict.fromkeys(whole["reasons"])),
        "overhead_ratio": _overhead(found, {step for c in cycles for step in c["steps"]}),
    }


def _overhead(found: Gathered, recorded: set[int]) -> float | None:
    """Median step that was recorded over median steady step of the same run; of all that were
    disturbed where no single steps were recorded."""
    steps, tags = found.steps, found.tags
    those = tags == PROFILED
    if recorded:
        those &= np.isin(steps.step, sorted(recorded))
    recorded_s, steady_s = steps.step_s[those], steps.step_s[tags == STEADY]
    if not len(recorded_s) or not len(steady_s):
        return None
    return float(np.median(recorded_s) / np.median(steady_s))


def _epochs(data: Any, steps: int) -> float | None:
    """Passes over the training data within the steady steps; None where its size isn't known."""
    samples, batch = getattr(data, "samples", None), getattr(data, "global_batch_size", None)
    return steps * batch / samples if samples and batch else None


def _tail_mean(losses: list[float]) -> float | None:
    """Mean of the last tenth of the steps: a single step's loss is mostly noise."""
    return float(np.mean(losses[-max(1, len(losses) // 10) :])) if losses else None
