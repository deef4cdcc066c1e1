"""Rules between groups: what can't run together, one sentence each, naming keys and way out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any


def broken_rules(config: Mapping[str, Any], choices: Mapping[str, Any], world: int) -> list[str]:
    """Every rule that a well-formed config breaks; `world`: the number of ranks it asks for."""
    run, launch, measure = config["run"], config["launch"], config["measure"]
    problems = [
        _world(choices, world),
        _adopted(launch, world),
        _batch(config, run, world),
        _devices(run, world),
        _profiler(config["profiler"], run, world),
        _context_length(config["model"], config["data"]),
        _compiler(choices, run),
    ]
    if measure["warmup_steps"] >= run["steps"]:
        problems.append(
            f"measure.warmup_steps={measure['warmup_steps']} leaves nothing to measure in "
            f"run.steps={run['steps']}; raise run.steps or lower measure.warmup_steps"
        )
    return [p for p in problems if p]


def _world(choices: Mapping[str, Any], world: int) -> str | None:
    if choices.get("strategy") == "single" and world > 1:
        return (
            f"strategy=single runs one process, launch.nproc asks for {world}; "
            "use strategy=ddp, or launch.nproc=1"
        )
    return None


def _adopted(launch: Mapping[str, Any], world: int) -> str | None:
    outer = os.environ.get("WORLD_SIZE")
    if outer and int(outer) != world:
        return (
            f"launch.nproc={launch['nproc']}, but the launcher around paceline started "
            f"WORLD_SIZE={outer} processes; leave launch.nproc=auto, or start paceline without it"
        )
    return None


def _batch(config: Mapping[str, Any], run: Mapping[str, Any], world: int) -> str | None:
    batch = config["data"].get("global_batch_size")
    if batch is None:
        return None
    parts = world * run["accumulation_steps"]
    if batch <= 0 or batch % parts:
        near = max(parts, round(batch / parts) * parts)
        return (
            f"data.global_batch_size={batch} can't be shared by {world} ranks x "
            f"run.accumulation_steps={run['accumulation_steps']}; use a multiple of {parts}, "
            f"as data.global_batch_size={near}"
        )
    return None


def _devices(run: Mapping[str, Any], world: int) -> str | None:
    if run["device"] == "cpu":
        return None
    import torch

    if not torch.cuda.is_available():
        if run["device"] == "cuda":
            return "run.device=cuda, but torch sees no CUDA device; use run.device=cpu or auto"
        return None
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if local > torch.cuda.device_count():
        return (
            f"launch.nproc asks for {local} ranks on {torch.cuda.device_count()} CUDA devices; "
            "lower launch.nproc, or use run.device=cpu"
        )
    return None


def _profiler(profiler: Mapping[str, Any], run: Mapping[str, Any], world: int) -> str | None:
    if "active" not in profiler:
        return None
    cycle = profiler["wait"] + profiler["warmup"] + profiler["active"]
    needed = cycle * profiler["repeat"]
    if needed > run["steps"]:
        return (
            f"profiler: wait + warmup + active = {cycle} steps, repeat={profiler['repeat']}, need "
            f"{needed} steps, run.steps={run['steps']} has fewer; lower profiler.wait or raise "
            "run.steps"
        )
    beyond = [r for r in profiler["ranks"] if not 0 <= r < world]
    if beyond:
        return f"profiler.ranks={profiler['ranks']}: the job has ranks 0 to {world - 1}"
    return None


def _context_length(model: Mapping[str, Any], data: Mapping[str, Any]) -> str | None:
    length, context = data.get("sequence_length"), model.get("context_length")
    if length and context and length > context:
        return (
            f"data.sequence_length={length} is longer than model.context_length={context}; "
            "raise the second or lower the first"
        )
    return None


def _compiler(choices: Mapping[str, Any], run: Mapping[str, Any]) -> str | None:
    if choices.get("compile") != "inductor":
        return None
    if run["device"] != "cpu":
        import torch

        if torch.cuda.is_available():
            return None  # kernels for the GPU need no host compiler of ours
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    if any(shutil.which(name) for name in wanted):
        return None
    return (
        f"compile=inductor needs a C++ compiler for CPU kernels, none of {', '.join(wanted)} is on "
        "PATH; install one (apt install g++) or set CXX, or use compile=off"
    )
