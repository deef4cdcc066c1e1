"""Shares of the device's time, of traces whose answers are plain."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from paceline.diagnose.trace import device
from tests.diagnose.trace.synthetic import (
    answered,
    copy,
    event,
    kernel,
    launch,
    operator,
    step,
    talk,
)

EVENTS = [
    kernel("gemm", 0, 40),
    talk(30, 30),  # 10 beside gemm, 20 alone
    copy(50, 20),  # 10 beside the collective, 10 alone
    kernel("relu", 90, 10),  # after 20 idle
]


def test_shares_of_the_span(tmp_path: Path) -> None:
    found = answered(tmp_path, EVENTS)
    assert found["span_us"] == 100
    assert found["idle_pct"] == 20
    assert found["compute_pct"] == 50
    assert found["non_compute_pct"] == 30
    assert found["communication_pct"] == 30
    assert found["communication_only_pct"] == 20
    assert found["copy_pct"] == 20
    assert found["copy_only_pct"] == 10
    assert found["overlap_pct"] == pytest.approx(100 / 3)
    assert not found["reasons"].keys() & {"idle_pct", "compute_pct", "overlap_pct"}


def test_no_copy_at_all_is_a_real_zero_and_no_communication_has_no_overlap(tmp_path: Path) -> None:
    found = answered(tmp_path, [kernel("gemm", 0, 5), kernel("gemm", 5, 5)])
    assert found["copy_pct"] == 0
    assert found["communication_pct"] == 0
    assert found["idle_pct"] == 0
    assert found["overlap_pct"] is None
    assert found["reasons"] == {"overlap_pct": device.NO_COMMUNICATION}


def test_nothing_on_the_device_is_null_with_a_reason(tmp_path: Path) -> None:
    found = answered(tmp_path, [operator("aten::mm", 0, 5)])
    for part in (found, found["steps"]):
        assert {part[name] for name in ("span_us", *device.SHARES)} == {None}
        assert set(part["reasons"]) == {"span_us", *device.SHARES}
        assert set(part["reasons"].values()) == {device.NO_DEVICE}


def test_kernels_that_were_launched_but_not_recorded_are_said_to_be(tmp_path: Path) -> None:
    found = answered(tmp_path, [operator("aten::mm", 0, 50), launch(10, 5, 3)])
    assert found["idle_pct"] is None
    assert "it wasn't recorded" in found["reasons"]["idle_pct"]
    assert found["bound"] == "undetermined"


def test_activities_of_no_length_have_no_share(tmp_path: Path) -> None:
    found = answered(tmp_path, [kernel("gemm", 3, 0)])
    assert found["idle_pct"] is None
    assert found["reasons"]["idle_pct"] == device.NO_LENGTH


@pytest.mark.parametrize("name", ["ncclKernel_x", "rcclGenericKernel", "mscclKernel_Sum"])
def test_collectives_are_known_by_their_kernels_names(tmp_path: Path, name: str) -> None:
    found = answered(tmp_path, [kernel(name, 0, 10), kernel("gemm", 10, 30)])
    assert found["communication_pct"] == 25
    assert found["compute_pct"] == 75


def test_copies_that_rocm_runs_as_kernels_are_copies(tmp_path: Path) -> None:
    fill = "__amd_rocclr_fillBufferAligned"
    found = answered(tmp_path, [kernel(fill, 0, 10), kernel("gemm", 10, 30)])
    assert (found["copy_pct"], found["compute_pct"]) == (25, 75)


def test_categories_of_older_traces(tmp_path: Path) -> None:
    old = [event("Kernel", "gemm", 0, 30), event("Memcpy", "Memcpy", 30, 10)]
    found = answered(tmp_path, old)
    assert (found["compute_pct"], found["copy_only_pct"]) == (75, 25)


def test_idle_time_by_what_it_waited_for(tmp_path: Path) -> None:
    """The second launch returns 30 us into the first gap of 40; the third was launched long before
    its gap; nobody launched the last."""
    found = answered(
        tmp_path,
        [
            launch(0, 5, 1),
            kernel("a", 10, 10, 1),
            launch(45, 5, 2),
            kernel("b", 60, 10, 2),
            launch(51, 2, 3),
            kernel("c", 80, 10, 3),
            kernel("d", 100, 10),
        ],
    )
    assert found["idle_pct"] == 60
    assert found["launch_bound_pct"] == 30
    assert found["queued_pct"] == 10 + 10
    assert found["unlaunched_pct"] == 10


def test_without_any_launch_call_the_cause_of_idle_time_is_not_known(tmp_path: Path) -> None:
    found = answered(tmp_path, EVENTS)
    assert found["launch_bound_pct"] is None
    assert found["queued_pct"] is None
    assert found["unlaunched_pct"] == found["idle_pct"]
    assert "no launch call" in found["reasons"]["launch_bound_pct"]


def test_steps_hold_what_is_launched_inside_of_them(tmp_path: Path) -> None:
    events = [
        step(4, 100, 100),
        step(5, 200, 100),
        launch(50, 1, 1),
        kernel("before", 60, 30, 1),
        launch(150, 1, 2),
        kernel("a", 190, 20, 2),  # launched in step 4, runs into step 5
        launch(210, 1, 3),
        kernel("b", 230, 20, 3),
        kernel("nobody's", 400, 100),
    ]
    found = answered(tmp_path, events)
    steps = found["steps"]
    assert found["span_us"] == 440
    assert (steps["span_us"], steps["wall_us"]) == (60, 200)
    assert steps["idle_pct"] == pytest.approx(100 / 3)
    assert steps["numbers"] == [4, 5]
    assert [each["compute_pct"] for each in steps["each"]] == [100, 100]
    assert [each["span_us"] for each in steps["each"]] == [20, 20]


def test_without_steps_the_whole_trace_is_one(tmp_path: Path) -> None:
    found = answered(tmp_path, EVENTS)
    assert found["steps"]["numbers"] == []
    assert "no ProfilerStep" in found["steps"]["of"]
    assert all(found["steps"][name] == found[name] for name in device.SHARES)


def test_steps_that_launch_nothing_are_null(tmp_path: Path) -> None:
    found = answered(tmp_path, [step(1, 0, 10), kernel("a", 20, 5)])
    assert found["compute_pct"] == 100
    assert found["steps"]["idle_pct"] is None
    assert "no launch call" in found["steps"]["reasons"]["idle_pct"]


def test_two_devices_are_busy_when_any_is(tmp_path: Path) -> None:
    second = kernel("b", 5, 10) | {"pid": 1}
    found = answered(tmp_path, [kernel("a", 0, 10), second])
    assert found["compute_pct"] == 100
    assert found["notes"] == ["2 devices are in the trace; busy means that any of them is"]


def test_shares_add_up_against_moments_counted_one_by_one(tmp_path: Path) -> None:
    draw = random.Random(3)
    for _ in range(20):
        rows = [
            (draw.choice("kct"), draw.randrange(0, 200), draw.randrange(1, 30)) for _ in range(12)
        ]
        make = {"k": lambda s, d: kernel("gemm", s, d), "c": copy, "t": talk}
        found = answered(tmp_path, [make[kind](start, length) for kind, start, length in rows])
        sets = {
            kind: set(
                itertools.chain(*(range(s, s + n) for k, s, n in rows if k == kind)),
            )
            for kind in "kct"
        }
        busy = sets["k"] | sets["c"] | sets["t"]
        span = max(busy) + 1 - min(busy)
        assert found["idle_pct"] == pytest.approx(100 * (span - len(busy)) / span)
        assert found["compute_pct"] == pytest.approx(100 * len(sets["k"]) / span)
        alone = sets["t"] - sets["k"]
        assert found["communication_only_pct"] == pytest.approx(100 * len(alone) / span)
        copies = sets["c"] - sets["k"] - sets["t"]
        assert found["copy_only_pct"] == pytest.approx(100 * len(copies) / span)
        parts = ("idle_pct", "compute_pct", "communication_only_pct", "copy_only_pct")
        assert sum(found[part] for part in parts) == pytest.approx(100)
