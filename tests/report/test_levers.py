"""What each lever cost and gained, line by line."""

from __future__ import annotations

from typing import Any

from paceline.record.schema import empty_record
from paceline.report import levers


def compiled(**changes: Any) -> dict[str, Any]:
    record = empty_record()
    record["throughput"]["unit"] = "tokens"
    record["ledger"] |= {"steady_wall_s": 10.0, "steady_phases_s": {"data_wait": 1.0}}
    record["compile"] |= {
        "compile_s": 15.21,
        "first_step_s": 14.02,
        "frames_compiled": 1,
        "frames_fallen_back": 0,
        "cache": {"setting": "warm", "hits": 2, "misses": 0},
        "speedup_over_eager": 1.25,
        "speedup_ci95": [1.2, 1.3],
        "break_even_steps": 1200,
        "break_even_ci95": [1000, 1500],
    } | changes
    return record


def test_a_compiler_that_pays() -> None:
    assert levers.compile_lines(compiled()) == [
        (
            "compile",
            "15.2 s (2 of 2 graphs from the cache), first step 14.0 s; 1 frame compiled, 0 fell "
            "back",
        ),
        (
            "",
            "1.250 times eager [1.200, 1.300], side by side; pays after 1,200 steps [1,000, 1,500]",
        ),
    ]
    assert levers.compile_lines(empty_record()) == []


def test_breaks_and_recompiles_say_where_and_why() -> None:
    broken = {"reason": "Data-dependent branching", "where": "mine.py:7", "count": 2}
    recompiles = [
        {"step": s, "reason": "size", "where": "forward (mine.py:3)", "compile_s": 0.25}
        for s in (20, 40, 60, 80)
    ]
    texts = [t for _, t in levers.compile_lines(compiled(graph_breaks=[broken]))]
    assert texts[2] == "graph break at mine.py:7: Data-dependent branching (2x)"
    texts = [t for _, t in levers.compile_lines(compiled(recompiles=recompiles))]
    assert texts[2] == "recompiled in step 20, 0.2 s: forward (mine.py:3): size"
    assert texts[5:] == ["... and 1 recompiles more, in result.json"]


def test_hints_come_when_it_is_not_clearly_faster() -> None:
    slow: dict[str, Any] = {
        "speedup_ci95": [0.9, 1.1],
        "break_even_steps": None,
        "break_even_why": "can't tell: eager is about as fast",
        "hints": ["Not enough SMs"],
    }
    record = compiled(**slow)
    texts = [t for _, t in levers.compile_lines(record)]
    assert texts[1].endswith("break-even can't tell: eager is about as fast")
    assert texts[2].startswith("hint: one graph, no recompiles")
    assert texts[3] == "hint: torch: Not enough SMs"
    record["ledger"]["steady_phases_s"]["data_wait"] = 6.0
    assert "waits for data" in levers.hints(record)[0]
    fallen = compiled(**slow, frames_fallen_back=1)
    assert "frames that fell back ran eager" in levers.hints(fallen)[0]


def test_ceilings_and_what_was_left_out() -> None:
    record = empty_record()
    record["throughput"]["unit"] = "images"
    assert levers.counter_run_lines(record) == []
    record["counter_runs"] = [
        {
            "name": "cached_batch",
            "step_s": 0.1,
            "units_per_s": 640.0,
            "speedup": 2.5,
            "speedup_ci95": [2.4, 2.6],
        },
        {"name": "loader_alone", "step_s": 0.2, "units_per_s": 320.0},
    ]
    assert levers.counter_run_lines(record) == [
        (
            "ceiling",
            "640 images/s with a perfect loader (one cached batch), 2.500 times [2.400, 2.600] "
            "this job's",
        ),
        ("", "320 images/s from the loader alone, without training"),
    ]


def test_restarts_say_why_and_what_they_cost() -> None:
    record = empty_record()
    assert levers.restart_lines(record) == []
    died = {"rank": 1, "kind": "worker_died", "message": "rank 1 was ended", "step": 19}
    record["status"]["restarts"] = [died | {"step": None}, died]
    record["ledger"]["phases_s"]["restart"] = 7.25
    assert levers.restart_lines(record) == [
        ("restarted", "after worker_died of rank 1"),
        ("", "after worker_died of rank 1 in step 19; 7.2 s lost, went on from step 0"),
    ]
    record["checkpoint"]["resumed_from"] = 15
    assert levers.restart_lines(record)[-1][1].endswith("went on from step 15")
