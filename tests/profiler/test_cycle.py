"""One cycle by itself: what it records, what it lets go."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.profiler.cycle import Cycle
from paceline.profiler.plan import Plan
from paceline.profiler.schedule import Schedule
from paceline.types import World

SETTINGS = Schedule(
    wait=1,
    warmup=2,
    active=3,
    repeat=1,
    activities="auto",
    record_shapes=False,
    profile_memory=False,
    with_stack=False,
    with_flops=False,
    ranks=[0],
    max_trace_mb=100,
)


def run(directory: Path, layers: int, **changes: Any) -> tuple[Cycle, dict[str, Any], int]:
    """A cycle over a model of so many layers; what it wrote, and the steps that it took."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    world = World(0, 0, 0, 1, torch.device("cpu"))
    settings = replace(SETTINGS, **changes)
    cycle = Cycle(Plan(settings, world, directory, None, 7, False), model, model)
    cycle.start()
    last, steps = False, 0
    while not last:
        model(torch.randn(2, 4)).sum().backward()
        last, steps = cycle.tick(), steps + 1
    found = cycle.finish()
    assert found is not None
    return cycle, found, steps


@pytest.mark.parametrize("warmup", [1, 2, 3])
def test_the_steps_after_the_warm_up_are_recorded(tmp_path: Path, warmup: int) -> None:
    _, found, steps = run(tmp_path, 2, warmup=warmup)
    assert steps == warmup + 3
    assert found["steps"] == [7 + warmup, 8 + warmup, 9 + warmup]
    assert (tmp_path / found["trace"]).is_file()


def test_of_a_step_that_is_too_large_the_summary_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cycle, found, steps = run(tmp_path, 300, max_trace_mb=1)
    assert steps == 3, "two of warm-up and one recorded"
    assert found["trace"] is found["tensorboard"] is found["trace_bytes"] is None
    assert {p.name for p in (tmp_path / "trace").iterdir()} == {
        "rank0.summary.json",
        "rank0.operators.txt",
    }
    assert "more than profiler.max_trace_mb=1: it is not kept, its summary is" in cycle.problems[1]
    assert [f"WARNING {p}" for p in cycle.problems] == capsys.readouterr().out.splitlines()


def test_a_disk_that_takes_no_trace_leaves_the_summary(tmp_path: Path) -> None:
    (tmp_path / "trace/rank0.json.gz").mkdir(parents=True)  # nothing can replace a folder
    cycle, found, _ = run(tmp_path, 2)
    assert found["trace"] is None
    assert (tmp_path / found["summary"]).is_file()
    (problem,) = cycle.problems
    assert "the trace was not written" in problem
    assert not list((tmp_path / "trace").glob(".*"))


def test_a_folder_that_takes_no_links_costs_no_trace(tmp_path: Path) -> None:
    (tmp_path / "tb").write_text("in the way")
    cycle, found, _ = run(tmp_path, 2)
    assert (tmp_path / found["trace"]).is_file()
    assert found["tensorboard"] is None
    assert "no copy for TensorBoard in tb/" in cycle.problems[0]


def test_nothing_of_a_cycle_stays_in_memory(tmp_path: Path) -> None:
    # P51: a profiler's memory that grows until there is none
    cycle, _, _ = run(tmp_path, 2)
    events = weakref.ref(cycle._profile)
    del cycle
    gc.collect()
    assert events() is None
