"""Rules of the ranks: how many there are, what they share, what they run on."""

from __future__ import annotations

import os

from paceline.config import shown
from paceline.controller.rules.device import cuda_devices, on_cuda
from paceline.controller.rules.rule import WORLD, Config, Rules


def world_size(config: Config, choices: Config) -> int:
    """Ranks of the job: launch.nproc, where auto means 1 for strategy=single, else one a device,
    or 2 on a CPU; under an outer torchrun what that started."""
    nproc = config["launch"]["nproc"]
    if nproc != "auto":
        return int(nproc)
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    if choices.get("strategy") == "single":
        return 1
    return cuda_devices() if on_cuda(config["run"]) else 2


def _single(config: Config, choices: Config, world: int) -> str | None:
    if choices.get("strategy") == "single" and world > 1:
        return (
            f"strategy=single: it runs one process, launch.nproc={config['launch']['nproc']} asks "
            f"for {world}; use strategy=ddp, or launch.nproc=1"
        )
    return None


def _adopted(config: Config, choices: Config, world: int) -> str | None:
    outer = os.environ.get("WORLD_SIZE")
    if outer and int(outer) != world:
        return (
            f"launch.nproc={config['launch']['nproc']}: the launcher around paceline started "
            f"WORLD_SIZE={outer} processes; leave launch.nproc=auto, or start paceline without it"
        )
    return None


def _batch(config: Config, choices: Config, world: int) -> str | None:
    batch, run = config["data"].get("global_batch_size"), config["run"]
    if not isinstance(batch, int):
        return None
    parts = world * run["accumulation_steps"]
    if batch <= 0 or batch % parts:
        near = max(parts, round(batch / parts) * parts)
        return (
            f"data.global_batch_size={batch}: {world} ranks x run.accumulation_steps="
            f"{run['accumulation_steps']} can't share it equally; use a multiple of {parts}, as "
            f"data.global_batch_size={near}"
        )
    return None


def _devices(config: Config, choices: Config, world: int) -> str | None:
    run = config["run"]
    if run["device"] == "cuda" and not on_cuda(run):
        return "run.device=cuda: torch sees no CUDA device; use run.device=cpu or auto"
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if on_cuda(run) and local > cuda_devices():
        return (
            f"launch.nproc={config['launch']['nproc']}: {local} ranks on {cuda_devices()} "
            "CUDA devices; lower launch.nproc, or use run.device=cpu"
        )
    return None


def _profiled(config: Config, choices: Config, world: int) -> str | None:
    ranks = config["profiler"].get("ranks", [])
    if [r for r in ranks if not 0 <= r < world]:
        return (
            f"profiler.ranks={shown(ranks)}: the job has ranks 0 to {world - 1}; give some of those"
        )
    return None


RULES: Rules = (
    ((*WORLD,), _single),
    ((*WORLD,), _adopted),
    ((*WORLD, "data.global_batch_size", "run.accumulation_steps"), _batch),
    ((*WORLD,), _devices),
    ((*WORLD, "profiler.ranks"), _profiled),
)
