"""Lines on how large a job is: its batch and learning rate, its memory."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.record.memory import GIB, Sizes, section, unknown
from paceline.record.schema import empty_record
from paceline.report.size import memory_lines, scaling_lines

WEAK = {
    "mode": "weak",
    "learning_rate": "linear",
    "base_batch_size": 32,
    "factor": 4.0,
    "lr": 0.4,
    "global_batch_size": 128,
    "per_rank_batch_size": 32,
}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, "weak: 128 a step, 32 a rank; lr 0.4 = 0.1 x 4 (linear, from batch 32)"),
        ({"learning_rate": "none"}, "weak: 128 a step, 32 a rank"),
        (
            {"mode": "strong", "learning_rate": "sqrt"},
            "strong: 128 a step, 32 a rank; lr 0.4 = 0.1 x 4 (sqrt, from batch 32)",
        ),
        ({"mode": "strong", "learning_rate": "none"}, None),
    ],
)
def test_scaling(changed: dict[str, Any], text: str | None) -> None:
    record = empty_record()
    assert scaling_lines(record) == []  # one from before there was such a section
    record["requested"]["scaling"] = WEAK | changed
    assert scaling_lines(record) == ([("scaling", text)] if text else [])


def test_memory() -> None:
    record = empty_record()
    assert memory_lines(record) == []
    sizes = Sizes(GIB, GIB, 2 * GIB, GIB // 2, 0, GIB, 1.0)
    record["memory"]["estimate"] = section(sizes, {}, 1, 1, 8 * GIB)
    assert memory_lines(record) == [
        (
            "estimate",
            "parameters 1.0 + gradients 1.0 + optimizer 2.0 + activations 0.5 GiB; "
            "fits one process: 4.5 of 8.0 GiB",
        )
    ]
    record["memory"]["estimate"] = unknown("it can't run")
    assert memory_lines(record) == [("estimate", "not known: it can't run")]
