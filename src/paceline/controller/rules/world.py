"""Rules of the ranks: how many there are, what they share, what they run on."""

from __future__ import annotations

import os

from paceline.controller.rules.device import cuda_devices, on_cuda
from paceline.controller.rules.rule import WORLD, Config, Rules


def world_size(config: Config, choices: Config) -> int:
    """Ranks of the job, launch.nproc x launch.nnodes: nproc=auto means 1 for strategy=single, else
    one a device, or 2 on a CPU; under an outer torchrun what that started."""
    nproc, nnodes = config["launch"]["nproc"], int(config["launch"]["nnodes"])
    if nproc != "auto":
        return int(nproc) * nnodes
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    if choices.get("strategy") == "single":
        return nnodes
    return (cuda_devices() if on_cuda(config["run"]) else 2) * nnodes


def local_world_size(config: Config, world: int) -> int:
    """Those of the ranks that run on this node."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world // int(config["launch"]["nnodes"])))


def _single(config: Config, choices: Config, world: int) -> str | None:
    if choices.get("strategy") == "single" and world > 1:
        key = "nproc" if config["launch"]["nnodes"] == 1 else "nnodes"
        return (
            f"strategy=single: it runs one process, launch.{key}={config['launch'][key]} asks "
            f"for {world}; use strategy=ddp, or launch.{key}=1"
        )
    return None


def _adopted(config: Config, choices: Config, world: int) -> str | None:
    """An outer launcher has started the ranks: keys that are set must say the same."""
    launch, outer = config["launch"], os.environ.get("WORLD_SIZE")
    if not outer:
        return None
    if int(outer) != world:
        nodes = launch["nnodes"]
        several = f"times launch.nnodes={nodes} is {world} ranks; " if nodes > 1 else ""
        return (
            f"launch.nproc={launch['nproc']}: {several}the launcher around paceline started "
            f"WORLD_SIZE={outer} processes; leave launch.nproc=auto, or start paceline without it"
        )
    local = local_world_size(config, world)
    if launch["nnodes"] > 1 and launch["nnodes"] * local != world:
        return (
            f"launch.nnodes={launch['nnodes']}: the launcher around paceline started WORLD_SIZE="
            f"{outer} processes, LOCAL_WORLD_SIZE={local} of them here; leave out launch.nnodes, "
            "or start paceline without it"
        )
    if launch["max_restarts"]:
        return (
            f"launch.max_restarts={launch['max_restarts']}: the processes are those of the "
            "launcher around paceline; give that one --max-restarts, or start paceline without it"
        )
    return None


def _batch(config: Config, choices: Config, world: int) -> str | None:
    batch, run = config["data"].get("global_batch_size"), config["run"]
    if not isinstance(batch, int):
        return None
    weak = config["scaling"]["mode"] == "weak"
    parts = (1 if weak else world) * run["accumulation_steps"]
    if batch <= 0 or batch % parts:
        near = max(parts, round(batch / parts) * parts)
        who = "that of a rank under scaling.mode=weak," if weak else f"{world} ranks x"
        return (
            f"data.global_batch_size={batch}: {who} run.accumulation_steps="
            f"{run['accumulation_steps']} can't share it equally; use a multiple of {parts}, as "
            f"data.global_batch_size={near}"
        )
    return None


def _devices(config: Config, choices: Config, world: int) -> str | None:
    run = config["run"]
    if run["device"] == "cuda" and not on_cuda(run):
        return "run.device=cuda: torch sees no CUDA device; use run.device=cpu or auto"
    local = local_world_size(config, world)
    if on_cuda(run) and local > cuda_devices():
        return (
            f"launch.nproc={config['launch']['nproc']}: {local} ranks on {cuda_devices()} "
            "CUDA devices; lower launch.nproc, or use run.device=cpu"
        )
    return None


RULES: Rules = (
    ((*WORLD,), _single),
    ((*WORLD, "launch.max_restarts"), _adopted),
    ((*WORLD, "data.global_batch_size", "run.accumulation_steps", "scaling.mode"), _batch),
    ((*WORLD,), _devices),
)
