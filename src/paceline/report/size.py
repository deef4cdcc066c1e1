"""How large a job is, in lines: its batch and learning rate under `scaling`, its memory."""

from __future__ import annotations

from typing import Any

from paceline.record.memory import gib

PARTS = ("parameters", "gradients", "optimizer", "activations")


def scaling_lines(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Both batch sizes and the learning rate, where something scales with the ranks."""
    scaling = record["requested"].get("scaling")
    if not scaling or (scaling["mode"], scaling["learning_rate"]) == ("strong", "none"):
        return []
    batch, own = scaling["global_batch_size"], scaling["per_rank_batch_size"]
    text = f"{scaling['mode']}: {batch} a step, {own} a rank"
    if scaling["learning_rate"] != "none":
        typed = scaling["lr"] / scaling["factor"]
        text += (
            f"; lr {scaling['lr']:.4g} = {typed:.4g} x {scaling['factor']:.4g} "
            f"({scaling['learning_rate']}, from batch {scaling['base_batch_size']})"
        )
    return [("scaling", text)]


def memory_lines(record: dict[str, Any]) -> list[tuple[str, str]]:
    """What was estimated before the start, and the advice."""
    found = record["memory"]["estimate"]
    return [("estimate", estimate_text(found))] if found else []


def estimate_text(found: dict[str, Any]) -> str:
    """`parameters 0.1 + ... GiB; fits one process: ...`."""
    if found["advice"] is None:
        return f"not known: {found['why']}"
    parts = " + ".join(f"{name} {gib(found[f'{name}_gib'])}" for name in PARTS)
    return f"{parts} GiB; {found['advice']}"
