"""Rules of the ranks: how many there are, what they share, what they run on."""

from __future__ import annotations

import math
import os

from paceline.controller.rules.device import cuda_devices, on_cuda
from paceline.controller.rules.nodes import node_counts
from paceline.controller.rules.rule import WORLD, Config, Rules


def world_size(config: Config, choices: Config) -> int:
    """Ranks of the job at most, launch.nproc x launch.nnodes: nproc=auto means 1 for
    strategy=single, else one a device, or 2 on a CPU; under an outer torchrun what that started."""
    nproc, nnodes = config["launch"]["nproc"], node_counts(config)[1]
    if nproc != "auto":
        return int(nproc) * nnodes
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    if choices.get("strategy") == "single":
        return nnodes
    return (cuda_devices(config) if on_cuda(config) else 2) * nnodes


def local_world_size(config: Config, world: int) -> int:
    """Those of the ranks that run on this node."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world // node_counts(config)[1]))


def world_sizes(config: Config, world: int) -> list[int]:
    """The ranks for each number of nodes that the job may run on. `world`: the most."""
    fewest, most = node_counts(config)
    return [world * nodes // most for nodes in range(fewest, most + 1)]


def _single(config: Config, choices: Config, world: int) -> str | None:
    if choices.get("strategy") == "single" and world > 1:
        key = "nproc" if node_counts(config)[1] == 1 else "nnodes"
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
    fewest, nodes = node_counts(config)
    if fewest < nodes:
        return (
            f"launch.nnodes={launch['nnodes']}: the launcher around paceline, which started "
            f"WORLD_SIZE={outer} processes, says how many nodes there are; leave out "
            "launch.nnodes, or start paceline without it"
        )
    if int(outer) != world:
        several = f"times launch.nnodes={nodes} is {world} ranks; " if nodes > 1 else ""
        return (
            f"launch.nproc={launch['nproc']}: {several}the launcher around paceline started "
            f"WORLD_SIZE={outer} processes; leave launch.nproc=auto, or start paceline without it"
        )
    local = local_world_size(config, world)
    if nodes > 1 and nodes * local != world:
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
    weak, accumulation = config["scaling"]["mode"] == "weak", run["accumulation_steps"]
    shares = [ranks * accumulation for ranks in ([1] if weak else world_sizes(config, world))]
    uneven = [parts for parts in shares if batch <= 0 or batch % parts]
    if uneven:
        unit = math.lcm(*shares)
        near = max(unit, round(batch / unit) * unit)
        ranks = f"{uneven[-1] // accumulation} ranks x"
        who = "that of a rank under scaling.mode=weak," if weak else ranks
        return (
            f"data.global_batch_size={batch}: {who} run.accumulation_steps={accumulation} can't "
            f"share it equally; use a multiple of {unit}, as data.global_batch_size={near}"
        )
    return None


def _same_batch(config: Config, choices: Config, world: int) -> str | None:
    fewest, most = node_counts(config)
    if fewest == most or config["scaling"]["mode"] != "weak":
        return None
    return (
        f"launch.nnodes={config['launch']['nnodes']}: under scaling.mode=weak the batch follows "
        "the ranks, without a node it would be another training; use scaling.mode=strong, or "
        f"launch.nnodes={most}"
    )


def _devices(config: Config, choices: Config, world: int) -> str | None:
    run = config["run"]
    if run["device"] == "cuda" and not on_cuda(config):
        return "run.device=cuda: torch sees no CUDA device; use run.device=cpu or auto"
    local = local_world_size(config, world)
    if on_cuda(config) and local > cuda_devices(config):
        return (
            f"launch.nproc={config['launch']['nproc']}: {local} ranks on {cuda_devices(config)} "
            "CUDA devices; lower launch.nproc, or use run.device=cpu"
        )
    return None


RULES: Rules = (
    ((*WORLD,), _single),
    ((*WORLD, "launch.max_restarts"), _adopted),
    ((*WORLD, "data.global_batch_size", "run.accumulation_steps", "scaling.mode"), _batch),
    (("launch.nnodes", "scaling.mode"), _same_batch),
)

HERE: Rules = (((*WORLD,), _devices),)
