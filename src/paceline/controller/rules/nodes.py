"""Rules of several nodes: where they meet, which one this is, what SLURM says, by which network."""

from __future__ import annotations

import os

import psutil

from paceline.controller.rules.rule import Config, Rules
from paceline.types import settings

NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
"""The narrower one first: a step may have fewer than the job that it runs in."""

ONE_TASK = "use one task a node (srun --ntasks-per-node=1): paceline starts a node's ranks itself"


def node_counts(config: Config) -> tuple[int, int]:
    """The fewest and the most nodes that the job may run on; equal but for launch.nnodes=LO:HI."""
    return settings.node_counts(config["launch"]["nnodes"])


def expected_nodes(config: Config) -> int:
    """The nodes to wait for: those that SLURM gave, where the job may run on so many, else the
    most."""
    fewest, most = node_counts(config)
    name = _given()
    return most if name is None else min(max(int(os.environ[name]), fewest), most)


def node_rank(config: Config) -> int:
    """Which node this is: launch.node_rank, else SLURM_NODEID; 0 with one node."""
    launch = config["launch"]
    if node_counts(config)[1] == 1:
        return 0
    given = launch["node_rank"]
    return int(os.environ["SLURM_NODEID"] if given is None else given)


def _meeting(config: Config, choices: Config, world: int) -> str | None:
    launch = config["launch"]
    nnodes, endpoint, rank = launch["nnodes"], launch["rdzv_endpoint"], launch["node_rank"]
    most = node_counts(config)[1]
    if most == 1:
        named = "rdzv_endpoint" if endpoint is not None else "node_rank"
        if endpoint is None and not rank:
            return None
        return (
            f"launch.{named}={launch[named]}: with launch.nnodes={nnodes} this node would train "
            "alone; set launch.nnodes, or leave the key out"
        )
    if "WORLD_SIZE" in os.environ:
        return None  # the launcher around paceline has met already
    if endpoint is None:
        return (
            f"launch.nnodes={nnodes}: where do the nodes meet? On each of them, give "
            "launch.rdzv_endpoint=HOST:PORT, an address of node 0 and a free port of it"
        )
    if rank is None and "SLURM_NODEID" not in os.environ:
        return (
            f"launch.nnodes={nnodes}: which of them is this? Give launch.node_rank=0 on the node "
            f"of launch.rdzv_endpoint, 1 to {most - 1} on the others"
        )
    if node_rank(config) >= most:
        key = "SLURM_NODEID" if rank is None else "launch.node_rank"
        return (
            f"launch.nnodes={nnodes}: {key}={node_rank(config)} is none of 0 to {most - 1}; "
            "raise launch.nnodes, or give another launch.node_rank"
        )
    return None


def _slurm_nodes(config: Config, choices: Config, world: int) -> str | None:
    launch, nnodes = config["launch"], config["launch"]["nnodes"]
    fewest, most = node_counts(config)
    name = _given()
    if name is None or "WORLD_SIZE" in os.environ:
        return None
    found = int(os.environ[name])
    if not fewest <= found <= most:
        ask = max(fewest, min(found, most))
        return (
            f"launch.nnodes={nnodes}: SLURM gave {name}={found}; set launch.nnodes={found} and "
            f"start the command on each node (srun --ntasks-per-node=1), or ask for {ask} "
            f"(srun --nodes={ask} --ntasks={ask})"
        )
    slurm, rank = os.environ.get("SLURM_NODEID"), launch["node_rank"]
    if most > 1 and rank is not None and slurm is not None and int(slurm) != rank:
        return (
            f"launch.node_rank={rank}: SLURM says that this is node SLURM_NODEID={slurm}; leave "
            "launch.node_rank out"
        )
    return None


def _slurm_tasks(config: Config, choices: Config, world: int) -> str | None:
    if "WORLD_SIZE" in os.environ:
        return None
    nnodes = expected_nodes(config)
    ranks = f"launch.nnodes={config['launch']['nnodes']}: that is {world} ranks"
    each = os.environ.get("SLURM_NTASKS_PER_NODE")
    name = next((n for n in TASKS if n in os.environ), None)
    if name is not None and int(os.environ[name]) != nnodes:
        return f"{ranks}, but SLURM starts {name}={os.environ[name]} times this command; {ONE_TASK}"
    if each is not None and each.isdigit() and int(each) != 1:
        return f"{ranks}, but SLURM starts SLURM_NTASKS_PER_NODE={each} on each node; {ONE_TASK}"
    task = os.environ.get("SLURM_PROCID")
    if task is not None and int(task) >= nnodes:
        return f"{ranks}, but this is SLURM_PROCID={task}, one task more than nodes; {ONE_TASK}"
    return None


def _given() -> str | None:
    """The variable in which SLURM says how many nodes there are."""
    return next((name for name in NODES if name in os.environ), None)


def _gloo(config: Config, choices: Config, world: int) -> str | None:
    return _interface(config, "gloo_interface", "GLOO_SOCKET_IFNAME")


def _nccl(config: Config, choices: Config, world: int) -> str | None:
    return _interface(config, "nccl_interface", "NCCL_SOCKET_IFNAME")


def _interface(config: Config, key: str, variable: str) -> str | None:
    """`^a,b` (all but), `=a` (exactly) and prefixes are NCCL's; gloo takes names."""
    asked = config["launch"][key]
    if asked is None:
        return None
    there = sorted(psutil.net_if_addrs())
    names = [] if asked.startswith("^") else asked.removeprefix("=").split(",")
    prefix = key == "nccl_interface" and not asked.startswith("=")
    missing = [n for n in names if not any(t.startswith(n) if prefix else t == n for t in there)]
    if missing:
        return (
            f"launch.{key}={asked}: this host has no interface {', '.join(missing)}; it has "
            f"{', '.join(there)}"
        )
    return _set_twice(f"launch.{key}", asked, variable)


def _nccl_variables(config: Config, choices: Config, world: int) -> str | None:
    said = (
        _set_twice(f"launch.nccl.{name}", str(value), f"NCCL_{name}")
        for name, value in config["launch"]["nccl"].items()
    )
    return next((one for one in said if one), None)


def _set_twice(key: str, asked: str, variable: str) -> str | None:
    there = os.environ.get(variable)
    if there is None or there == asked:
        return None
    return (
        f"{key}={asked}: the environment says {variable}={there}; unset {variable}, or leave out "
        f"{key}"
    )


MEETING = ("launch.nnodes", "launch.rdzv_endpoint", "launch.node_rank")

RULES: Rules = (
    (MEETING, _meeting),
    (("launch.nnodes", "launch.node_rank"), _slurm_nodes),
    (("launch.nproc", "launch.nnodes", "strategy", "run.device"), _slurm_tasks),
    (("launch.gloo_interface",), _gloo),
    (("launch.nccl_interface",), _nccl),
    (("launch.nccl",), _nccl_variables),
)
