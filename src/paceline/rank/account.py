"""What rank 0 writes down when all steps are done: the ranks' part of the record."""

from __future__ import annotations

import resource
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.rank import dtypes, effective, gates
from paceline.rank.ledger import (
    COMPILED,
    PHASES,
    PROFILED,
    SAVED,
    SKIPPED,
    STEADY,
    TAGS,
    WARMUP,
    Steps,
)
from paceline.rank.train import Parts
from paceline.rank.world import gather, max_over_ranks
from paceline.record import measure
from paceline.record.environment import environment
from paceline.record.schema import empty_record, write_json
from paceline.types import CompileReport

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
    world, data = parts.world, parts.state.data
    steps = parts.ledger.steps()
    tags = max_over_ranks(torch.from_numpy(steps.tag), world).numpy()
    parts.curves.fold(world)
    history = parts.state.history
    tags = np.where((tags == STEADY) & _skipped(parts, steps), SKIPPED, tags)
    findings = gates.run_gates(parts, before, steps_done)
    compiled = parts.compile.report()
    # before a step is watched, which takes memory of its own
    peaks = max_over_ranks(torch.tensor([_host_gib(), _device_gib(parts)]).double(), world)
    facts = effective.look(parts, compiled)
    everyone = gather(
        {
            "phases": _phases(steps, tags),
            "spans": spans,
            "units_used": parts.units_used,
            "compile_s": compiled.compile_s,
            **_steady(steps, tags),
        },
        world,
    )
    if world.rank:
        return None

    slowest = int(np.argmax([sum(r["steady"][i] for i in WORK) for r in everyone]))
    units_used = sum(r["units_used"] for r in everyone)
    units_per_step = units_used / max(len(steps.step), 1)
    record = empty_record()
    throughput, reasons = measure.steady_section(
        np.array(everyone[slowest]["step_s"]),
        tags,
        TAGS,
        units_per_step,
        _recurring(parts, requested, steps, tags),
    )
    record["throughput"] |= {"unit": data.unit} | throughput
    record["throughput"] |= {
        "samples_used": findings.samples_used,
        "units_used": units_used,
        "units_per_step": units_per_step,
        "global_batch_size": getattr(data, "global_batch_size", None),
        "micro_batch_size": getattr(data, "micro_batch_size", None),
        "epochs_measured": _epochs(data, throughput["steps_measured"]),
    }
    steady_rate = throughput["steady_units_per_s"]
    if steady_rate is not None:
        record["throughput"]["per_device_units_per_s"] = steady_rate / world.world_size
        _add_mfu(record, parts, facts, steady_rate, reasons)
    phases = dict(everyone[slowest]["phases"])
    record["ledger"] |= {
        "steady_wall_s": everyone[slowest]["steady_wall_s"],
        "steady_phases_s": dict(zip(PHASES, everyone[slowest]["steady"], strict=True)),
        "phases_s": record["ledger"]["phases_s"] | phases | everyone[slowest]["spans"],
        "per_rank": [dict(zip(PHASES, r["steady"], strict=True)) for r in everyone],
        "slowest_rank": slowest,
    }
    record["memory"] = {
        "peak_host_gib": float(peaks[0]),
        "peak_device_gib": float(peaks[1]) if world.device.type == "cuda" else None,
    }
    skipping = history["skipped"]  # empty where no step can be skipped
    record["numerics"] |= {
        "loss": history["loss"],
        "grad_norm": history["grad_norm"],
        "first_step": first_step,
        "final_loss": _tail_mean(history["loss"]),
        "eval_loss": eval_loss,
        "init_digest": gates.init_digest(before),
        "samples_digest": findings.samples_digest,
        "params_changed": findings.params_changed,
        "grads_equal": findings.grads_equal,
        "skipped_steps": np.flatnonzero(skipping).tolist() if skipping else None,
        "unused_parameters": findings.unused_parameters,
        "unused_layers": findings.unused_layers,
        **parts.state.precision.report(),
    }
    record["compile"] |= _compile(compiled, steps, tags, [r["compile_s"] for r in everyone])
    record["checkpoint"] |= parts.checkpoint.report()
    record["profiler"] |= parts.profiler.report() | {"overhead_ratio": _overhead(steps, tags)}
    record["effective"] = facts | {"host_memory": host_memory}
    nothing_done = effective.ineffective(requested, facts, compiled)
    verdict = "not_training" if findings.reasons else "ineffective" if nothing_done else "valid"
    if data.sampling == "own":
        reasons.append("samples_digest: the data source does its own sampling")
    record["validity"] = {
        "verdict": verdict,
        "reasons": findings.reasons + nothing_done + reasons,
    }
    record["environment"] = environment()
    losses = np.array(history["loss"] + [np.nan] * len(steps.step))
    np.savez(
        directory / "steps.npz",
        step=steps.step,
        tag=tags,
        start_s=steps.start_s,
        step_s=steps.step_s,
        phase_s=steps.phase_s,
        loss=losses[steps.step],
        phases=np.array(PHASES),
        tags=np.array(TAGS),
    )
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


