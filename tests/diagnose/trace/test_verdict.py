"""What bounds a job: each word of the record, from a trace made for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.trace.synthetic import (
    annotation,
    answered,
    event,
    kernel,
    launch,
    operator,
    talk,
)

NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def late(*host: dict[str, Any]) -> list[dict[str, Any]]:
    """Two kernels of 10 us with 180 between, for which the host comes late."""
    calls = [launch(0, 2, 1), launch(185, 3, 2)]
    return [*calls, kernel("a", 0, 10, 1), kernel("b", 190, 10, 2), *host]


DEVICE: dict[str, tuple[list[dict[str, Any]], float]] = {
    "compute": ([kernel("a", 0, 60), talk(60, 40)], 0.6),
    "communication": ([kernel("a", 0, 40), talk(30, 70)], 0.6),
    "host": (late(operator("aten::mm", 20, 150)), 0.89),
    "input": (late(annotation(NEXT, 20, 150)), 0.75),
    "recompile": (late(operator("compile_inner (dynamo_timed)", 20, 150)), 0.75),
}


@pytest.mark.parametrize("word", DEVICE)
def test_of_a_device(word: str, tmp_path: Path) -> None:
    events, share = DEVICE[word]
    found = answered(tmp_path, events)
    assert found["bound"] == word
    assert found["share"] == pytest.approx(share)
    assert len(found["evidence"]) == 2


def test_idle_time_that_is_queued_bounds_nothing_we_can_name(tmp_path: Path) -> None:
    events = [launch(0, 2, 1), launch(3, 2, 2), kernel("a", 0, 10, 1), kernel("b", 190, 10, 2)]
    found = answered(tmp_path, events)
    assert (found["bound"], found["share"]) == ("undetermined", None)
    assert "launched, not begun 90.0 %" in found["evidence"][1]


def test_no_half_no_verdict(tmp_path: Path) -> None:
    """40 % compute, 40 % communication, 20 % idle."""
    events = [kernel("a", 0, 40), talk(40, 40), kernel("b", 100, 0.001)]
    assert answered(tmp_path, events)["bound"] == "undetermined"


def test_idle_for_half_and_late_for_half_of_that(tmp_path: Path) -> None:
    """30 % compute, 60 % idle: 40 % late, 20 % queued."""
    events = [
        launch(0, 1, 1),
        kernel("a", 0, 20, 1),
        launch(55, 5, 2),
        kernel("b", 60, 10, 2),
        launch(65, 1, 3),
        talk(90, 10, 3),
    ]
    found = answered(tmp_path, events)
    assert (found["bound"], found["share"]) == ("host", pytest.approx(0.4))


HOST: dict[str, list[dict[str, Any]]] = {
    "input": [annotation(NEXT, 0, 60), operator("aten::mm", 60, 40)],
    "compute": [operator("aten::mm", 0, 60), operator("aten::mm", 90, 10)],
    "communication": [operator("aten::mm", 0, 20), operator("c10d::barrier", 20, 80)],
    "host": [operator("aten::mm", 0, 5), operator("aten::mm", 95, 5)],
    "recompile": [operator("compile_inner (dynamo_timed)", 0, 60), operator("aten::mm", 60, 40)],
    "checkpoint": [
        event("python_function", "torch/serialization.py(950): save", 0, 60),
        operator("aten::mm", 60, 40),
    ],
    "undetermined": [annotation(NEXT, 0, 40), operator("aten::mm", 40, 40), operator("x", 99, 1)],
}


@pytest.mark.parametrize("word", HOST)
def test_of_a_host_alone(word: str, tmp_path: Path) -> None:
    found = answered(tmp_path, HOST[word])
    assert found["bound"] == word
    assert (found["share"] is None) == (word == "undetermined")


def test_launches_without_a_device_say_nothing_of_compute(tmp_path: Path) -> None:
    """Operators that only launch: what the device did isn't in the trace."""
    found = answered(tmp_path, [operator("aten::mm", 0, 100), launch(50, 5, 1)])
    assert found["bound"] == "undetermined"
    assert "kernels are launched" in found["evidence"][1]
    waits = answered(
        tmp_path, [annotation(NEXT, 0, 90), operator("aten::mm", 90, 10), launch(91, 5, 1)]
    )
    assert waits["bound"] == "input"
