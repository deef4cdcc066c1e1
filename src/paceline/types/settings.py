"""Settings without a live object: their fields are their YAML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

NODE_COUNTS = re.compile(r"([1-9]\d*):([1-9]\d*)")

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


OWN_OPTIONS = (
    *("array", "job-name", "nodes", "ntasks", "ntasks-per-node", "output", "error", "open-mode"),
    *("signal", "requeue", "no-requeue", "no-kill", "wrap", "parsable", "test-only", "wait"),
    *("partition", "account", "qos", "constraint", "exclusive", "gpus-per-node", "cpus-per-task"),
    *("mem", "time", "dependency", "export", "chdir"),
)
"""Of sbatch: those that have a key of their own, or that paceline sets."""

TIME = re.compile(r"(\d+-)?\d+(:\d{1,2}){0,2}")


@dataclass(frozen=True)
class Slurm:
    """What a job asks of a SLURM cluster; null: the cluster's default. Everything is of one node.

    `time`: minutes, or as sbatch takes it. `options`: any other long option of sbatch, true for one
    without a value. `setup`: shell lines before the ranks start. `prefix`: stands before python.
    `signal_s`: how long before the end of its time a job is told to save and leave.
    """

    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    exclusive: bool
    gpus_per_node: int | None
    cpus_per_task: int | Literal["auto"] | None
    mem: str | int | None
    time: str | int | None
    dependency: str | None
    options: dict[str, str | int | bool]
    setup: list[str]
    python: str | None
    prefix: str | None
    signal_s: int
    max_requeues: int

    def __post_init__(self) -> None:
        for name in ("partition", "account", "qos", "constraint", "mem", "dependency", "python"):
            _one_word(name, getattr(self, name))
        if self.gpus_per_node is not None:
            at_least(0, gpus_per_node=self.gpus_per_node)
        if isinstance(self.cpus_per_task, int):
            at_least(1, cpus_per_task=self.cpus_per_task)
        if self.time is not None and not TIME.fullmatch(str(self.time)):
            raise ValueError(
                f"time={self.time}: give minutes, or [DAYS-]HOURS:MINUTES:SECONDS, as 1-12:00:00"
            )
        at_least(0, signal_s=self.signal_s, max_requeues=self.max_requeues)
        if self.time is not None and self.signal_s >= _seconds(str(self.time)):
            raise ValueError(
                f"signal_s={self.signal_s}: time={self.time} is over before that; lower signal_s "
                "to what a save takes, or give more time"
            )
        for name, value in self.options.items():
            option = name.removeprefix("--").replace("_", "-")
            if option in OWN_OPTIONS:
                key = option.replace("-", "_")
                ours = f"; set launch.slurm.{key}" if hasattr(self, key) else ""
                ours = "; set launch.nnodes" if option == "nodes" else ours
                raise ValueError(f"options.{name}={value}: paceline sets --{option} itself{ours}")
            if not re.fullmatch(r"[a-z][a-z0-9-]*", option):
                raise ValueError(f"options.{name}={value}: give the long name of a sbatch option")
            _one_line(f"options.{name}", value)
        for number, line in enumerate(self.setup):
            _one_line(f"setup.{number}", line)


def _seconds(time: str) -> int:
    """Of what sbatch takes: MIN, MIN:SEC, HOURS:MIN:SEC, DAYS-HOURS[:MIN[:SEC]]."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    return int(days or 0) * 86400 + sum(p * u for p, u in zip(parts, units, strict=False))


def _one_word(name: str, value: object) -> None:
    if value is not None and (not str(value) or re.search(r"\s", str(value))):
        raise ValueError(f"{name}={value!r}: give one word, or null for the cluster's default")


def _one_line(name: str, value: object) -> None:
    if "\n" in str(value) or not str(value).strip():
        raise ValueError(f"{name}={value!r}: give one line of text")


@dataclass(frozen=True)
class Launch:
    """Processes of one job: `nproc` ranks on each of `nnodes` nodes, a number or LO:HI.

    `rdzv_endpoint`: HOST:PORT of node 0, where nodes meet. A collective waits `startup_timeout_s`
    until the first step is done, `timeout_s` from then on. `nccl`: NAME -> value of NCCL_NAME.
    `scheduler`: slurm: the job is submitted, and runs on the cluster with what `slurm` asks for.
    """

    nproc: int | Literal["auto"]
    nnodes: int | str
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
    scheduler: Literal["none", "slurm"]
    slurm: Slurm

    def __post_init__(self) -> None:
        for name in ("nproc", "threads_per_rank"):
            value = getattr(self, name)
            if value != "auto":
                at_least(1, **{name: value})
        node_counts(self.nnodes)
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


def node_counts(nnodes: int | str) -> tuple[int, int]:
    """The fewest and the most nodes that launch.nnodes allows. Raises ValueError where it is none
    of a number and LO:HI."""
    if isinstance(nnodes, int):
        at_least(1, nnodes=nnodes)
        return nnodes, nnodes
    found = NODE_COUNTS.fullmatch(nnodes)
    fewest, most = (int(found[1]), int(found[2])) if found else (1, 0)
    if fewest > most:
        raise ValueError(
            f"nnodes={nnodes}: give the number of nodes, or the fewest and the most of them, as 1:2"
        )
    return fewest, most


def at_least(least: int, **values: int) -> None:
    """Raise ValueError naming the first of `values` that is below `least`."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name}={value}: give {least} or more")
