"""Two identities of a job, and its name: which cell it is, and which training it does."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from paceline.config import leaves

NOT_THE_JOB = ("hydra", "repeat", "plan", "detach", "strict", "sweep")
"""Top-level nodes outside config_hash: they change neither what runs nor how it is measured."""

NOT_THE_CELL = {
    "checkpoint": ("resume",),
    "launch": (
        *("node_rank", "rdzv_endpoint", "meet_timeout_s", "stop_grace_s", "scheduler"),
        *("slurm.account", "slurm.qos", "slurm.time", "slurm.dependency", "slurm.setup"),
        *("slurm.signal_s", "slurm.max_requeues"),
    ),
}
"""Keys inside groups that are outside config_hash. Of slurm's those that choose no hardware and no
software."""

WORK = ("model", "data", "loss", "optimizer", "scheduler")
LEVERS = {"data": ("loader", "normalize_on"), "optimizer": ("foreach", "fused", "capturable")}
"""Keys of those groups that change how fast the work is done, not which work it is."""

WORK_OF_RUN = ("seed", "clip_grad_norm")

NAMED = ("model", "strategy", "precision", "compile")


def config_hash(config: Mapping[str, Any]) -> str:
    """Names a cell: everything but repeat, resume, node rank and output paths, as typed."""
    return _digest(
        {
            key: _without(node, NOT_THE_CELL.get(key, ()))
            for key, node in config.items()
            if key not in NOT_THE_JOB
        }
    )


def trial_hash(config: Mapping[str, Any]) -> str:
    """Names what is measured: the cell but for how it is diagnosed, which comes afterwards."""
    return config_hash({key: node for key, node in config.items() if key != "diagnose"})


def work_hash(config: Mapping[str, Any]) -> str:
    """Names a training: jobs with the same one must have the same losses. Of a frozen config: with
    the batch and the learning rate that `scaling` made."""
    return _digest(_work(config))


def work(config: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key -> value of what `work_hash` is of, to name what differs."""
    return dict(leaves(_work(config)))


def _work(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: _without(config.get(key), LEVERS.get(key, ())) for key in WORK}
    run = config.get("run") or {}
    return kept | {"run": {key: run.get(key) for key in WORK_OF_RUN}}


def cell_name(choices: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Short, safe and readable, unique by its hash: gpt-ddp-fp32-inductor-1a2b3c4d."""
    words = [re.sub(r"[^A-Za-z0-9_]+", "_", str(choices.get(group) or "own")) for group in NAMED]
    return f"{'-'.join(words)[:60]}-{config_hash(config)[:8]}"


def compared(config: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key -> value of what all nodes of a job must have alike: what names the job, and
    what decides how it ends."""
    kept = ("repeat", "strict", *(key for key in config if key not in NOT_THE_JOB))
    nodes = {key: _without(config[key], NOT_THE_CELL.get(key, ())) for key in kept}
    return dict(leaves(nodes))


def unhashed(key: str) -> bool:
    """Is this override key outside the identity, so that two cells would share a directory?"""
    head, _, rest = re.sub("[/@]", ".", key).partition(".")
    if head == "repeat":
        return False
    return head in NOT_THE_JOB or rest in NOT_THE_CELL.get(head, ())


def _without(node: Any, keys: tuple[str, ...]) -> Any:
    if not isinstance(node, Mapping):
        return node
    inner = {key.partition(".")[0] for key in keys if "." in key}
    return {
        k: _without(v, tuple(x.removeprefix(f"{k}.") for x in keys)) if k in inner else v
        for k, v in node.items()
        if k not in keys
    }


def _digest(value: Any) -> str:
    text = json.dumps(_same(value), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _same(value: Any) -> Any:
    """One form for what is the same: 1.0 and 1 are, true and 1 are not; keys are text."""
    if isinstance(value, Mapping):
        return {str(k): _same(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_same(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
