"""Where the host's time goes, in traces without a device."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset

from paceline.diagnose.trace.analysis import analyse
from paceline.diagnose.trace.main_thread import PARTS
from paceline.diagnose.trace.reading import read
from tests.diagnose.trace.synthetic import OTHER, annotation, answered, event, operator, step

NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"

STEP = [
    step(1, 0, 1000),
    annotation(NEXT, 0, 100),
    operator("aten::stack", 50, 40),  # of the loader: input
    operator("aten::linear", 100, 200),
    operator("autograd::engine::evaluate_function: AddmmBackward0", 320, 300),
    operator("aten::mm", 330, 100),
    operator("c10d::allreduce_", 500, 20),  # inside of backward, yet communication
    annotation("gloo:all_reduce", 510, 200, OTHER),  # beside backward until 620
    annotation("Optimizer.step#AdamW.step", 800, 50),
    operator("aten::_foreach_add_", 810, 20),
]


def test_each_moment_counts_once(tmp_path: Path) -> None:
    parts = answered(tmp_path, STEP)["main_thread"]
    assert {name: parts[name] for name in PARTS} == {
        "compile_pct": 0,
        "input_pct": 10,
        "checkpoint_pct": 0,
        "optimizer_pct": 5,
        "backward_pct": 28,
        "forward_pct": 20,
        "communication_pct": 2 + 9,
        "python_pct": 26,
    }
    assert parts["wall_us"] == 1000


def test_each_step_has_its_own(tmp_path: Path) -> None:
    later = [{**e, "ts": e["ts"] + 1000} for e in STEP[1:4]]
    found = answered(tmp_path, [*STEP, step(2, 1000, 500), *later])
    first, second = found["steps"]["each"]
    assert first["main_thread"]["input_pct"] == 10
    assert second["main_thread"]["input_pct"] == 20
    assert (second["wait_us"], second["own_us"]) == (0, 500)
    assert (first["wait_us"], first["own_us"]) == (110, 890)


def test_saving_is_seen_by_its_stack(tmp_path: Path) -> None:
    save = event("python_function", "torch/serialization.py(950): save", 200, 300)
    parts = answered(tmp_path, [operator("aten::mm", 0, 100), save, operator("x", 900, 100)])
    assert parts["main_thread"]["checkpoint_pct"] == 30
    assert parts["main_thread"]["wall_us"] == 1000


def test_without_operators_what_is_computed_is_not_known(tmp_path: Path) -> None:
    events = [step(1, 0, 100), annotation("gloo:all_reduce", 10, 80, OTHER)]
    found = answered(tmp_path, events)
    parts = found["main_thread"]
    assert parts["communication_pct"] == 80
    for name in ("forward_pct", "backward_pct", "python_pct"):
        assert parts[name] is None
        assert "no operator of the main thread" in parts["reasons"][name]
    assert found["bound"] == "undetermined"
    assert found["steps"]["each"][0]["own_us"] is None


class Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.ones(8)


def trained(path: Path, batches: Any, width: int) -> dict[str, Any]:
    """A real trace of four steps on the CPU."""
    model = torch.nn.Linear(width, width)
    plan = torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as recorded:
        for batch in batches:
            model(batch).square().mean().backward()
            recorded.step()
    recorded.export_chrome_trace(str(path))
    return analyse(read(path))


def test_a_real_loader_that_sleeps_bounds_the_job_by_its_input(tmp_path: Path) -> None:
    found = trained(tmp_path / "t.json.gz", DataLoader(Slow(), batch_size=16), 8)
    assert found["bound"] == "input"
    assert found["share"] > 0.5
    assert found["idle_pct"] is None
    assert found["steps"]["numbers"] == [1, 2, 3]
    assert sum(found["main_thread"][name] for name in PARTS) == pytest.approx(100)


def test_a_real_model_of_large_matrices_is_bound_by_compute(tmp_path: Path) -> None:
    torch.manual_seed(0)
    found = trained(tmp_path / "t.json", torch.ones(4, 512, 768).unbind(), 768)
    assert found["bound"] == "compute"
    assert found["share"] > 0.5
    assert {"aten::mm", "aten::addmm"} <= {line["name"] for line in found["operators"]}
