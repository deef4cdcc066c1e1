"""A rank that works longer than the others, told by figures worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.diagnose.bound import diagnosis
from paceline.diagnose.straggler import straggler
from paceline.record.schema import empty_record

STRETCHES = 10

CONFIG: dict[str, Any] = {"data": {}, "optimizer": {}, "compile": {}}


def record(own: list[list[float]] | None, step_s: float = 0.1, **phases: float) -> dict[str, Any]:
    made = empty_record()
    made["throughput"]["steps_measured"] = 100
    made["effective"] = {"world_size": 2}
    made["ledger"] |= {
        "steady_wall_s": 100 * step_s,
        "steady_phases_s": {"data_wait": 0.0, "to_device": 0.0, "forward": 1.0, "backward": 1.0,
                            "optimizer": 0.0, "other": 0.0, "checkpoint": 0.0} | phases,
        "own_step_s": own,
        "slowest_rank": 0,
    }  # fmt: skip
    return made


def even(seconds: float) -> list[float]:
    return [seconds] * STRETCHES


def test_the_rank_is_named_with_both_figures() -> None:
    found = straggler(record([even(0.04), even(0.09), even(0.042), even(0.03)]))
    assert found is not None
    assert (found["bound"], found["rank"]) == ("straggler", 1)
    assert found["share"] == pytest.approx((0.09 - 0.04) / 0.1)
    assert "rank 1 works 90 ms a step, the median of the others 40 ms" in found["evidence"][0]


@pytest.mark.parametrize(("excess", "named"), [(0.0101, True), (0.0099, False)])
def test_a_tenth_of_a_step_is_the_bound(excess: float, named: bool) -> None:
    assert (straggler(record([even(0.04), even(0.04 + excess)])) is not None) == named


def test_a_few_long_pauses_make_no_straggler() -> None:
    paused = [0.04] * (STRETCHES - 3) + [0.4] * 3
    assert straggler(record([even(0.04), paused])) is None


def test_a_handful_of_steps_say_nothing() -> None:
    assert straggler(record([[0.04] * 3, [0.09] * 3])) is None


@pytest.mark.parametrize("own", [None, [even(0.04), even(0.04)]])
def test_no_straggler(own: list[list[float]] | None) -> None:
    assert straggler(record(own)) is None


def two_ranks(late_s: float, comm_s: float) -> dict[str, Any]:
    """100 steps of 0.1 s, in which rank 1 stands still for `late_s` in its forward."""
    made = record([even(0.04), even(0.04 + late_s)], comm=100 * comm_s)
    work = made["ledger"]["steady_phases_s"] | {"forward": 100 * (0.08 - comm_s)}
    mine = work | {"forward": work["forward"] - 100 * late_s}
    return made | {"ledger": made["ledger"] | {"per_rank": [mine, work], "steady_phases_s": work}}


def test_what_it_works_longer_is_no_other_bound() -> None:
    found = diagnosis(two_ranks(0.05, 0.01), CONFIG, {})
    assert (found["bound"], found["rank"]) == ("straggler", 1)
    assert found["shares"]["straggler"] == pytest.approx(0.5)
    assert found["shares"]["compute"] == pytest.approx(0.3)
    assert found["evidence"][0].startswith("rank 1 works ")


def test_what_takes_longer_comes_before_it() -> None:
    found = diagnosis(two_ranks(0.02, 0.06), CONFIG, {})
    assert (found["bound"], found["rank"]) == ("communication", 0)
    assert found["evidence"][0].startswith("rank 1 works ")  # it is said all the same


@pytest.mark.parametrize(
    ("phases", "bound"),
    [
        ({"comm": 6.0}, "communication"),
        ({"comm": 4.0, "backward": 5.0}, "compute"),
        ({"backward": 8.0}, "undetermined"),
        ({"data_wait": 8.0}, "input"),
    ],
)
def test_communication_is_a_bound_where_it_is_known(phases: dict[str, float], bound: str) -> None:
    found = diagnosis(record(None, **phases), CONFIG, {})
    assert found["bound"] == bound
    told_apart = not any("isn't told apart" in text for text in found["evidence"])
    assert told_apart == ("comm" in phases)