def _epochs(data: Any, steps: int) -> float | None:
    """Passes over the training data within the steady steps; None where its size isn't known."""
    samples, batch = getattr(data, "samples", None), getattr(data, "global_batch_size", None)
    return steps * batch / samples if samples and batch else None


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


def _recurring(parts: Parts, requested: dict[str, Any], steps: Steps, tags: Any) -> float:
    """Seconds a step that come back at their configured cadence: blocking saves, and
    recompilations after the first steady step."""
    every = requested["checkpoint"].get("every_steps")
    saves = parts.checkpoint.report()["saves"]
    saving = float(np.mean([s["blocked_s"] for s in saves])) / every if saves and every else 0.0
    steady = np.flatnonzero(tags == STEADY)
    if not len(steady):
        return saving
    late = np.flatnonzero(tags == COMPILED)
    late = late[late > steady[0]]
    lost = (steps.step_s[late] - np.median(steps.step_s[steady])).clip(0).sum()
    return saving + float(lost) / max(len(steps.step) - int(steady[0]), 1)


def _compile(
    report: CompileReport, steps: Steps, tags: Any, seconds: list[float | None]
) -> dict[str, Any]:
    """`compile_s`: the slowest rank's; `extra_s`: what steps that compiled took beyond others."""
    known = [s for s in seconds if s is not None]
    compiling, steady = steps.step_s[tags == COMPILED], steps.step_s[tags == STEADY]
    ordinary = float(np.median(steady)) if len(steady) else 0.0
    return asdict(report) | {
        "first_step_s": float(steps.step_s[0]) if len(steps.step_s) else None,
        "compile_s": max(known, default=None),
        "extra_s": float((compiling - ordinary).clip(0).sum()),
    }


def _add_mfu(
    record: dict[str, Any], parts: Parts, facts: dict[str, Any], rate: float, reasons: list[str]
) -> None:
    flops = getattr(parts.state.model, "flops_per_unit", None)
    name = torch.cuda.get_device_name() if parts.world.device.type == "cuda" else "cpu"
    peak = measure.peak_flops(name, dtypes.peak_dtype(facts["precision"]))
    value, why_not = measure.mfu(rate, flops() if flops else None, peak, parts.world.world_size)
    record["throughput"] |= {"mfu": value, "peak_flops": peak}
    if why_not:
        reasons.append(why_not)


def _overhead(steps: Steps, tags: Any) -> float | None:
    """Median profiled step over median steady step of the same run."""
    profiled, steady = steps.step_s[tags == PROFILED], steps.step_s[tags == STEADY]
    if not len(profiled) or not len(steady):
        return None
    return float(np.median(profiled) / np.median(steady))


def _tail_mean(losses: list[float]) -> float | None:
    """Mean of the last tenth of the steps: a single step's loss is mostly noise."""
    return float(np.mean(losses[-max(1, len(losses) // 10) :])) if losses else None


def _host_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _device_gib(parts: Parts) -> float:
    on_gpu = parts.world.device.type == "cuda"
    return torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
