"""What is said of a profile."""

from __future__ import annotations

from typing import Any

from paceline.record.schema import empty_record
from paceline.report.profile import lines

CYCLE = {
    "rank": 1,
    "slowest": True,
    "steps": [10, 11, 12],
    "trace": "trace/rank1.json.gz",
    "table": "trace/rank1.operators.txt",
    "compressed_bytes": 87_400,
    "top": [{"name": "aten::mm", "share": 0.284}, {"name": "aten::add_", "share": 0.2}],
    "growth_bytes_per_step": None,
}


def said(**section: Any) -> list[tuple[str, str]]:
    record = empty_record()
    record["profiler"] |= section
    return lines(record)


def test_nothing_of_what_was_not_profiled() -> None:
    assert said() == []


def test_a_cycle() -> None:
    assert said(cycles=[CYCLE], overhead_ratio=1.25) == [
        (
            "profile",
            "steps 10 to 12 of rank 1 (the slowest): trace/rank1.json.gz, 87.4 kB; "
            "trace/rank1.operators.txt",
        ),
        ("", "most self time: aten::mm 28%, aten::add_ 20%"),
        ("", "a profiled step takes 1.25 times one that isn't; none is in the rate"),
    ]


def test_a_trace_that_was_not_kept_and_growth() -> None:
    cycle = CYCLE | {"trace": None, "compressed_bytes": None, "slowest": False, "steps": [10]}
    found = said(cycles=[cycle | {"growth_bytes_per_step": 16384.0, "top": []}])
    assert [text for _, text in found] == [
        "step 10 of rank 1: no trace kept; trace/rank1.operators.txt",
        "memory grows by 16.4 kB a step: what takes it is there",
    ]
    small = said(cycles=[cycle | {"growth_bytes_per_step": 8.0, "top": []}])
    assert len(small) == 1


def test_snapshots_and_problems() -> None:
    found = said(snapshots=["trace/rank0.memory.pickle"], problems=["a", "b", "c", "d"])
    assert found == [
        ("profile", "memory of the device by its code: trace/rank0.memory.pickle"),
        *(("", word) for word in "abc"),
    ]
