"""How well cells with other numbers of ranks scale: rate a rank, against the baseline's."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def sizes(record: dict[str, Any]) -> Row:
    """A row's fields of the batch and the ranks."""
    throughput = record["throughput"]
    ranks = (record["requested"] | record["effective"]).get("world_size")
    scaling = record["requested"].get("scaling") or {}
    batch = throughput["global_batch_size"] or scaling.get("global_batch_size")
    return {
        "world_size": ranks,
        "global_batch_size": batch,
        "per_rank_batch_size": batch // ranks if batch and ranks else None,
        "micro_batch_size": throughput["micro_batch_size"],
        "scaling_mode": scaling.get("mode"),
        "scaling_efficiency": None,
    }


def add_efficiency(rows: list[Row], base: str) -> None:
    """`scaling_efficiency`: (rate / ranks) / (rate / ranks of the baseline), by the paired ratio of
    rates; null where all cells with a rate have the same number of ranks."""
    rated = [row for row in rows if row["ratio_to_baseline"] is not None and row["world_size"]]
    of_base = next((row["world_size"] for row in rated if row["name"] == base), None)
    if of_base is None or len({row["world_size"] for row in rated}) < 2:
        return
    for row in rated:
        row["scaling_efficiency"] = row["ratio_to_baseline"] * of_base / row["world_size"]
