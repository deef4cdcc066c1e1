"""Settings without a live object: their fields are their YAML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

ENDPOINT = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[^\s:/\[\]]+):([1-9]\d{0,4})")
"""HOST:PORT; an IPv6 address in brackets."""


@dataclass(frozen=True)
class Run:
    """What is trained, for how long. `steps` counts optimizer steps."""

    steps: int
    accumulation_steps: int
    seed: int
    clip_grad_norm: float | None
    eval_batches: int
    device: Literal["auto", "cpu", "cuda"]

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps, accumulation_steps=self.accumulation_steps)
        at_least(0, seed=self.seed, eval_batches=self.eval_batches)
        if self.clip_grad_norm is not None and self.clip_grad_norm <= 0:
            raise ValueError(
                f"clip_grad_norm={self.clip_grad_norm}: give a positive norm, "
                "or null to leave gradients as they are"
            )


@dataclass(frozen=True)
class Launch:
    """Processes of one job: `nproc` ranks on each of `nnodes` nodes.

    `rdzv_endpoint`: HOST:PORT of node 0, where nodes meet. A collective waits `startup_timeout_s`
    until the first step is done, `timeout_s` from then on. `nccl`: NAME -> value of NCCL_NAME.
    """

    nproc: int | Literal["auto"]
    nnodes: int
    rdzv_endpoint: str | None
    node_rank: int | None
    threads_per_rank: int | Literal["auto"]
    host_memory: Literal["steady", "system"]
    max_restarts: int
    meet_timeout_s: float
    startup_timeout_s: float
    timeout_s: float
    stop_grace_s: float
    gloo_interface: str | None
    nccl_interface: str | None
    nccl: dict[str, str | int]

    def __post_init__(self) -> None:
        for name in ("nproc", "threads_per_rank"):
            value = getattr(self, name)
            if value != "auto":
                at_least(1, **{name: value})
        at_least(1, nnodes=self.nnodes)
        at_least(0, node_rank=self.node_rank or 0, max_restarts=self.max_restarts)
        for name in ("meet_timeout_s", "startup_timeout_s", "timeout_s", "stop_grace_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: give seconds above 0")
        for name in ("gloo_interface", "nccl_interface"):
            if getattr(self, name) == "":
                raise ValueError(f"{name}='': give the name of an interface, or null")
        endpoint = ENDPOINT.fullmatch(self.rdzv_endpoint or "node0:29500")
        if endpoint is None or int(endpoint[2]) >= 2**16:
            raise ValueError(
                f"rdzv_endpoint={self.rdzv_endpoint}: give HOST:PORT of node 0, as node0:29500"
            )
        for name in self.nccl:
            if name.startswith("NCCL_") or name == "SOCKET_IFNAME":
                way = "nccl_interface" if name.endswith("SOCKET_IFNAME") else f"nccl.{name[5:]}"
                raise ValueError(f"nccl={name}: paceline adds NCCL_ itself; set launch.{way}")


@dataclass(frozen=True)
class Measure:
    """Which steps are the steady state: those after `warmup_steps`, for at least `window_s`.

    `gradient_check`: hold the gradient of the first step to a float64 reference. auto: up to
    rank/first_step.py's MOST_PARAMETERS, and where the memory for it is free.
    """

    warmup_steps: int
    window_s: float
    gradient_check: bool | Literal["auto"]

    def __post_init__(self) -> None:
        at_least(1, warmup_steps=self.warmup_steps)
        if self.window_s < 0:
            raise ValueError(f"window_s={self.window_s}: give seconds, 0 or more")


@dataclass(frozen=True)
class Sweep:
    """What a sweep does when a cell fails, and how many runs of its baseline, with initial
    parameters off by one unit in the last place, show what rounding does to a loss; 0: fixed
    tolerances."""

    on_failure: Literal["continue", "stop"]
    nudged_baselines: int

    def __post_init__(self) -> None:
        at_least(0, nudged_baselines=self.nudged_baselines)
        if self.nudged_baselines == 1:
            raise ValueError("nudged_baselines=1: one run shows no spread; give 4, or 0 for none")


@dataclass(frozen=True)
class Scaling:
    """What stays when the ranks change. `mode`: data.global_batch_size is that of the job (strong),
    or of each rank (weak). `learning_rate`: optimizer.lr times (batch of the job / base) to the
    power of 1 (linear; Goyal et al. 2017) or 1/2 (sqrt). `base_batch_size`: the batch for which
    optimizer.lr is right; null: data.global_batch_size as it was typed."""

    mode: Literal["strong", "weak"]
    learning_rate: Literal["none", "linear", "sqrt"]
    base_batch_size: int | None

    def __post_init__(self) -> None:
        if self.base_batch_size is not None:
            at_least(1, base_batch_size=self.base_batch_size)


def at_least(least: int, **values: int) -> None:
    """Raise ValueError naming the first of `values` that is below `least`."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name}={value}: give {least} or more")
