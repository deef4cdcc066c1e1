"""Operators, waits for the device and what the host did meanwhile; torch's own profiler agrees."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from paceline.diagnose.trace.analysis import analyse
from paceline.diagnose.trace.columns import OPERATOR
from paceline.diagnose.trace.host import SYNC_CALLS, operators
from paceline.diagnose.trace.reading import read
from tests.diagnose.trace.synthetic import (
    OTHER,
    annotation,
    answered,
    kernel,
    launch,
    operator,
    traced,
)


def test_self_time_is_without_what_ran_inside(tmp_path: Path) -> None:
    found = answered(
        tmp_path,
        [
            operator("aten::linear", 0, 100),
            operator("aten::addmm", 10, 50),
            operator("aten::empty", 10, 5),  # begins with its caller
            operator("aten::copy_", 50, 10),  # ends with its caller
            operator("aten::linear", 100, 10),  # begins as the other ends
            operator("aten::addmm", 5, 20, OTHER),  # on a thread of its own
        ],
    )
    own = {line["name"]: line["self_us"] for line in found["operators"]}
    assert own == {"aten::linear": 60, "aten::addmm": 55, "aten::copy_": 10, "aten::empty": 5}
    assert {line["name"]: line["count"] for line in found["operators"]}["aten::linear"] == 2
    assert sum(line["share_pct"] for line in found["operators"]) == pytest.approx(100)


def test_self_times_agree_with_torchs_own(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(5):
            with record_function("forward"):
                loss = model(torch.ones(8, 32)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    path = tmp_path / "t.json"
    recorded.export_chrome_trace(str(path))
    trace = read(path)
    _, nest = operators(trace, trace.host)
    own = nest.own_ns(trace) / 1000
    mine: dict[str, float] = {}
    for row, us in zip(nest.rows.tolist(), own.tolist(), strict=True):
        if trace.kind[row] == OPERATOR:
            mine[trace.text(row)] = mine.get(trace.text(row), 0.0) + us
    theirs = {line.key: line for line in recorded.key_averages() if not line.is_user_annotation}
    assert len(mine) > 10
    for name, us in mine.items():
        # torch rounds each call; 'forward' and the optimizer's own record_function may be counted
        line = theirs[name]
        assert us == pytest.approx(line.self_cpu_time_total, abs=0.01 * line.count + 0.01), name


CALLS = {
    "cudaDeviceSynchronize": True,
    "cudaStreamSynchronize": True,
    "cudaEventSynchronize": True,
    "cudaMemcpy": True,
    "hipDeviceSynchronize": True,
    "hipStreamSynchronize": True,
    "hipMemcpyWithStream": True,
    "cudaMemcpyAsync": False,
    "cudaLaunchKernel": False,
    "cudaEventQuery": False,
    "cudaStreamIsCapturing": False,
}


@pytest.mark.parametrize(("call", "waits"), CALLS.items())
def test_calls_that_wait(call: str, waits: bool) -> None:
    assert bool(SYNC_CALLS.search(call)) == waits


def test_synchronising_calls_are_counted_where_they_are_made(tmp_path: Path) -> None:
    found = answered(
        tmp_path,
        [
            annotation("metrics", 0, 100),
            operator("aten::item", 10, 30),
            operator("aten::_local_scalar_dense", 12, 26),
            launch(15, 20, 0, "cudaStreamSynchronize"),
            operator("aten::item", 60, 30),
            operator("aten::_local_scalar_dense", 62, 26),
            launch(65, 10, 0, "cudaStreamSynchronize"),
            launch(200, 7, 0, "cudaDeviceSynchronize"),
            launch(210, 50, 1),
        ],
    )["syncs"]
    assert (found["count"], found["total_us"]) == (3, 37)
    first, second = found["calls"]
    assert first == {
        "call": "cudaStreamSynchronize",
        "where": "aten::_local_scalar_dense",
        "within": "metrics",
        "count": 2,
        "total_us": 30,
    }
    assert (second["call"], second["where"], second["within"]) == (
        "cudaDeviceSynchronize",
        None,
        None,
    )
    assert {line["name"]: line["count"] for line in found["operators"]} == {
        "aten::item": 2,
        "aten::_local_scalar_dense": 2,
    }


def test_without_calls_of_a_runtime_synchronising_is_not_known(tmp_path: Path) -> None:
    found = answered(tmp_path, [operator("aten::item", 10, 30)])["syncs"]
    assert found["count"] is None
    assert found["reasons"]["count"] == "the trace has no calls of a device's runtime"
    assert found["operators"][0]["count"] == 1


def test_idle_stretches_and_what_the_host_did(tmp_path: Path) -> None:
    found = answered(
        tmp_path,
        [
            annotation("## forward ##", 0, 120),
            operator("aten::unflatten", 12, 60),
            operator("aten::empty", 15, 3),
            launch(80, 5, 1),
            kernel("a", 0, 10),
            kernel("b", 90, 10, 1),
            kernel("c", 130, 10),
            launch(101, 1, 2),
            kernel("d", 150, 10, 2),
        ],
    )["idle_stretches"]
    assert [(line["start_us"], line["duration_us"]) for line in found] == [
        (10, 80),
        (100, 30),
        (140, 10),
    ]
    assert [line["cause"] for line in found] == ["launch_bound", "unlaunched", "queued"]
    assert found[0]["host"] == {"name": "aten::unflatten", "kind": "operator", "covers_pct": 75}
    assert found[1]["host"]["name"] == "## forward ##"
    assert found[2]["host"] is None


def test_compiling_is_seen_where_torch_annotates_it(tmp_path: Path) -> None:
    found = answered(
        tmp_path,
        [
            operator("_compile.compile_inner (dynamo_timed)", 0, 100),
            operator("inductor_compile (dynamo_timed)", 20, 50),
            operator("_compile.compile_inner (dynamo_timed)", 200, 50),
            operator("Torch-Compiled Region: 0/0", 300, 20),
            operator("CompiledFunction", 305, 10),
        ],
    )["compile"]
    assert (found["compiles"], found["compile_us"]) == (2, 150)
    assert found["region_us"] == 20
    assert found["regions"] == ["CompiledFunction", "Torch-Compiled Region: 0/0"]
    silent = answered(tmp_path, [operator("aten::mm", 0, 5)])["compile"]
    assert (silent["region_calls"], silent["compiles"]) == (0, None)
    assert silent["reasons"]["compiles"]


def test_a_deep_stack_and_a_thousand_calls_in_a_row(tmp_path: Path) -> None:
    """The parent is the innermost that still runs, however many were before."""
    deep = [operator(f"level{i}", i, 1000 - 2 * i) for i in range(200)]
    row = [operator("aten::leaf", 300 + i * 0.1, 0.05) for i in range(1000)]
    trace = traced(tmp_path, [*deep, *row])
    _, nest = operators(trace, trace.host)
    names = [trace.text(r) for r in nest.rows.tolist()]
    parents = [names[p] if p >= 0 else None for p in nest.parent.tolist()]
    held = dict(zip(names, parents, strict=True))
    assert held["level0"] is None
    assert all(held[f"level{i}"] == f"level{i - 1}" for i in range(1, 200))
    assert {p for n, p in zip(names, parents, strict=True) if n == "aten::leaf"} == {"level199"}
    assert analyse(trace)["operators"][0]["name"] == "level199"
