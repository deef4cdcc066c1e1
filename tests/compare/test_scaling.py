"""Columns of ranks and batches, and the efficiency by numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.compare import columns, table
from tests.compare.test_table import made


def scaled(
    cell: str, rate: float, ranks: int, batch: int, mode: str | None = "strong"
) -> dict[str, Any]:
    record = made(cell, rate)
    record["requested"] = {"world_size": ranks} | ({"scaling": {"mode": mode}} if mode else {})
    record["effective"] = {"world_size": ranks}
    record["throughput"]["global_batch_size"] = batch
    return record


def test_the_rate_a_rank_over_the_baselines() -> None:
    weak = scaled("b", 180.0, 2, 64, "weak")
    weak["job"]["work_hash"] = "other"
    made_table = table.make([scaled("a", 100.0, 1, 32), weak, scaled("c", 240.0, 4, 32)])
    rows = made_table["rows"]
    assert [row["scaling_efficiency"] for row in rows] == pytest.approx([1.0, 0.9, 0.6])
    assert [row["verdict"] for row in rows] == ["baseline", "other_work", "cant_tell"]
    shown = columns.columns(made_table, full=False)
    assert shown["ranks"] == ["1", "2", "4"]
    assert (shown["batch"], shown["per rank"]) == (["32", "64", "32"], ["32", "32", "8"])
    assert shown["efficiency"] == ["100.0%", "90.0%", "60.0%"]
    assert shown["scaling"] == ["strong", "weak", "strong"]


def test_a_cell_without_a_rate_has_none() -> None:
    bad = scaled("b", 180.0, 2, 32)
    bad["validity"]["verdict"] = "not_training"
    rows = table.make([scaled("a", 100.0, 1, 32), bad, scaled("c", 240.0, 4, 32)])["rows"]
    assert [row["scaling_efficiency"] for row in rows] == [1.0, None, pytest.approx(0.6)]


def test_one_number_of_ranks_has_no_efficiency() -> None:
    made_table = table.make([scaled("a", 100.0, 2, 32), scaled("b", 180.0, 2, 32)])
    assert [row["scaling_efficiency"] for row in made_table["rows"]] == [None, None]
    assert not {"ranks", "batch", "per rank", "efficiency", "scaling"} & set(
        columns.columns(made_table, full=False)
    )
    # the whole table, in the file, always has both batch sizes
    shown = columns.columns(made_table)
    assert (shown["batch"], shown["per rank"]) == (["32", "32"], ["16", "16"])


def test_records_from_before_there_were_modes() -> None:
    rows = table.make([scaled("a", 100.0, 1, 32, None), scaled("b", 180.0, 2, 32, None)])["rows"]
    assert [row["scaling_mode"] for row in rows] == [None, None]
    assert rows[1]["scaling_efficiency"] == pytest.approx(0.9)
