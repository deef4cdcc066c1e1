"""Rules of a job that is planned for the nodes of a cluster, which this host is none of."""

from __future__ import annotations

from paceline.controller.rules.device import elsewhere
from paceline.controller.rules.rule import DEVICE, Config, Rules


def detached(config: Config) -> list[str]:
    """What is wrong with leaving this job alone. No rule: in a sweep it is no reason to skip."""
    if not config["detach"] or elsewhere(config):
        return []
    return [
        "detach=true: a job on this machine ends with its command; leave it out, or use "
        "launch=slurm (with -m: hydra/launcher=slurm)"
    ]


def _devices(config: Config, choices: Config, world: int) -> str | None:
    launch, asked = config["launch"], config["launch"]["slurm"]["gpus_per_node"]
    if not elsewhere(config):
        return None
    if config["run"]["device"] == "cuda" and not asked:
        return (
            "run.device=cuda: launch.slurm.gpus_per_node asks for no GPUs; set it to those of a "
            "node, or use run.device=cpu"
        )
    if asked and config["run"]["device"] != "cpu" and launch["nproc"] not in ("auto", asked):
        return (
            f"launch.nproc={launch['nproc']}: a rank takes one GPU, launch.slurm.gpus_per_node="
            f"{asked} asks for others; make them equal, or leave launch.nproc=auto"
        )
    return None


def _place(config: Config, choices: Config, world: int) -> str | None:
    launch = config["launch"]
    key = next((k for k in ("rdzv_endpoint", "node_rank") if launch[k] is not None), None)
    if not elsewhere(config) or key is None:
        return None
    return f"launch.{key}={launch[key]}: nodes of a SLURM job find each other; leave it out"


RULES: Rules = (
    ((*DEVICE, "launch.nproc"), _devices),
    (("launch.scheduler", "launch.rdzv_endpoint", "launch.node_rank"), _place),
)
