"""What `scaling` makes of a config before it is frozen: its batch and its learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

POWERS = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}


def job_batch(config: Mapping[str, Any], ranks: int) -> int | None:
    """Samples of one step over all ranks; None where `data` has no such key."""
    typed = config["data"].get("global_batch_size")
    if not isinstance(typed, int):
        return None
    return typed * ranks if config["scaling"]["mode"] == "weak" else typed


def effective(config: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The config that the ranks get: data.global_batch_size is the job's, optimizer.lr scaled."""
    found = section(config, ranks)
    scaled = dict(config)
    if found["global_batch_size"] is not None:
        scaled["data"] = config["data"] | {"global_batch_size": found["global_batch_size"]}
    if found["factor"] != 1.0:
        scaled["optimizer"] = config["optimizer"] | {"lr": found["lr"]}
    return scaled


def section(config: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """`requested.scaling` of the record."""
    scaling, batch, lr = config["scaling"], job_batch(config, ranks), learning_rate(config)
    base = scaling["base_batch_size"] or config["data"].get("global_batch_size")
    factor = 1.0
    if batch is not None and lr is not None:
        factor = float((batch / base) ** POWERS[scaling["learning_rate"]])
    return {
        "mode": scaling["mode"],
        "learning_rate": scaling["learning_rate"],
        "base_batch_size": base,
        "factor": factor,
        "lr": lr if lr is None or factor == 1.0 else lr * factor,
        "global_batch_size": batch,
        "per_rank_batch_size": None if batch is None else batch // ranks,
    }


def learning_rate(config: Mapping[str, Any]) -> float | None:
    """optimizer.lr as typed; None where there is no number to scale."""
    lr = config["optimizer"].get("lr")
    return lr if isinstance(lr, int | float) and not isinstance(lr, bool) else None
